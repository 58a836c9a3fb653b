"""What a perfectly calibrated model scores: calibration errors of finite data are never 0."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fcal._checks import check_integer
from fcal.metrics.calibration_errors import expected_calibration_error, maximum_calibration_error
from fcal.metrics.grid import Array, Integers, chi2_edges, usual_sums
from fcal.metrics.report import Floor
from fcal.metrics.sums_law import law_of_sums, shares_between

_SEED = 20220523  # simulated floors are the same in every run
_RUNS = 2000
_RUNS_OF_Q = 500
_Z_BINS = 160
_POINTS = 512
_POINTS_OF_FEW = 2048  # sums of fewer than 10 squares keep the steep density of one near 0
_FARTHEST_NORMAL = 10.0  # no normal residual is larger
_WINDOW = 12  # deviations of a binomial count that matter


@dataclass(frozen=True)
class SumFloor:
    """Floors of ECE(q) and MCE(q), and the sd of the share of sums below each bin's upper edge."""

    ece: Floor
    mce: Floor
    spread: tuple[float, ...]


@lru_cache(maxsize=4096)
def floor_of_z(n: int, bins: int) -> tuple[Floor, Floor]:
    """Floors of ECE(z), whose mean is exact, and of MCE(z), over n independent residuals."""
    runs = max(_RUNS * 20 // max(bins, 20), 200)
    shares = np.random.default_rng(_SEED).multinomial(n, np.full(bins, 1 / bins), runs) / n
    ece, mce = expected_calibration_error(shares), maximum_calibration_error(shares)
    exact = expected_ece_of_z(n, bins)
    return Floor(exact, float(np.quantile(ece, 0.95))), Floor(float(mce.mean()), float(np.quantile(mce, 0.95)))


def expected_ece_of_z(n: int, bins: int) -> float:
    r"""Mean ECE(z) of a calibrated model: :math:`S \, E[p |1/S - p|]`, p a binomial share.

    Args:
        n: Number of independent residuals.
        bins: Number S of bins.

    Example:
        >>> expected_ece_of_z(1, 4)  # one residual fills one bin
        0.75
    """
    check_integer("n", n, at_least=1, at_most=2**62)
    check_integer("bins", bins, at_least=2)
    mean, sd = n / bins, math.sqrt(n / bins * (1 - 1 / bins))
    k = np.arange(
        max(math.floor(mean - _WINDOW * sd) - _WINDOW, 0), min(math.ceil(mean + _WINDOW * sd) + 2 * _WINDOW, n) + 1
    )
    log_weight = _log_binomial(n, k) + k * math.log(1 / bins) + (n - k) * math.log1p(-1 / bins)
    return float(bins * (np.exp(log_weight) * (k / n) * np.abs(1 / bins - k / n)).sum())


def _log_binomial(n: int, k: Integers) -> Array:
    """Logarithm of n over k, for a run of consecutive k: one gamma function, then a recurrence that keeps digits."""
    first = math.lgamma(n + 1) - math.lgamma(k[0] + 1) - math.lgamma(n - k[0] + 1)
    steps = np.log((n - k[:-1]) / (k[:-1] + 1.0))
    return first + np.concatenate([[0.0], steps.cumsum()])


@lru_cache(maxsize=1024)
def floor_of_q(n: int, bins: int, df: int) -> SumFloor:
    """Floors of the errors of q: histograms of n normal residuals go through the same convolution as data."""
    if df == 1:  # single squares fill their bins as residuals do
        level = np.arange(1, bins + 1) / bins
        return SumFloor(*floor_of_z(n, bins), tuple(np.sqrt(level * (1 - level) / n).tolist()))
    edges = chi2_edges(df, bins)
    limit = usual_sums(df)[1]
    reach = min(math.sqrt(limit), _FARTHEST_NORMAL)
    z_edges = np.linspace(0, reach, _Z_BINS + 1)
    inside = np.diff(np.array([math.erf(z * math.sqrt(0.5)) for z in z_edges]))
    counts = np.random.default_rng(_SEED).multinomial(n, [0.0, *inside, max(1 - inside.sum(), 0.0)], _RUNS_OF_Q)
    points = _POINTS if df >= 10 else _POINTS_OF_FEW
    values, below = law_of_sums(counts.astype(np.float64), z_edges, df, points=points, limit=limit)
    shares = shares_between(edges, values, below)
    ece, mce = expected_calibration_error(shares), maximum_calibration_error(shares)
    return SumFloor(_floor(ece), _floor(mce), tuple(shares.cumsum(-1).std(0).tolist()))


def near_floor_of_z(n: int, bins: int) -> tuple[Floor, Floor]:
    """The same for many groups at once: between two powers of 2, whose floors are remembered."""
    low, high, share = _neighbours(n)
    ends = floor_of_z(low, bins), floor_of_z(high, bins)
    return _between(ends[0][0], ends[1][0], share), _between(ends[0][1], ends[1][1], share)


def near_floor_of_q(n: int, bins: int, df: int) -> SumFloor:
    """The same for many groups at once: between two powers of 2, whose floors are remembered."""
    low, high, share = _neighbours(n)
    one, two = floor_of_q(low, bins, df), floor_of_q(high, bins, df)
    spread = tuple((1 - share) * a + share * b for a, b in zip(one.spread, two.spread, strict=True))
    return SumFloor(_between(one.ece, two.ece, share), _between(one.mce, two.mce, share), spread)


def _neighbours(n: int) -> tuple[int, int, float]:
    """Powers of 2 around n, and how far n is from the lower to the upper one, in logarithms."""
    power = math.floor(math.log2(n))
    return 2**power, 2 ** (power + 1), math.log2(n) - power


def _between(low: Floor, high: Floor, share: float) -> Floor:
    """Errors fall like a power of n: a straight line in logarithms."""
    pairs = ((low.expected, high.expected), (low.q95, high.q95))
    return Floor(*(a ** (1 - share) * b**share for a, b in pairs))


def floor_of_ence(parts: Array, expected_sq: Array, which: Integers, kurtosis: float) -> Floor:
    """Floor of ENCE: mean squared errors of a calibrated model, one per narrow bin of sigma, merged as the data are.

    Args:
        parts: Effective number of errors in each narrow bin. Shape ``(narrow,)``.
        expected_sq: Sum of sigma^2 in each. Shape ``(narrow,)``.
        which: Merged bin of each. Shape ``(narrow,)``.
        kurtosis: Of errors by their sigma: 3 for normal ones.
    """
    # Squares of this kurtosis add up to a sum with the mean and variance of a Gamma law of this shape.
    variance = np.bincount(which, expected_sq**2 * max(kurtosis - 1, 1e-3) / np.maximum(parts, 1e-6))
    shape = np.bincount(which, expected_sq) ** 2 / variance
    runs = np.random.default_rng(_SEED).gamma(shape, 1 / shape, (_RUNS, len(shape)))
    return _floor(np.abs(np.sqrt(runs) - 1).mean(-1))


def _floor(errors: Array) -> Floor:
    return Floor(float(errors.mean()), float(np.quantile(errors, 0.95)))
