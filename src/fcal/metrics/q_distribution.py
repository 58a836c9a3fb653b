"""The distribution of q, a sum of K squared residuals drawn from the data, without drawing; and chi-squared."""

import math
from functools import lru_cache

import numpy as np
import torch

from fcal.distributions import normal_quantile
from fcal.metrics.state import Array, Integers, sum_limit

Complex = np.ndarray[tuple[int, ...], np.dtype[np.complex128]]

_POINTS = 4096
_POINTS_OF_FEW = 16384  # sums of few squares keep the steep density of a single square near 0
_FEW = 10
_WIDE_STEP = 0.1  # above this lattice step, two-point splitting would widen the distribution of q
_DAMPING = 1e-8  # damps what wraps around the end of the lattice; rounding errors grow by its inverse
_NEWTON_STEPS = 12


def distribution_of_q(
    counts: Array,
    z_edges: Array,
    df: int,
    *,
    points: int | None = None,
    limit: float | None = None,
    mean_square: float | None = None,
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

    Returns:
        Rising values of q, and the share of sums below each. Shapes ``(points + 1,)`` and ``(..., points + 1)``.
    """
    points = points or (_POINTS_OF_FEW if df < _FEW else _POINTS)
    step = (limit or sum_limit(df)) / (points - 1)
    shares = counts[..., 1:-1] / counts.sum(-1, keepdims=True)
    middle = 0.5 * (z_edges[1:] + z_edges[:-1])
    squares = middle**2 + np.diff(z_edges) ** 2 / 12
    if mean_square is not None:
        squares *= mean_square / float(shares @ squares)
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
    first, weights = _three_points(position) if wide else _two_points(position)
    first = np.minimum(first, points)  # beyond the lattice: cut off in the last line
    order = np.argsort(first, kind="stable")
    targets, starts = np.unique(first[order], return_index=True)
    mass = np.zeros((*shares.shape[:-1], points + len(weights)))
    for k, weight in enumerate(weights):
        mass[..., targets + k] += np.add.reduceat((shares * weight)[..., order], starts, -1)
    return mass[..., :points]


def _two_points(position: Array) -> tuple[Integers, list[Array]]:
    """Index of the lattice point on the left, and weights of it and its neighbour that keep the mean."""
    left = np.floor(position)
    return left.astype(np.int64), [1 - (position - left), position - left]


def _three_points(position: Array) -> tuple[Integers, list[Array]]:
    """Index of the first of three points, and weights that keep mean and variance; single weights may be negative."""
    middle = np.maximum(np.rint(position), 1)
    off = position - middle
    return middle.astype(np.int64) - 1, [0.5 * (off**2 - off), 1 - off**2, 0.5 * (off**2 + off)]


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
