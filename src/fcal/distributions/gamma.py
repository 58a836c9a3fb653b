r"""Gamma (and Chi2) and inverse Gamma: the tail beyond x as an integral over :math:`v = \log(x' / x)`.

.. math:: \int_0^{\pm \infty} e^{a v - x (e^v - 1)} \, dv

away from the mode, where the integrand only falls: Gauss-Legendre over the length on which it does. Small shapes have a
lower tail that falls too slowly for that; there the power series of the CDF is short.
"""

import math

import torch
from torch import Tensor, distributions

from fcal.distributions.family import Family, register
from fcal.distributions.implicit import (
    Implicit,
    Tail,
    by_regime,
    flattened,
    legendre,
    log_gamma_rest,
    log_odds,
    log_odds_of,
    polished,
    root,
)
from fcal.distributions.tails import normal_quantile

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_DROP = 30.0  # the integrand falls by e^-30 over the interval of quadrature
_SERIES_BELOW = 12.0  # shape; terms of the series fall like a^n / (a)_n
_TERMS = 40
_FEW_NODES_FROM = (1.0, 100.0)  # shape, in the upper and in the lower tail


def _length(x: Tensor, a: Tensor) -> Tensor:
    """Where the exponent x (e^v - 1) - a v has risen by the drop: right of 0 where x > a, else left of it."""
    gap = (x - a).abs()
    bent = 2 * _DROP / (gap + (gap.square() + 2 * _DROP * x).sqrt())  # as if the exponent were a parabola
    v = torch.where(x > a, torch.log1p((_DROP + a * bent) / x), -bent)
    for _ in range(2):
        grown = torch.expm1(v)
        v = v - (x * grown - a * v - _DROP) / (x * grown + (x - a))
    return v


def _by_quadrature(count: int, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """The integral above and its derivative by a over itself, the mean of v."""
    length = _length(x, a)
    total, first = torch.zeros_like(x), torch.zeros_like(x)
    minus_x = -x
    for node, weight in legendre(count):
        v = length * node
        exponent = torch.expm1(v).mul_(minus_x).addcmul_(a, v)
        density = exponent.exp_().mul_(weight)
        total.add_(density)
        first.addcmul_(density, v)
    return total.mul_(length.abs_()), first.mul_(length)


def _by_series(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    r"""The same for the lower tail: :math:`\sum_n x^n / (a)_{n+1}`."""
    term = a.reciprocal()
    harmonic = term.clone()
    total, first = term.clone(), term * harmonic
    denominator = a.clone()
    for _ in range(_TERMS):
        step = denominator.add_(1).reciprocal()
        harmonic.add_(step)
        term.mul_(step.mul_(x))
        total.add_(term)
        first.addcmul_(term, harmonic)
    return total, first.neg_()


def _integral(x: Tensor, a: Tensor) -> list[Tensor]:
    def quadrature(x: Tensor, a: Tensor) -> list[Tensor]:
        many, few = (lambda *xa: _by_quadrature(24, *xa)), (lambda *xa: _by_quadrature(16, *xa))
        above, below = _FEW_NODES_FROM
        return by_regime((a < above) | ((x <= a) & (a < below)), (many, few), x, a)

    return by_regime((x <= a) & (a < _SERIES_BELOW), (_by_series, quadrature), x, a)


def _tail(log_x: Tensor, a: Tensor) -> Tail:
    x = log_x.exp()
    lower = x <= a
    integral, first = _integral(x, a)
    rest, digamma_rest = log_gamma_rest(a)
    log_ratio = log_x - a.log()
    # log of x^a e^-x / Gamma(a), without the large terms that cancel
    log_density = a * (log_ratio + 1 - x / a) + 0.5 * a.log() - _LOG_SQRT_2PI - rest
    by_log_x = torch.where(lower, 1.0, -1.0) / integral
    by_a = first / integral + log_ratio - digamma_rest
    return Tail(log_density + integral.log(), (by_log_x, by_a), lower)


def _reflected_tail(log_x: Tensor, a: Tensor) -> Tail:
    tail = _tail(log_x, a)
    return tail._replace(lower=~tail.lower)


_GAMMA = Implicit(_tail, lambda value, concentration, rate: (value.log() + rate.log(), concentration))
_LOG_GAMMA = Implicit(_tail, lambda log_x, concentration: (log_x, concentration))
_INVERSE = Implicit(
    _reflected_tail,
    lambda value, concentration, rate: (rate.log() - value.log(), concentration),
)


def _log_prob(value: Tensor, concentration: Tensor, rate: Tensor) -> Tensor:
    log_x = value.log() + rate.log()
    return concentration * log_x - log_x.exp() - torch.lgamma(concentration) - value.log()


def _start(z: Tensor, a: Tensor) -> Tensor:
    """Wilson and Hilferty's cube for the bulk; the power law F = x^a / (a Gamma(a)) where that is not positive."""
    cube = 1 - 1 / (9 * a) + z / (3 * a.sqrt())
    log_tail = torch.special.log_ndtr(z)
    power = (log_tail + torch.lgamma(a + 1)) / a
    return torch.where((cube > 0.3) & (a > 0.5), a.log() + 3 * cube.clamp(min=0.3).log(), power.clamp(max=5.0))


def _log_quantile(lower: Tensor, upper: Tensor, concentration: Tensor) -> Tensor:
    """Logarithm of the quantile at rate 1."""
    (below, above, a), shape = flattened(lower, upper, concentration)
    with torch.no_grad():
        goal, fixed = log_odds(below, above), a.detach()
        limit = torch.full_like(fixed, math.inf)
        start = _start(normal_quantile(below, above), fixed)
        log_x = root(lambda w: log_odds_of(_tail(w, fixed)), goal, start, -limit, limit)
        slope = log_odds_of(_tail(log_x, fixed)).slope
    value = _LOG_GAMMA.log_cdf(log_x, a) - _LOG_GAMMA.log_survival(log_x, a)
    return polished(log_x, value, log_odds(below, above), slope).reshape(shape)


def _positive(value: Tensor, *_: Tensor) -> Tensor:
    return value > 0


GAMMA = Family(
    parameters=("concentration", "rate"),
    log_cdf=_GAMMA.log_cdf,
    log_survival=_GAMMA.log_survival,
    residual=_GAMMA.residual,
    quantile=lambda lower, upper, a, rate: torch.exp(_log_quantile(lower, upper, a) - rate.log()),
    log_prob=_log_prob,
    support=_positive,
)

INVERSE_GAMMA = Family(
    parameters=("concentration", "rate"),
    log_cdf=_INVERSE.log_cdf,
    log_survival=_INVERSE.log_survival,
    residual=_INVERSE.residual,
    quantile=lambda lower, upper, a, rate: torch.exp(rate.log() - _log_quantile(upper, lower, a)),
    log_prob=lambda value, a, rate: _log_prob(1 / value, a, rate) - 2 * value.log(),
    support=_positive,
)

register(distributions.Gamma, GAMMA)
register(distributions.InverseGamma, INVERSE_GAMMA)
