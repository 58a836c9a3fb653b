"""Calibration errors, their floors (what a perfectly calibrated model scores on as few data), the distribution of q."""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_count, check_integer, check_number, check_values
from fcal.constraints import draw_indices
from fcal.distributions import normal_quantile
from fcal.distributions.family import law_of
from fcal.metrics.report import Floor
from fcal.metrics.state import Array, Integers, sum_limit, usual_sums
from fcal.residuals import standardize

Complex = np.ndarray[tuple[int, ...], np.dtype[np.complex128]]

_SEED = 20220523  # simulated floors are the same in every run
_RUNS = 2000
_RUNS_OF_Q = 500
_Z_BINS = 160
_FLOOR_POINTS = 512
_FLOOR_POINTS_OF_FEW = 2048  # sums of fewer than 10 squares keep the steep density of a single square near 0
_LARGEST_NORMAL = 10.0  # no normal residual is larger
SIGMA_BINS = 15  # of ENCE, about equally many errors in each
_WINDOW = 12  # standard deviations of a binomial count that contribute
_POINTS = 4096
_POINTS_OF_FEW = 16384  # sums of few squares keep the steep density of a single square near 0
_FEW = 10
_WIDE_STEP = 0.1  # above this lattice step, two-point splitting would widen the distribution of q
_DAMPING = 1e-8  # damps what wraps around the end of the lattice; rounding errors grow by its inverse
_NEWTON_STEPS = 12


def expected_calibration_error(shares: Array) -> Array:
    r"""Mean gap between the share of the data in a bin and its nominal share, as in the paper.

    .. math:: \mathrm{ECE} = \sum_s p_s \left| 1/S - p_s \right|

    Args:
        shares: Share :math:`p_s` of the data in each of S bins of equal probability. Shape ``(..., S)``.

    Returns:
        0 for equal shares, ``1 - 1/S`` when one bin holds everything.

    Example:
        >>> expected_calibration_error(np.array([[0.5, 0.5], [1.0, 0.0]])).tolist()
        [0.0, 0.5]
    """
    error: Array = (shares * np.abs(1 / shares.shape[-1] - shares)).sum(-1)
    return error


def maximum_calibration_error(shares: Array) -> Array:
    """Largest gap between the share of the data in a bin and its nominal share.

    Args:
        shares: As for :func:`expected_calibration_error`.

    Returns:
        0 for equal shares, ``1 - 1/S`` when one bin holds everything.

    Example:
        >>> float(maximum_calibration_error(np.array([0.75, 0.25])))
        0.25
    """
    error: Array = np.abs(1 / shares.shape[-1] - shares).max(-1)
    return error


