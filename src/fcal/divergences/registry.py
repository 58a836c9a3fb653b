"""Divergences by name: ours, ours with a parameter in brackets, and the user's."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fcal._registry import Registry

Divergence = Callable[..., Any]
Function = TypeVar("Function", bound=Divergence)

_DIVERGENCES: Registry[Divergence] = Registry("divergence")
_OURS: set[str] = set()
_OF_NUMBERS: list[Divergence] = []
_OF_SAMPLES: list[Divergence] = []


class Parameter(NamedTuple):
    """The number that a name may carry in brackets, and its range."""

    name: str
    low: float
    high: float


_PARAMETERS: dict[str, Parameter] = {}


def built_in(
    *, numbers: bool = False, samples: bool = False, parameter: Parameter | None = None
) -> Callable[[Function], Function]:
    """Decorator: one of our divergences, under its own name, which ``register`` then protects.

    Args:
        numbers: It also takes plain (also complex) numbers for mean and variance.
        samples: It takes residuals and their weights in place of mean, variance and df.
        parameter: What ``name(value)`` sets.
    """

    def add(function: Function) -> Function:
        _DIVERGENCES.entry(function)
        _OURS.add(function.__name__)
        if numbers:
            _OF_NUMBERS.append(function)
        if samples:
            _OF_SAMPLES.append(function)
        if parameter is not None:
            _PARAMETERS[function.__name__] = parameter
        return function

    return add


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
    if _parametrised(name) is not None:
        raise ValueError(f"expected `divergence` name that is not taken, got {name!r}")
    _DIVERGENCES.add(name, divergence, replace=name not in _OURS)


def names() -> list[str]:
    """Every known divergence.

    Example:
        >>> fcal.divergences.names()[:4]
        ['kl', 'reverse_kl', 'wasserstein', 'wasserstein_printed']
    """
    return _DIVERGENCES.names()


def by_name(name: str) -> Divergence:
    """The divergence of that name; ``"renyi(2)"`` is :func:`renyi` with that parameter.

    Raises:
        ValueError: The name is unknown; the message lists those that are known. Or its parameter is out of range.

    Example:
        >>> fcal.divergences.by_name("kl")(torch.tensor(0.0), torch.tensor(1.0), None)
        tensor(0.)
        >>> fcal.divergences.by_name("renyi(2)")(torch.tensor(1.0), torch.tensor(1.0), None)
        tensor(1.)
    """
    base = _parametrised(name)
    if base is None:
        return _DIVERGENCES[name]
    return partial(_DIVERGENCES[base], **{_PARAMETERS[base].name: _value_in(name, _PARAMETERS[base])})


def takes_numbers(divergence: Divergence) -> bool:
    """Whether a divergence is one of ours that also takes plain (also complex) numbers for mean and variance."""
    return _without_parameter(divergence) in _OF_NUMBERS


def takes_samples(divergence: Divergence) -> bool:
    """Whether a divergence takes residuals and their weights, ``(z, weight)``, in place of their moments."""
    return _without_parameter(divergence) in _OF_SAMPLES


def _without_parameter(divergence: Divergence) -> Divergence:
    return divergence.func if isinstance(divergence, partial) else divergence


def _parametrised(name: str) -> str | None:
    """What stands before the bracket, if that is one of ours that takes a parameter."""
    if not isinstance(name, str) or "(" not in name:
        return None
    base = name.partition("(")[0]
    return base if base in _PARAMETERS else None


def _value_in(name: str, parameter: Parameter) -> float:
    """The number in the brackets of a name."""
    base, _, rest = name.partition("(")
    try:
        value = float(rest.removesuffix(")")) if rest.endswith(")") else None
    except ValueError:
        value = None
    if value is None or not parameter.low <= value <= parameter.high:  # NaN is not either
        known = f"'{base}({parameter.name})' with {parameter.name} within [{parameter.low:g}, {parameter.high:g}]"
        raise ValueError(f"expected `divergence` {known}, got {name[:40]!r}")
    return value
