"""A prediction whose residuals are passed through a rising map: what a recalibrated prediction is."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from fcal._checks import is_tracing
from fcal.distributions.family import Family
from fcal.distributions.implicit import legendre
from fcal.distributions.law import Law, law_of, taken_apart_by
from fcal.distributions.location_scale import NORMAL
from fcal.distributions.monotone import (
    MonotoneMap,
    PiecewiseLinear,
    Segments,
    crps_under_normal,
    log_normal_density,
    normal_cdf,
)
from fcal.distributions.standard_residual import family_residual
from fcal.distributions.tails import log_normal_cdf, normal_quantile, unit

_FARTHEST = 37.5  # a quantile of a smaller tail probability cannot be asked for
_NO_MEAN = 30.0  # a law of which a part beyond this residual counts has no moment
_COUNTS = 1e-6
_SPACING = 0.5  # of the trapezoidal rule under a normal density: exact to 1e-13 for smooth maps
_REACH = 9.0
_PANELS = 64
_RULE = legendre(6)
_TAIL = [10.0, 11.5, 13.5, 16.0, 19.0, 23.0, 28.0, 34.0, 40.0, 46.5]
_EDGES = [*(-v for v in reversed(_TAIL)), *(0.5 * k for k in range(-18, 19)), *_TAIL]
_PIECE = 1 << 18
_PARTS_OF_MIXTURE = 16


class Warp(NamedTuple):
    """Formulas of a warped family; its parameters are the map's, then the base's, one number per prediction each.

    A base parameter that is a row of numbers (weights of a mixture) counts as that many parameters.

    Attributes:
        warp: The map.
        kind: Class of the base.
        family: Its formulas.
        sizes: How many numbers each base parameter is; None for one that is not a row.
    """

    warp: MonotoneMap
    kind: type[Distribution]
    family: Family
    sizes: tuple[int | None, ...]

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

    def distribution(self, *parameters: Tensor) -> "Warped":
        """A distribution with these parameters."""
        own, base = self._split(parameters)
        shape = torch.broadcast_shapes(*(p.shape for p in parameters))
        inner = self.family.distribution(self.kind, base).expand(shape)
        return Warped(inner, self.warp.rebuilt(own), validate_args=False)

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
        _WARP_OF[family] = self
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
_WARP_OF: "WeakKeyDictionary[Family, Warp]" = WeakKeyDictionary()


def _columns_of(name: str, size: int | None) -> tuple[str, ...]:
    return (name,) if size is None else tuple(f"{name}[{index}]" for index in range(size))


def _residual_and_log_slope(
    kind: type[Distribution], family: Family, value: Tensor, *parameters: Tensor
) -> tuple[Tensor, Tensor]:
    """Residual z of a value and log dz/dy; for normal laws without the density, whose square would cancel."""
    if family is NORMAL:
        return unit(value, *parameters), -parameters[1].log()
    if family in _WARP_OF:
        return _WARP_OF[family]._residual_and_log_slope(value, *parameters)
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
    if family in _WARP_OF:
        return _WARP_OF[family].value_at(z, *parameters)
    assert family.quantile is not None
    shapes = (p.shape[: p.dim() - d] for p, d in zip(parameters, family.dims(), strict=True))
    inside = z.clamp(-_FARTHEST, _FARTHEST).expand(torch.broadcast_shapes(z.shape, *shapes))
    return family.quantile(normal_cdf(inside), normal_cdf(-inside), *parameters)


class Warped(Distribution):
    r"""The law whose residuals are a rising map of a prediction's, :math:`z' = g(z)`.

    Its CDF is :math:`\Phi(g(\Phi^{-1}(F(y))))`, and its density that of :math:`y` under :math:`F` times
    :math:`g'(z) \varphi(g(z)) / \varphi(z)`. As the map acts on residuals and not on probabilities, nothing rounds to 0
    or 1 however far out y lies.

    Args:
        base: Prediction of a scalar family with a quantile, also under rising transforms.
        warp: The map :math:`g`; its tensors broadcast against the base's batch shape.
        validate_args: As in every torch distribution.

    Raises:
        TypeError: The base is not a distribution of a known family.
        ValueError: The base is of vectors, or a transform of it falls.

    Note:
        Values of a base that is not normal end at its quantiles of probability 1e-307.

    Example:
        A normal law with half the scale and a shift of one:

        >>> from torch.distributions import Normal
        >>> from fcal.distributions import AffineMap
        >>> law = Warped(Normal(torch.tensor(0.0), torch.tensor(2.0)), AffineMap(torch.tensor(0.5), torch.tensor(0.5)))
        >>> law.mean, law.stddev
        (tensor(1.), tensor(1.))
        >>> law.cdf(torch.tensor(1.0))
        tensor(0.5000)
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = True
    fitted_on: str | None = None  # which targets the map was fitted on, where it was

    def __init__(self, base: Distribution, warp: MonotoneMap, validate_args: bool | None = None) -> None:
        if not isinstance(base, Distribution):
            raise TypeError(f"expected `base` a torch.distributions.Distribution, got {type(base).__name__}")
        if not isinstance(warp, MonotoneMap):
            raise TypeError(f"expected `warp` a fcal.distributions.MonotoneMap, got {type(warp).__name__}")
        if base.event_shape:
            raise ValueError(f"expected `base` of scalars, got {type(base).__name__} of {tuple(base.event_shape)}")
        shape = torch.broadcast_shapes(base.batch_shape, *(t.shape for t in warp.tensors))
        self.base = base if base.batch_shape == shape else base.expand(shape)
        self.warp = warp
        self._law = _law_of(self.base, warp)
        super().__init__(shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Warped":
        """The same law with a larger batch shape."""
        shape = torch.Size(batch_shape)
        tensors = tuple(t.expand(shape) for t in self.warp.tensors)
        new = Warped(self.base.expand(shape), self.warp.rebuilt(tensors), validate_args=False)
        new._validate_args, new.fitted_on = self._validate_args, self.fitted_on
        return new

    @constraints.dependent_property
    def support(self) -> constraints.Constraint | None:
        """That of the base."""
        return self.base.support

    @property
    def dtype(self) -> torch.dtype:
        """What results come in: the widest of the parameters', but at least float32."""
        found = torch.float32
        for parameter in self._law.parameters:
            found = torch.promote_types(found, parameter.dtype)
        return found

    @property
    def mean(self) -> Tensor:
        """By a closed form or quadrature; NaN where the law has none."""
        return self._moments()[0]

    @property
    def variance(self) -> Tensor:
        """By a closed form or quadrature; infinite where the law has none."""
        return self._moments()[1]

    @property
    def stddev(self) -> Tensor:
        """Root of the variance, formed before it is rounded to the law's dtype."""
        return self._moments()[2]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density."""
        return self._formula(value, lambda law, y: law.family.log_prob(y, *law.parameters), density=True)  # type: ignore[misc]

    def cdf(self, value: Tensor) -> Tensor:
        """Probability below ``value``."""
        return self._formula(value, lambda law, y: normal_cdf(law.family.residual(y, *law.parameters)))  # type: ignore[misc]

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile of a probability."""
        p = value.to(torch.float64)
        return self._value_at(normal_quantile(p, 1 - p))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Differentiable draws: those of a standard normal law as residuals."""
        shape = self._extended_shape(torch.Size(sample_shape))
        like = self._law.parameters[0]
        return self._value_at(torch.randn(shape, dtype=torch.float64, device=like.device))

    def _formula(self, value: Tensor, formula: Callable[[Law, Tensor], Tensor], *, density: bool = False) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        law = _widened(self._law)
        inner, _, log_slope = law.pull_back(value.to(torch.float64))
        result = formula(law, inner)
        return (result - log_slope if density else result).to(torch.promote_types(self.dtype, value.dtype))

    def _value_at(self, z: Tensor) -> Tensor:
        law = _widened(self._law)
        return law.push_forward(_WARP_OF[law.family].value_at(z, *law.parameters)).to(self.dtype)

    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = _moments_of(_widened(self._law), self.batch_shape)
        largest = torch.finfo(self.dtype).max
        narrow = torch.where(variance.isinf(), variance, variance.clamp(max=largest))
        return mean.to(self.dtype), narrow.to(self.dtype), variance.sqrt().to(self.dtype)


def _widened(law: Law) -> Law:
    return law.map(lambda p, _: p.to(torch.float64), lambda p: p.to(torch.float64))


def _law_of(base: Distribution, warp: MonotoneMap) -> Law:
    law = law_of(base)
    family, name = law.family, type(base).__name__
    if family.event_dim or family.quantile is None or family.log_cdf is None or family.log_survival is None:
        raise TypeError(f"expected `base` of a scalar family with a quantile, got {name}")
    for transform in law.transforms:
        if not is_tracing() and bool((torch.as_tensor(transform.sign) < 0).any()):
            raise ValueError(f"expected `base` under rising transforms, got a falling {type(transform).__name__}")
    rows = [d > 0 for d in family.dims()]
    sizes = tuple(p.shape[-1] if row else None for p, row in zip(law.parameters, rows, strict=True))
    split = [p.unbind(-1) if row else (p,) for p, row in zip(law.parameters, rows, strict=True)]
    parameters = (*warp.tensors, *(column for group in split for column in group))
    return Law(Warped, Warp(warp, law.kind, family, sizes).as_family(), parameters, law.transforms, "Warped " + name)


@taken_apart_by(Warped)
def _taken_apart(pred: Distribution) -> Law:
    assert isinstance(pred, Warped)
    return pred._law


# Moments


def _moments_of(law: Law, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Mean and variance of every law, in float64. Shape ``shape`` each."""
    own = _WARP_OF[law.family]
    if own.has_closed_forms() and not law.transforms:
        assert isinstance(own.warp, PiecewiseLinear)
        loc, scale = law.parameters
        mean, variance = own.warp.moments
        return (loc + scale * mean).expand(shape), (scale.square() * variance).expand(shape)
    shared = not own.warp.names and not law.transforms
    if shared and own.family.parameters == ("loc", "scale") and own.family.support is None:
        loc, scale = law.parameters
        standard = law._replace(parameters=(loc.new_zeros(()), loc.new_ones(())))
        first, second = _by_quadrature(standard, torch.Size(), most=10_000)
        return (loc + scale * first).expand(shape), (scale.square() * second).expand(shape)
    return _by_quadrature(law, shape, most=_PANELS)


def _by_quadrature(law: Law, shape: torch.Size, most: int) -> tuple[Tensor, Tensor]:
    """Moments of the value at z' under the normal law of z'; many rows in pieces."""
    leaves = law.leaves(shape)
    step = max(_PIECE // 512, 1)
    parts = []
    for start in range(0, max(len(leaves[0]), 1), step):
        own = law.with_leaves([leaf[start : start + step].unsqueeze(-1) for leaf in leaves])
        parts.append(_weighted_moments(own, *_nodes(own, most)))
    mean, variance = (torch.cat(part) for part in zip(*parts, strict=True))
    return mean.reshape(shape), variance.reshape(shape)


def _weighted_moments(law: Law, nodes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    own = _WARP_OF[law.family]
    inner = own.warp.inverse(nodes, *own._split(law.parameters)[0]).detach()
    far = (inner.abs() > _NO_MEAN) | (nodes.abs() > _NO_MEAN)
    values = law.push_forward(own.value_at(nodes, *law.parameters))
    parts = weights * values
    mean = parts.sum(-1)
    squares = weights * (values - mean.unsqueeze(-1)).square()
    variance = squares.sum(-1)
    if _is_plainly_normal(law):
        return mean, variance
    no_mean, no_variance = (_share(p.abs(), far) > _COUNTS for p in (parts, squares))
    return torch.where(no_mean, math.nan, mean), torch.where(no_variance, math.inf, variance)


def _is_plainly_normal(law: Law) -> bool:
    return _WARP_OF[law.family].family is NORMAL and not law.transforms


def _share(parts: Tensor, where: Tensor) -> Tensor:
    """Share of the parts that lies where the law's quantiles end; of a law with moments next to nothing does."""
    return torch.nan_to_num((parts * where).sum(-1) / parts.sum(-1), nan=math.inf)


def _nodes(law: Law, most: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of an integral under the normal density. Shapes ``(nodes,)`` or ``(n, nodes)``.

    Smooth maps of normal laws have the trapezoidal rule. Other laws may bend at their median and maps at their knots,
    so there panels end.
    """
    own = _WARP_OF[law.family]
    tensors, like = own._split(law.parameters)[0], law.parameters[0]
    if isinstance(own.warp, PiecewiseLinear):
        edges = _panel_edges(own.warp.on(like), most)
    elif _is_plainly_normal(law):
        nodes = torch.arange(-_REACH, _REACH + _SPACING, _SPACING, dtype=torch.float64, device=like.device)
        return nodes, _SPACING * log_normal_density(nodes).exp()
    else:
        middle, _ = own.warp.value_and_log_slope(like.new_zeros(()), *tensors)
        edges = middle.clamp(-_REACH, _REACH) + like.new_tensor(_EDGES)
    if own.family.component is not None:  # the quantiles of a mixture may jump between its components
        edges = _refined(edges, _PARTS_OF_MIXTURE)
    low, width = edges[..., :-1], edges.diff()
    nodes = torch.cat([low + node * width for node, _ in _RULE], -1)
    weights = torch.cat([weight * width for _, weight in _RULE], -1)
    return nodes, weights * log_normal_density(nodes).exp()


def _refined(edges: Tensor, parts: int) -> Tensor:
    """Every panel cut into so many."""
    share = torch.arange(parts, dtype=edges.dtype, device=edges.device) / parts
    inner = (edges[..., :-1, None] + edges.diff()[..., None] * share).flatten(-2)
    return torch.cat([inner, edges[..., -1:]], -1)


def _panel_edges(segments: Segments, most: int) -> Tensor:
    """The map's knots, of many only some, steps outwards from them, and the median of the base."""
    knots, middle = segments.y, segments.value_and_slope(segments.x.new_zeros(1))[0]
    kept = knots[torch.linspace(0, len(knots) - 1, min(len(knots), most), device=knots.device).round().long()]
    return torch.cat([kept, middle, knots.new_tensor(_EDGES)]).unique()
