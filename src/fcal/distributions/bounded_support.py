"""Families on a half-line or an interval: LogNormal, Weibull, Exponential, HalfNormal, Uniform, GeneralizedPareto."""

import math

import torch
from torch import Tensor, distributions

from fcal.distributions.family import Family, register
from fcal.distributions.location_scale import unit
from fcal.distributions.tails import LOG_SQRT_2PI, finite_exp, log1mexp_of_log, log_normal_cdf, normal_quantile

_SQRT_HALF = math.sqrt(0.5)
_SERIES_BELOW = 0.1
_TERMS = 14
_NEAR_THE_END = 0.25  # of 1 + k t
_SPLITTER = 2.0**27 + 1


def _positive(value: Tensor, *_: Tensor) -> Tensor:
    return value > 0


def _not_negative(value: Tensor, *_: Tensor) -> Tensor:
    return value >= 0


def _cumulative_hazard(lower: Tensor, upper: Tensor) -> Tensor:
    """Minus the log-survival, from the tail probability that is exact."""
    return torch.where(lower < upper, -torch.log1p(-lower), -upper.log())


def _lognormal_z(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return (value.log() - loc) / scale


def _lognormal_log_prob(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return -0.5 * _lognormal_z(value, loc, scale).square() - scale.log() - value.log() - LOG_SQRT_2PI


def _lognormal_crps(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    inside = value.clamp(min=torch.finfo(value.dtype).tiny)
    z = _lognormal_z(inside, loc, scale)
    log_mean = loc + scale.square() / 2  # the mean overflows long before its product with a tail probability
    below = torch.exp(log_mean + log_normal_cdf(z - scale)) - torch.exp(log_mean + log_normal_cdf(-scale * _SQRT_HALF))
    return inside * torch.erf(z * _SQRT_HALF) - 2 * below + (-value).clamp(min=0)


LOG_NORMAL = Family(
    parameters=("loc", "scale"),
    log_cdf=lambda value, loc, scale: log_normal_cdf(_lognormal_z(value, loc, scale)),
    log_survival=lambda value, loc, scale: log_normal_cdf(-_lognormal_z(value, loc, scale)),
    quantile=lambda lower, upper, loc, scale: torch.exp(loc + scale * normal_quantile(lower, upper)),
    log_prob=_lognormal_log_prob,
    residual=_lognormal_z,
    crps=_lognormal_crps,
    location="loc",
    support=_positive,
)


def _weibull_log_hazard(value: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    return concentration * (value.log() - scale.log())


def _weibull_log_prob(value: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    log_hazard = _weibull_log_hazard(value, scale, concentration)
    return concentration.log() + log_hazard - value.log() - finite_exp(log_hazard)


WEIBULL = Family(
    parameters=("scale", "concentration"),
    log_cdf=lambda value, scale, k: log1mexp_of_log(_weibull_log_hazard(value, scale, k)),
    log_survival=lambda value, scale, k: -finite_exp(_weibull_log_hazard(value, scale, k)),
    quantile=lambda lower, upper, scale, k: scale * _cumulative_hazard(lower, upper).pow(1 / k),
    log_prob=_weibull_log_prob,
    support=_positive,
)


def _exponential_crps(value: Tensor, rate: Tensor) -> Tensor:
    cdf = -torch.expm1(-rate * value.clamp(min=0))
    return value.abs() + (0.5 - 2 * cdf) / rate


EXPONENTIAL = Family(
    parameters=("rate",),
    log_cdf=lambda value, rate: log1mexp_of_log(rate.log() + value.log()),
    log_survival=lambda value, rate: -rate * value,
    quantile=lambda lower, upper, rate: _cumulative_hazard(lower, upper) / rate,
    log_prob=lambda value, rate: rate.log() - rate * value,
    crps=_exponential_crps,
    support=_not_negative,
)


def _halfnormal_log_cdf(value: Tensor, scale: Tensor) -> Tensor:
    x = _SQRT_HALF * value / scale
    small = x < 1
    near = torch.log(torch.erf(torch.where(small, x, 1.0)))
    far = torch.log1p(-torch.erfc(torch.where(small, 1.0, x)))
    return torch.where(small, near, far)


def _halfnormal_log_survival(value: Tensor, scale: Tensor) -> Tensor:
    z = value / scale
    small = z < 0.5
    near = torch.log1p(-torch.erf(_SQRT_HALF * torch.where(small, z, 0.5)))
    return torch.where(small, near, math.log(2) + log_normal_cdf(-z))


def _halfnormal_quantile(lower: Tensor, upper: Tensor, scale: Tensor) -> Tensor:
    below = lower < upper
    near = torch.erfinv(torch.where(below, lower, 0.5)) / _SQRT_HALF
    far = -torch.special.ndtri(torch.where(below, 0.5, upper) / 2)
    return scale * torch.where(below, near, far)


def _halfnormal_log_prob(value: Tensor, scale: Tensor) -> Tensor:
    return math.log(2) - 0.5 * (value / scale).square() - scale.log() - LOG_SQRT_2PI


def _halfnormal_crps(value: Tensor, scale: Tensor) -> Tensor:
    x = value.clamp(min=0) / scale
    density = torch.exp(-0.5 * x.square() - LOG_SQRT_2PI)
    inside = x * (2 * torch.erf(x * _SQRT_HALF) - 1) + 4 * density - 2 / math.sqrt(math.pi)
    return scale * inside + (-value).clamp(min=0)


HALF_NORMAL = Family(
    parameters=("scale",),
    log_cdf=_halfnormal_log_cdf,
    log_survival=_halfnormal_log_survival,
    quantile=_halfnormal_quantile,
    log_prob=_halfnormal_log_prob,
    crps=_halfnormal_crps,
    support=_not_negative,
)


def _uniform_log_part(near: Tensor, far: Tensor) -> Tensor:
    """Log of near / (near + far), exact if either is tiny."""
    share = far / (near + far)
    mostly = share < 0.5
    return torch.where(mostly, torch.log1p(-torch.where(mostly, share, 0.0)), near.log() - (near + far).log())


def _uniform_quantile(lower: Tensor, upper: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.where(lower < upper, low + lower * (high - low), high - upper * (high - low))


def _uniform_crps(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    width = high - low
    inside = torch.minimum(torch.maximum(value, low), high)
    x = (inside - low) / width
    return (value - inside).abs() + width * (x.square() - x + 1 / 3)


UNIFORM = Family(
    parameters=("low", "high"),
    log_cdf=lambda value, low, high: _uniform_log_part(value - low, high - value),
    log_survival=lambda value, low, high: _uniform_log_part(high - value, value - low),
    quantile=_uniform_quantile,
    log_prob=lambda value, low, high: -(high - low).log().expand(value.shape),
    crps=_uniform_crps,
    support=lambda value, low, high: (value >= low) & (value <= high),
    bounds=lambda low, high: (low, high),
    ordered=("low", "high"),
)


def _near_zero(x: Tensor, coefficients: list[float]) -> Tensor:
    value = torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        value = coefficient + x * value
    return value


def _log1p_over(x: Tensor) -> Tensor:
    """log(1 + x) / x for small x, with the right gradient at 0."""
    return _near_zero(x, [(-1.0) ** k / (k + 1) for k in range(_TERMS)])


def _expm1_over(x: Tensor) -> Tensor:
    """(e^x - 1) / x, with the right gradient at 0."""
    small = x.abs() < _SERIES_BELOW
    coefficients = [1.0]
    for k in range(2, _TERMS):
        coefficients.append(coefficients[-1] / k)
    wide = torch.where(small, 1.0, x)
    return torch.where(small, _near_zero(torch.where(small, x, 0.0), coefficients), torch.expm1(wide) / wide)


def _product_error(a: Tensor, b: Tensor) -> Tensor:
    """Rounding error of the product a b, by Dekker's splitting into halves of 26 bits."""
    halves = []
    for x in (a, b):
        shifted = x * _SPLITTER
        top = shifted - (shifted - x)
        halves.append((top, x - top))
    (a_top, a_low), (b_top, b_low) = halves
    return a_low * b_low - (((a * b - a_top * b_top) - a_low * b_top) - a_top * b_low)


def _pareto_left(value: Tensor, loc: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    """1 + k t, accurate also near the upper end of the support, where it is nearly 0."""
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


def _pareto_hazard(value: Tensor, loc: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    """Minus the log-survival, log(1 + k t) / k."""
    t, left = unit(value, loc, scale), _pareto_left(value, loc, scale, concentration)
    x = concentration * t
    small = x.detach().abs() < _SERIES_BELOW
    straight = torch.where(small, t, 0.0) * _log1p_over(torch.where(small, x, 0.0))
    near_the_end = left.detach() < _NEAR_THE_END
    log_left = torch.where(near_the_end, left, 1.0).log() + torch.log1p(torch.where(near_the_end | small, 0.0, x))
    return torch.where(small, straight, log_left / torch.where(small, 1.0, concentration))


def _pareto_log_hazard(value: Tensor, loc: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    return _pareto_hazard(value, loc, scale, concentration).log()


def _pareto_quantile(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    below = lower < upper
    hazard = -torch.where(below, torch.log1p(-torch.where(below, lower, 0.5)), torch.where(below, 0.5, upper).log())
    return loc + scale * hazard * _expm1_over(concentration * hazard)


def _pareto_bounds(loc: Tensor, scale: Tensor, concentration: Tensor) -> tuple[Tensor, Tensor]:
    bent = concentration < 0
    return loc, torch.where(bent, loc - scale / torch.where(bent, concentration, -1.0), torch.inf)


def _pareto_support(value: Tensor, loc: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
    return (value >= loc) & (_pareto_left(value, loc, scale, concentration) > 0)


GENERALIZED_PARETO = Family(
    parameters=("loc", "scale", "concentration"),
    log_cdf=lambda *arguments: log1mexp_of_log(_pareto_log_hazard(*arguments)),
    log_survival=lambda *arguments: -_pareto_hazard(*arguments),
    quantile=_pareto_quantile,
    log_prob=lambda value, loc, scale, k: -(1 + k) * _pareto_hazard(value, loc, scale, k) - scale.log(),
    support=_pareto_support,
    bounds=_pareto_bounds,
    location="loc",
)

register(distributions.LogNormal, LOG_NORMAL)
register(distributions.Weibull, WEIBULL)
register(distributions.Exponential, EXPONENTIAL)
register(distributions.HalfNormal, HALF_NORMAL)
register(distributions.Uniform, UNIFORM)
register(distributions.GeneralizedPareto, GENERALIZED_PARETO)
