"""The law of q, a sum of K squared residuals drawn from the data, without any draw."""

import numpy as np

from fcal.metrics.grid import Array, sum_limit

Complex = np.ndarray[tuple[int, ...], np.dtype[np.complex128]]
Indices = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

_POINTS = 4096
_POINTS_OF_FEW = 16384  # few squares keep the steep density of one near 0
_FEW = 10
_WIDE_STEP = 0.1  # from which on splitting a square between two points would widen q
_DAMPING = 1e-8  # what wraps around the end of the lattice is damped by this; rounding grows by its inverse


def law_of_sums(
    counts: Array,
    z_edges: Array,
    df: int,
    *,
    points: int | None = None,
    limit: float | None = None,
    mean_square: float | None = None,
) -> tuple[Array, Array]:
    r"""CDF of q by the K-fold convolution of the histogram of z^2.

    The squares go onto a lattice so that their mean is kept, and on a wide one their variance too; the K-fold
    convolution is the K-th power of its discrete Fourier transform. Values out of reach are left out: one of them makes
    q larger than any it can tell.

    Args:
        counts: Residuals in each bin, the first and the last for those out of reach. Shape ``(..., bins + 2)``.
        z_edges: Edges of the other bins. Shape ``(bins + 1,)``.
        df: Number K of squares in a sum.
        points: Size of the lattice; one fine enough for data where None.
        limit: Its end; far enough for data where None.
        mean_square: Mean of z^2, where it is known better than the bins tell it and none is out of reach.

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
    """Whole power by squaring: numpy's own takes logarithms."""
    result = base.copy() if exponent & 1 else np.ones_like(base)
    while exponent := exponent >> 1:
        base = base * base
        if exponent & 1:
            result *= base
    return result


def _on_lattice(shares: Array, place: Array, points: int, *, wide: bool) -> Array:
    """Spread the share of each bin over the lattice points beside its place."""
    first, weights = _three_points(place) if wide else _two_points(place)
    first = np.minimum(first, points)  # beyond the lattice: cut off below
    order = np.argsort(first, kind="stable")
    targets, starts = np.unique(first[order], return_index=True)
    mass = np.zeros((*shares.shape[:-1], points + len(weights)))
    for k, weight in enumerate(weights):
        mass[..., targets + k] += np.add.reduceat((shares * weight)[..., order], starts, -1)
    return mass[..., :points]


def _two_points(place: Array) -> tuple[Indices, list[Array]]:
    """The points left and right of a place and their shares, which keep the mean."""
    left = np.floor(place)
    return left.astype(np.int64), [1 - (place - left), place - left]


def _three_points(place: Array) -> tuple[Indices, list[Array]]:
    """Three points around a place and shares that keep mean and variance; some are negative, their sums never far."""
    middle = np.maximum(np.rint(place), 1)
    off = place - middle
    return middle.astype(np.int64) - 1, [0.5 * (off**2 - off), 1 - off**2, 0.5 * (off**2 + off)]


def shares_between(edges: Array, values: Array, below: Array) -> Array:
    """Share of sums in each bin, the outer two without end. Shape ``(..., len(edges) + 1)``."""
    right = np.clip(np.searchsorted(values, edges), 1, len(values) - 1)
    share = np.clip((edges - values[right - 1]) / (values[right] - values[right - 1]), 0, 1)
    at_edges = (1 - share) * below[..., right - 1] + share * below[..., right]
    ends = (*below.shape[:-1], 1)
    return np.diff(np.concatenate([np.zeros(ends), at_edges, np.ones(ends)], -1))
