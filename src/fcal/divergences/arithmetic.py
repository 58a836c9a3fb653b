"""Functions that tensors and plain, also complex, numbers share: one formula serves autograd and complex steps."""

import cmath
import math
from typing import TypeVar

import torch
from torch import Tensor

Scalar = TypeVar("Scalar", Tensor, complex)

_NEAR_ONE = 0.25  # within it of 1, x - 1 - log x is a series; its terms fall by 1 / 49 there


def target_moments(df: int | None) -> tuple[float, float]:
    """Mean and variance of the target law."""
    if df is None:
        return 0.0, 1.0
    if isinstance(df, bool) or not isinstance(df, int) or df < 1:
        raise ValueError(f"expected `df` None or an int >= 1, got {df!r}")
    return float(df), 2.0 * df


def standardized(mean: Scalar, variance: Scalar, df: int | None) -> tuple[Scalar, Scalar]:
    """Squared distance of the means in target deviations, and the ratio of the variances."""
    target_mean, target_variance = target_moments(df)
    gap = mean - target_mean
    return gap * gap / target_variance, variance / target_variance


def excess_variance(variance: Scalar, df: int | None) -> Scalar:
    """Ratio of the variances less 1, with all its digits where the ratio is close to 1."""
    target_variance = target_moments(df)[1]
    return (variance - target_variance) / target_variance


def log(value: Scalar) -> Scalar:
    """Natural logarithm."""
    if isinstance(value, Tensor):
        return value.log()
    return math.log(value) if isinstance(value, float) else cmath.log(value)


def log1p(value: Scalar) -> Scalar:
    """Logarithm of 1 + value, with all its digits near 0."""
    if isinstance(value, Tensor):
        return value.log1p()
    if isinstance(value, float):
        return math.log1p(value)
    x, y = value.real, value.imag
    if abs(x) > 0.5:
        return cmath.log(1 + value)
    return complex(0.5 * math.log1p(x * (2 + x) + y * y), math.atan2(y, 1 + x))


def expm1(value: Scalar) -> Scalar:
    """Exponential less 1, with all its digits near 0."""
    if isinstance(value, Tensor):
        near = value > -1
        close = torch.where(near, value, 0.0).expm1()  # whose derivative is formed as its value plus 1, so not far out
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
    """The value below a limit; from there on the limit, a constant."""
    if isinstance(value, Tensor):
        return torch.where(value < limit, value, limit)
    return value if value.real < limit else limit


def at_least(value: Scalar, limit: float) -> Scalar:
    """The value from a limit on; below it the limit, a constant. Of this and ``at_most`` exactly one has a slope."""
    if isinstance(value, Tensor):
        return torch.where(value >= limit, value, limit)
    return value if value.real >= limit else limit


def log_gap(ratio: Scalar, excess: Scalar) -> Scalar:
    r"""How far a ratio is from 1, :math:`x - 1 - \log x`, also where nearly all of it cancels.

    Args:
        ratio: :math:`x`, positive.
        excess: :math:`x - 1`, with its digits where x is close to 1.

    Example:
        >>> log_gap(1.0 + 2**-40, 2.0**-40) / 2.0**-81  # x^2 / 2 for small x - 1
        0.99999999999939...
    """
    if isinstance(ratio, Tensor):
        near = (ratio - 1).abs() < _NEAR_ONE
        return torch.where(near, _log_gap_series(torch.where(near, excess, 0.0)), ratio - 1 - ratio.log())
    return _log_gap_series(excess) if abs(ratio.real - 1) < _NEAR_ONE else ratio - 1 - log(ratio)


def _log_gap_series(excess: Scalar) -> Scalar:
    """By log(1 + e) = 2 artanh(u) with u = e / (2 + e), whose leading term e - 2u = u e is taken exactly."""
    u = excess / (2 + excess)
    square = u * u
    tail = square * 0 + 1 / 19
    for odd in range(17, 1, -2):
        tail = tail * square + 1 / odd
    return u * excess - 2 * u * square * tail
