"""Generalized Pareto: excesses over a threshold, with a tail index of either sign."""

import torch
from torch import Tensor, distributions

from fcal.distributions.family import Family, register
from fcal.distributions.tails import log1mexp_of_log, unit

_SERIES_BELOW = 0.1
_TERMS = 14
_NEAR_THE_END = 0.25  # of 1 + k t
_SPLITTER = 2.0**27 + 1


def _near_zero(x: Tensor, coefficients: list[float]) -> Tensor:
    value = torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        value = coefficient + x * value
    return value


def _log1p_over(x: Tensor) -> Tensor:
    """log(1 + x) / x for small x; 1 at 0, with the right slope there too."""
    return _near_zero(x, [(-1.0) ** k / (k + 1) for k in range(_TERMS)])


def _expm1_over(x: Tensor) -> Tensor:
    """(e^x - 1) / x, which is 1 at 0, with the right slope there too."""
    small = x.abs() < _SERIES_BELOW
    coefficients = [1.0]
    for k in range(2, _TERMS):
        coefficients.append(coefficients[-1] / k)
    wide = torch.where(small, 1.0, x)
    return torch.where(small, _near_zero(torch.where(small, x, 0.0), coefficients), torch.expm1(wide) / wide)


def _product_error(a: Tensor, b: Tensor) -> Tensor:
    """What rounding took from a b, by Dekker's splitting of both into halves of 26 bits."""
    halves = []
    for x in (a, b):
        shifted = x * _SPLITTER
        top = shifted - (shifted - x)
        halves.append((top, x - top))
    (a_top, a_low), (b_top, b_low) = halves
    return a_low * b_low - (((a * b - a_top * b_top) - a_low * b_top) - a_top * b_low)


def _left(value: Tensor, loc: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    """1 + k t, of which nothing is lost close to the upper end, where it is nearly 0."""
    left = 1 + concentration * unit(value, loc, scale)
    with torch.no_grad():
        distance = value - loc
        part = distance - value  # Knuth's exact error of a difference
        lost = (value - (distance - part)) - (loc + part)
        bent = concentration * distance
        lost = _product_error(concentration, distance) + concentration * lost
        exact = ((scale + bent) + lost) / scale
        correction = torch.where(exact.isfinite() & (left < _NEAR_THE_END), exact - left, 0.0)
    return left + correction


def _hazard(value: Tensor, loc: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    """Minus the log-survival, log(1 + k t) / k."""
    t, left = unit(value, loc, scale), _left(value, loc, scale, concentration)
    x = concentration * t
    small = x.detach().abs() < _SERIES_BELOW
    straight = torch.where(small, t, 0.0) * _log1p_over(torch.where(small, x, 0.0))
    near_the_end = left.detach() < _NEAR_THE_END
    log_left = torch.where(near_the_end, left, 1.0).log() + torch.log1p(torch.where(near_the_end | small, 0.0, x))
    return torch.where(small, straight, log_left / torch.where(small, 1.0, concentration))


def _log_hazard(value: Tensor, loc: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    return _hazard(value, loc, scale, concentration).log()


def _quantile(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    below = lower < upper
    hazard = -torch.where(below, torch.log1p(-torch.where(below, lower, 0.5)), torch.where(below, 0.5, upper).log())
    return loc + scale * hazard * _expm1_over(concentration * hazard)


def _bounds(loc: Tensor, scale: Tensor, concentration: Tensor) -> tuple[Tensor, Tensor]:
    bent = concentration < 0
    return loc, torch.where(bent, loc - scale / torch.where(bent, concentration, -1.0), torch.inf)


def _support(value: Tensor, loc: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    return (value >= loc) & (_left(value, loc, scale, concentration) > 0)


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
