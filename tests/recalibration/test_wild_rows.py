"""Wild calibration rows, errors of 100 to a million sigmas, do not change a repair and are reported."""

import math

import pytest
import torch
from torch.distributions import Gumbel, Laplace, LogNormal, MultivariateNormal, Normal, StudentT

import fcal
from fcal.recalibration import Affine, Conformal, GPBeta, Isotonic, Temperature

ROWS = 2000
METHODS = {
    "temperature": Temperature,
    "affine": Affine,
    "isotonic": Isotonic,
    "conformal": Conformal,
    "centred": lambda: Conformal(centred=True),
}


def noise(count, seed, heavy=False):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(count, generator=generator, dtype=torch.float64)
    if heavy:  # Student-t with four degrees of freedom
        z = z / torch.randn(4, count, generator=generator, dtype=torch.float64).square().mean(0).sqrt()
    return z


def spoilt(y, seed, share=1e-3):
    """Targets of which a share is replaced by errors of 100 to a million sigmas, to both sides."""
    generator = torch.Generator().manual_seed(seed)
    count = max(round(share * len(y)), 1)
    rows = torch.randperm(len(y), generator=generator)[:count]
    size = 10 ** (2 + 4 * torch.rand(count, generator=generator, dtype=torch.float64))
    sign = 1 - 2 * (torch.arange(count) % 2)
    return y.index_copy(0, rows, sign * size)


def standard(count, scale=0.5):
    return Normal(torch.zeros(count, dtype=torch.float64), torch.full((count,), scale, dtype=torch.float64))


def measured(law, y):
    size = fcal.standardize(law, y).abs()
    coverage = [(size <= edge).double().mean().item() for edge in (0.67449, 1.64485, 1.95996)]
    return coverage, fcal.crps(law, y).mean().item()


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_one_wild_row_in_a_thousand_moves_no_repair(method, heavy):
    """Coverage at 50, 90 and 95 % by at most 0.003, CRPS by at most 1 %: the bars of docs/recalibration.md."""
    for seed in range(3):
        y, fresh = noise(ROWS, seed, heavy), noise(20_000, 100 + seed, heavy)
        clean = METHODS[method]().fit(standard(ROWS), y)
        repair = METHODS[method]().fit(standard(ROWS), spoilt(y, seed))
        (before, crps), (after, spoilt_crps) = (measured(r.transform(standard(20_000)), fresh) for r in (clean, repair))
        assert max(abs(a - b) for a, b in zip(before, after, strict=True)) <= 0.003
        assert spoilt_crps == pytest.approx(crps, rel=0.01)
        assert (repair.wild.count, repair.wild.rows) == (2 + _count(clean), ROWS)
        assert _count(clean) <= heavy  # of heavy tails, the farthest draw may be far beyond all others


def _count(repair):
    return 0 if repair.wild is None else repair.wild.count


def test_gp_beta_fits_beside_a_wild_row():
    y = noise(500, 0)
    y[3] = 1e3
    repair = GPBeta().fit(standard(500), y)
    assert repair.wild.count == 1
    assert measured(repair.transform(standard(5000)), noise(5000, 1))[0][1] == pytest.approx(0.9, abs=0.04)


def test_wild_rows_are_reported_with_the_farthest():
    y = noise(ROWS, 0)
    y[7] = -4e5
    repair = Temperature().fit(standard(ROWS), y)
    low, high = y.quantile(torch.tensor([0.25, 0.75], dtype=torch.float64)).tolist()
    assert repair.wild.farthest == pytest.approx(4e5 * 2 * 0.67449 / (high - low), rel=1e-2)
    assert "1 of 2000 rows left out, up to 4" in repr(repair)


def test_saved_repair_keeps_its_report(tmp_path):
    repair = Conformal(centred=True).fit(standard(ROWS), spoilt(noise(ROWS, 0), 0))
    repair.save(tmp_path)
    loaded = fcal.recalibration.load(tmp_path)
    assert loaded.wild == repair.wild
    assert loaded.centred


def test_more_than_one_in_a_hundred_are_a_shape_and_count():
    """Of 40 rows in 2000, at most 20 are left out, so that the factor is that of errors of 100 to 10,000 sigmas."""
    y = spoilt(noise(ROWS, 0), 0, share=0.02)
    repair = Temperature().fit(standard(ROWS), y)
    assert _count(repair) <= 20
    assert repair.factor.item() > 100


@pytest.mark.parametrize("rows", [50, 100, 150, 300])
def test_two_wild_rows_of_few_are_left_out(rows):
    y = noise(rows, 0)
    y[:2] = 1e5
    repair = Temperature().fit(standard(rows), y)
    assert repair.wild.count == 2
    assert repair.factor.item() == pytest.approx((2 * y[2:]).square().mean().sqrt().item())


