"""Generalized Pareto: excesses over a threshold, with a tail index of either sign."""

import torch
from torch import Tensor, distributions

from fcal.distributions.family import Family, register
from fcal.distributions.tails import log1mexp_of_log, unit

_SERIES_BELOW = 0.1
_TERMS = 14


def _near_zero(x: Tensor, coefficients: list[float]) -> Tensor:
    value = torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        value = coefficient + x * value
    return value


def _log1p_over(x: Tensor) -> Tensor:
    """log(1 + x) / x, which is 1 at 0, with the right slope there too."""
    small = x.abs() < _SERIES_BELOW
    series = _near_zero(torch.where(small, x, 0.0), [(-1.0) ** k / (k + 1) for k in range(_TERMS)])
    wide = torch.where(small, 1.0, x)
    return torch.where(small, series, torch.log1p(wide) / wide)


def _expm1_over(x: Tensor) -> Tensor:
    """(e^x - 1) / x, which is 1 at 0, with the right slope there too."""
    small = x.abs() < _SERIES_BELOW
    coefficients = [1.0]
    for k in range(2, _TERMS):
        coefficients.append(coefficients[-1] / k)
    wide = torch.where(small, 1.0, x)
    return torch.where(small, _near_zero(torch.where(small, x, 0.0), coefficients), torch.expm1(wide) / wide)


def _hazard(value: Tensor, loc: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    """Minus the log-survival."""
    t = unit(value, loc, scale)
    return t * _log1p_over(concentration * t)


def _log_hazard(value: Tensor, loc: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    t = unit(value, loc, scale)
    return t.log() + _log1p_over(concentration * t).log()


def _quantile(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    hazard = torch.where(lower < upper, -torch.log1p(-lower), -upper.log())
    return loc + scale * hazard * _expm1_over(concentration * hazard)


def _bounds(loc: Tensor, scale: Tensor, concentration: Tensor) -> tuple[Tensor, Tensor]:
    bent = concentration < 0
    return loc, torch.where(bent, loc - scale / torch.where(bent, concentration, -1.0), torch.inf)


def _support(value: Tensor, loc: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    t = (value - loc) / scale
    return (t >= 0) & (concentration * t > -1)


GENERALIZED_PARETO = Family(
    parameters=("loc", "scale", "concentration"),
    log_cdf=lambda *arguments: log1mexp_of_log(_log_hazard(*arguments)),
    log_survival=lambda *arguments: -_hazard(*arguments),
    quantile=_quantile,
    log_prob=lambda value, loc, scale, k: -(1 + k) * _hazard(value, loc, scale, k) - scale.log(),
    support=_support,
    bounds=_bounds,
    location="loc",
)

register(distributions.GeneralizedPareto, GENERALIZED_PARETO)
