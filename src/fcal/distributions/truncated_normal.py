"""The normal distribution truncated to an interval, for bounded targets."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all

from fcal.distributions.family import Family, register
from fcal.distributions.implicit import LogOdds, attach, flattened, legendre, polished, root
from fcal.distributions.location_scale import unit
from fcal.distributions.tails import log_normal_density, mills_ratio, normal_quantile_of_log

_RULE, _MANY = legendre(12), legendre(24)
_DROP = 36.0  # the density decreases by e^-36 over the interval of quadrature of the moments
_NARROW = 2.0  # intervals over which the exponent of the density changes by less are integrated by quadrature


def _log_mass(low: Tensor, high: Tensor, width: Tensor) -> Tensor:
    """Log of Phi(high) - Phi(low); ``width`` is the exact difference of the bounds.

    A narrow interval is differentiated with respect to its start and its width: the derivatives with respect to its two
    ends would be large opposite numbers, whose sum, the derivative with respect to the location, would be lost.
    """
    (a, b, w), shape = flattened(low, high, width)
    with torch.no_grad():
        value = _log_mass_value(a.detach(), b.detach(), w.detach())
        narrow = _is_narrow(a, b, w)
        at_start, at_end = _densities_over_mass(a, b, value, narrow)
        by_shift = at_start * torch.expm1(torch.where(narrow, -w * (a + w / 2), 0.0))
        by_ends = (torch.where(narrow, by_shift, -at_start), torch.where(narrow, 0.0, at_end))
        slopes = (*by_ends, torch.where(narrow, at_end, 0.0))
    return attach(value, (a, b, w), slopes).reshape(shape)


def _densities_over_mass(a: Tensor, b: Tensor, log_mass: Tensor, narrow: Tensor) -> tuple[Tensor, Tensor]:
    """Densities at both ends over the mass; in the far tails, the larger one is computed by the hazard."""
    at_start, at_end = torch.exp(log_normal_density(a) - log_mass), torch.exp(log_normal_density(b) - log_mass)
    flip = a + b > 0
    near, away = torch.where(flip, -a, b), torch.where(flip, -b, a)
    rest = -torch.expm1(torch.special.log_ndtr(away) - torch.special.log_ndtr(near))
    hazard = 1 / (mills_ratio(near) * rest)
    far = ~narrow & (near < -1)
    return torch.where(far & flip, hazard, at_start), torch.where(far & ~flip, hazard, at_end)


def _is_narrow(a: Tensor, b: Tensor, width: Tensor) -> Tensor:
    return width * (1 + torch.maximum(a.abs(), b.abs())) < _NARROW


def _log_mass_value(a: Tensor, b: Tensor, width: Tensor) -> Tensor:
    narrow = _is_narrow(a, b, width)
    flip = a + b > 0
    near, away = torch.where(flip, -a, b), torch.where(flip, -b, a)  # away < near: the tail beyond ``away`` is smaller
    log_near, log_away = torch.special.log_ndtr(near), torch.special.log_ndtr(away)
    wide = log_near + torch.log1p(-torch.exp(torch.where(narrow, -1.0, log_away - log_near)))
    return torch.where(narrow, _narrow_log_mass(a, torch.where(narrow, width, 1.0)), wide)


def _narrow_log_mass(a: Tensor, width: Tensor) -> Tensor:
    a = torch.where(a.isfinite(), a, 0.0)
    middle = a + width / 2
    total = torch.zeros_like(a)
    for node, weight in _RULE:
        u = width * (node - 0.5)
        total = total + weight * torch.exp(-u * (middle + u / 2))
    return log_normal_density(middle) + (width * total).log()


def _edge(bound: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Standardized bound; an infinite one is a constant, so that its derivatives are 0 and not NaN."""
    finite = bound.isfinite()
    return torch.where(finite, unit(torch.where(finite, bound, loc), loc, scale), bound)


def _gap(low: Tensor, high: Tensor, scale: Tensor) -> Tensor:
    """Standardized distance of two values."""
    finite = low.isfinite() & high.isfinite()
    gap = unit(torch.where(finite, high, 0.0), torch.where(finite, low, 0.0), scale)
    return torch.where(finite, gap, math.inf)


