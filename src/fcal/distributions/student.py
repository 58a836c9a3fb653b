r"""Student's t: a normal integral with a slowly varying factor, by quadrature.

With :math:`s = \sqrt{\nu \log(1 + t^2 / \nu)}` the tail is exactly

.. math:: S(t) = c(\nu) \int_s^\infty \varphi(r) \, G(r / \sqrt \nu) \, dr, \qquad G(x)^2 = \frac{x^2}{1 - e^{-x^2}}

so a few Gauss-Legendre nodes serve all degrees of freedom and all distances, and every derivative by
:math:`\nu` is a sum of terms of its own size: nothing cancels as the law becomes normal.
"""

import math

import torch
from torch import Tensor, distributions

from fcal.distributions.family import Family, register
from fcal.distributions.implicit import (
    Implicit,
    Tail,
    attach,
    by_regime,
    flattened,
    legendre,
    log_odds,
    log_odds_of,
    polished,
    root,
)
from fcal.distributions.tails import normal_quantile, unit

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_DROP = 30.0  # the integrand falls by e^-30 over the interval of quadrature
_FEW_NODES_FROM = 5.0  # degrees of freedom; below, G bends within the interval and takes more nodes


def _log_norm(df: Tensor) -> tuple[Tensor, Tensor]:
    r"""Log of :math:`\Gamma(\frac{\nu + 1}2) / (\Gamma(\frac \nu 2) \sqrt{\nu / 2})` and its derivative."""
    x = df / 2
    u = x.clamp(min=8.0).reciprocal()
    s = u.square()
    series = (1 / 8, 1 / 192, 1 / 640, 17 / 14336, 31 / 18432, 691 / 180224)
    value, slope = torch.zeros_like(u), torch.zeros_like(u)
    for power, coefficient in reversed(list(enumerate(series))):
        value = coefficient - value * s
        slope = (2 * power + 1) * coefficient - slope * s
    value, slope = -value * u, slope * s
    small = x < 8
    y = torch.where(small, x, 4.0)
    direct = torch.lgamma(y + 0.5) - torch.lgamma(y) - 0.5 * y.log()
    direct_slope = torch.digamma(y + 0.5) - torch.digamma(y) - 0.5 / y
    return torch.where(small, direct, value), torch.where(small, direct_slope, slope) / 2


def _quadrature(count: int, s: Tensor, df: Tensor) -> tuple[Tensor, Tensor]:
    """Integral of the tail over its boundary value phi(s), and minus 2 df times its derivative by df at fixed s."""
    rate = df.reciprocal()
    length = 2 * _DROP / (s + (s.square() + 2 * _DROP).sqrt())
    total, tilt = torch.zeros_like(s), torch.zeros_like(s)
    half_square = 0.5 * s.square()
    for node, weight in legendre(count):
        square = torch.add(s, length, alpha=node).square_()
        density = torch.exp(half_square - 0.5 * square).mul_(weight)
        x = square.mul_(rate)
        e = torch.expm1(-x)
        ratio = x.div_(-e)
        density.mul_(ratio.sqrt())
        total.add_(density)
        tilt.add_(density.mul_(1 - ratio.mul_(e.add_(1))))
    return total.mul_(length), tilt.mul_(length)


def _boundary(r: Tensor, hyp: Tensor, df: Tensor) -> Tensor:
    """G at the boundary times its derivative by df, with r = t / sqrt(df) and hyp = sqrt(1 + r^2)."""
    q = r.square().clamp(max=1.0)
    near = q.square() * (1 / 2 - q * (2 / 3 - q * (3 / 4 - q * (4 / 5 - q * 5 / 6))))
    gap = torch.where(r < 0.1, near, 2 * hyp.log() - (r / hyp).square())
    return hyp * gap / (2 * df.sqrt() * r.clamp(min=1e-300))


def _integral(s: Tensor, df: Tensor) -> list[Tensor]:
    many, few = (lambda a, b: _quadrature(36, a, b)), (lambda a, b: _quadrature(16, a, b))
    return by_regime(df < _FEW_NODES_FROM, (many, few), s, df)


def _tail(t: Tensor, df: Tensor) -> Tail:
    """Tail beyond |t|, on the side of t."""
    lower = t < 0
    r = t.abs() / df.sqrt()
    hyp = torch.hypot(torch.ones_like(r), r)
    log_square = torch.where(r < 1, torch.log1p(r.clamp(max=1.0).square()), 2 * hyp.log())
    integral, tilt = _integral((df * log_square).sqrt(), df)
    log_norm, slope = _log_norm(df)
    log_p = log_norm - 0.5 * df * log_square - _LOG_SQRT_2PI + integral.log()
    by_t = -1 / (hyp * integral)
    by_df = slope - (tilt / (2 * df) + _boundary(r, hyp, df)) / integral
    return Tail(log_p, (torch.where(lower, -by_t, by_t), by_df), lower)


def _tail_of_s(s: Tensor, df: Tensor) -> Tail:
    """The same tail in the coordinate s with the sign of t, which is close to z."""
    lower = s < 0
    integral, _ = _integral(s.abs(), df)
    x = s.square() / df
    by_s = -torch.where(x < 1e-8, 1.0, x / -torch.expm1(-x)).sqrt() / integral
    log_p = _log_norm(df)[0] - 0.5 * s.square() - _LOG_SQRT_2PI + integral.log()
    return Tail(log_p, (torch.where(lower, -by_s, by_s),), lower)


_STUDENT = Implicit(_tail, lambda value, df, loc, scale: (unit(value, loc, scale), df))


def _norm(df: Tensor) -> Tensor:
    (row,), shape = flattened(df)
    with torch.no_grad():
        log_norm, slope = _log_norm(row.detach())
    return attach(log_norm, (row,), (slope,)).reshape(shape)


def _central(value: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """CDF minus one half near the median: the first terms of the integral from 0."""
    t = unit(value, loc, scale).clamp(-1.0, 1.0)  # far from the median it is not used
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
    return _norm(df) - _LOG_SQRT_2PI - scale.log() - (df + 1) / 2 * torch.where(near, inner, outer)


def _quantile(lower: Tensor, upper: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    (below, above, nu), shape = flattened(lower, upper, df)
    with torch.no_grad():
        goal, fixed = log_odds(below, above), nu.detach()
        z = normal_quantile(below, above)
        limit = torch.full_like(z, math.inf)
        s = root(lambda x: log_odds_of(_tail_of_s(x, fixed)), goal, z, -limit, limit)
        t = s.sign() * (fixed * torch.expm1(s.square() / fixed)).sqrt()
        slope = log_odds_of(_tail(t, fixed)).slope
    zero, one = torch.zeros_like(t), torch.ones_like(t)
    value = _STUDENT.log_cdf(t, nu, zero, one) - _STUDENT.log_survival(t, nu, zero, one)
    return loc + scale * polished(t, value, log_odds(below, above), slope).reshape(shape)


STUDENT_T = Family(
    parameters=("df", "loc", "scale"),
    log_cdf=_STUDENT.log_cdf,
    log_survival=_STUDENT.log_survival,
    residual=_STUDENT.residual,
    central=_central,
    quantile=_quantile,
    log_prob=_log_prob,
    location="loc",
)

register(distributions.StudentT, STUDENT_T)
