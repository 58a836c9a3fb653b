"""How far a fitted normal law is from the law that residuals must follow.

Every divergence takes the fitted mean and variance and the target's degrees of freedom ``df``: the target is the normal
limit N(df, 2 df) of chi-squared, or N(0, 1) where ``df`` is None.
"""

import cmath
import math
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from fcal._registry import Registry

__all__ = ["by_name", "kl", "names", "register", "reverse_kl", "wasserstein", "wasserstein_printed"]

Divergence = Callable[[Any, Any, int | None], Any]
Scalar = TypeVar("Scalar", Tensor, complex)

_DIVERGENCES: Registry[Divergence] = Registry("divergence")


def register(name: str, divergence: Divergence) -> None:
    """Add a divergence of your own under a name that ``FCalLoss`` then takes.

    Args:
        name: A name that is not one of ours; one of yours is replaced.
        divergence: ``(mean, variance, df)`` to a non-negative scalar, differentiable; float64 comes in.

    Example:
        >>> def squared_error(mean, variance, df):
        ...     target = 0 if df is None else df
        ...     return (mean - target).square()
        >>> fcal.divergences.register("squared_error", squared_error)
        >>> "squared_error" in fcal.divergences.names()
        True
    """
    if not callable(divergence):
        raise TypeError(f"expected `divergence` a function of (mean, variance, df), got {divergence!r}")
    ours = {known.__name__ for known in _OURS}
    _DIVERGENCES.add(name, divergence, replace=name not in ours)


def names() -> list[str]:
    """Every known divergence.

    Example:
        >>> fcal.divergences.names()[:4]
        ['kl', 'reverse_kl', 'wasserstein', 'wasserstein_printed']
    """
    return _DIVERGENCES.names()


def by_name(name: str) -> Divergence:
    """The divergence of that name.

    Raises:
        ValueError: The name is unknown; the message lists those that are known.

    Example:
        >>> fcal.divergences.by_name("kl")(torch.tensor(0.0), torch.tensor(1.0), None)
        tensor(0.)
    """
    return _DIVERGENCES[name]


@_DIVERGENCES.entry
def kl(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Kullback-Leibler divergence from the fitted law to the target, KL(fitted || target); the paper's loss.

    .. math:: \tfrac12 \left( v - 1 - \log v + m^2 \right)

    with :math:`m = (mean - K) / \sqrt{2K}` and :math:`v = variance / 2K`.

    Args:
        mean: Mean of the fitted law. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom :math:`K` of the target N(K, 2K); None for N(0, 1).

    Returns:
        A non-negative scalar, zero exactly when the laws agree; unbounded as the variance goes to 0.

    Example:
        >>> fcal.divergences.kl(torch.tensor(100.0), torch.tensor(200.0), df=100)
        tensor(0.)
    """
    offset, ratio = _standardized(mean, variance, df)
    return 0.5 * (ratio - 1 - _log(ratio) + offset)


@_DIVERGENCES.entry
def reverse_kl(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Kullback-Leibler divergence from the target to the fitted law, KL(target || fitted); the paper's metric.

    .. math:: \tfrac12 \left( \frac{1 + m^2}{v} - 1 + \log v \right)

    with m and v as in :func:`kl`.

    Args:
        mean: Mean of the fitted law. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom of the target; None for N(0, 1).

    Returns:
        A non-negative scalar, zero exactly when the laws agree; unbounded as the variance goes to 0.

    Example:
        >>> fcal.divergences.reverse_kl(torch.tensor(100.0), torch.tensor(200.0), df=100)
        tensor(0.)
    """
    offset, ratio = _standardized(mean, variance, df)
    return 0.5 * ((1 + offset) / ratio - 1 + _log(ratio))


@_DIVERGENCES.entry
def wasserstein(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Squared 2-Wasserstein distance in units of the target's variance, :math:`W_2^2 / 2K`.

    .. math:: m^2 + (\sqrt v - 1)^2

    with m and v as in :func:`kl`. Unlike the printed form it does not grow with K, so a weight ``lam`` means the same
    for every K.

    Args:
        mean: Mean of the fitted law. Shape ``()``.
        variance: Its variance, non-negative. Shape ``()``.
        df: Degrees of freedom :math:`K` of the target; None for N(0, 1), where it is :math:`W_2^2` itself.

    Returns:
        A non-negative scalar, zero exactly when the laws agree.

    Example:
        >>> fcal.divergences.wasserstein(torch.tensor(0.0), torch.tensor(4.0))
        tensor(1.)
    """
    offset, ratio = _standardized(mean, variance, df)
    gap = _sqrt(ratio) - 1
    return offset + gap * gap


@_DIVERGENCES.entry
def wasserstein_printed(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Squared 2-Wasserstein distance :math:`W_2^2` as the paper prints it.

    .. math:: (mean - K)^2 + (\sqrt{variance} - \sqrt{2K})^2

    Args:
        mean: Mean of the fitted law. Shape ``()``.
        variance: Its variance, non-negative. Shape ``()``.
        df: Degrees of freedom :math:`K` of the target; None for N(0, 1).

    Returns:
        A non-negative scalar, zero exactly when the laws agree.

    Example:
        >>> fcal.divergences.wasserstein_printed(torch.tensor(101.0), torch.tensor(200.0), df=100)
        tensor(1.)
    """
    return wasserstein(mean, variance, df) * _target(df)[1]


def takes_numbers(divergence: Divergence) -> bool:
    """Whether a divergence is one of ours, which also take plain (also complex) numbers for mean and variance."""
    return divergence in _OURS


_OURS: tuple[Divergence, ...] = (kl, reverse_kl, wasserstein, wasserstein_printed)


def _target(df: int | None) -> tuple[float, float]:
    """Mean and variance of the target law."""
    if df is None:
        return 0.0, 1.0
    if isinstance(df, bool) or not isinstance(df, int) or df < 1:
        raise ValueError(f"expected `df` None or an int >= 1, got {df!r}")
    return float(df), 2.0 * df


def _standardized(mean: Scalar, variance: Scalar, df: int | None) -> tuple[Scalar, Scalar]:
    """Squared distance of the means in target deviations, and the ratio of the variances."""
    target_mean, target_variance = _target(df)
    gap = mean - target_mean
    return gap * gap / target_variance, variance / target_variance


def _log(value: Scalar) -> Scalar:
    if isinstance(value, Tensor):
        return value.log()
    return math.log(value) if isinstance(value, float) else cmath.log(value)


def _sqrt(value: Scalar) -> Scalar:
    if isinstance(value, Tensor):
        return value.sqrt()
    return math.sqrt(value) if isinstance(value, float) else cmath.sqrt(value)
