"""Kullback-Leibler divergences between the fitted distribution and its target, both normal or both gamma.

The KL of q, the loss of the paper, is :func:`kl` with ``df=K``; the KL of z is :func:`kl` with ``df=None``.
"""

from collections.abc import Callable, Sequence

import numpy
import torch
from torch import Tensor

from fcal.divergences.numerics import (
    Scalar,
    at_least,
    at_most,
    excess_variance,
    log,
    log1p,
    log_gap,
    standardized,
    target_moments,
)

_LEAST_MEAN = 1e-60  # in units of df; the mean of a gamma distribution is positive
_SHAPE_RATIOS = (1e-150, 1e150)  # bounds whose squares and inverse squares are finite
_SHIFTS = 8  # Stirling's series is accurate to all digits from x + 8 on
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_NEAR = 0.2  # relative gap of the shapes within which seven nodes integrate the curvature to all digits
_NODES, _WEIGHTS = (values.tolist() for values in numpy.polynomial.legendre.leggauss(7))
_QUADRATURE = [(0.5 + 0.5 * node, 0.5 * weight) for node, weight in zip(_NODES, _WEIGHTS, strict=True)]


def kl(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Kullback-Leibler divergence KL(fitted || target), the loss of the paper.

    .. math:: \tfrac12 \left( v - 1 - \log v + m^2 \right)

    with :math:`m = (mean - K) / \sqrt{2K}` and :math:`v = variance / 2K`, or mean and variance themselves without K.

    Args:
        mean: Mean of the fitted distribution: a tensor of shape ``()``, or a number, also a complex one.
        variance: Its variance, positive; likewise.
        df: Degrees of freedom :math:`K` of the target N(K, 2K); None for N(0, 1).

    Returns:
        A non-negative scalar, zero exactly when the distributions agree; unbounded as the variance goes to 0.

    Example:
        >>> fcal.divergences.kl(torch.tensor(100.0), torch.tensor(200.0), df=100)
        tensor(0.)
    """
    offset, ratio = standardized(mean, variance, df)
    return 0.5 * (ratio - 1 - log(ratio) + offset)


def reverse_kl(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Kullback-Leibler divergence KL(target || fitted), the metric of the paper.

    .. math:: \tfrac12 \left( \frac{1 + m^2}{v} - 1 + \log v \right)

    with m and v as in :func:`kl`.

    Args:
        mean: Mean of the fitted distribution. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom of the target; None for N(0, 1).

    Returns:
        A non-negative scalar, zero exactly when the distributions agree; unbounded as the variance goes to 0.

    Example:
        >>> fcal.divergences.reverse_kl(torch.tensor(100.0), torch.tensor(200.0), df=100)
        tensor(0.)
    """
    offset, ratio = standardized(mean, variance, df)
    return 0.5 * ((1 + offset) / ratio - 1 + log(ratio))


def jeffreys(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Jeffreys divergence, the sum KL(fitted || target) + KL(target || fitted).

    .. math:: \tfrac12 \left( \frac{(v - 1)^2}{v} + m^2 \left( 1 + \frac1v \right) \right)

    with m and v as in :func:`kl`; the logarithms cancel, so the relative accuracy holds down to zero.

    Args:
        mean: Mean of the fitted distribution. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom of the target; None for N(0, 1).

    Returns:
        A non-negative scalar, zero exactly when the distributions agree; unbounded as the variance goes to 0.

    Example:
        >>> fcal.divergences.jeffreys(torch.tensor(1.0), torch.tensor(2.0))
        tensor(1.)
    """
    offset, ratio = standardized(mean, variance, df)
    excess = excess_variance(variance, df)
    return 0.5 * (excess * (excess / ratio) + offset + offset / ratio)  # evaluated in this order, no square overflows


def chi2_moments(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Kullback-Leibler divergence of the gamma distribution with the fitted moments from chi-squared itself.

    The normal limit of chi-squared is poor for few degrees of freedom; this divergence needs no limit. With the
    fitted shape :math:`a = mean^2 / variance` and the target's :math:`b = K / 2`, and :math:`\mu = mean / K`,

    .. math:: b (\mu - 1 - \log \mu)
        + (a - b) \psi(a) - \log \Gamma(a) + \log \Gamma(b) + b \log \frac ab + b - a

    For the residuals z, which are normal, it is :func:`kl`.

    Args:
        mean: Mean of the fitted distribution, positive. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom :math:`K` of the target, chi-squared; None for N(0, 1).

    Returns:
        A non-negative scalar, zero exactly when ``mean == df`` and ``variance == 2 * df``; unbounded as either
        goes to 0.

    Note:
        Both terms are computed without cancellation for any df: the relative accuracy of 1e-12 holds down to zero. A
        mean below 1e-60 df is clamped there.

    Example:
        >>> fcal.divergences.chi2_moments(torch.tensor(3.0), torch.tensor(6.0), df=3)
        tensor(0.)
    """
    if df is None:
        return kl(mean, variance)
    if isinstance(mean, Tensor) and mean.dtype != torch.float64:  # the bounds below need its range
        return chi2_moments(mean.double(), variance.double(), df).to(mean.dtype)
    target_mean, target_variance = target_moments(df)
    level = at_least(mean / target_mean, _LEAST_MEAN)
    level_excess = at_least((mean - target_mean) / target_mean, _LEAST_MEAN - 1)
    square = level * level
    shapes = at_most(at_least(variance / target_variance / square, _SHAPE_RATIOS[0]), _SHAPE_RATIOS[1])  # b / a
    shapes_excess = (excess_variance(variance, df) - level_excess * (level + 1)) / square
    half = 0.5 * target_mean
    return half * log_gap(level, level_excess) + _between_shapes(half / shapes, half, shapes, shapes_excess)


def _between_shapes(fitted: Scalar, target: float, ratio: Scalar, excess: Scalar) -> Scalar:
    r"""The second term, between gamma distributions of equal mean and shapes a and b.

    With :math:`\log \Gamma(x) = (x - \frac12) \log x - x + \log \sqrt{2 \pi} + \beta(x)`, Binet's function, it is

    .. math:: \tfrac12 (r - 1 - \log r) + \beta(b) - \beta(a) - (b - a) \beta'(a), \qquad r = b / a
    """
    gap = 0.5 * log_gap(ratio, excess)
    if isinstance(ratio, Tensor):
        near = (ratio - 1).abs() < _NEAR
        close = _binet_near(torch.where(near, fitted, target), torch.where(near, excess, 0.0))
        return gap + torch.where(near, close, _binet_far(fitted, target))
    return gap + (_binet_near(fitted, excess) if abs(ratio.real - 1) < _NEAR else _binet_far(fitted, target))


def _binet_far(a: Scalar, b: float) -> Scalar:
    return _binet(b) - _binet(a) - (b - a) * _binet_slope(a)


def _binet_near(a: Scalar, excess: Scalar) -> Scalar:
    """The same as an integral of (b - x) times the curvature from a to b, whose terms are all positive."""
    step = a * excess
    if isinstance(a, Tensor):
        t, weight = torch.tensor(_QUADRATURE, dtype=a.dtype, device=a.device).unbind(1)
        return step * step * ((1 - t) * weight * _binet_curvature(a + t * step)).sum(-1)
    return step * step * sum((1 - t) * weight * _binet_curvature(a + t * step) for t, weight in _QUADRATURE)


def _binet(x: Scalar) -> Scalar:
    inverse = 1 / (x + _SHIFTS)
    return _recurrence(x, lambda y: (y + 0.5) * log1p(1 / y) - 1) + inverse * _polynomial(_STIRLING, inverse)


def _binet_slope(x: Scalar) -> Scalar:
    inverse = 1 / (x + _SHIFTS)
    series = [-(2 * k + 1) * c for k, c in enumerate(_STIRLING)]
    steps = _recurrence(x, lambda y: log1p(1 / y) - (y + 0.5) / y / (y + 1))
    return steps + inverse * inverse * _polynomial(series, inverse)


def _binet_curvature(x: Scalar) -> Scalar:
    inverse = 1 / (x + _SHIFTS)
    series = [(2 * k + 1) * (2 * k + 2) * c for k, c in enumerate(_STIRLING)]
    steps = _recurrence(x, lambda y: 0.5 / y / y / (y + 1) / (y + 1))
    return steps + inverse * inverse * inverse * _polynomial(series, inverse)


def _recurrence(x: Scalar, difference: Callable[[Scalar], Scalar]) -> Scalar:
    """Difference of a function between x and x + 8, where its series holds, as a sum of unit steps."""
    if isinstance(x, Tensor):
        return difference(x.unsqueeze(-1) + torch.arange(_SHIFTS, dtype=x.dtype, device=x.device)).sum(-1)
    return sum(difference(x + k) for k in range(_SHIFTS))


def _polynomial(coefficients: Sequence[float], inverse: Scalar) -> Scalar:
    """Polynomial in the squared inverse, lowest power first."""
    square = inverse * inverse
    value = square * 0 + coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        value = value * square + coefficient
    return value