def test_wild_row_among_many_equal_residuals_is_left_out():
    y = torch.cat([torch.zeros(700, dtype=torch.float64), noise(299, 0), torch.tensor([1e6], dtype=torch.float64)])
    assert Temperature().fit(standard(1000), y).wild.count == 1


def test_wild_rows_of_log_normal_predictions_are_those_of_the_logarithm():
    """A million times the median is 46 standard deviations of 0.3 away, wherever the median is."""
    loc = 3 * noise(ROWS, 0)
    pred, y = LogNormal(loc, torch.full_like(loc, 0.3)), (loc + 0.3 * noise(ROWS, 1)).exp()
    for row in (int(loc.argmin()), int(loc.argmax())):
        spoilt_y = y.index_fill(0, torch.tensor([row]), float(loc[row].exp() * 1e6))
        assert Temperature().fit(pred, spoilt_y).wild.count == 1


@pytest.mark.parametrize(
    "pred", [StudentT(2.0, torch.zeros(ROWS), torch.ones(ROWS)), Gumbel(torch.zeros(ROWS), torch.ones(ROWS))]
)
def test_rows_that_only_their_tail_makes_far_are_not_wild(pred):
    """Draws of heavy tails are far out in scales, those of a normal law under a light tail in residuals."""
    torch.manual_seed(0)
    y = pred.sample() if isinstance(pred, StudentT) else 2.5 * torch.randn(ROWS)
    assert Temperature().fit(pred, y).wild is None


def test_laplace_predictions_are_not_ruined_either():
    pred = Laplace(torch.zeros(ROWS, dtype=torch.float64), torch.ones(ROWS, dtype=torch.float64))
    y = noise(ROWS, 0)
    clean, repair = Temperature().fit(pred, y), Temperature().fit(pred, spoilt(y, 0))
    assert repair.factor.item() == pytest.approx(clean.factor.item(), rel=2e-3)


def test_outputs_of_different_sizes_are_judged_apart():
    y = torch.stack([noise(ROWS, 0), 1000 * noise(ROWS, 1)], 1)
    y[5, 0] = 500.0  # usual for the second output, wild for the first
    repair = Temperature(per_output=True).fit(Normal(torch.zeros_like(y), torch.ones_like(y)), y)
    assert repair.wild.count == 1
    assert repair.factor.tolist() == pytest.approx([1.0, 1000.0], rel=0.1)


def test_vectors_with_a_wild_coordinate_are_left_out():
    y = torch.stack([noise(ROWS, 0), noise(ROWS, 1)], 1)
    y[11, 1] = 1e4
    repair = Temperature().fit(MultivariateNormal(torch.zeros_like(y), torch.eye(2, dtype=torch.float64)), y)
    assert repair.wild.count == 1
    assert repair.factor.item() == pytest.approx(1.0, rel=0.1)


def test_intervals_of_conformal_count_all_rows():
    """Their coverage holds on average over all rows: of 19, the largest ends the interval of 90 %, wild or not."""
    y = noise(19, 0)
    y[0] = 1e6
    low, high = Conformal().fit(standard(19), y).interval(standard(1), 0.9)
    assert high.item() == pytest.approx(1e6)
    assert math.isfinite(low.item())


@pytest.mark.parametrize("skewed", [False, True])
def test_centred_keeps_the_mean_of_symmetric_predictions(skewed):
    y = noise(ROWS, 0).exp() if skewed else noise(ROWS, 0) + 0.7
    pred = Normal(torch.linspace(-5, 5, ROWS, dtype=torch.float64), 1.0)
    law = Conformal(centred=True).fit(pred, pred.mean + y).transform(pred)
    torch.testing.assert_close(law.mean, pred.mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(law.icdf(torch.tensor(0.5, dtype=torch.float64)), pred.mean, rtol=0, atol=1e-9)


def test_centred_covers_as_promised_on_average_over_calibration_sets():
    """400 sets of 60 rows and 100 fresh ones each: the standard error of coverage is at most 0.004; 4 of them."""
    shares = []
    for seed in range(400):
        y, fresh = noise(60, seed, heavy=True), noise(100, 10_000 + seed, heavy=True)
        law = Conformal(centred=True).fit(standard(60), y).transform(standard(1))
        ends = [law.icdf(torch.tensor(p, dtype=torch.float64)) for p in (0.05, 0.95)]
        shares.append(((fresh >= ends[0]) & (fresh <= ends[1])).double().mean().item())
    assert sum(shares) / len(shares) == pytest.approx(0.9, abs=0.016)
