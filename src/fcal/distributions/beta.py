r"""Beta and Fisher-Snedecor: the lower tail is an integral over the logit, and the upper tail a reflected lower one.

.. math:: \int_0^{-\infty} e^{a v} \, (1 + x (e^v - 1))^{-(a + b)} \, dv

left of the mode, where the integrand decreases, is computed by Gauss-Legendre quadrature over the length of the
decrease. For small shapes the tail decays too slowly for that; there the power series in x is short.
"""

import torch
from torch import Tensor, distributions
from torch.distributions import constraints

from fcal.distributions.family import Family, register
from fcal.distributions.implicit import (
    Implicit,
    Tail,
    by_regime,
    legendre,
    log_gamma_rest,
    solved,
)
from fcal.distributions.tails import LOG_SQRT_2PI

_DROP = 32.0  # the integrand decreases by e^-32 over the interval of quadrature
_SERIES_BELOW = 5.0  # the shape on the side of the tail
_TERMS = 90
_MOST = 1e9  # largest shape; beyond it, sums lose the differences that matter
_RULE = legendre(26)


def _length(x: Tensor, rest: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Distance u at which -a v + (a + b) log(1 + x (e^v - 1)), v = -u, has increased by the drop; ``rest`` is 1 - x."""
    total = a + b
    gap = a - total * x
    u = 2 * _DROP / (gap + (gap.square() + 2 * _DROP * total * x * rest).sqrt())  # as if it were a parabola
    for _ in range(2):  # a fixed-point iteration, fast where the parabola is far too wide
        u = torch.log((torch.exp((_DROP + b * u) / total) - x) / rest)
    for _ in range(3):
        decay = torch.exp(-u)
        left = rest + x * decay
        u = u - (a * u + total * left.log() - _DROP) / (a - total * x * decay / left)
    return u


def _by_quadrature(x: Tensor, rest: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The integral above and its derivatives with respect to a and b."""
    length = -_length(x, rest, a, b)
    integral, by_a, by_b = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    minus_total = -(a + b)
    v, log_left, density = (torch.empty_like(x) for _ in range(3))  # reused for every node
    for node, weight in _RULE:
        torch.mul(length, node, out=v)
        torch.expm1(v, out=log_left).mul_(x).log1p_()  # log of 1 + x (e^v - 1)
        torch.mul(a, v, out=density).addcmul_(minus_total, log_left).exp_()
        integral.add_(density, alpha=weight)
        by_b.addcmul_(density, log_left, value=-weight)
        by_a.addcmul_(density, v, value=weight)
    length = -length
    by_a = by_a.add_(by_b).mul_(length)
    return integral.mul_(length), by_a, by_b.mul_(length)


def _by_series(x: Tensor, _: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""The same as :math:`\sum_n x^n (a + b)_n / (a)_{n+1}`."""
    term = a.reciprocal()
    harmonic_a, harmonic_sum = term.clone(), torch.zeros_like(a)
    integral, by_a, by_b = term.clone(), -term * harmonic_a, torch.zeros_like(a)
    total, denominator = a + b, a.clone()
    for _n in range(_TERMS):
        step = denominator.add_(1).reciprocal()
        harmonic_a.add_(step)
        term = term * step.mul_(x).mul_(total)
        harmonic_sum.add_(total.reciprocal())
        total.add_(1)
        integral.add_(term)
        by_b.addcmul_(term, harmonic_sum)
        by_a.addcmul_(term, harmonic_sum - harmonic_a)
    return integral, by_a, by_b


def _lower_tail(log_x: Tensor, log_rest: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log of the lower tail and its derivatives with respect to the logit of x, a and b."""
    x, rest = log_x.exp(), log_rest.exp()
    integral, by_a, by_b = by_regime(a < _SERIES_BELOW, (_by_series, _by_quadrature), x, rest, a, b)
    total = a + b
    (rest_a, psi_a), (rest_b, psi_b), (rest_total, psi_total) = map(log_gamma_rest, (a, b, total))
    from_mode_a, from_mode_b = log_x - (a / total).log(), log_rest - (b / total).log()
    log_density = a * from_mode_a + b * from_mode_b + 0.5 * (a * (b / total)).log() - LOG_SQRT_2PI
    log_density = log_density - rest_a - rest_b + rest_total
    slope_a = by_a / integral + from_mode_a - psi_a + psi_total
    slope_b = by_b / integral + from_mode_b - psi_b + psi_total
    return log_density + integral.log(), 1 / integral, slope_a, slope_b


def _tail(logit: Tensor, a: Tensor, b: Tensor) -> Tail:
    """The lower tail left of the mode and the upper tail right of it; they meet at 1/2 if both shapes are small."""
    both_small = (a < _SERIES_BELOW) & (b < _SERIES_BELOW)
    lower = logit <= torch.where(both_small, 0.0, a.log() - b.log())
    sign = torch.where(lower, 1.0, -1.0).to(a.dtype)
    log_x, log_rest = torch.nn.functional.logsigmoid(sign * logit), torch.nn.functional.logsigmoid(-sign * logit)
    first, second = torch.where(lower, a, b), torch.where(lower, b, a)
    log_p, by_logit, by_first, by_second = _lower_tail(log_x, log_rest, first, second)
    by_a, by_b = torch.where(lower, by_first, by_second), torch.where(lower, by_second, by_first)
    return Tail(log_p, (sign * by_logit, by_a, by_b), lower)


_BETA = Implicit(_tail, lambda value, a, b: (value.log() - torch.log1p(-value), a, b))


def _fisher_logit(value: Tensor, df1: Tensor, df2: Tensor) -> Tensor:
    return value.log() + df1.log() - df2.log()


def _fisher_inputs(value: Tensor, df1: Tensor, df2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    df1, df2 = df1.clamp(max=_MOST), df2.clamp(max=_MOST)  # the limit is reached long before
    return _fisher_logit(value, df1, df2), df1 / 2, df2 / 2


_FISHER = Implicit(_tail, _fisher_inputs)


def _log_density_of_logit(logit: Tensor, a: Tensor, b: Tensor) -> Tensor:
    log_x, log_rest = torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)
    return a * log_x + b * log_rest + torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)


def _log_prob(value: Tensor, a: Tensor, b: Tensor) -> Tensor:
    log_x, log_rest = value.log(), torch.log1p(-value)
    return (a - 1) * log_x + (b - 1) * log_rest + torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)


