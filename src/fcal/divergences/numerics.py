"""The target distribution, and elementary functions of both tensors and complex numbers.

A divergence written with these functions is differentiated either by autograd or by a complex step.
"""

import cmath
import math
from typing import TypeVar

import torch
from torch import Tensor

Scalar = TypeVar("Scalar", Tensor, complex)

_NEAR_ONE = 0.25  # distance from 1 within which x - 1 - log x is a series; its terms fall by 1 / 49


def target_moments(df: int | None) -> tuple[float, float]:
    """Mean and variance of the target distribution."""
    if df is None:
        return 0.0, 1.0
    if isinstance(df, bool) or not isinstance(df, int) or df < 1:
        raise ValueError(f"expected `df` None or an int >= 1, got {df!r}")
    return float(df), 2.0 * df


def standardized(mean: Scalar, variance: Scalar, df: int | None) -> tuple[Scalar, Scalar]:
    """Squared distance of the means in standard deviations of the target, and the ratio of the variances."""
    target_mean, target_variance = target_moments(df)
    gap = mean - target_mean
    return gap * gap / target_variance, variance / target_variance


def excess_variance(variance: Scalar, df: int | None) -> Scalar:
    """Ratio of the variances minus 1, accurate where the ratio is close to 1."""
    target_variance = target_moments(df)[1]
    return (variance - target_variance) / target_variance


def log(value: Scalar) -> Scalar:
    """Natural logarithm."""
    if isinstance(value, Tensor):
        return value.log()
    return math.log(value) if isinstance(value, float) else cmath.log(value)


def log1p(value: Scalar) -> Scalar:
    """Logarithm of 1 + value, accurate near 0."""
    if isinstance(value, Tensor):
        return value.log1p()
    if isinstance(value, float):
        return math.log1p(value)
    x, y = value.real, value.imag
    if abs(x) > 0.5:
        return cmath.log(1 + value)
    return complex(0.5 * math.log1p(x * (2 + x) + y * y), math.atan2(y, 1 + x))


def expm1(value: Scalar) -> Scalar:
    """Exponential minus 1, accurate near 0."""
    if isinstance(value, Tensor):
        near = value > -1
        close = torch.where(near, value, 0.0).expm1()  # its derivative, value + 1, is accurate only there
        return torch.where(near, close, value.exp() - 1)
    if isinstance(value, float):
        return math.expm1(value)
    x, y = value.real, value.imag
    half = math.sin(0.5 * y)
    return complex(math.expm1(x) * math.cos(y) - 2 * half * half, math.exp(x) * math.sin(y))


def sqrt(value: Scalar) -> Scalar:
    """Square root."""
    if isinstance(value, Tensor):
        return value.sqrt()
    return math.sqrt(value) if isinstance(value, float) else cmath.sqrt(value)


def at_most(value: Scalar, limit: float) -> Scalar:
    """The value below a limit, and the limit, a constant, from there on."""
    if isinstance(value, Tensor):
        return torch.where(value < limit, value, limit)
    return value if value.real < limit else limit


def at_least(value: Scalar, limit: float) -> Scalar:
    """The value from a limit on, and the limit, a constant, below; either this or ``at_most`` has a gradient."""
    if isinstance(value, Tensor):
        return torch.where(value >= limit, value, limit)
    return value if value.real >= limit else limit


def log_gap(ratio: Scalar, excess: Scalar) -> Scalar:
    r"""Distance of a ratio from 1, :math:`x - 1 - \log x`, without cancellation.

    Args:
        ratio: :math:`x`, positive.
        excess: :math:`x - 1`, accurate where x is close to 1.

    Example:
        >>> log_gap(1.0 + 2**-40, 2.0**-40) / 2.0**-81  # x^2 / 2 for small x - 1
        0.99999999999939...
    """
    if isinstance(ratio, Tensor):
        near = (ratio - 1).abs() < _NEAR_ONE
        return torch.where(near, _log_gap_series(torch.where(near, excess, 0.0)), ratio - 1 - ratio.log())
    return _log_gap_series(excess) if abs(ratio.real - 1) < _NEAR_ONE else ratio - 1 - log(ratio)


def _log_gap_series(excess: Scalar) -> Scalar:
    """The series of log(1 + e) = 2 artanh(u) with u = e / (2 + e); its leading term e - 2u = u e is exact."""
    u = excess / (2 + excess)
    square = u * u
    tail = square * 0 + 1 / 19
    for odd in range(17, 1, -2):
        tail = tail * square + 1 / odd
    return u * excess - 2 * u * square * tail
