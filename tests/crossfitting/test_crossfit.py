"""Cross-fitting: held-out predictions are those of models that have not seen the row; the mean stays."""

import threading
from functools import partial

import pytest
import torch
from crossfitting.lines import Line, fit_line, full_crossfit, noisy_line
from torch.distributions import Normal
from torch.utils.data import TensorDataset

import fcal
from fcal._datasets import get_batch
from fcal.crossfitting import levelled, recentred

ONE_LINE = fit_line(noisy_line())


@pytest.fixture
def found():
    return full_crossfit(fit_line, noisy_line(), folds=5, correct=False)


def test_held_out_residuals_of_single_rows_are_those_of_least_squares():
    data = noisy_line()
    x, y = data.tensors
    design = torch.cat([x, torch.ones_like(x)], dim=1)
    hat = design @ torch.linalg.pinv(design)
    leave_one_out = (y - hat @ y) / (1 - hat.diagonal().unsqueeze(1))  # the identity of Allen's PRESS
    found = full_crossfit(fit_line, data, folds=len(data))
    torch.testing.assert_close(y - found.held_out.mean, leave_one_out, rtol=1e-9, atol=1e-12)


def test_held_out_rows_keep_their_order(found):
    x, _ = found.dataset.tensors
    for number, model in enumerate(found.without):
        rows = found.fold == number
        torch.testing.assert_close(found.held_out.mean[rows], model(x[rows]).mean)
        torch.testing.assert_close(found.held_out.stddev[rows], model(x[rows]).stddev)


def test_calibrated_mean_is_exactly_the_full_model(found):
    x = torch.linspace(-3, 3, 50, dtype=torch.float64).unsqueeze(1)
    full = fit_line(found.dataset)
    assert torch.equal(found.calibrated()(x).mean, full(x).mean)


def test_calibrated_factor_is_the_rms_of_levelled_residuals(found):
    x, y = found.dataset.tensors
    z = (y - found.held_out.mean) / found.full(x).stddev  # one sigma for all: levelled is the full model's
    torch.testing.assert_close(
        found.calibrated("temperature")(x).stddev[0] / found.full(x).stddev[0], z.square().mean().sqrt()[None]
    )


def test_levelled_scales_have_the_log_mean_of_the_full_ones_in_each_fold():
    generator = torch.Generator().manual_seed(3)
    held_out, full = (Normal(torch.zeros(40, 2), torch.rand(40, 2, generator=generator) + 0.1) for _ in range(2))
    fold = torch.arange(40) % 4
    scale = levelled(held_out, full, fold).scale
    for number in range(4):
        torch.testing.assert_close(scale[fold == number].log().mean(), full.scale[fold == number].log().mean())
    ratio = scale / held_out.scale
    torch.testing.assert_close(ratio[fold == 1], ratio[fold == 1][0, 0].expand(10, 2))


@pytest.mark.parametrize("repair", ["affine", "isotonic", "conformal", fcal.recalibration.Temperature()])
def test_calibrated_by_any_repair(found, repair):
    x, y = found.dataset.tensors
    assert fcal.nll(found.calibrated(repair)(x), y).isfinite().all()


def test_crossfit_corrects_overfitting_of_a_wide_model():
    """60 % of 40 weights of pure noise: in-sample sigma is far too small; truth within 3 standard errors, 0.3 %."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2000, 40, dtype=torch.float64, generator=generator)
    y = torch.randn(2000, 1, dtype=torch.float64, generator=generator)

    def fit(rows):
        here = torch.tensor(rows.indices)
        weights = torch.linalg.lstsq(x[here], y[here]).solution
        sigma = (y[here] - x[here] @ weights).square().mean().sqrt()
        return lambda given: Normal(given @ weights, sigma.expand(len(given), 1))

    train = torch.utils.data.Subset(TensorDataset(x, y), range(100))
    found = full_crossfit(lambda part: fit(torch.utils.data.Subset(part, part.indices)), train, folds=10)
    z = fcal.standardize(found.full(x[100:]), y[100:])
    repaired = fcal.standardize(found.calibrated()(x[100:]), y[100:])
    assert z.square().mean() > 2
    assert 0.7 < repaired.square().mean() < 1.2


def test_crossfit_in_processes_is_the_same(found):
    apart = full_crossfit(fit_line, noisy_line(), folds=5, workers=2)
    assert torch.equal(apart.held_out.mean, found.held_out.mean)


def test_with_scales_keeps_means_and_fits_to_held_out_errors(found):
    def fit_scales(rows, start):
        batch = get_batch(rows, list(range(len(rows))))
        start.sigma.data = (batch["target"] - batch["center"]).square().mean().sqrt()
        return start

    x, y = found.dataset.tensors
    scaled = found.with_scales(fit_scales)
    assert torch.equal(scaled.full(x).mean, found.full(x).mean)
    assert torch.equal(scaled.held_out.mean, found.held_out.mean)
    errors = y - found.held_out.mean
    torch.testing.assert_close(scaled.full(x).stddev[0, 0], errors.square().mean().sqrt())
    for number in range(5):
        others = found.fold != number
        expected = errors[others].square().mean().sqrt()
        torch.testing.assert_close(scaled.held_out.stddev[~others].unique(), expected[None])
    assert found.full.sigma != scaled.full.scales.sigma  # copies were trained


def test_with_scales_shared_by_all_folds_trains_once(found):
    calls = []

    def fit_scales(rows, start):
        calls.append(len(rows))
        start.sigma.data = torch.tensor(7.0, dtype=torch.float64)
        return start

    scaled = found.with_scales(fit_scales, nested=False)
    assert calls == [30]
    assert torch.equal(scaled.held_out.mean, found.held_out.mean)
    assert scaled.held_out.stddev.unique().tolist() == [7.0]


def test_fit_gets_what_it_names():
    """Rows of the fold for the fold's model, then all those models for that of all rows."""
    seen = []

    def fit(rows, held_out, fold_models):
        seen.append((len(rows), None if held_out is None else len(held_out), len(fold_models)))
        return fit_line(rows)

    found = full_crossfit(fit, noisy_line(), folds=3)
    assert seen == [(20, 10, 0)] * 3 + [(30, None, 3)]
    assert torch.equal(found.held_out.mean, full_crossfit(fit_line, noisy_line(), folds=3).held_out.mean)


