"""The normal law between two bounds, which torch lacks: for targets that cannot leave an interval."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all

from fcal.distributions.family import Family, register
from fcal.distributions.implicit import LogOdds, attach, flattened, legendre, polished, root
from fcal.distributions.tails import normal_quantile_of_log, unit

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_NARROW = 2.0  # an interval over which the density's exponent changes by less is integrated by quadrature


def _log_density(t: Tensor) -> Tensor:
    return -0.5 * t.square() - _LOG_SQRT_2PI


def _log_mass(low: Tensor, high: Tensor, width: Tensor) -> Tensor:
    """Log of Phi(high) - Phi(low); ``width`` is their difference, known better than by subtraction."""
    (a, b, w), shape = flattened(low, high, width)
    with torch.no_grad():
        value = _log_mass_value(a.detach(), b.detach(), w.detach())
        slopes = (-torch.exp(_log_density(a) - value), torch.exp(_log_density(b) - value))
    return attach(value, (a, b), slopes).reshape(shape)


def _log_mass_value(a: Tensor, b: Tensor, width: Tensor) -> Tensor:
    far = torch.maximum(a.abs(), b.abs())
    narrow = width * (1 + far) < _NARROW
    flip = a + b > 0
    near, away = torch.where(flip, -a, b), torch.where(flip, -b, a)  # away < near, and away has the smaller tail
    log_near, log_away = torch.special.log_ndtr(near), torch.special.log_ndtr(away)
    wide = log_near + torch.log1p(-torch.exp(torch.where(narrow, -1.0, log_away - log_near)))
    return torch.where(narrow, _narrow_log_mass(a, torch.where(narrow, width, 1.0)), wide)


def _narrow_log_mass(a: Tensor, width: Tensor) -> Tensor:
    a = torch.where(a.isfinite(), a, 0.0)
    middle = a + width / 2
    total = torch.zeros_like(a)
    for node, weight in legendre(12):
        u = width * (node - 0.5)
        total = total + weight * torch.exp(-u * (middle + u / 2))
    return _log_density(middle) + (width * total).log()


def _standard(value: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, ...]:
    return unit(value, loc, scale), unit(low, loc, scale), unit(high, loc, scale)


def _log_cdf(value: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    t, start, end = _standard(value, loc, scale, low, high)
    below = _log_mass(start, t, (value - low) / scale)
    return _log_part(below, _log_mass(t, end, (high - value) / scale))


def _log_survival(value: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    t, start, end = _standard(value, loc, scale, low, high)
    above = _log_mass(t, end, (high - value) / scale)
    return _log_part(above, _log_mass(start, t, (value - low) / scale))


def _log_part(log_this: Tensor, log_other: Tensor) -> Tensor:
    """Log of this / (this + other)."""
    return torch.nn.functional.logsigmoid(log_this - log_other)


def _log_prob(value: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    t, start, end = _standard(value, loc, scale, low, high)
    return _log_density(t) - scale.log() - _log_mass(start, end, (high - low) / scale)


def _quantile(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The distance from the nearer bound, so that a value close to it keeps its digits."""
    below = lower <= upper
    sign = torch.where(below, 1.0, -1.0).to(scale.dtype)
    bound = torch.where(below, low, high)
    start = sign * unit(bound, loc, scale)
    end = sign * unit(torch.where(below, high, low), loc, scale)
    log_goal = torch.minimum(lower, upper).log() + _log_mass(start, end, (high - low) / scale)
    from_loc = _from_infinity(log_goal, start)
    distance = _distance(log_goal, torch.where(start.isfinite(), start, 0.0), end)
    bound = torch.where(start.isfinite(), bound, 0.0)
    return torch.where(start.isfinite(), bound + sign * scale * distance, loc + sign * scale * from_loc)


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
        _, _, at_start, at_end = self._edges()
        return self.loc + self.scale * (at_start - at_end)

    @property
    def variance(self) -> Tensor:
        """Of the truncated law, below that of the normal one."""
        start, end, at_start, at_end = self._edges()
        finite_start, finite_end = (torch.where(x.isfinite(), x, 0.0) for x in (start, end))
        ratio = 1 + finite_start * at_start - finite_end * at_end - (at_start - at_end).square()
        return self.scale.square() * ratio.clamp(min=0)

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
        return self._narrowed(_log_prob(value.double(), *self._wide()))

    def cdf(self, value: Tensor) -> Tensor:
        """Probability below ``value``."""
        if self._validate_args:
            self._validate_sample(value)
        return self._narrowed(torch.exp(_log_cdf(value.double(), *self._wide())))

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile of a probability."""
        return self._narrowed(_quantile(value.double(), 1 - value.double(), *self._wide()))

    def _parameters(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.loc, self.scale, self.low, self.high

    def _wide(self) -> tuple[Tensor, ...]:
        return tuple(p.double() for p in self._parameters())

    def _narrowed(self, value: Tensor) -> Tensor:
        return value.to(self.loc.dtype)

    def _edges(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bounds in standard units, and the densities there over the mass between."""
        loc, scale, low, high = self._wide()
        start, end = (low - loc) / scale, (high - loc) / scale
        mass = _log_mass(start, end, (high - low) / scale)
        at_start, at_end = (torch.exp(_log_density(x) - mass) for x in (start, end))
        return tuple(map(self._narrowed, (start, end, at_start, at_end)))  # type: ignore[return-value]


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
