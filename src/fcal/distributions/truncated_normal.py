"""The normal law between two bounds, which torch lacks: for targets that cannot leave an interval."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all

from fcal.distributions.family import Family, register
from fcal.distributions.implicit import LogOdds, attach, flattened, legendre, polished, root
from fcal.distributions.tails import LOG_SQRT_2PI, mills_ratio, normal_quantile_of_log, unit

_RULE, _MANY = legendre(12), legendre(24)
_DROP = 36.0  # the density falls by e^-36 over the reach of the quadrature of moments
_NARROW = 2.0  # an interval over which the density's exponent changes by less is integrated by quadrature


def _log_density(t: Tensor) -> Tensor:
    return -0.5 * t.square() - LOG_SQRT_2PI


def _log_mass(low: Tensor, high: Tensor, width: Tensor) -> Tensor:
    """Log of Phi(high) - Phi(low); ``width`` is their difference, known better than by subtraction.

    The slopes of a narrow interval are those by its start and its width: by its two ends they would be large, opposite
    numbers whose sum, the slope by the location, is lost.
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
    """Densities at both ends over the mass; the larger by the hazard, as far out their logarithms have no digits."""
    at_start, at_end = torch.exp(_log_density(a) - log_mass), torch.exp(_log_density(b) - log_mass)
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
    near, away = torch.where(flip, -a, b), torch.where(flip, -b, a)  # away < near, and away has the smaller tail
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
    return _log_density(middle) + (width * total).log()


def _edge(bound: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """A bound in standard units; an infinite one is a constant, whose slope by the scale is 0 and not 0 times it."""
    finite = bound.isfinite()
    return torch.where(finite, unit(torch.where(finite, bound, loc), loc, scale), bound)


def _gap(low: Tensor, high: Tensor, scale: Tensor) -> Tensor:
    """Distance of two values in standard units, from themselves."""
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
    return _log_density(unit(value, loc, scale)) - scale.log() - _log_mass(start, end, _gap(low, high, scale))


def _quantile(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The distance from the nearer bound, so that a value close to it keeps its digits."""
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
    """Quantile of the tail below, where there is no bound."""
    return normal_quantile_of_log(torch.where(start.isfinite(), math.log(0.5), log_goal.clamp(max=math.log(0.5))))


def _distance(log_goal: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """How far beyond ``start`` a given mass reaches, by Newton's method on the logarithm of both."""
    (goal, a, b), shape = flattened(log_goal, start, end)
    with torch.no_grad():
        fixed = a.detach()
        first = goal.detach() - _log_density(fixed)  # as if the density stayed what it is at the bound
        longest = torch.log(b.detach() - fixed)

        def log_mass(log_width: Tensor) -> LogOdds:
            width = log_width.exp()
            value = _log_mass_value(fixed, fixed + width, width)
            return LogOdds(value, torch.exp(_log_density(fixed + width) + log_width - value))

        low = torch.full_like(first, -math.inf)
        log_width = root(log_mass, goal.detach(), torch.minimum(first, longest - 0.1), low, longest)
        width = log_width.exp()
        slope = log_mass(log_width).slope
    return torch.exp(polished(log_width, _log_mass(a, a + width, width), goal, slope)).reshape(shape)


class TruncatedNormal(Distribution):
    r"""Normal law :math:`N(\mu, \sigma^2)` given that the value lies between two bounds.

    Args:
        loc: :math:`\mu`, which may lie outside of the bounds.
        scale: :math:`\sigma`.
        low: Lower bound; minus infinity for none.
        high: Upper bound, above ``low``; infinity for none.
        validate_args: As in every torch distribution.

    Example:
        >>> law = TruncatedNormal(torch.tensor(0.0), torch.tensor(1.0), torch.tensor(0.0), torch.tensor(torch.inf))
        >>> law.cdf(torch.tensor(0.6745))
        tensor(0.5000)
        >>> law.mean  # sqrt(2 / pi)
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
            raise ValueError("expected `low` < `high` for every law, got bounds that cross")

    def expand(self, batch_shape: Any, _instance: Any = None) -> "TruncatedNormal":
        """The same law with a larger batch shape."""
        new = self._get_checked_instance(TruncatedNormal, _instance)  # type: ignore[no-untyped-call]
        new.loc, new.scale, new.low, new.high = (p.expand(batch_shape) for p in self._parameters())
        super(TruncatedNormal, new).__init__(torch.Size(batch_shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        """Between the bounds."""
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        """Shifted from ``loc`` by the difference of the densities at the bounds."""
        return self._narrowed(self._moments()[0])

    @property
    def variance(self) -> Tensor:
        """Of the truncated law, below that of the normal one."""
        return self._narrowed(self._moments()[1])

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Differentiable draws, by the inverse CDF."""
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

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile of a probability; NaN for what is none."""
        p = value.double()
        inside = (p > 0) & (p < 1)
        found = _quantile(torch.where(inside, p, 0.5), torch.where(inside, 1 - p, 0.5), *self._wide())
        ends = torch.where(p == 0, self.low, torch.where(p == 1, self.high, math.nan))
        return self._narrowed(torch.where(inside, found, ends.double()))

    def _inside(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Where a value lies between the bounds, and one that does everywhere."""
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
        """Mean and variance, by quadrature to both sides of the mode, from where nothing cancels."""
        loc, scale, low, high = self._wide()
        mode = torch.minimum(torch.maximum(loc, low), high)
        slope = ((mode - loc) / scale).abs()  # of the exponent, in the direction in which the law extends
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