def _start(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Normal approximation of the logit; power laws in the tails if a shape is small."""
    middle = a.log() - b.log() + z * (1 / a + 1 / b).sqrt()
    log_beta = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
    left = (torch.special.log_ndtr(z) + a.log() + log_beta) / a
    right = -(torch.special.log_ndtr(-z) + b.log() + log_beta) / b
    return torch.where((a < 1) & (left < -2), left, torch.where((b < 1) & (right > 2), right, middle))


def _fisher_quantile(lower: Tensor, upper: Tensor, df1: Tensor, df2: Tensor) -> Tensor:
    df1, df2 = df1.clamp(max=_MOST), df2.clamp(max=_MOST)
    return torch.exp(solved(_tail, _start, lower, upper, df1 / 2, df2 / 2) + df2.log() - df1.log())


def _crps(value: Tensor, a: Tensor, b: Tensor) -> Tensor:
    tiny = torch.finfo(value.dtype).tiny
    inside = value.clamp(tiny, 1 - torch.finfo(value.dtype).eps)
    cdf = torch.exp(_BETA.log_cdf(inside, a, b))
    step = torch.exp(_log_prob(inside, a, b)) * inside * (1 - inside) / a
    mean = a / (a + b)
    log_beta, log_double = (
        torch.lgamma(p) + torch.lgamma(q) - torch.lgamma(p + q) for p, q in ((a, b), (2 * a, 2 * b))
    )
    spread = 2 / a * torch.exp(log_double - 2 * log_beta)
    return (value - inside).abs() + inside * (2 * cdf - 1) + mean * (1 - 2 * (cdf - step) - spread)


BETA = Family(
    parameters=("concentration1", "concentration0"),
    constraints=dict.fromkeys(("concentration1", "concentration0"), constraints.interval(1e-300, _MOST)),
    log_cdf=_BETA.log_cdf,
    log_survival=_BETA.log_survival,
    residual=_BETA.residual,
    quantile=lambda lower, upper, a, b: torch.sigmoid(solved(_tail, _start, lower, upper, a, b)),
    log_prob=_log_prob,
    crps=_crps,
    support=lambda value, *_: (value > 0) & (value < 1),
)

FISHER_SNEDECOR = Family(
    parameters=("df1", "df2"),
    log_cdf=_FISHER.log_cdf,
    log_survival=_FISHER.log_survival,
    residual=_FISHER.residual,
    quantile=_fisher_quantile,
    log_prob=lambda value, df1, df2: (
        _log_density_of_logit(_fisher_logit(value, df1, df2), df1 / 2, df2 / 2) - value.log()
    ),
    support=lambda value, *_: value > 0,
)

register(distributions.Beta, BETA)
register(distributions.FisherSnedecor, FISHER_SNEDECOR)
