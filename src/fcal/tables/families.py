"""Distributions by family name, from a predicted mean and standard deviation."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    Distribution,
    Gamma,
    Gumbel,
    InverseGamma,
    Laplace,
    LogNormal,
    Normal,
    StudentT,
    Uniform,
)

from fcal._registry import Registry
from fcal.distributions import Logistic

__all__ = ["MomentFamily", "family", "names"]

_EULER = 0.57721566490153286061  # Euler-Mascheroni constant: mean of the standard Gumbel distribution
_DF = (2.0, 1e6)  # at 2 the variance is infinite; beyond 1e6 the distribution is normal


@dataclass(frozen=True)
class MomentFamily:
    """A family of distributions by its first two moments.

    Args:
        law: Function of ``(mean, std)``, both of shape ``(N,)`` or ``(N, D)``, to the distribution with these moments.
        requirement: What ``mean`` must be, for errors; None where any number is valid.
        impossible: Function of ``(mean, std)`` that is True where no distribution of the family has these moments.
    """

    law: Callable[[Tensor, Tensor], Distribution]
    requirement: str | None = None
    impossible: Callable[[Tensor, Tensor], Tensor] | None = None


_FAMILIES: Registry[Callable[[str | None], MomentFamily]] = Registry("family")


def family(name: str) -> MomentFamily:
    """A family by name; ``student-t`` takes its degrees of freedom after a colon, as in ``student-t:5``.

    Args:
        name: One of :func:`names`.

    Raises:
        ValueError: The name is not known, or its parameter is missing, not expected or out of range.

    Example:
        >>> law = family("laplace").law(torch.tensor([1.0]), torch.tensor([2.0]))
        >>> law.mean, law.stddev
        (tensor([1.]), tensor([2.0000]))
    """
    plain, colon, parameter = name.partition(":")
    return _FAMILIES[plain](parameter if colon else None)


def names() -> list[str]:
    """Every known name.

    Example:
        >>> names()[:3]
        ['normal', 'laplace', 'logistic']
    """
    return _FAMILIES.names()


def _add(name: str, entry: MomentFamily) -> None:
    def without_parameter(parameter: str | None) -> MomentFamily:
        if parameter is not None:
            raise ValueError(f"expected `family` {name!r} without a parameter, got {name + ':' + parameter!r}")
        return entry

    _FAMILIES.add(name, without_parameter)


def _normal(mean: Tensor, std: Tensor) -> Normal:
    return Normal(mean, std, validate_args=False)


def _laplace(mean: Tensor, std: Tensor) -> Laplace:
    return Laplace(mean, std * math.sqrt(0.5), validate_args=False)


def _logistic(mean: Tensor, std: Tensor) -> Logistic:
    return Logistic(mean, std * (math.sqrt(3) / math.pi), validate_args=False)


def _gumbel(mean: Tensor, std: Tensor) -> Gumbel:
    scale = std * (math.sqrt(6) / math.pi)
    return Gumbel(mean - _EULER * scale, scale, validate_args=False)


def _uniform(mean: Tensor, std: Tensor) -> Uniform:
    half = std * math.sqrt(3)
    return Uniform(mean - half, mean + half, validate_args=False)


def _gamma(mean: Tensor, std: Tensor) -> Gamma:
    return Gamma((mean / std).square(), mean / std.square(), validate_args=False)


def _log_normal(mean: Tensor, std: Tensor) -> LogNormal:
    variance = torch.log1p((std / mean).square())  # of the logarithm
    return LogNormal(mean.log() - variance / 2, variance.sqrt(), validate_args=False)


def _inverse_gamma(mean: Tensor, std: Tensor) -> InverseGamma:
    excess = 1 + (mean / std).square()  # the concentration less one
    return InverseGamma(1 + excess, mean * excess, validate_args=False)


def _beta(mean: Tensor, std: Tensor) -> Beta:
    total = mean * (1 - mean) / std.square() - 1
    return Beta(mean * total, (1 - mean) * total, validate_args=False)


def _student_t(parameter: str | None) -> MomentFamily:
    try:
        df = float(parameter or "")
    except ValueError:
        df = math.nan
    if not _DF[0] < df <= _DF[1]:
        got = repr("student-t" if parameter is None else f"student-t:{parameter}")
        raise ValueError(f"expected `family` student-t with degrees of freedom above 2, as in 'student-t:5', got {got}")

    def law(mean: Tensor, std: Tensor) -> StudentT:
        return StudentT(torch.full_like(mean, df), mean, std * math.sqrt((df - 2) / df), validate_args=False)

    return MomentFamily(law)


def _not_positive(mean: Tensor, _: Tensor) -> Tensor:
    return ~(mean > 0)


def _not_a_share(mean: Tensor, std: Tensor) -> Tensor:
    return ~((mean > 0) & (mean < 1) & (std.square() < mean * (1 - mean)))


_add("normal", MomentFamily(_normal))
_add("laplace", MomentFamily(_laplace))
_add("logistic", MomentFamily(_logistic))
_add("gumbel", MomentFamily(_gumbel))
_FAMILIES.add("student-t", _student_t)
_add("uniform", MomentFamily(_uniform))
_add("gamma", MomentFamily(_gamma, "> 0 for the family gamma", _not_positive))
_add("log-normal", MomentFamily(_log_normal, "> 0 for the family log-normal", _not_positive))
_add("inverse-gamma", MomentFamily(_inverse_gamma, "> 0 for the family inverse-gamma", _not_positive))
_add("beta", MomentFamily(_beta, "within (0, 1), and the std below sqrt(mean (1 - mean)), for beta", _not_a_share))