def drawn_calibration_error(
    pred: Distribution,
    target: Tensor,
    *,
    df: int = 75,
    bins: int = 20,
    draws: int = 1000,
    valid_mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> float:
    """ECE(q) by random draws, as in the paper; :func:`fcal.evaluate` computes its limit for many draws.

    Args:
        pred: Prediction of any registered family.
        target: Targets, NaN where missing.
        df: Residuals per draw, at most the number of valid targets.
        bins: Number of equal-probability bins of chi-squared.
        draws: Number of draws.
        valid_mask: True where a target counts.
        generator: Source of randomness; torch's default where None.

    Returns:
        The error; with few draws it is mostly noise.

    Example:
        >>> from torch.distributions import Normal
        >>> drawn_calibration_error(Normal(torch.zeros(99), 1e9), torch.randn(99), bins=2)  # sigma is far too large
        0.5
    """
    check_integer("df", df, at_least=1)
    check_integer("bins", bins, at_least=2)
    check_integer("draws", draws, at_least=1)
    z = standardize(pred, target, valid_mask=valid_mask).detach().to(torch.float64)
    z = z[~torch.isnan(z)]
    check_count(len(z), at_least=df)
    index = draw_indices(len(z), df, draws, generator=generator, device=z.device)
    sums = z.square()[index].sum(1)
    counts = torch.bincount(torch.searchsorted(torch.from_numpy(chi2_edges(df, bins)), sums), minlength=bins)
    return float(expected_calibration_error((counts / draws).numpy()))


def quantile_calibration_error(
    pred: Distribution,
    target: Tensor,
    *,
    levels: Tensor | None = None,
    valid_mask: Tensor | None = None,
) -> float:
    r"""Mean gap between probability levels and the share of targets below the predicted quantiles at these levels.

    .. math:: \frac{1}{L} \sum_l \left| \frac{1}{n} \sum_i 1\{y_i \le F_i^{-1}(p_l)\} - p_l \right|

    Args:
        pred: Prediction of a scalar family.
        target: Targets, NaN where missing.
        levels: Probabilities :math:`p_l`; 0.05, 0.10, ..., 0.95 by default. Shape ``(L,)``.
        valid_mask: True where a target counts.

    Returns:
        The error, at most 1/2 for evenly spaced levels.

    Example:
        >>> from torch.distributions import Normal
        >>> pred, levels = Normal(torch.zeros(2), 1.0), torch.tensor([0.5])
        >>> quantile_calibration_error(pred, torch.tensor([-1.0, 1.0]), levels=levels)
        0.0
    """
    return _level_error(pred, target, levels, valid_mask, central=False)


def interval_calibration_error(
    pred: Distribution,
    target: Tensor,
    *,
    levels: Tensor | None = None,
    valid_mask: Tensor | None = None,
) -> float:
    """Mean gap between probability levels and the share of targets in the predicted central intervals.

    Args:
        pred: Prediction of a scalar family.
        target: Targets, NaN where missing.
        levels: Probabilities of the intervals; 0.05, 0.10, ..., 0.95 by default. Shape ``(L,)``.
        valid_mask: True where a target counts.

    Returns:
        The error; about half that of :func:`quantile_calibration_error` for a biased mean, twice for a wrong scale.

    Example:
        >>> from torch.distributions import Normal
        >>> pred, levels = Normal(torch.zeros(2), 1.0), torch.tensor([0.5])
        >>> interval_calibration_error(pred, torch.tensor([0.1, 3.0]), levels=levels)
        0.0
    """
    return _level_error(pred, target, levels, valid_mask, central=True)


def _level_error(
    pred: Distribution, target: Tensor, levels: Tensor | None, valid_mask: Tensor | None, *, central: bool
) -> float:
    p = torch.arange(1, 20, dtype=torch.float64) / 20 if levels is None else _checked_levels(levels)
    if isinstance(pred, Distribution) and law_of(pred).family.event_dim:
        raise ValueError(f"expected `pred` of a scalar family, got {type(pred).__name__}")
    z = standardize(pred, target, valid_mask=valid_mask).detach().reshape(-1)
    if valid_mask is not None or bool(torch.isnan(z.sum())):
        z = z[~torch.isnan(z)]
    check_count(len(z), at_least=1)
    upper = (1 - p) / 2 if central else 1 - p
    limits = normal_quantile(1 - upper, upper)
    rising = limits.to(z).sort()
    between = torch.bucketize(z.abs() if central else z, rising.values, out_int32=True)
    inside = torch.bincount(between, minlength=len(p) + 1).cumsum(0)[:-1]
    return float((inside.double() / len(z) - p[rising.indices]).abs().mean())


def _checked_levels(levels: Any) -> Tensor:
    if not isinstance(levels, Tensor) or not levels.is_floating_point():
        raise TypeError(f"expected `levels` a tensor of a floating dtype, got {type(levels).__name__}")
    if levels.dim() != 1 or not len(levels):
        raise ValueError(f"expected `levels` of shape (L,), got {tuple(levels.shape)}")
    check_values("levels", "within [0, 1]", levels, (levels >= 0) & (levels <= 1))
    return levels.to(torch.float64)


class Floors(NamedTuple):
    """Floors of ECE and MCE, and the sd of the share of the data below each bin's upper edge."""

    ece: Floor
    mce: Floor
    spread: tuple[float, ...]


@lru_cache(maxsize=4096)
def floors(n: int, bins: int, df: int, fitted_on: int = 0) -> Floors:
    """Floors on n independent residuals of the sums q of df squares; those of one square are the floors of z.

    With ``fitted_on``, those of a model that is right up to one factor of its error bars, which was fitted to as many
    other residuals.
    """
    generator = np.random.default_rng(_SEED)
    if df == 1:
        return _floors_of_z(n, bins, fitted_on, generator)
    # Histograms of normal residuals take the same convolution as the data.
    limit = usual_sums(df)[1]
    z_edges = np.linspace(0, min(math.sqrt(limit), _LARGEST_NORMAL), _Z_BINS + 1)
    runs = _RUNS if fitted_on else _RUNS_OF_Q  # a random factor adds variance
    factors = _fitted_factors(fitted_on, runs, generator)
    inside = np.diff(_erf(factors * z_edges * math.sqrt(0.5)))
    beyond = np.maximum(1 - inside.sum(-1, keepdims=True), 0.0)
    counts = generator.multinomial(n, np.concatenate([np.zeros_like(beyond), inside, beyond], -1), runs)
    points = _FLOOR_POINTS if df >= _FEW else _FLOOR_POINTS_OF_FEW
    values, below = distribution_of_q(counts.astype(np.float64), z_edges, df, points=points, limit=limit)
    shares = shares_between(chi2_edges(df, bins), values, below)
    return Floors(*_floors_of_shares(shares), tuple(shares.cumsum(-1).std(0).tolist()))


def _floors_of_z(n: int, bins: int, fitted_on: int, generator: np.random.Generator) -> Floors:
    runs, level = max(_RUNS * 20 // max(bins, 20), 200), np.arange(1, bins + 1) / bins
    if not fitted_on:
        shares = generator.multinomial(n, np.full(bins, 1 / bins), runs) / n
        ece, mce = _floors_of_shares(shares)
        spread = np.sqrt(level * (1 - level) / n)
        return Floors(Floor(expected_ece_of_z(n, bins), ece.q95), mce, tuple(spread.tolist()))
    inner = torch.from_numpy(level[:-1])
    edges = normal_quantile(inner, 1 - inner).numpy()
    below = 0.5 + 0.5 * _erf(_fitted_factors(fitted_on, runs, generator) * edges * math.sqrt(0.5))
    ends = np.zeros((runs, 1))
    shares = generator.multinomial(n, np.diff(np.concatenate([ends, below, ends + 1], -1)), runs) / n
    return Floors(*_floors_of_shares(shares), tuple(shares.cumsum(-1).std(0).tolist()))


def _fitted_factors(fitted_on: int, runs: int, generator: np.random.Generator) -> Array:
    """Factors of sigma that fit as many residuals, one for every run; a single 1 without residuals. Shape (runs, 1)."""
    if not fitted_on:
        return np.ones((1, 1))
    factors: Array = np.sqrt(generator.chisquare(fitted_on, (runs, 1)) / fitted_on)
    return factors


def _erf(values: Array) -> Array:
    result: Array = torch.special.erf(torch.from_numpy(values)).numpy()
    return result


def repaired_floors(
    n: int, *, fitted_on: int, df: int = 75, bins: int = 20, dependence: float = 1.0
) -> dict[str, Floor]:
    r"""Calibration errors of a model that is right up to one factor of its error bars, fitted to held-out residuals.

    The floors of a report are those of a model that is exactly calibrated. A repair is fitted to a finite calibration
    set: its factor has a relative error of about :math:`1 / \sqrt{2 n}` even if everything else is right. With a few
    thousand residuals this is most of ECE(q), which reacts to a wrong scale more than any other error.

    Args:
        n: Number of test residuals.
        fitted_on: Number of residuals that the factor was fitted to.
        df: Number K of squared residuals in a sum q.
        bins: Number S of bins.
        dependence: Variance of a mean of squared residuals relative to that of independent ones (design effect), for
            test and calibration residuals alike: for pairs, 1 plus the correlation of their squares.

    Returns:
        Floors by name: ``ece_z``, ``mce_z``, ``ece_q``, ``mce_q`` and ``ence``, the last for errors of normal
        distributions.

    Example:
        >>> from fcal.metrics import repaired_floors
        >>> few, many = (repaired_floors(40_000, fitted_on=count)["ece_q"].expected for count in (500, 50_000))
        >>> few > 3 * many
        True
    """
    check_integer("n", n, at_least=2, at_most=2**40)
    check_integer("fitted_on", fitted_on, at_least=2, at_most=2**40)
    check_number("dependence", dependence, low=0.1, high=1e6)
    effective, on = (max(round(count / dependence), 2) for count in (n, fitted_on))
    of_z, of_q = floors(effective, bins, 1, on), floors(effective, bins, df, on)
    ence = _repaired_ence(effective, on)
    return {"ece_z": of_z.ece, "mce_z": of_z.mce, "ece_q": of_q.ece, "mce_q": of_q.mce, "ence": ence}


def _repaired_ence(n: int, fitted_on: int) -> Floor:
    """Floor of ENCE with as many errors in every bin of sigma."""
    generator, shape = np.random.default_rng(_SEED), n / SIGMA_BINS / 2
    runs = generator.gamma(shape, 1 / shape, (_RUNS, SIGMA_BINS))
    return _floor(np.abs(np.sqrt(runs) / _fitted_factors(fitted_on, _RUNS, generator) - 1).mean(-1))


def _floors_of_shares(shares: Array) -> tuple[Floor, Floor]:
    return _floor(expected_calibration_error(shares)), _floor(maximum_calibration_error(shares))


def expected_ece_of_z(n: int, bins: int) -> float:
    r"""Mean ECE(z) of a calibrated model: :math:`S \, E[p |1/S - p|]`, where n p is binomial.

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
    """Logarithm of n choose k, for consecutive k: one log-gamma, then a recurrence, which is more precise."""
    first = math.lgamma(n + 1) - math.lgamma(k[0] + 1) - math.lgamma(n - k[0] + 1)
    steps = np.log((n - k[:-1]) / (k[:-1] + 1.0))
    return first + np.concatenate([[0.0], steps.cumsum()])


def interpolated_floors(n: int, bins: int, df: int) -> Floors:
    """:func:`floors`, interpolated between powers of 2, whose floors are cached: for reports of many groups."""
    power = math.floor(math.log2(n))
    lower, upper, share = floors(2**power, bins, df), floors(2 ** (power + 1), bins, df), math.log2(n) - power

    def between(low: Floor, high: Floor) -> Floor:
        # Floors fall like a power of n: linear interpolation of their logarithms.
        pairs = ((low.expected, high.expected), (low.q95, high.q95))
        return Floor(*(a ** (1 - share) * b**share for a, b in pairs))

    spread = tuple((1 - share) * a + share * b for a, b in zip(lower.spread, upper.spread, strict=True))
    return Floors(between(lower.ece, upper.ece), between(lower.mce, upper.mce), spread)


def floor_of_ence(counts: Array, expected_sq: Array, merged_bin: Integers, kurtosis: float) -> Floor:
    """Floor of ENCE: mean squared errors of a calibrated model in narrow bins of sigma, merged like those of the data.

    Args:
        counts: Effective number of errors in each narrow bin. Shape ``(narrow,)``.
        expected_sq: Sum of sigma^2 in each. Shape ``(narrow,)``.
        merged_bin: Index of the merged bin of each. Shape ``(narrow,)``.
        kurtosis: Kurtosis of errors divided by their sigma: 3 for normal predictions.
    """
    # The sum of squares with this kurtosis has the mean and variance of a gamma distribution with this shape.
    variance = np.bincount(merged_bin, expected_sq**2 * max(kurtosis - 1, 1e-3) / np.maximum(counts, 1e-6))
    shape = np.bincount(merged_bin, expected_sq) ** 2 / variance
    runs = np.random.default_rng(_SEED).gamma(shape, 1 / shape, (_RUNS, len(shape)))
    return _floor(np.abs(np.sqrt(runs) - 1).mean(-1))


def _floor(errors: Array) -> Floor:
    return Floor(float(errors.mean()), float(np.quantile(errors, 0.95)))


# The distribution of q, a sum of K squared residuals drawn from the data, without drawing; and chi-squared.


def distribution_of_q(
    counts: Array,
    z_edges: Array,
    df: int,
    *,
    points: int | None = None,
    limit: float | None = None,
    mean_square: float | None = None,
    squares: Array | None = None,
) -> tuple[Array, Array]:
    r"""CDF of q by the K-fold convolution of the histogram of z^2.

    The squares are put onto a lattice such that their mean is kept, and on a wide lattice their variance too; the
    K-fold convolution is the K-th power of its discrete Fourier transform. Values out of reach are left out: a single
    one makes q larger than the lattice resolves.

    Args:
        counts: Residuals in each bin, the first and the last for those out of reach. Shape ``(..., bins + 2)``.
        z_edges: Edges of the other bins. Shape ``(bins + 1,)``.
        df: Number K of squares in a sum.
        points: Size of the lattice; fine enough for data where None.
        limit: End of the lattice; far enough for data where None.
        mean_square: Exact mean of z^2, where it is known and no residual is out of reach.
        squares: Mean of z^2 in each of the other bins; that of evenly spread residuals where None. Shape ``(bins,)``.

    Returns:
        Rising values of q, and the share of sums below each. Shapes ``(points + 1,)`` and ``(..., points + 1)``.
    """
    points = points or (_POINTS_OF_FEW if df < _FEW else _POINTS)
    step = (limit or sum_limit(df)) / (points - 1)
    shares = counts[..., 1:-1] / counts.sum(-1, keepdims=True)
    if squares is None:
        squares = (0.5 * (z_edges[1:] + z_edges[:-1])) ** 2 + np.diff(z_edges) ** 2 / 12
    if mean_square is not None:
        squares = squares * (mean_square / float(shares @ squares))
    mass = _on_lattice(shares, squares / step, points, wide=step > _WIDE_STEP)
    damping = _DAMPING ** (np.arange(points) / points)
    power = _power(np.fft.rfft(mass * damping), df)
    density = np.maximum(np.fft.irfft(power, points) / damping, 0)
    below = np.concatenate([np.zeros((*density.shape[:-1], 1)), density.cumsum(-1)], -1)
    values = (np.arange(points + 1) - 0.5) * step
    return np.maximum(values, 0), np.minimum(below, 1)


def _power(base: Complex, exponent: int) -> Complex:
    """Integer power by squaring: NumPy takes logarithms."""
    result = base.copy() if exponent & 1 else np.ones_like(base)
    while exponent := exponent >> 1:
        base = base * base
        if exponent & 1:
            result *= base
    return result


def _on_lattice(shares: Array, position: Array, points: int, *, wide: bool) -> Array:
    """Spread the share of each bin over the lattice points next to its position."""
    first = np.maximum(np.rint(position), 1) - 1 if wide else np.floor(position)
    if wide:  # weights of three points keep mean and variance; single ones may be negative
        off = position - (first + 1)
        weights = [0.5 * (off**2 - off), 1 - off**2, 0.5 * (off**2 + off)]
    else:  # weights of two points keep the mean
        weights = [1 - (position - first), position - first]
    first = np.minimum(first.astype(np.int64), points)  # beyond the lattice: cut off in the last line
    order = np.argsort(first, kind="stable")
    targets, starts = np.unique(first[order], return_index=True)
    mass = np.zeros((*shares.shape[:-1], points + len(weights)))
    for k, weight in enumerate(weights):
        mass[..., targets + k] += np.add.reduceat((shares * weight)[..., order], starts, -1)
    return mass[..., :points]


def shares_between(edges: Array, values: Array, below: Array) -> Array:
    """Share of sums in each bin, the outer two unbounded. Shape ``(..., len(edges) + 1)``."""
    right = np.clip(np.searchsorted(values, edges), 1, len(values) - 1)
    share = np.clip((edges - values[right - 1]) / (values[right] - values[right - 1]), 0, 1)
    at_edges = (1 - share) * below[..., right - 1] + share * below[..., right]
    ends = (*below.shape[:-1], 1)
    return np.diff(np.concatenate([np.zeros(ends), at_edges, np.ones(ends)], -1))


@lru_cache(maxsize=64)
def chi2_edges(df: int, bins: int) -> Array:
    """Inner edges of bins of equal probability under chi-squared. Shape ``(bins - 1,)``."""
    return chi2_quantiles(df, np.arange(1, bins) / bins)


def chi2_quantiles(df: int, levels: Array) -> Array:
    """Quantiles of chi-squared, by Newton's method from the approximation of Wilson and Hilferty.

    The quantile function of the Chi2 family is exact in the far tails and differentiable; at these moderate levels it
    would take most of the time of an evaluation.
    """
    p, half = torch.from_numpy(levels), torch.tensor(0.5 * df, dtype=torch.float64)
    spread = 2 / (9 * df)
    x = 0.5 * df * (1 - spread + normal_quantile(p, 1 - p) * math.sqrt(spread)).clamp(min=1e-3) ** 3
    for _ in range(_NEWTON_STEPS):
        log_density = (half - 1) * x.log() - x - torch.lgamma(half)
        step = (torch.special.gammainc(half, x) - p) * (-log_density).exp()
        x = torch.maximum(x - step, 0.1 * x)  # a start that is too large would step below 0
    values: Array = (2 * x).numpy()
    return values
