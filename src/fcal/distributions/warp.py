"""Formulas of a family whose residuals are passed through a rising map."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal.distributions.family import Family
from fcal.distributions.location_scale import NORMAL
from fcal.distributions.monotone import (
    MonotoneMap,
    PiecewiseLinear,
    crps_under_normal,
    log_normal_density,
    normal_cdf,
)
from fcal.distributions.standard_residual import family_residual
from fcal.distributions.tails import log_normal_cdf, normal_quantile, unit

_FARTHEST = 37.5  # a quantile of a smaller tail probability cannot be asked for


class Warp(NamedTuple):
    """Formulas of a warped family; its parameters are the map's, then the base's, one number per prediction each.

    A base parameter that is a row of numbers (weights of a mixture) counts as that many parameters.

    Attributes:
        warp: The map.
        kind: Class of the base.
        family: Its formulas.
        sizes: How many numbers each base parameter is; None for one that is not a row.
        make: From a base and a map to the distribution.
    """

    warp: MonotoneMap
    kind: type[Distribution]
    family: Family
    sizes: tuple[int | None, ...]
    make: Callable[[Distribution, MonotoneMap], Distribution]

    def residual(self, value: Tensor, *parameters: Tensor) -> Tensor:
        """The map of the base's residual."""
        own, base = self._split(parameters)
        return self.warp.value_and_log_slope(family_residual(self.family, value, *base), *own)[0]

    def log_cdf(self, value: Tensor, *parameters: Tensor) -> Tensor:
        """By the residual."""
        return log_normal_cdf(self.residual(value, *parameters))

    def log_survival(self, value: Tensor, *parameters: Tensor) -> Tensor:
        """By the residual."""
        return log_normal_cdf(-self.residual(value, *parameters))

    def log_prob(self, value: Tensor, *parameters: Tensor) -> Tensor:
        """Log of the residual's slope times the normal density there."""
        z, log_slope = self._residual_and_log_slope(value, *parameters)
        return log_normal_density(z) + log_slope

    def quantile(self, lower: Tensor, upper: Tensor, *parameters: Tensor) -> Tensor:
        """The base's value at the residual that is mapped to the normal quantile."""
        return self.value_at(normal_quantile(lower, upper), *parameters)

    def value_at(self, z: Tensor, *parameters: Tensor) -> Tensor:
        """The value whose residual is z."""
        own, base = self._split(parameters)
        return value_of_residual(self.family, self.warp.inverse(z, *own), *base)

    def support(self, value: Tensor, *parameters: Tensor) -> Tensor:
        """That of the base."""
        assert self.family.support is not None
        return self.family.support(value, *self._split(parameters)[1])

    def bounds(self, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the base."""
        assert self.family.bounds is not None
        return self.family.bounds(*self._split(parameters)[1])

    def distribution(self, *parameters: Tensor) -> Distribution:
        """A distribution with these parameters."""
        own, base = self._split(parameters)
        shape = torch.broadcast_shapes(*(p.shape for p in parameters))
        inner = self.family.distribution(self.kind, base).expand(shape)
        return self.make(inner, self.warp.rebuilt(own))

    def crps(self, value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        """Of a piecewise linear map of a normal law."""
        assert isinstance(self.warp, PiecewiseLinear)
        return scale * crps_under_normal(self.warp.on(value), unit(value, loc, scale))

    def as_family(self) -> Family:
        """What the library knows of the warped law."""
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
        """Whether it is a piecewise linear map of a normal law, the same for all predictions."""
        return self.family is NORMAL and isinstance(self.warp, PiecewiseLinear)

    def _constraints(self, columns: list[tuple[str, ...]]) -> Iterator[tuple[str, Any]]:
        known: Any = self.kind.arg_constraints if self.family.constraints is None else self.family.constraints
        for name, group in zip(self.family.parameters, columns, strict=True):
            if isinstance(known, Mapping) and name in known:
                yield from ((column, getattr(known[name], "base_constraint", known[name])) for column in group)

    def _split(self, parameters: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The map's tensors and the base's parameters, rows put together again."""
        count = len(self.warp.names)
        rest = iter(parameters[count:])
        base = (next(rest) if n is None else torch.stack([next(rest) for _ in range(n)], -1) for n in self.sizes)
        return parameters[:count], tuple(base)

    def _residual_and_log_slope(self, value: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        own, base = self._split(parameters)
        z, inner = _residual_and_log_slope(self.kind, self.family, value, *base)
        mapped, outer = self.warp.value_and_log_slope(z, *own)
        return mapped, inner + outer


# How a family that is itself warped does without detours through probabilities.
WARP_OF: "WeakKeyDictionary[Family, Warp]" = WeakKeyDictionary()


def _columns_of(name: str, size: int | None) -> tuple[str, ...]:
    return (name,) if size is None else tuple(f"{name}[{index}]" for index in range(size))


def _residual_and_log_slope(
    kind: type[Distribution], family: Family, value: Tensor, *parameters: Tensor
) -> tuple[Tensor, Tensor]:
    """Residual z of a value and log dz/dy; for normal laws without the density, whose square would cancel."""
    if family is NORMAL:
        return unit(value, *parameters), -parameters[1].log()
    if family in WARP_OF:
        return WARP_OF[family]._residual_and_log_slope(value, *parameters)
    z = family_residual(family, value, *parameters)
    if family.log_prob is not None:
        log_density = family.log_prob(value, *parameters)
    else:
        log_density = family.distribution(kind, parameters).log_prob(value)
    return z, log_density - log_normal_density(z)


def value_of_residual(family: Family, z: Tensor, *parameters: Tensor) -> Tensor:
    """The value of a family whose residual is z; beyond +-37.5 that at +-37.5, except for normal laws."""
    if family is NORMAL:
        return parameters[0] + parameters[1] * z
    if family in WARP_OF:
        return WARP_OF[family].value_at(z, *parameters)
    assert family.quantile is not None
    shapes = (p.shape[: p.dim() - d] for p, d in zip(parameters, family.dims(), strict=True))
    inside = z.clamp(-_FARTHEST, _FARTHEST).expand(torch.broadcast_shapes(z.shape, *shapes))
    return family.quantile(normal_cdf(inside), normal_cdf(-inside), *parameters)
