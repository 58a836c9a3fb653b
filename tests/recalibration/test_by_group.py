"""Repair of groups: better than none and than each by itself, robust, saved and loaded, refused."""

import json
import math

import pytest
import torch
from torch.distributions import Gamma, Independent, Laplace, LogNormal, MultivariateNormal, Normal, StudentT
from torch.testing import assert_close

import fcal
from fcal.recalibration import Affine, ByGroup, Conformal, Isotonic, ScaleAndShape, Temperature, choose, load

SIZES = (20, 20, 30, 50, 100, 200, 500, 1000, 5000)
FRESH = 4000  # rows of each group


def grouped(seed, *, spread=0.15, repeat=3):
    """Normal errors of groups of 20 to 5,000 rows, whose factors differ; and fresh rows of each group."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor(SIZES * repeat)
    factor = torch.exp(spread * torch.randn(len(sizes), generator=generator, dtype=torch.float64))
    group = torch.arange(len(sizes)).repeat_interleave(sizes)
    fresh = torch.arange(len(sizes)).repeat_interleave(FRESH)
    targets = [factor[g] * torch.randn(len(g), generator=generator, dtype=torch.float64) for g in (group, fresh)]
    return (group, targets[0]), (fresh, targets[1]), factor


def unit(count):
    return Normal(torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64))


def each_by_itself(group, target, fresh):
    """Temperature of every group alone, without shrinkage."""
    own = torch.stack([target[group == g].square().mean().sqrt() for g in range(int(group.max()) + 1)])
    return Normal(torch.zeros(len(fresh), dtype=torch.float64), own[fresh])


def coverage_error(pred, target, group):
    """Mean distance of the coverage of 90 % intervals of groups from 90 %."""
    inside = fcal.standardize(pred, target).abs() <= 1.6448536269514722
    return torch.stack([(inside[group == g].double().mean() - 0.9).abs() for g in group.unique()]).mean().item()


def test_shrunk_groups_beat_no_groups_and_groups_by_themselves():
    # ten data sets of 27 groups; the mean over groups counts, each with as many fresh rows
    rows = []
    for seed in range(10):
        (group, target), (fresh, y), _ = grouped(seed)
        shrunk = ByGroup(Temperature()).fit(unit(len(group)), target, group=group)
        preds = (
            shrunk.transform(unit(len(fresh)), group=fresh),
            Temperature().fit(unit(len(group)), target).transform(unit(len(fresh))),
            each_by_itself(group, target, fresh),
        )
        rows.append(
            [[s(p, y).mean().item() for s in (fcal.nll, fcal.crps)] + [coverage_error(p, y, fresh)] for p in preds]
        )
    ours, whole, alone = torch.tensor(rows).mean(0)
    assert (ours < whole).all(), (ours, whole)
    assert (ours < alone).all(), (ours, alone)
    assert sum(row[0][0] < min(row[1][0], row[2][0]) for row in rows) >= 9  # NLL, in nearly every data set


def test_weights_follow_the_size_of_groups_and_equal_groups_are_not_told_apart():
    (group, target), _, _ = grouped(0, spread=0.3)
    own = ByGroup(Temperature()).fit(unit(len(group)), target, group=group).by_name()
    assert own["0"]["weight"] < own["3"]["weight"] < own["8"]["weight"]
    assert own["8"]["weight"] > 0.99
    # the variance of log factors is 0.09, their noise about 1 / 40 for 20 rows
    assert own["0"]["weight"] == pytest.approx(0.09 / (0.09 + 1 / 40), abs=0.12)
    (group, target), _, _ = grouped(1, spread=0.0)
    same = ByGroup(Temperature()).fit(unit(len(group)), target, group=group).by_name()
    factors = torch.tensor([entry["factor"] for entry in same.values()])
    assert float(factors.std()) < 0.02


def test_large_groups_have_the_factor_of_temperature():
    generator = torch.Generator().manual_seed(0)
    factor = torch.tensor([0.5, 3.0], dtype=torch.float64).repeat_interleave(20_000)
    group = torch.arange(2).repeat_interleave(20_000)
    target = factor * torch.randn(40_000, generator=generator, dtype=torch.float64)
    repair = ByGroup(Temperature()).fit(unit(40_000), target, group=group)
    repaired = repair.transform(unit(2), group=torch.tensor([0, 1]))
    expected = [float(target[group == g].square().mean().sqrt()) for g in (0, 1)]
    assert_close(repaired.stddev, torch.tensor(expected, dtype=torch.float64), rtol=5e-3, atol=0)


@pytest.mark.parametrize("size", [100.0, 1e6])
@pytest.mark.parametrize("method", [Temperature, ScaleAndShape, Conformal])
def test_one_spoilt_row_in_a_thousand_hardly_moves_coverage(method, size):
    (group, target), (fresh, y), _ = grouped(0)
    clean = ByGroup(method()).fit(unit(len(group)), target, group=group)
    spoilt = target.clone()
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(1))[: len(target) // 1000]
    spoilt[order] = size * torch.randn(len(order), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    repair = ByGroup(method()).fit(unit(len(group)), spoilt, group=group)
    for level in (0.5, 0.9, 0.95):
        edge = Normal(0.0, 1.0).icdf(torch.tensor(0.5 + level / 2))
        shares = [
            (fcal.standardize(r.transform(unit(len(fresh)), group=fresh), y).abs() <= edge).double().mean()
            for r in (clean, repair)
        ]
        assert abs(float(shares[1] - shares[0])) <= 0.003
    assert repair.wild is not None


def test_a_wild_row_does_not_ruin_a_group_of_twenty():
    (group, target), _, _ = grouped(0)
    clean = ByGroup(Temperature()).fit(unit(len(group)), target, group=group).by_name()["0"]["factor"]
    target[0] = 1e6
    spoilt = ByGroup(Temperature()).fit(unit(len(group)), target, group=group)
    assert spoilt.by_name()["0"]["factor"] == pytest.approx(clean, rel=0.03)
    assert spoilt.wild.count == 1


def test_a_group_with_large_errors_is_not_wild():
    # one in two hundred rows, with errors 40 times as large: the rows of a group, not of a broken sensor
    generator = torch.Generator().manual_seed(0)
    group = (torch.arange(20_000) >= 19_900).long()
    target = torch.where(group == 1, 40.0, 1.0) * torch.randn(20_000, generator=generator, dtype=torch.float64)
    repair = ByGroup(Temperature()).fit(unit(20_000), target, group=group)
    assert repair.wild is None
    assert repair.by_name()["1"]["factor"] == pytest.approx(40, rel=0.2)


def test_unseen_groups_get_the_repair_of_all_rows_and_are_counted():
    (group, target), _, _ = grouped(0)
    repair = ByGroup(Temperature()).fit(unit(len(group)), target, group=group)
    with pytest.warns(UserWarning, match="1 of 3 rows are of groups that were not there at fit"):
        repaired = repair.transform(unit(3), group=["0", "1", "elsewhere"])
    whole = Temperature().fit(unit(len(group)), target).transform(unit(1))
    assert_close(repaired.stddev[2:], whole.stddev, rtol=0.02, atol=0)


def test_biases_of_groups_are_repaired_by_methods_that_move():
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(3000) % 3
    target = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)[group]
    target = target + 0.5 * torch.randn(3000, generator=generator, dtype=torch.float64)
    pred, fresh = unit(3000), unit(3)
    moved = ByGroup(Affine()).fit(pred, target, group=group).transform(fresh, group=torch.arange(3))
    assert_close(moved.mean, torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64), atol=0.06, rtol=0)
    assert_close(moved.stddev, torch.full((3,), 0.5, dtype=torch.float64), atol=0.03, rtol=0)
    kept = ByGroup(Temperature()).fit(pred, target, group=group).transform(fresh, group=torch.arange(3))
    assert_close(kept.mean, torch.zeros(3, dtype=torch.float64))
    chosen = choose(pred, target, group=group)
    assert_close(chosen.recalibrator.transform(fresh, group=torch.arange(3)).mean, moved.mean, atol=0.02, rtol=0)


def test_the_choice_of_a_method_is_made_on_repaired_groups():
    # normal errors whose scale differs by group are heavy-tailed together: no shape is to be repaired in a group
    (group, target), _, _ = grouped(0, spread=0.8)
    choice = choose(unit(len(group)), target, group=group)
    assert isinstance(choice.recalibrator, ByGroup)
    assert choice.candidates
    together = ScaleAndShape().fit(unit(len(group)), target)
    assert together.weight == 1
    assert choice.recalibrator.recalibrator.weight < 0.6


FAMILIES = {
    "laplace": lambda n: Laplace(torch.zeros(n).double(), torch.ones(n).double()),
    "student-t": lambda n: StudentT(5.0, torch.zeros(n).double(), torch.ones(n).double()),
    "normal": unit,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_factors_of_families_are_recovered(name):
    # 20,000 rows know a factor to about 1 %
    torch.manual_seed(0)
    factor = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    group = torch.arange(60_000) % 3
    pred = FAMILIES[name](60_000)
    repair = ByGroup(Temperature()).fit(pred, factor[group] * pred.sample(), group=group)
    repaired = repair.transform(FAMILIES[name](3), group=torch.arange(3))
    assert type(repaired) is type(pred) or isinstance(repaired, type(pred))
    assert_close(repaired.scale, factor, rtol=0.04, atol=0)


@pytest.mark.parametrize(
    "pred",
    [
        Gamma(torch.full((400,), 3.0), torch.ones(400)),
        LogNormal(torch.zeros(400), torch.ones(400)),
        Independent(Normal(torch.zeros(400, 2), torch.ones(400, 2)), 1),
        MultivariateNormal(torch.zeros(400, 2), torch.eye(2).expand(400, 2, 2)),
    ],
    ids=["gamma", "log-normal", "outputs", "vectors"],
)
def test_every_kind_of_prediction_is_repaired_and_saved(pred, tmp_path):
    torch.manual_seed(0)
    group = torch.arange(400) % 4
    repair = ByGroup(Temperature()).fit(pred, pred.sample(), group=group)
    repaired = repair.transform(pred, group=group)
    assert repaired.batch_shape + repaired.event_shape == pred.batch_shape + pred.event_shape
    assert repaired.fitted_on == repair.fitted_on
    repair.save(tmp_path)
    again = load(tmp_path)
    assert isinstance(again, ByGroup)
    assert again.groups == repair.groups
    assert_close(again.transform(pred, group=group).mean, repaired.mean)
    assert again.by_name() == repair.by_name()


@pytest.mark.parametrize("method", [Temperature, Affine, Isotonic, ScaleAndShape])
def test_saved_methods_are_the_same(method, tmp_path):
    (group, target), _, _ = grouped(0, repeat=1)
    repair = ByGroup(method()).fit(unit(len(group)), target, group=group)
    repair.save(tmp_path)
    again, y = load(tmp_path), torch.tensor([0.3, -2.0], dtype=torch.float64)
    for r in (again, ByGroup.load(tmp_path)):
        assert_close(
            fcal.standardize(r.transform(unit(2), group=["0", "8"]), y),
            fcal.standardize(repair.transform(unit(2), group=["0", "8"]), y),
        )
    assert again.keeps_family == repair.keeps_family
    assert repr(again) == repr(repair)
    document = json.loads((tmp_path / "recalibrator.json").read_text())
    assert document["options"]["recalibrator"]["method"] == method.method


def test_missing_targets_empty_groups_and_equal_errors_do_no_harm():
    group = ["a"] * 100 + ["gone"] * 5 + ["exact"] * 5 + ["single"]
    target = torch.randn(111, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target[100:105] = math.nan
    target[105:110] = 0.0
    repair = ByGroup(Temperature()).fit(unit(111), target, group=group)
    factors = torch.tensor([entry["factor"] for entry in repair.by_name().values()])
    assert bool(factors.isfinite().all() & (factors > 0.01).all())
    assert bool((repair.transform(unit(4), group=["a", "gone", "exact", "single"]).stddev > 0).all())


def test_bad_input_is_refused():
    pred, target = unit(20), torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.raises(TypeError, match="expected `group`, the group of each row, got None"):
        ByGroup(Temperature()).fit(pred, target)
    with pytest.raises(TypeError, match="expected `recalibrator` a method such as Temperature"):
        ByGroup(Temperature)
    with pytest.raises(ValueError, match="without per_output"):
        ByGroup(Temperature(per_output=True))
    with pytest.raises(ValueError, match="expected `group` of shape"):
        ByGroup(Temperature()).fit(pred, target, group=torch.arange(7))
    with pytest.raises(ValueError, match="to be fitted before this"):
        ByGroup(Temperature()).transform(pred, group=torch.arange(20))
    repair = ByGroup(Temperature()).fit(pred, target, group=torch.arange(20) % 2)
    with pytest.raises(ValueError, match="expected `group` of shape"):
        repair.transform(pred, group=torch.arange(2))
    with pytest.raises(ValueError, match="of the family at fit, Normal, got Laplace"):
        repair.transform(FAMILIES["laplace"](20), group=torch.arange(20) % 2)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("method", [Temperature, Affine, Isotonic, Conformal, ScaleAndShape])
def test_groups_of_a_few_rows_get_the_repair_of_all(method, size):
    """Coverage of 90 % intervals of 3,000 new rows: known to 0.006, the fit of 600 rows to 0.02."""
    generator = torch.Generator().manual_seed(0)
    fitted, new = (1.3 * torch.randn(rows, generator=generator) for rows in (600, 3000))
    repair = ByGroup(method()).fit(Normal(torch.zeros(600), 1.0), fitted, group=torch.arange(600) // size)
    pred = repair.transform(Normal(torch.zeros(3000), 1.0), group=torch.arange(3000) % (600 // size))
    inside = (fcal.standardize(pred, new).abs() < 1.6449).double().mean().item()
    assert inside == pytest.approx(0.9, abs=0.03)
