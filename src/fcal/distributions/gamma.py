r"""Gamma (and Chi2) and InverseGamma: the tail beyond x is an integral over :math:`v = \log(x' / x)`.

.. math:: \int_0^{\pm \infty} e^{a v - x (e^v - 1)} \, dv

away from the mode, where the integrand decreases, is computed by Gauss-Legendre quadrature over the length of the
decrease. For small shapes the lower tail decays too slowly for that; there the power series of the CDF is short.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, distributions

from fcal.distributions.family import Family, register
from fcal.distributions.implicit import (
    Implicit,
    Rule,
    Tail,
    by_regime,
    legendre,
    log_gamma_rest,
    residual_of_tail,
    solved,
)
from fcal.distributions.tails import LOG_SQRT_2PI

_DROP = 32.0  # the integrand decreases by e^-32 over the interval of quadrature
_SERIES_BELOW = 12.0  # shape; terms of the series decrease like a^n / (a)_n
_TERMS = 40
_FEW, _SOME, _MANY = legendre(20), legendre(18), legendre(26)
_FLOAT32_SHAPES = (0.2, 10.0)
_FEW_NODES_FROM = (1.0, 100.0)  # shape, in the upper and in the lower tail

IntegralOf = Callable[[Tensor, Tensor], list[Tensor]]


def _length(x: Tensor, a: Tensor) -> Tensor:
    """Point at which x (e^v - 1) - a v has increased by the drop: right of 0 where x > a, else left of it."""
    gap = (x - a).abs()
    bent = 2 * _DROP / (gap + (gap.square() + 2 * _DROP * x).sqrt())  # as if the exponent were a parabola
    v = torch.where(x > a, torch.log1p((_DROP + a * bent) / x), -bent)
    for _ in range(2):
        grown = torch.expm1(v)
        v = v - (x * grown - a * v - _DROP) / (x * grown + (x - a))
    return v


def _by_quadrature(rule: Rule, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """The integral above and its derivative with respect to a."""
    length = _length(x, a)
    total, first = torch.zeros_like(x), torch.zeros_like(x)
    v, density, minus_x = torch.empty_like(x), torch.empty_like(x), -x  # reused for every node
    for node, weight in rule:
        torch.mul(length, node, out=v)
        torch.expm1(v, out=density).mul_(minus_x).addcmul_(a, v).exp_()
        total.add_(density, alpha=weight)
        first.addcmul_(density, v, value=weight)
    return total.mul_(length.abs()), first.mul_(length.abs_())


def _by_series(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    r"""The same for the lower tail: :math:`\sum_n x^n / (a)_{n+1}`."""
    term = a.reciprocal()
    harmonic = term.clone()
    total, first = term.clone(), term * harmonic
    denominator, step = a.clone(), torch.empty_like(a)
    for _ in range(_TERMS):
        torch.reciprocal(denominator.add_(1), out=step)
        harmonic.add_(step)
        term.mul_(step.mul_(x))
        total.add_(term)
        first.addcmul_(term, harmonic)
    return total, first.neg_()


def _integral(x: Tensor, a: Tensor) -> list[Tensor]:
    def quadrature(x: Tensor, a: Tensor) -> list[Tensor]:
        many, few = (lambda *xa: _by_quadrature(_MANY, *xa)), (lambda *xa: _by_quadrature(_FEW, *xa))
        above, below = _FEW_NODES_FROM
        return by_regime((a < above) | ((x <= a) & (a < below)), (many, few), x, a)

    return by_regime((x <= a) & (a < _SERIES_BELOW), (_by_series, quadrature), x, a)


def _integral_of_float32(x: Tensor, a: Tensor) -> list[Tensor]:
    """The same in float32 precision, at half the cost, where exponents are small."""

    def narrow(x: Tensor, a: Tensor) -> list[Tensor]:
        formulas = (_by_series, lambda *xa: _by_quadrature(_SOME, *xa))
        return [result.double() for result in by_regime(x <= a, formulas, x.float(), a.float())]

    low, high = _FLOAT32_SHAPES
    return by_regime((a >= low) & (a <= high) & (x > 1e-30), (narrow, _integral), x, a)


def _tail(log_x: Tensor, a: Tensor, integral_of: IntegralOf = _integral) -> Tail:
    x = log_x.exp()
    lower = x <= a
    integral, first = integral_of(x, a)
    rest, digamma_rest = log_gamma_rest(a)
    log_a = a.log()
    log_ratio = log_x - log_a
    # log of x^a e^-x / Gamma(a), without the large terms that cancel
    log_density = (log_ratio + 1).mul_(a).sub_(x).add_(log_a, alpha=0.5).sub_(LOG_SQRT_2PI).sub_(rest)
    by_log_x = lower.to(x.dtype).mul_(2).sub_(1).div_(integral)
    by_a = first.div_(integral).add_(log_ratio).sub_(digamma_rest)
    return Tail(log_density.add_(integral.log()), (by_log_x, by_a), lower)


def _reflected_tail(log_x: Tensor, a: Tensor) -> Tail:
    tail = _tail(log_x, a)
    return tail._replace(lower=~tail.lower)


_GAMMA = Implicit(_tail, lambda value, concentration, rate: (value.log() + rate.log(), concentration))
_INVERSE = Implicit(
    _reflected_tail,
    lambda value, concentration, rate: (rate.log() - value.log(), concentration),
)


def _log_prob(value: Tensor, concentration: Tensor, rate: Tensor) -> Tensor:
    log_x = value.log() + rate.log()
    return concentration * log_x - log_x.exp() - torch.lgamma(concentration) - value.log()


def _start(z: Tensor, a: Tensor) -> Tensor:
    """Wilson-Hilferty approximation; the power law F = x^a / (a Gamma(a)) where that is not positive."""
    cube = 1 - 1 / (9 * a) + z / (3 * a.sqrt())
    log_tail = torch.special.log_ndtr(z)
    power = (log_tail + torch.lgamma(a + 1)) / a
    return torch.where((cube > 0.3) & (a > 0.5), a.log() + 3 * cube.clamp(min=0.3).log(), power.clamp(max=5.0))


def _positive(value: Tensor, *_: Tensor) -> Tensor:
    return value > 0


def _crps(value: Tensor, a: Tensor, rate: Tensor) -> Tensor:
    inside = value.clamp(min=torch.finfo(value.dtype).tiny)
    cdf = torch.exp(_GAMMA.log_cdf(inside, a, rate))
    cdf = torch.where(value > 0, cdf, 0.0)
    x = rate * inside
    next_cdf = cdf - torch.where(value > 0, torch.exp(a * x.log() - x - torch.lgamma(a + 1)), 0.0)
    spread = torch.exp(torch.lgamma(a + 0.5) - torch.lgamma(a)) / math.sqrt(math.pi)
    return value * (2 * cdf - 1) - (a * (2 * next_cdf - 1) + spread) / rate


@torch.no_grad()
def _slopes(value: Tensor, concentration: Tensor, rate: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Residuals of float32 batches and their derivatives."""
    log_x = value.double().log_().add_(rate.double().log_())
    tail = _tail(log_x, concentration.double(), _integral_of_float32)
    z, factor = residual_of_tail(tail.log_p, tail.lower)
    by_log_x = tail.slopes[0].mul_(factor)
    return z, (by_log_x / value, tail.slopes[1].mul_(factor), by_log_x / rate)


GAMMA = Family(
    parameters=("concentration", "rate"),
    log_cdf=_GAMMA.log_cdf,
    log_survival=_GAMMA.log_survival,
    residual=_GAMMA.residual,
    quantile=lambda lower, upper, a, rate: torch.exp(solved(_tail, _start, lower, upper, a) - rate.log()),
    log_prob=_log_prob,
    crps=_crps,
    support=_positive,
    slopes=_slopes,
)

INVERSE_GAMMA = Family(
    parameters=("concentration", "rate"),
    log_cdf=_INVERSE.log_cdf,
    log_survival=_INVERSE.log_survival,
    residual=_INVERSE.residual,
    quantile=lambda lower, upper, a, rate: torch.exp(rate.log() - solved(_tail, _start, upper, lower, a)),
    log_prob=lambda value, a, rate: _log_prob(1 / value, a, rate) - 2 * value.log(),
    support=_positive,
)

register(distributions.Gamma, GAMMA)
register(distributions.InverseGamma, INVERSE_GAMMA)