def _parts(value: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Log of the normal probability between the value and either bound."""
    t, start, end = unit(value, loc, scale), _edge(low, loc, scale), _edge(high, loc, scale)
    return _log_mass(start, t, _gap(low, value, scale)), _log_mass(t, end, _gap(value, high, scale))


def _log_cdf(value: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return _log_part(*_parts(value, loc, scale, low, high))


def _log_survival(value: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    below, above = _parts(value, loc, scale, low, high)
    return _log_part(above, below)


def _log_part(log_this: Tensor, log_other: Tensor) -> Tensor:
    """Log of this / (this + other)."""
    return torch.nn.functional.logsigmoid(log_this - log_other)


def _log_prob(value: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    start, end = _edge(low, loc, scale), _edge(high, loc, scale)
    return log_normal_density(unit(value, loc, scale)) - scale.log() - _log_mass(start, end, _gap(low, high, scale))


def _quantile(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Computed as a distance from the nearer bound, so that values close to it are accurate."""
    below = lower <= upper
    sign = torch.where(below, 1.0, -1.0).to(scale.dtype)
    bound = torch.where(below, low, high)
    start = sign * _edge(bound, loc, scale)
    end = sign * _edge(torch.where(below, high, low), loc, scale)
    log_goal = torch.minimum(lower, upper).log() + _log_mass(start, end, _gap(low, high, scale))
    from_loc = _from_infinity(log_goal, start)
    bounded = start.isfinite()
    distance = _distance(
        torch.where(bounded, log_goal, -2.0), torch.where(bounded, start, 0.0), torch.where(bounded, end, math.inf)
    )
    bound = torch.where(bounded, bound, 0.0)
    return torch.where(bounded, bound + sign * scale * distance, loc + sign * scale * from_loc)


def _from_infinity(log_goal: Tensor, start: Tensor) -> Tensor:
    """Quantile of the lower tail, where there is no bound."""
    return normal_quantile_of_log(torch.where(start.isfinite(), math.log(0.5), log_goal.clamp(max=math.log(0.5))))


def _distance(log_goal: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Distance from ``start`` that encloses a given mass, by Newton's method on the logarithms of both."""
    (goal, a, b), shape = flattened(log_goal, start, end)
    with torch.no_grad():
        fixed = a.detach()
        first = goal.detach() - log_normal_density(fixed)  # as if the density were constant
        longest = torch.log(b.detach() - fixed)

        def log_mass(log_width: Tensor) -> LogOdds:
            width = log_width.exp()
            value = _log_mass_value(fixed, fixed + width, width)
            return LogOdds(value, torch.exp(log_normal_density(fixed + width) + log_width - value))

        low = torch.full_like(first, -math.inf)
        log_width = root(log_mass, goal.detach(), torch.minimum(first, longest - 0.1), low, longest)
        width = log_width.exp()
        slope = log_mass(log_width).slope
    return torch.exp(polished(log_width, _log_mass(a, a + width, width), goal, slope)).reshape(shape)


class TruncatedNormal(Distribution):
    r"""Normal distribution :math:`N(\mu, \sigma^2)` truncated to an interval.

    Args:
        loc: :math:`\mu`, which may lie outside the interval.
        scale: :math:`\sigma`.
        low: Lower bound, or minus infinity.
        high: Upper bound, above ``low``, or infinity.
        validate_args: As in every torch distribution.

    Example:
        >>> pred = TruncatedNormal(torch.tensor(0.0), torch.tensor(1.0), torch.tensor(0.0), torch.tensor(torch.inf))
        >>> pred.cdf(torch.tensor(0.6745))
        tensor(0.5000)
        >>> pred.mean  # sqrt(2 / pi)
        tensor(0.7979)
    """

    arg_constraints = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "low": constraints.dependent(is_discrete=False, event_dim=0),
        "high": constraints.dependent(is_discrete=False, event_dim=0),
    }
    has_rsample = True

    def __init__(
        self,
        loc: Tensor | float,
        scale: Tensor | float,
        low: Tensor | float,
        high: Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        self.loc, self.scale, self.low, self.high = broadcast_all(loc, scale, low, high)
        super().__init__(self.loc.shape, validate_args=validate_args)
        if self._validate_args and not torch.lt(self.low, self.high).all():
            raise ValueError("expected `low` < `high` everywhere, got bounds that cross")

    def expand(self, batch_shape: Any, _instance: Any = None) -> "TruncatedNormal":
        """Expand to a larger batch shape."""
        new = self._get_checked_instance(TruncatedNormal, _instance)  # type: ignore[no-untyped-call]
        new.loc, new.scale, new.low, new.high = (p.expand(batch_shape) for p in self._parameters())
        super(TruncatedNormal, new).__init__(torch.Size(batch_shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        """The interval."""
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        """Mean, by quadrature."""
        return self._narrowed(self._moments()[0])

    @property
    def variance(self) -> Tensor:
        """Variance, by quadrature."""
        return self._narrowed(self._moments()[1])

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Differentiable samples, by the inverse CDF."""
        shape = self._extended_shape(torch.Size(sample_shape))
        info = torch.finfo(self.loc.dtype)
        uniform = torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.icdf(uniform.clamp(min=info.tiny, max=1 - info.eps))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density."""
        if self._validate_args:
            self._validate_sample(value)
        outside = (value < self.low) | (value > self.high)
        return self._narrowed(_log_prob(value.double(), *self._wide()).masked_fill(outside, -math.inf))

    def cdf(self, value: Tensor) -> Tensor:
        """Probability below ``value``."""
        if self._validate_args:
            self._validate_sample(value)
        wide = self._wide()
        inside, safe = self._inside(value.double())
        above = (value >= self.high).to(safe.dtype)
        return self._narrowed(torch.where(inside, torch.exp(_log_cdf(safe, *wide)), above))

    def icdf(self, value: Tensor | float) -> Tensor:
        """Quantile of a probability; NaN outside [0, 1]."""
        p = torch.as_tensor(value, dtype=torch.float64, device=self.loc.device)
        inside = (p > 0) & (p < 1)
        quantile = _quantile(torch.where(inside, p, 0.5), torch.where(inside, 1 - p, 0.5), *self._wide())
        ends = torch.where(p == 0, self.low, torch.where(p == 1, self.high, math.nan))
        return self._narrowed(torch.where(inside, quantile, ends.double()))

    def _inside(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Mask of values inside the interval, and the values with those outside replaced by a point inside."""
        _, _, low, high = self._wide()
        inside = (value > low) & (value < high)
        finite_low = torch.where(low.isfinite(), low, high - 1)
        finite_low = torch.where(finite_low.isfinite(), finite_low, 0.0)
        return inside, torch.where(inside, value, torch.minimum(finite_low + 1, (finite_low + high) / 2))

    def _parameters(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.loc, self.scale, self.low, self.high

    def _wide(self) -> tuple[Tensor, ...]:
        return tuple(p.double() for p in self._parameters())

    def _narrowed(self, value: Tensor) -> Tensor:
        return value.to(self.loc.dtype)

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance, by quadrature on both sides of the mode, so that nothing cancels."""
        loc, scale, low, high = self._wide()
        mode = torch.minimum(torch.maximum(loc, low), high)
        slope = ((mode - loc) / scale).abs()  # of the exponent at the mode
        reach = 2 * _DROP / (slope + (slope.square() + 2 * _DROP).sqrt())
        total, first, second = (torch.zeros_like(mode) for _ in range(3))
        for sign, bound in ((1.0, high), (-1.0, low)):
            finite = bound.isfinite()
            gap = sign * (torch.where(finite, bound, mode) - mode) / scale
            length = torch.where(finite, torch.minimum(reach, gap), reach)
            for node, weight in _MANY:
                u = length * node
                density = weight * length * torch.exp(-u * (slope + u / 2))
                total, first, second = total + density, first + sign * density * u, second + density * u.square()
        beside = first / total
        return mode + scale * beside, scale.square() * (second / total - beside.square())


TRUNCATED_NORMAL = Family(
    parameters=("loc", "scale", "low", "high"),
    log_cdf=_log_cdf,
    log_survival=_log_survival,
    quantile=_quantile,
    log_prob=_log_prob,
    support=lambda value, *parameters: (value >= parameters[2]) & (value <= parameters[3]),
    bounds=lambda *parameters: parameters[2:],
    ordered=("low", "high"),
    unbounded=("low", "high"),
)

register(TruncatedNormal, TRUNCATED_NORMAL)
