"""The test of truth: wrong predictions reach nominal coverage on fresh data after repair."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Distribution, Gamma, Laplace, Normal, StudentT

import fcal
from fcal.recalibration import Affine, Conformal, Isotonic, Recalibrator, Temperature

CALIBRATION, FRESH = 4000, 40_000
LEVELS = (0.5, 0.9, 0.95, 0.99)
SCALES = (0.25, 0.5, 2.0, 4.0)
ERRORS = [*((scale, 0.0) for scale in SCALES), (1.0, 1.5), (0.5, -1.0)]  # factor on sigma, bias in true sigmas


def false_alarm_bound(level: float, *, calibration: int = CALIBRATION, fresh: int = FRESH) -> float:
    """How far coverage may be off: 4.5 standard errors, of the calibration ranks and of the fresh data.

    An empirical interval's coverage given the calibration set is Beta distributed with variance p (1 - p) / (n + 2);
    parametric ones vary less. Two-sided false-alarm rate 7e-6 each, so below 1e-3 for all in this file.
    """
    p = level * (1 - level)
    return 4.5 * math.sqrt(p / (calibration + 2) + p / fresh)


def drawn(count: int, scale: float, bias: float, seed: int) -> tuple[Normal, Tensor]:
    """Heteroscedastic truths, and normal predictions whose sigma and mean are wrong."""
    generator = torch.Generator().manual_seed(seed)
    mean = 3 * torch.randn(count, generator=generator, dtype=torch.float64)
    sigma = torch.exp(0.5 * torch.randn(count, generator=generator, dtype=torch.float64))
    target = mean + sigma * torch.randn(count, generator=generator, dtype=torch.float64)
    return Normal(mean + bias * sigma, scale * sigma), target


def coverage(pred: Distribution, target: Tensor, level: float) -> float:
    """By quantiles, not by our residuals."""
    tail = (1 - level) / 2
    low, high = pred.icdf(torch.tensor(tail).to(target)), pred.icdf(torch.tensor(1 - tail).to(target))
    return ((target >= low) & (target <= high)).double().mean().item()


def check_coverage(method: Recalibrator, scale: float, bias: float, seed: int) -> None:
    repaired = method.fit(*drawn(CALIBRATION, scale, bias, seed)).transform(drawn(FRESH, scale, bias, seed + 1)[0])
    target = drawn(FRESH, scale, bias, seed + 1)[1]
    for level in LEVELS:
        assert coverage(repaired, target, level) == pytest.approx(level, abs=false_alarm_bound(level)), level


@pytest.mark.parametrize(("scale", "bias"), ERRORS)
@pytest.mark.parametrize("kind", [Isotonic, Conformal, Affine])
def test_recalibration_reaches_nominal_coverage_for_wrong_sigma_and_mean(kind, scale: float, bias: float):
    check_coverage(kind(), scale, bias, seed=10)


@pytest.mark.parametrize("scale", SCALES)
def test_temperature_reaches_nominal_coverage_where_the_error_is_a_scale(scale: float):
    check_coverage(Temperature(), scale, 0.0, seed=20)


def test_temperature_cannot_repair_a_bias():
    # what makes the tests above tests: at 50 % this misses by 50 bounds
    pred, target = drawn(CALIBRATION, 1.0, 1.5, seed=30)
    repaired = Temperature().fit(pred, target).transform(pred)
    assert abs(coverage(repaired, target, 0.5) - 0.5) > 2 * false_alarm_bound(0.5)


@pytest.mark.parametrize(
    ("predicted", "true"),
    [
        pytest.param(lambda m, s: Laplace(m, 0.3 * s), lambda m, s: stats.laplace(m, s), id="laplace"),
        pytest.param(lambda m, s: StudentT(5.0, m, 2 * s), lambda m, s: stats.t(5, m, s), id="student"),
        pytest.param(lambda m, s: Normal(m, s), lambda m, s: stats.gumbel_r(m, s), id="wrong-shape"),
        pytest.param(lambda m, s: Gamma(3 + m**2, 1 / s), lambda m, s: stats.gamma(2 + m**2, scale=s), id="gamma"),
    ],
)
@pytest.mark.parametrize("kind", [Isotonic, Conformal])
def test_recalibration_reaches_nominal_coverage_for_other_families(kind, predicted, true):
    def rows(count: int, seed: int) -> tuple[Distribution, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        m = torch.randn(count, generator=generator, dtype=torch.float64)
        s = torch.exp(0.3 * torch.randn(count, generator=generator, dtype=torch.float64))
        return predicted(m, s), torch.from_numpy(true(m.numpy(), s.numpy()).rvs(random_state=seed))

    fresh = 10_000
    (pred, _), (_, target) = rows(fresh, 41), rows(fresh, 41)
    repaired = kind().fit(*rows(CALIBRATION, 40)).transform(pred)
    for level in LEVELS:
        z = fcal.standardize(repaired, target)
        covered = (z.abs() <= stats.norm.ppf(0.5 + level / 2)).double().mean().item()
        assert covered == pytest.approx(level, abs=false_alarm_bound(level, fresh=fresh)), level


@pytest.mark.parametrize("count", [19, 39, 99])
def test_conformal_law_is_right_on_average_over_small_calibration_sets(count: int):
    # P(y <= quantile of r / (n + 1)) = r / (n + 1) for any law; here t-distributed errors under a normal prediction.
    # 1000 calibration sets, one new target each: 4.5 standard errors, false-alarm rate 7e-6 for each of the levels
    generator = torch.Generator().manual_seed(count)
    sets = 1000
    uniform = torch.rand(sets, count + 1, generator=generator, dtype=torch.float64)
    draws = torch.from_numpy(stats.t.ppf(uniform.numpy(), 3))
    pred = Normal(torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64))
    one = Normal(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))
    levels = torch.tensor([1 / (count + 1), 0.5, 0.9, count / (count + 1)], dtype=torch.float64)
    below = torch.zeros(len(levels), dtype=torch.float64)
    inside = 0
    for row in draws:
        conformal = Conformal().fit(pred, row[:-1])
        below += (row[-1] <= conformal.transform(one).icdf(levels)).double()
        low, high = conformal.interval(one, 0.9)
        inside += int(low <= row[-1] <= high)
    for found, level in zip((below / sets).tolist(), levels.tolist(), strict=True):
        # between knots the law is interpolated; at 0.5 and 0.9 that may cost another half of a rank
        slack = 4.5 * math.sqrt(level * (1 - level) / sets) + 0.5 / (count + 1)
        assert found == pytest.approx(level, abs=slack)
    assert inside / sets >= 0.9 - 4.5 * math.sqrt(0.09 / sets)


def test_conformal_interval_is_infinite_where_n_is_too_small_for_the_level():
    pred = Normal(torch.zeros(10), torch.ones(10))
    conformal = Conformal().fit(pred, torch.linspace(-1, 1, 10))
    low, high = conformal.interval(pred, 0.9)
    assert bool((low == -math.inf).all() and (high == math.inf).all())
    assert conformal.interval(pred, 0.8)[1].isfinite().all()
