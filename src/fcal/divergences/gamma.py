"""The divergence that knows q to be chi-squared, not normal: between gamma laws."""

from collections.abc import Callable, Sequence

import numpy
import torch
from torch import Tensor

from fcal.divergences.arithmetic import Scalar, at_least, at_most, excess_variance, log1p, log_gap, target_moments
from fcal.divergences.closed_forms import kl
from fcal.divergences.registry import built_in

_LEAST_MEAN = 1e-60  # in units of df; a gamma law needs a positive one
_SHAPE_RATIOS = (1e-150, 1e150)  # whose squares and their inverses are finite
_SHIFTS = 8  # from x + 8 on, Stirling's series has all digits
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_NEAR = 0.2  # of the shapes, relative; within it seven points integrate the curvature to all digits
_NODES, _WEIGHTS = (values.tolist() for values in numpy.polynomial.legendre.leggauss(7))
_QUADRATURE = [(0.5 + 0.5 * node, 0.5 * weight) for node, weight in zip(_NODES, _WEIGHTS, strict=True)]


@built_in(numbers=True)
def chi2_moments(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Kullback-Leibler divergence from the gamma law with the fitted moments to the true chi-squared law.

    The normal limit of chi-squared is poor for few degrees of freedom; this needs no limit. With the fitted shape
    :math:`a = mean^2 / variance` and the target's :math:`b = K / 2`, and :math:`\mu = mean / K`,

    .. math:: b (\mu - 1 - \log \mu)
        + (a - b) \psi(a) - \log \Gamma(a) + \log \Gamma(b) + b \log \frac ab + b - a

    Residuals z are normal themselves: without ``df`` this is :func:`kl`.

    Args:
        mean: Mean of the fitted law, positive. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom :math:`K` of the target, chi-squared; None for N(0, 1).

    Returns:
        A non-negative scalar, zero exactly when ``mean == df`` and ``variance == 2 * df``; unbounded as either
        goes to 0.

    Note:
        Both lines are formed without cancellation for any df: the relative accuracy, 1e-12, holds down to zero. A mean
        below 1e-60 of df counts as that.

    Example:
        >>> fcal.divergences.chi2_moments(torch.tensor(3.0), torch.tensor(6.0), df=3)
        tensor(0.)
    """
    if df is None:
        return kl(mean, variance)
    if isinstance(mean, Tensor) and mean.dtype != torch.float64:  # whose range the bounds below need
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
    r"""The second line: gamma laws of equal mean and shapes a and b.

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
    """The same as the integral of (b - x) times the curvature from a to b, whose terms are all positive."""
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
    """What a function loses from x to where its series holds, step by step."""
    if isinstance(x, Tensor):
        return difference(x.unsqueeze(-1) + torch.arange(_SHIFTS, dtype=x.dtype, device=x.device)).sum(-1)
    return sum(difference(x + k) for k in range(_SHIFTS))


def _polynomial(coefficients: Sequence[float], inverse: Scalar) -> Scalar:
    """Of the squared inverse, lowest power first."""
    square = inverse * inverse
    value = square * 0 + coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        value = value * square + coefficient
    return value