def test_held_out_rows_and_rows_of_a_fold_are_all_rows_once():
    parts = []

    def fit(rows, held_out):
        parts.append((set(rows.indices), set() if held_out is None else set(held_out.indices)))
        return fit_line(rows)

    full_crossfit(fit, noisy_line(), folds=4)
    assert all(rows | held == set(range(30)) and not rows & held for rows, held in parts)
    assert sorted(i for _, held in parts for i in held) == list(range(30))


def test_predictions_carry_no_graph(found):
    assert not found.held_out.stddev.requires_grad
    assert not found.seen.stddev.requires_grad


def test_recentred_refuses_a_family_without_location():
    with pytest.raises(ValueError, match="expected `pred` of a family with a location in the target's unit, got Gamma"):
        recentred(torch.distributions.Gamma(torch.ones(2), torch.ones(2)), torch.zeros(2))


class Shuffled(TensorDataset):
    def __getitem__(self, index):
        return super().__getitem__(int(torch.randint(len(self), ())))


@pytest.mark.parametrize(
    ("fit", "dataset", "options", "message"),
    [
        (fit_line, noisy_line(3), {"folds": 4}, "expected `folds` at most the number of rows, 3, got 4"),
        (fit_line, noisy_line(), {"groups": [0] * 30}, "expected `folds` at most the number of groups, 1, got 4"),
        (fit_line, Shuffled(*noisy_line().tensors), {}, "expected `dataset` with its rows in the same order"),
        (lambda _: ONE_LINE, noisy_line(), {}, "expected `fit` to return a new model each"),
        (fit_line, noisy_line(), {"workers": 0}, "expected `workers`"),
    ],
)
def test_crossfit_refuses(fit, dataset, options, message):
    with pytest.raises(ValueError, match=message):
        full_crossfit(fit, dataset, **options)


def test_crossfit_refuses_shared_weights():
    weights = torch.nn.Parameter(torch.zeros(2))

    def fit(_):
        line = Line(torch.tensor(0.0), torch.tensor(0.0), torch.tensor(1.0))
        line.weights = weights
        return line

    with pytest.raises(ValueError, match="expected `fit` to return a new model each time"):
        full_crossfit(fit, noisy_line())


def test_crossfit_refuses_a_fold_without_targets():
    x, y = noisy_line().tensors
    y = torch.where(torch.arange(30).unsqueeze(1) < 10, torch.nan, y)
    with pytest.raises(ValueError, match="expected `dataset` with targets in every fold, got none in fold"):
        full_crossfit(fit_line, TensorDataset(x, y), folds=3, groups=torch.arange(30) // 10)


def test_crossfit_refuses_points():
    with pytest.raises(TypeError, match="expected `fit` to return a model of distributions, got one that returns a"):
        full_crossfit(lambda _: torch.nn.Linear(1, 1).double(), noisy_line())


def test_crossfit_refuses_what_processes_cannot_have():
    with pytest.raises(TypeError, match="expected `fit` and `dataset` that other processes can be sent, or workers=1"):
        full_crossfit(partial(fit_line, lock=threading.Lock()), noisy_line(), workers=2)


def test_crossfit_sends_functions_that_cannot_be_imported(found):
    apart = full_crossfit(lambda rows: fit_line(rows), noisy_line(), folds=5, correct=False, workers=2)
    assert torch.equal(apart.held_out.mean, found.held_out.mean)


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (lambda _: None, "expected `fit` to return a model to call, got NoneType"),
        (lambda _: Normal, "expected `fit` to return a model to call, got type"),
        (3, "expected `fit` to call with rows, got int"),
    ],
)
def test_crossfit_refuses_what_is_no_model(fit, message):
    with pytest.raises(TypeError, match=message):
        full_crossfit(fit, noisy_line())


