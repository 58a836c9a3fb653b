r"""Increasing maps of residuals, :math:`z' = g(z)`, and the formulas of a family whose residuals pass through one.

A map holds tensors with one number per prediction (none if one map serves all predictions) and three formulas: its
value, the log of its slope, and its inverse. :class:`fcal.distributions.Warped` is the distribution it gives.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import logsigmoid

from fcal.distributions.family import Family, family_residual
from fcal.distributions.implicit import LogOdds, polished, root
from fcal.distributions.location_scale import NORMAL, unit
from fcal.distributions.piecewise import Segments, crps_under_normal, moments_under_normal
from fcal.distributions.tails import (
    log_normal_cdf,
    log_normal_density,
    mills_ratio,
    normal_cdf,
    normal_quantile,
    normal_quantile_of_log,
)

_LOG_HALF = math.log(0.5)
_FARTHEST = 37.5  # beyond this residual, tail probabilities underflow and a quantile cannot be computed


class MonotoneMap(ABC):
    """Base of strictly increasing, piecewise differentiable maps of the real line onto itself.

    Attributes:
        names: Names of the tensors in error messages.
        tensors: One number per prediction each, or shapes that broadcast against the predictions.

    Example:
        A custom map for :class:`fcal.distributions.Warped`, which halves residuals.

        >>> from fcal.distributions import MonotoneMap, Warped
        >>> class Halved(MonotoneMap):
        ...     def value_and_log_slope(self, z, *tensors):
        ...         return z / 2, torch.full_like(z, 0.5).log()
        ...
        ...     def inverse(self, value, *tensors):
        ...         return 2 * value
        >>> wide = Warped(torch.distributions.Normal(torch.zeros(1), torch.ones(1)), Halved())
        >>> fcal.standardize(wide, torch.tensor([4.0]))
        tensor([2.])
    """

    names: tuple[str, ...] = ()
    tensors: tuple[Tensor, ...] = ()

    @abstractmethod
    def value_and_log_slope(self, z: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Value of the map and the log of its slope."""

    @abstractmethod
    def inverse(self, value: Tensor, *tensors: Tensor) -> Tensor:
        """Residual that is mapped to ``value``."""

    def rebuilt(self, tensors: tuple[Tensor, ...]) -> "MonotoneMap":
        """A map of the same class with other tensors."""
        make: Any = type(self)  # the constructors of maps with tensors take them by position
        result: MonotoneMap = make(*tensors) if self.names else self
        return result


