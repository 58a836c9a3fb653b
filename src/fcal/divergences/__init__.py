r"""Divergences: how far the fitted distribution of the residuals is from the one they follow when calibrated.

Every divergence is a function ``(mean, variance, df)`` of the moments of a fitted normal distribution. The target is
:math:`N(K, 2K)`, the normal limit of chi-squared, with ``df`` = K for sums q of K squared residuals; and
:math:`N(0, 1)` with ``df=None`` for the residuals z themselves. Where to find them:

- ``kullback_leibler``: :func:`kl`, which is the KL of q in the paper's loss, :func:`reverse_kl`, :func:`jeffreys`, and
  :func:`chi2_moments`, which compares with the chi-squared distribution itself instead of its normal limit;
- ``wasserstein_distances``: :func:`wasserstein`, :func:`wasserstein_printed`, and :func:`sorted_wasserstein`, which
  takes the residuals ``(z, weight)`` in place of their moments;
- ``f_divergences``: :func:`hellinger`, :func:`total_variation`, :func:`jensen_shannon`, :func:`renyi`,
  :func:`chi_square`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from fcal._registry import Registry
from fcal.divergences.f_divergences import ORDERS, chi_square, hellinger, jensen_shannon, renyi, total_variation
from fcal.divergences.kullback_leibler import chi2_moments, jeffreys, kl, reverse_kl
from fcal.divergences.wasserstein_distances import sorted_wasserstein, wasserstein, wasserstein_printed

__all__ = [
    "by_name",
    "chi2_moments",
    "chi_square",
    "hellinger",
    "jeffreys",
    "jensen_shannon",
    "kl",
    "names",
    "register",
    "renyi",
    "reverse_kl",
    "sorted_wasserstein",
    "total_variation",
    "wasserstein",
    "wasserstein_printed",
]

Divergence = Callable[..., Any]


class _Parameter(NamedTuple):
    """The number that a name may carry in brackets, and its range."""

    name: str
    low: float
    high: float


_OF_NUMBERS: tuple[Divergence, ...] = (
    *(kl, reverse_kl, wasserstein, wasserstein_printed, jeffreys, chi2_moments),
    *(hellinger, renyi, chi_square),
)
_OF_RESIDUALS: tuple[Divergence, ...] = (sorted_wasserstein,)
_PARAMETERS = {"renyi": _Parameter("alpha", *ORDERS)}

_DIVERGENCES: Registry[Divergence] = Registry("divergence")
for _divergence in (
    *(kl, reverse_kl, wasserstein, wasserstein_printed, jeffreys, chi2_moments),
    *(hellinger, total_variation, jensen_shannon, renyi, chi_square, sorted_wasserstein),
):
    _DIVERGENCES.entry(_divergence)
_BUILT_IN = frozenset(_DIVERGENCES.names())


def register(name: str, divergence: Divergence) -> None:
    """Add a divergence under a name that ``FCalLoss`` accepts.

    Args:
        name: Any name but that of a built-in divergence; an earlier entry of yours is replaced.
        divergence: ``(mean, variance, df)`` to a non-negative scalar; differentiable, called with float64 tensors.

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
    if _parametrised(name) is not None:
        raise ValueError(f"expected `divergence` name that is not taken, got {name!r}")
    _DIVERGENCES.add(name, divergence, replace=name not in _BUILT_IN)


def names() -> list[str]:
    """Names of all divergences.

    Example:
        >>> fcal.divergences.names()[:4]
        ['kl', 'reverse_kl', 'wasserstein', 'wasserstein_printed']
    """
    return _DIVERGENCES.names()


def by_name(name: str) -> Divergence:
    """The divergence of that name; ``"renyi(2)"`` is :func:`renyi` with that parameter.

    Raises:
        ValueError: The name is unknown (the message lists the known ones), or its parameter is out of range.

    Example:
        >>> fcal.divergences.by_name("kl")(torch.tensor(0.0), torch.tensor(1.0), None)
        tensor(0.)
        >>> fcal.divergences.by_name("renyi(2)")(torch.tensor(1.0), torch.tensor(1.0), None)
        tensor(1.)
    """
    base = _parametrised(name)
    if base is None:
        return _DIVERGENCES[name]
    return partial(_DIVERGENCES[base], **{_PARAMETERS[base].name: _parameter_value(name, _PARAMETERS[base])})


def takes_numbers(divergence: Divergence) -> bool:
    """Whether a divergence also accepts complex numbers in place of tensors; only built-in ones may."""
    return _without_parameter(divergence) in _OF_NUMBERS


def takes_residuals(divergence: Divergence) -> bool:
    """Whether a divergence is a function of the residuals, ``(z, weight)``, instead of their moments."""
    return _without_parameter(divergence) in _OF_RESIDUALS


def _without_parameter(divergence: Divergence) -> Divergence:
    return divergence.func if isinstance(divergence, partial) else divergence


def _parametrised(name: str) -> str | None:
    """The part of a name before its bracket, if that is a built-in divergence with a parameter."""
    if not isinstance(name, str) or "(" not in name:
        return None
    base = name.partition("(")[0]
    return base if base in _PARAMETERS else None


def _parameter_value(name: str, parameter: _Parameter) -> float:
    """The number in the brackets of a name."""
    base, _, rest = name.partition("(")
    try:
        value = float(rest.removesuffix(")")) if rest.endswith(")") else None
    except ValueError:
        value = None
    if value is None or not parameter.low <= value <= parameter.high:  # also refuses NaN
        known = f"'{base}({parameter.name})' with {parameter.name} within [{parameter.low:g}, {parameter.high:g}]"
        raise ValueError(f"expected `divergence` {known}, got {name[:40]!r}")
    return value
