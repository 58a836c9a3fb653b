r"""Student's t: quadrature of a normal density times a slowly varying factor.

With :math:`s = \sqrt{\nu \log(1 + t^2 / \nu)}` the tail is exactly

.. math:: S(t) = c(\nu) \int_s^\infty \varphi(r) \, G(r / \sqrt \nu) \, dr, \qquad G(x)^2 = \frac{x^2}{1 - e^{-x^2}}

so that a few Gauss-Legendre nodes suffice for all degrees of freedom and distances. Derivatives with respect to
:math:`\nu` are sums of terms of their own size: nothing cancels in the normal limit.
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
    attach,
    by_regime,
    flattened,
    legendre,
    log_odds,
    log_odds_of,
    patched,
    polished,
    residual_of_tail,
    root,
)
from fcal.distributions.location_scale import unit
from fcal.distributions.tails import LOG_SQRT_2PI, normal_quantile

_DROP = 32.0  # the integrand decreases by e^-32 over the interval of quadrature
_FEW_NODES_FROM = 5.0  # degrees of freedom; below, G varies within the interval and needs more nodes
_DROP_OF_FLOAT32 = 18.0
_FLOAT32_DF = (1.0, 100.0)
_LEAST, _FEW, _MANY = legendre(12), legendre(20), legendre(40)
_STEPS_UP = 8
_SERIES_FROM = 500.0  # degrees of freedom; accurate from 16, but most batches lie entirely below 500

IntegralOf = Callable[[Tensor, Tensor], list[Tensor]]


def _log_norm(df: Tensor) -> list[Tensor]:
    r"""Log of :math:`\Gamma(\frac{\nu + 1}2) / (\Gamma(\frac \nu 2) \sqrt{\nu / 2})` and its derivative."""
    return by_regime(df < _SERIES_FROM, (_log_norm_from_above, _log_norm_by_series), df)


def _log_norm_by_series(df: Tensor) -> tuple[Tensor, Tensor]:
    u = 2 / df
    s = u.square()
    value, slope = torch.zeros_like(u), torch.zeros_like(u)
    for power, coefficient in reversed(
        list(enumerate((1 / 8, 1 / 192, 1 / 640, 17 / 14336, 31 / 18432, 691 / 180224)))
    ):
        value = coefficient - value * s
        slope = (2 * power + 1) * coefficient - slope * s
    return -value * u, slope * s / 2


def _log_norm_from_above(df: Tensor) -> tuple[Tensor, Tensor]:
    """The same for few degrees of freedom, by the recurrence of the gamma function."""
    value, slope = _log_norm_by_series(df + 2 * _STEPS_UP)
    x = df / 2
    ratio = torch.ones_like(x)
    shift = torch.zeros_like(x)
    for step in range(_STEPS_UP):
        here, half = x + step, x + (step + 0.5)
        ratio.mul_(here).div_(half)
        shift.add_((here * half).reciprocal_(), alpha=0.25)  # half of 1 / here - 1 / half
    above = x + _STEPS_UP
    value = value + torch.log(ratio * (above / x).sqrt())
    return value, slope + shift - 0.25 * _STEPS_UP / (x * above)


def _quadrature(rule: Rule, drop: float, s: Tensor, df: Tensor) -> tuple[Tensor, Tensor]:
    """Tail integral over phi(s), and -2 df times its derivative with respect to df at fixed s."""
    minus_rate = -df.reciprocal()
    half_square = 0.5 * s.square()
    length = 2 * drop / (s + (s.square() + 2 * drop).sqrt())
    total, rest = torch.zeros_like(s), torch.zeros_like(s)
    x, density, ratio = (torch.empty_like(s) for _ in range(3))  # reused for every node: allocation is slow
    for node, weight in rule:
        torch.add(s, length, alpha=node, out=x)
        torch.mul(x, x, out=x)
        torch.sub(half_square, x, alpha=0.5, out=density).exp_()
        x.mul_(minus_rate)
        torch.expm1(x, out=ratio)
        torch.div(x, ratio, out=ratio)
        x.add_(ratio)
        density.mul_(ratio.sqrt_())
        total.add_(density, alpha=weight)
        rest.addcmul_(density, x, value=weight)
    rest = torch.sub(total, rest).mul_(length)
    return total.mul_(length), rest


def _boundary_gap(q: Tensor, log_square: Tensor) -> Tensor:
    """log(1 + q) - q / (1 + q), given the logarithm."""
    return patched(q < 0.01, log_square - q / (1 + q), _small_gap, q)


def _small_gap(q: Tensor) -> Tensor:
    return q.square() * (1 / 2 - q * (2 / 3 - q * (3 / 4 - q * (4 / 5 - q * (5 / 6 - q * 6 / 7)))))


def _integral(s: Tensor, df: Tensor) -> list[Tensor]:
    many, few = (lambda a, b: _quadrature(_MANY, _DROP, a, b)), (lambda a, b: _quadrature(_FEW, _DROP, a, b))
    return by_regime(df < _FEW_NODES_FROM, (many, few), s, df)


def _integral_of_float32(s: Tensor, df: Tensor) -> list[Tensor]:
    """The same in float32 precision, at half the cost, where the derivative with respect to df does not cancel."""

    def narrow(s: Tensor, df: Tensor) -> list[Tensor]:
        return [x.double() for x in _quadrature(_LEAST, _DROP_OF_FLOAT32, s.float(), df.float())]

    low, high = _FLOAT32_DF
    return by_regime((df >= low) & (df <= high), (narrow, _integral), s, df)


def _tail(t: Tensor, df: Tensor, integral_of: IntegralOf = _integral) -> Tail:
    """Tail beyond t, on its own side of 0."""
    root_df = df.sqrt()
    whole = t.abs() / root_df
    r = whole.clamp(1e-150, 1e150)  # so that its square neither under- nor overflows
    q = r.square()
    excess = (whole / r).clamp_(min=1.0)  # 1 except at extreme distances
    hyp = (q + 1).sqrt_().mul_(excess)
    log_square = torch.log1p(q).add_(excess.log_(), alpha=2.0)
    integral, tilt = integral_of((df * log_square).sqrt_(), df)
    log_norm, slope = _log_norm(df)
    log_p = (df * log_square).mul_(-0.5).add_(log_norm).sub_(LOG_SQRT_2PI).add_(integral.log())
    boundary = _boundary_gap(q, log_square).mul_(hyp).div_(root_df.mul_(whole.clamp_(min=1e-150)))
    by_df = slope.sub_(tilt.div_(df).add_(boundary).div_(integral), alpha=0.5)
    sign = (t > 0).to(t.dtype).mul_(2).sub_(1)
    return Tail(log_p, (sign.div_(hyp.mul_(integral)).neg_(), by_df), t <= 0)


def _tail_of_s(s: Tensor, df: Tensor) -> Tail:
    """The same tail as a function of s with the sign of t, which is close to z."""
    lower = s < 0
    integral, _ = _integral(s.abs(), df)
    x = s.square() / df
    by_s = -torch.where(x < 1e-8, 1.0, x / -torch.expm1(-x)).sqrt() / integral
    log_p = _log_norm(df)[0] - 0.5 * s.square() - LOG_SQRT_2PI + integral.log()
    return Tail(log_p, (torch.where(lower, -by_s, by_s),), lower)


_STUDENT = Implicit(_tail, lambda value, df, loc, scale: (unit(value, loc, scale), df))


def _norm(df: Tensor) -> Tensor:
    (row,), shape = flattened(df)
    with torch.no_grad():
        log_norm, slope = _log_norm(row.detach())
    return attach(log_norm, (row,), (slope,)).reshape(shape)


def _central(value: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """CDF minus one half near the median, by a series."""
    t = unit(value, loc, scale).clamp(-1.0, 1.0)  # not used far from the median
    q = t.square() / df
    bend = (df + 1) / 2
    series = 1 - q * bend * (1 / 3 - q * (bend + 1) * (1 / 10 - q * (bend + 2) * (1 / 42 - q * (bend + 3) / 216)))
    return _norm(df).exp() * t * series / math.sqrt(2 * math.pi)


def _log_prob(value: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r = unit(value, loc, scale).abs() / df.sqrt()
    near = r < 1
    inner = torch.log1p(torch.where(near, r, 1.0).square())
    far = torch.where(near, 1.0, r)
    outer = 2 * far.log() + torch.log1p(far.pow(-2))
    return _norm(df) - LOG_SQRT_2PI - scale.log() - (df + 1) / 2 * torch.where(near, inner, outer)


def _quantile(lower: Tensor, upper: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    (below, above, nu), shape = flattened(lower, upper, df)
    with torch.no_grad():
        goal, fixed = log_odds(below, above), nu.detach()
        z = normal_quantile(below, above)
        limit = torch.full_like(z, math.inf)
        s = root(lambda x: log_odds_of(_tail_of_s(x, fixed)), goal, z, -limit, limit)
        far = s.sign() * (fixed * torch.expm1(s.square() / fixed)).sqrt()
        finite = far.isfinite()
        t = torch.where(finite, far, 0.0)
        slope = log_odds_of(_tail(t, fixed)).slope
    zero, one = torch.zeros_like(t), torch.ones_like(t)
    value = _STUDENT.log_cdf(t, nu, zero, one) - _STUDENT.log_survival(t, nu, zero, one)
    near = polished(t, value, log_odds(below, above), slope)
    return loc + scale * torch.where(finite, near, far).reshape(shape)


def _crps(value: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    t = unit(value, loc, scale)
    zero, one = torch.zeros_like(t), torch.ones_like(t)
    inside = 2 * torch.exp(_STUDENT.log_cdf(t, df, zero, one)) - 1
    around = torch.exp(_log_prob(t, df, zero, one)) * (df + t.square())
    log_beta = torch.lgamma(df - 0.5) - torch.lgamma(df) - 2 * (torch.lgamma(df / 2) - torch.lgamma((df + 1) / 2))
    spread = df.sqrt() * torch.exp(log_beta) / math.sqrt(math.pi)
    return scale * (t * inside + 2 * (around - spread) / (df - 1))


@torch.no_grad()
def _slopes(value: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Residuals of float32 batches and their derivatives."""
    t = (value - loc).div_(scale).double()
    tail = _tail(t, df.double(), _integral_of_float32)
    z, factor = residual_of_tail(tail.log_p, tail.lower)
    by_value = tail.slopes[0].mul_(factor).div_(scale)
    return z, (by_value, tail.slopes[1].mul_(factor), -by_value, t.mul_(by_value).neg_())


STUDENT_T = Family(
    parameters=("df", "loc", "scale"),
    log_cdf=_STUDENT.log_cdf,
    log_survival=_STUDENT.log_survival,
    residual=_STUDENT.residual,
    central=_central,
    quantile=_quantile,
    log_prob=_log_prob,
    crps=_crps,
    crps_where=lambda df, *_: (df > 1.1) & (df < 3e3),
    location="loc",
    slopes=_slopes,
)

register(distributions.StudentT, STUDENT_T)