class PiecewiseLinear(MonotoneMap):
    """A piecewise linear map, the same for all predictions.

    Args:
        x: Knots, strictly increasing. Shape ``(K,)``, K at least 2.
        y: Values at the knots, strictly increasing. Shape ``(K,)``.
        below: Slope below the first knot.
        above: Slope above the last knot.

    Example:
        >>> bent = PiecewiseLinear(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 3.0]), below=1.0, above=2.0)
        >>> bent.value_and_log_slope(torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64))[0]
        tensor([-1.0000, 1.5000, 5.0000], dtype=torch.float64)
    """

    def __init__(self, x: Tensor, y: Tensor, *, below: float, above: float) -> None:
        x, y = x.detach().to(torch.float64), y.detach().to(torch.float64)
        if x.dim() != 1 or x.shape != y.shape or len(x) < 2:
            shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
            raise ValueError(f"expected `x` and `y` of one shape (K,) with K >= 2, got {shapes}")
        increasing = bool((x.diff() > 0).all() and (y.diff() > 0).all())
        if not (increasing and x.isfinite().all() and y.isfinite().all()):
            raise ValueError("expected `x` and `y` finite and strictly increasing, got knots that are not")
        if not (0 < below < math.inf and 0 < above < math.inf):
            raise ValueError(f"expected `below` and `above` > 0, got {below:g} and {above:g}")
        self.segments = Segments.through(x, y, x.new_tensor(below), x.new_tensor(above))

    @cached_property
    def moments(self) -> tuple[float, float]:
        """Mean and variance of the inverse map of a standard normal variable."""
        mean, variance = moments_under_normal(self.segments.inverse())
        return mean.item(), variance.item()

    def on(self, like: Tensor) -> Segments:
        """The segments, on the device of a tensor."""
        segments = self.segments
        return segments if segments.x.device == like.device else Segments(*(part.to(like.device) for part in segments))

    def value_and_log_slope(self, z: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        """Value of the map and the log of its slope."""
        value, slope = self.on(z).value_and_slope(z)
        return value, slope.log()

    def inverse(self, value: Tensor, *_: Tensor) -> Tensor:
        """Residual that is mapped to ``value``."""
        return self.on(value).inverse().value_and_slope(value)[0]


class AffineMap(MonotoneMap):
    r"""Shift and rescale residuals, :math:`z' = (z - b) / s`.

    Args:
        shift: The shift :math:`b`.
        spread: The scale :math:`s > 0`.

    Example:
        >>> AffineMap(torch.tensor(1.0), torch.tensor(2.0)).inverse(torch.tensor(3.0), *map(torch.tensor, (1.0, 2.0)))
        tensor(7.)
    """

    names = ("shift", "spread")

    def __init__(self, shift: Tensor, spread: Tensor) -> None:
        self.tensors = (shift, spread)

    def value_and_log_slope(self, z: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Value of the map and the log of its slope."""
        shift, spread = tensors
        return (z - shift) / spread, -spread.log()

    def inverse(self, value: Tensor, *tensors: Tensor) -> Tensor:
        """Residual that is mapped to ``value``."""
        shift, spread = tensors
        return shift + spread * value


class BetaMap(MonotoneMap):
    r"""The beta map of probabilities, :math:`G(u) = \sigma(a \log u - b \log(1 - u) + c)`, applied to residuals.

    Song et al. 2019 use it to recalibrate; :math:`a = b = 1, c = 0` is the identity. In the tails it multiplies
    residuals by :math:`\sqrt a` and :math:`\sqrt b`.

    Args:
        a: Exponent of the lower tail, > 0.
        b: Exponent of the upper tail, > 0.
        c: Shift of the log-odds.

    Example:
        >>> one, zero = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
        >>> BetaMap(one, one, zero).value_and_log_slope(2 * one, one, one, zero)[0]
        tensor(2., dtype=torch.float64)
    """

    names = ("a", "b", "c")

    def __init__(self, a: Tensor, b: Tensor, c: Tensor) -> None:
        self.tensors = (a, b, c)

    def value_and_log_slope(self, z: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Value of the map and the log of its slope."""
        odds, slope = _beta_log_odds(z, *tensors)
        nearer = torch.where(odds < 0, odds, -odds)  # abs() would have no slope at 0
        size = normal_quantile_of_log(logsigmoid(nearer))
        log_slope = logsigmoid(nearer) + logsigmoid(-nearer) + slope.log() - log_normal_density(size)
        return torch.where(odds < 0, size, -size), log_slope

    def inverse(self, value: Tensor, *tensors: Tensor) -> Tensor:
        """Residual that is mapped to ``value``, by Newton's method in a known bracket."""
        goal = log_normal_cdf(value) - log_normal_cdf(-value)
        shape = torch.broadcast_shapes(goal.shape, *(t.shape for t in tensors))
        goal = goal.expand(shape)
        with torch.no_grad():
            low, high = _beta_bounds(goal, *tensors)
            z = root(lambda x: _beta_log_odds(x, *tensors), goal, (low + high) / 2, low, high)
            slope = _beta_log_odds(z, *tensors).slope
        return polished(z, _beta_log_odds(z, *tensors).value, goal, slope)


def _beta_log_odds(z: Tensor, a: Tensor, b: Tensor, c: Tensor) -> LogOdds:
    value = a * log_normal_cdf(z) - b * log_normal_cdf(-z) + c
    return LogOdds(value, a / mills_ratio(z) + b / mills_ratio(-z))


def _beta_bounds(goal: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Bracket of the root: on its side of 0 the farther tail adds at most log 2."""
    below = torch.minimum((goal - c + b * _LOG_HALF) / a, goal.new_tensor(_LOG_HALF))
    above = torch.minimum((c - goal + a * _LOG_HALF) / b, goal.new_tensor(_LOG_HALF))
    return normal_quantile_of_log(below), -normal_quantile_of_log(above)


class Warp(NamedTuple):
    """Formulas of a warped family. Its parameters are the tensors of the map, then the parameters of the base.

    All are scalars per prediction: a base parameter that is a vector (weights of a mixture) counts as several.

    Attributes:
        warp: The map.
        kind: Class of the base.
        family: Family of the base.
        sizes: Length of each base parameter that is a vector; None for scalars.
        make: Function of a base and a map that returns the warped distribution.
    """

    warp: MonotoneMap
    kind: type[Distribution]
    family: Family
    sizes: tuple[int | None, ...]
    make: Callable[[Distribution, MonotoneMap], Distribution]

    def residual(self, value: Tensor, *parameters: Tensor) -> Tensor:
        """Residual of the base, mapped."""
        own, base = self.split(parameters)
        return self.warp.value_and_log_slope(family_residual(self.family, value, *base), *own)[0]

    def log_cdf(self, value: Tensor, *parameters: Tensor) -> Tensor:
        """Normal log-tail of the residual."""
        return log_normal_cdf(self.residual(value, *parameters))

    def log_survival(self, value: Tensor, *parameters: Tensor) -> Tensor:
        """Normal log-tail of the residual."""
        return log_normal_cdf(-self.residual(value, *parameters))

    def log_prob(self, value: Tensor, *parameters: Tensor) -> Tensor:
        """Log of the normal density of the residual times the slope of the residual."""
        z, log_slope = self._residual_and_log_slope(value, *parameters)
        return log_normal_density(z) + log_slope

    def quantile(self, lower: Tensor, upper: Tensor, *parameters: Tensor) -> Tensor:
        """Value whose residual is the normal quantile."""
        return self.value_at(normal_quantile(lower, upper), *parameters)

    def value_at(self, z: Tensor, *parameters: Tensor) -> Tensor:
        """Value whose residual is z."""
        own, base = self.split(parameters)
        return value_of_residual(self.family, self.warp.inverse(z, *own), *base)

    def support(self, value: Tensor, *parameters: Tensor) -> Tensor:
        """Support of the base."""
        assert self.family.support is not None
        return self.family.support(value, *self.split(parameters)[1])

    def bounds(self, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of the base."""
        assert self.family.bounds is not None
        return self.family.bounds(*self.split(parameters)[1])

    def distribution(self, *parameters: Tensor) -> Distribution:
        """The distribution with these parameters."""
        own, base = self.split(parameters)
        shape = torch.broadcast_shapes(*(p.shape for p in parameters))
        inner = self.family.distribution(self.kind, base).expand(shape)
        return self.make(inner, self.warp.rebuilt(own))

    def crps(self, value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        """Closed-form CRPS of a piecewise linear map of a normal distribution."""
        assert isinstance(self.warp, PiecewiseLinear)
        return scale * crps_under_normal(self.warp.on(value), unit(value, loc, scale))

    def as_family(self) -> Family:
        """The family of the warped distribution."""
        base, names = self.family, [f"base.{name}" for name in self.family.parameters]
        expanded = [_columns_of(name, size) for name, size in zip(names, self.sizes, strict=True)]
        family = Family(
            parameters=(*self.warp.names, *(name for group in expanded for name in group)),
            log_cdf=self.log_cdf,
            log_survival=self.log_survival,
            residual=self.residual,
            quantile=self.quantile,
            log_prob=self.log_prob,
            support=None if base.support is None else self.support,
            bounds=None if base.bounds is None else self.bounds,
            unbounded=tuple(c for name in base.unbounded for c in expanded[base.parameters.index(name)]),
            constraints=dict(self._constraints(expanded)),
            location=f"base.{base.location}" if base.location and not any(self.sizes) else None,
            crps=self.crps if self.has_closed_forms() else None,
            build=self.distribution,
        )
        WARP_OF[family] = self
        return family

    def has_closed_forms(self) -> bool:
        """Whether a normal distribution is warped by one piecewise linear map for all predictions."""
        return self.family is NORMAL and isinstance(self.warp, PiecewiseLinear)

    def _constraints(self, columns: list[tuple[str, ...]]) -> Iterator[tuple[str, Any]]:
        known: Any = self.kind.arg_constraints if self.family.constraints is None else self.family.constraints
        for name, group in zip(self.family.parameters, columns, strict=True):
            if isinstance(known, Mapping) and name in known:
                yield from ((column, getattr(known[name], "base_constraint", known[name])) for column in group)

    def split(self, parameters: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Tensors of the map and parameters of the base, with vectors stacked again."""
        count = len(self.warp.names)
        rest = iter(parameters[count:])
        base = (next(rest) if n is None else torch.stack([next(rest) for _ in range(n)], -1) for n in self.sizes)
        return parameters[:count], tuple(base)

    def _residual_and_log_slope(self, value: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        own, base = self.split(parameters)
        z, inner = _residual_and_log_slope(self.kind, self.family, value, *base)
        mapped, outer = self.warp.value_and_log_slope(z, *own)
        return mapped, inner + outer


# Formulas of warped families, so that a base that is itself warped is not evaluated through probabilities.
WARP_OF: "WeakKeyDictionary[Family, Warp]" = WeakKeyDictionary()


def _columns_of(name: str, size: int | None) -> tuple[str, ...]:
    return (name,) if size is None else tuple(f"{name}[{index}]" for index in range(size))


def _residual_and_log_slope(
    kind: type[Distribution], family: Family, value: Tensor, *parameters: Tensor
) -> tuple[Tensor, Tensor]:
    """Residual z of a value and log dz/dy; for a normal base without the density, whose exponents would cancel."""
    if family is NORMAL:
        return unit(value, *parameters), -parameters[1].log()
    if family in WARP_OF:
        return WARP_OF[family]._residual_and_log_slope(value, *parameters)
    z = family_residual(family, value, *parameters)
    return z, family.log_density(kind, value, *parameters) - log_normal_density(z)


def value_of_residual(family: Family, z: Tensor, *parameters: Tensor) -> Tensor:
    """Value of a family whose residual is z; unless the family is normal, z is clamped to +-37.5."""
    if family is NORMAL:
        return parameters[0] + parameters[1] * z
    if family in WARP_OF:
        return WARP_OF[family].value_at(z, *parameters)
    assert family.quantile is not None
    shapes = (p.shape[: p.dim() - d] for p, d in zip(parameters, family.dims(), strict=True))
    inside = z.clamp(-_FARTHEST, _FARTHEST).expand(torch.broadcast_shapes(z.shape, *shapes))
    return family.quantile(normal_cdf(inside), normal_cdf(-inside), *parameters)