def test_crossfit_refuses_predictions_of_another_shape_after_the_first_training():
    calls = []

    def fit(_):
        calls.append(1)
        return lambda x: Normal(x[:, 0], torch.ones(len(x), dtype=x.dtype))

    with pytest.raises(ValueError, match=r"expected predictions of the targets' shape \(1, 1\), got \(1,\)"):
        full_crossfit(fit, noisy_line())
    assert len(calls) == 1


def test_crossfit_refuses_models_of_several_families():
    families = iter([torch.distributions.Laplace, Normal, Normal, Normal, Normal])

    def fit(_):
        kind = next(families)
        return lambda x: kind(x, torch.ones_like(x))

    with pytest.raises(ValueError, match="expected `fit` to return models of one family, got Laplace and Normal"):
        full_crossfit(fit, noisy_line())


def test_crossfit_refuses_infinite_targets_before_the_work():
    x, y = noisy_line().tensors
    y[3] = torch.inf
    with pytest.raises(
        ValueError, match=r"expected `dataset` with finite targets \(NaN where missing\), got 1 infinite"
    ):
        full_crossfit(lambda _: 1 / 0, TensorDataset(x, y))


class Masked(TensorDataset):
    def __getitem__(self, index):
        x, y, mask = super().__getitem__(index)
        return {"input": x, "target": y, "valid_mask": mask}


def test_masks_of_rows_count_for_all_their_targets():
    x, y = noisy_line().tensors
    mask = torch.arange(30) % 3 != 0
    wrong = torch.where(mask[:, None], y, 1e6)

    def fit(rows):
        kept = [(row["input"], row["target"]) for row in (rows[i] for i in range(len(rows))) if row["valid_mask"]]
        return fit_line(kept)

    found = full_crossfit(fit, Masked(x, wrong, mask), folds=3)
    assert found.calibrated()(x).stddev.max() < 2
    with pytest.raises(ValueError, match="expected `valid_mask` of booleans"):
        full_crossfit(fit, Masked(x, y, mask.int()))


def test_rows_of_scales_work_in_a_loader(found):
    def fit_scales(rows, start):
        (batch,) = torch.utils.data.DataLoader(rows, batch_size=len(rows))
        assert batch["center"].shape == batch["target"].shape
        return start

    found.with_scales(fit_scales)


def test_targets_of_another_dtype(found):
    x, y = noisy_line().tensors

    def fit(rows):
        return fit_line([(rows[i][0].double(), rows[i][1]) for i in range(len(rows))]).float()

    single = full_crossfit(fit, TensorDataset(x.float(), y), folds=3)
    kept = single.with_scales(lambda _, start: start).calibrated()
    assert kept(x.float()).mean.dtype == torch.float32
    assert found.calibrated(fcal.recalibration.Temperature()) is not None


def test_repair_that_is_given_stays_as_it_is(found):
    given = fcal.recalibration.Temperature()
    found.calibrated(given)
    with pytest.raises(Exception, match="fit"):
        given.transform(found.held_out)
    with pytest.raises(TypeError, match="expected `repair` a name or a Recalibrator, got NoneType"):
        found.calibrated(None)


@pytest.mark.parametrize(
    "law", [torch.distributions.LogNormal(torch.zeros(2), 1.0), fcal.models.mixture([Normal(torch.zeros(2), 1.0)] * 2)]
)
def test_location_must_be_in_the_targets_unit(law):
    with pytest.raises(ValueError, match="expected `pred` of a family with a location in the target's unit"):
        recentred(law, torch.zeros(2))


def test_recentred_refuses_another_shape():
    with pytest.raises(ValueError, match=r"expected `center` of shape \(3,\) like the prediction, got \(3, 1\)"):
        recentred(Normal(torch.zeros(3), 1.0), torch.zeros(3, 1))


def test_calibrated_by_default_keeps_the_median_and_is_not_ruined_by_a_wild_row():
    generator = torch.Generator().manual_seed(5)
    x = torch.linspace(-1, 1, 400, dtype=torch.float64).unsqueeze(1)
    y = x + 0.1 * torch.randn(400, 1, generator=generator, dtype=torch.float64)
    y[123] = 1e5
    found = full_crossfit(fit_median, TensorDataset(x, y), folds=4)
    model = found.calibrated()
    assert (model.repair.wild.count, model.repair.wild.rows) == (1, 400)
    new = x + 0.1 * torch.randn(400, 1, generator=generator, dtype=torch.float64)
    covered = (fcal.standardize(model(x), new).abs() < 1.64485).double().mean().item()
    assert covered == pytest.approx(0.9, abs=0.08)  # 4 sd of 400 rows and as many to calibrate: one alarm in 16,000
    torch.testing.assert_close(model(x).mean, found.full(x).mean, rtol=0, atol=1e-9)


def fit_median(rows):
    """A line through the medians of both halves: a model that a wild row does not ruin either."""
    x, y = (torch.stack(column) for column in zip(*rows, strict=True))
    left, right = (y[mask].median() for mask in (x < 0, x >= 0))
    return lambda new: Normal((left + right) / 2 + (right - left) * new, torch.full_like(new, 0.05))
