"""Families on the whole line: Normal, Laplace, Logistic, Cauchy, Gumbel."""

import math

import torch
from torch import Tensor, distributions
from torch.nn.functional import logsigmoid

from fcal.distributions.family import Family, register
from fcal.distributions.logistic import Logistic
from fcal.distributions.tails import LOG_SQRT_2PI, finite_exp, log1mexp_of_log, log_normal_cdf, normal_quantile, unit

_LOG_HALF = math.log(0.5)


def _normal_log_prob(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return -0.5 * unit(value, loc, scale).square() - scale.log() - LOG_SQRT_2PI


def _normal_crps(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    z = unit(value, loc, scale)
    density = torch.exp(-0.5 * z.square() - LOG_SQRT_2PI)
    return scale * (z * torch.erf(z * math.sqrt(0.5)) + 2 * density - 1 / math.sqrt(math.pi))


NORMAL = Family(
    parameters=("loc", "scale"),
    log_cdf=lambda value, loc, scale: log_normal_cdf(unit(value, loc, scale)),
    log_survival=lambda value, loc, scale: log_normal_cdf(-unit(value, loc, scale)),
    quantile=lambda lower, upper, loc, scale: loc + scale * normal_quantile(lower, upper),
    log_prob=_normal_log_prob,
    residual=unit,
    crps=_normal_crps,
    location="loc",
    native=True,
)


def _laplace_log_cdf(t: Tensor) -> Tensor:
    # torch.where keeps the slope at t = 0; abs() and clamp() have none there
    below = t < 0
    return torch.where(below, _LOG_HALF + t, torch.log1p(-0.5 * torch.exp(-torch.where(below, 0.0, t))))


def _laplace_central(t: Tensor) -> Tensor:
    below = t < 0
    return torch.where(below, torch.expm1(torch.where(below, t, 0.0)), -torch.expm1(-torch.where(below, 0.0, t))) / 2


def _laplace_quantile(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    tail = torch.log(2 * torch.minimum(lower, upper))
    return loc + scale * torch.where(lower < upper, tail, -tail)


def _laplace_crps(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    t = unit(value, loc, scale).abs()
    return scale * (t + torch.exp(-t) - 0.75)


LAPLACE = Family(
    parameters=("loc", "scale"),
    log_cdf=lambda value, loc, scale: _laplace_log_cdf(unit(value, loc, scale)),
    log_survival=lambda value, loc, scale: _laplace_log_cdf(-unit(value, loc, scale)),
    quantile=_laplace_quantile,
    log_prob=lambda value, loc, scale: -unit(value, loc, scale).abs() - torch.log(2 * scale),
    central=lambda value, loc, scale: _laplace_central(unit(value, loc, scale)),
    crps=_laplace_crps,
    location="loc",
    curve=True,
)


def _logistic_log_prob(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    t = unit(value, loc, scale)
    return logsigmoid(t) + logsigmoid(-t) - scale.log()


def _logistic_crps(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    t = unit(value, loc, scale)
    return scale * (t - 2 * logsigmoid(t) - 1)


LOGISTIC = Family(
    parameters=("loc", "scale"),
    log_cdf=lambda value, loc, scale: logsigmoid(unit(value, loc, scale)),
    log_survival=lambda value, loc, scale: logsigmoid(-unit(value, loc, scale)),
    quantile=lambda lower, upper, loc, scale: loc + scale * (lower.log() - upper.log()),
    log_prob=_logistic_log_prob,
    central=lambda value, loc, scale: torch.tanh(unit(value, loc, scale) / 2) / 2,
    crps=_logistic_crps,
    location="loc",
)


def _cauchy_log_lower(t: Tensor) -> Tensor:
    r"""Log-CDF for :math:`t \le -1`: the angle :math:`\arctan(u)` with u = -1/t, as u times a factor near one."""
    u = -1 / t
    small = u < 1e-4
    wide = torch.where(small, 1.0, u)
    factor = torch.where(small, 1 - u.square() / 3, torch.atan(wide) / wide)
    return factor.log() - torch.log(-t) - math.log(math.pi)  # d(1/t) would underflow where d(log t) does not


def _cauchy_log_cdf(t: Tensor) -> Tensor:
    low, high = t < -1, t > 1
    lower = _cauchy_log_lower(torch.where(low, t, -1.0))
    middle = torch.log(0.5 + torch.atan(torch.where(low | high, 0.0, t)) / math.pi)
    upper = torch.log1p(-torch.exp(_cauchy_log_lower(-torch.where(high, t, 1.0))))
    return torch.where(low, lower, torch.where(high, upper, middle))


def _cauchy_log_prob(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    t = unit(value, loc, scale).abs()
    near = t < 1
    inner = torch.log1p(torch.where(near, t, 1.0).square())
    far = torch.where(near, 1.0, t)
    outer = 2 * far.log() + torch.log1p(far.pow(-2))
    return -torch.where(near, inner, outer) - scale.log() - math.log(math.pi)


def _cauchy_quantile(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    tail = -1 / torch.tan(math.pi * torch.minimum(lower, upper))
    return loc + scale * torch.where(lower < upper, tail, -tail)


def _cauchy_crps(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    t = unit(value, loc, scale)
    log_hyp = torch.log(torch.hypot(torch.ones_like(t), t))
    return scale * (2 / math.pi) * (t * torch.atan(t) - log_hyp + math.log(2))


CAUCHY = Family(
    parameters=("loc", "scale"),
    log_cdf=lambda value, loc, scale: _cauchy_log_cdf(unit(value, loc, scale)),
    log_survival=lambda value, loc, scale: _cauchy_log_cdf(-unit(value, loc, scale)),
    quantile=_cauchy_quantile,
    log_prob=_cauchy_log_prob,
    central=lambda value, loc, scale: torch.atan(unit(value, loc, scale)) / math.pi,
    crps=_cauchy_crps,
    location="loc",
)


def _gumbel_log_prob(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    t = unit(value, loc, scale)
    return -t - finite_exp(-t) - scale.log()


def _gumbel_quantile(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    minus_log = torch.where(lower < upper, -lower.log(), -torch.log1p(-upper))
    return loc - scale * minus_log.log()


GUMBEL = Family(
    parameters=("loc", "scale"),
    log_cdf=lambda value, loc, scale: -finite_exp(-unit(value, loc, scale)),
    log_survival=lambda value, loc, scale: log1mexp_of_log(-unit(value, loc, scale)),
    quantile=_gumbel_quantile,
    log_prob=_gumbel_log_prob,
    location="loc",
)

register(distributions.Normal, NORMAL)
register(distributions.Laplace, LAPLACE)
register(Logistic, LOGISTIC)
register(distributions.Cauchy, CAUCHY)
register(distributions.Gumbel, GUMBEL)
