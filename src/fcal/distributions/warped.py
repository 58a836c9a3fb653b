"""A distribution whose residuals are passed through an increasing map: the prediction of a recalibrator."""

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from fcal._checks import is_tracing
from fcal.distributions.by_formulas import ByResidual, ResidualFormulas, residual_and_log_slope, value_of_residual
from fcal.distributions.family import Family, Law, family_residual, law_of
from fcal.distributions.implicit import legendre
from fcal.distributions.location_scale import NORMAL, unit
from fcal.distributions.monotone import MonotoneMap, PiecewiseLinear
from fcal.distributions.piecewise import Segments, crps_under_normal
from fcal.distributions.tails import log_normal_density

_NO_MEAN = 30.0  # a moment does not exist if residuals beyond this one contribute to it
_COUNTS = 1e-6  # smallest share that counts as a contribution
_SPACING = 0.5  # of the trapezoidal rule under a normal density: exact to 1e-13 for smooth maps
_REACH = 9.0
_PANELS = 64
_RULE = legendre(6)
_TAIL = [10.0, 11.5, 13.5, 16.0, 19.0, 23.0, 28.0, 34.0, 40.0, 46.5]
_EDGES = [*(-v for v in reversed(_TAIL)), *(0.5 * k for k in range(-18, 19)), *_TAIL]
_CHUNK = 1 << 18
_PANELS_OF_MIXTURE = 16  # for each panel


@dataclass(frozen=True)
class _WarpedFormulas(ResidualFormulas):
    """Formulas of a warped family. Its parameters are the tensors of the map, then the parameters of the base.

    Attributes:
        warp: The map.
        kind: Class of the base.
        base: Family of the base.
    """

    warp: MonotoneMap
    kind: type[Distribution]
    base: Family

    def split(self, parameters: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Tensors of the map, and parameters of the base."""
        count = len(self.warp.names)
        return parameters[:count], parameters[count:]

    def residual(self, value: Tensor, *parameters: Tensor) -> Tensor:
        own, base = self.split(parameters)
        return self.warp.value_and_log_slope(family_residual(self.base, value, *base), *own)[0]

    def residual_and_log_slope(self, value: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        own, base = self.split(parameters)
        z, inner = residual_and_log_slope(self.kind, self.base, value, *base)
        mapped, outer = self.warp.value_and_log_slope(z, *own)
        return mapped, inner + outer

    def value_at(self, z: Tensor, *parameters: Tensor) -> Tensor:
        own, base = self.split(parameters)
        return value_of_residual(self.base, self.warp.inverse(z, *own), *base)

    def distribution(self, *parameters: Tensor) -> "Warped":
        """The distribution with these parameters."""
        own, base = self.split(parameters)
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in own), *self.base.batch_shapes(base))
        inner = self.base.distribution(self.kind, base).expand(shape)
        return Warped(inner, self.warp.rebuilt(own), validate_args=False)

    def crps(self, value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        """Closed-form CRPS of a piecewise linear map of a normal distribution."""
        assert isinstance(self.warp, PiecewiseLinear)
        return scale * crps_under_normal(self.warp.on(value), unit(value, loc, scale))

    def family(self) -> Family:
        """The family of the warped distribution."""
        base, names = self.base, self.warp.names
        support, bounds = base.support, base.bounds
        return self.as_family(
            parameters=(*names, *(f"base.{name}" for name in base.parameters)),
            parameter_dims=(*(0 for _ in names), *base.dims()),
            support=None if support is None else lambda value, *p: support(value, *self.split(p)[1]),
            bounds=None if bounds is None else lambda *p: bounds(*self.split(p)[1]),
            unbounded=tuple(f"base.{name}" for name in base.unbounded),
            constraints={f"base.{name}": known for name, known in base.known_constraints(self.kind).items()},
            location=f"base.{base.location}" if base.location and not any(base.dims()) else None,
            crps=self.crps if self.has_closed_forms() else None,
            build=self.distribution,
        )

    def has_closed_forms(self) -> bool:
        """Whether a normal distribution is warped by one piecewise linear map for all predictions."""
        return self.base is NORMAL and isinstance(self.warp, PiecewiseLinear)


class Warped(ByResidual):
    r"""A distribution whose residuals are an increasing map of those of a base, :math:`z' = g(z)`.

    Its CDF is :math:`\Phi(g(\Phi^{-1}(F(y))))`, and its density is that of :math:`F` times
    :math:`g'(z) \varphi(g(z)) / \varphi(z)`. Because the map acts on residuals and not on probabilities, nothing rounds
    to 0 or 1, however far in the tails y lies.

    Args:
        base: Distribution of a scalar family with a quantile, also under increasing transforms.
        warp: The map :math:`g`; its tensors broadcast against the batch shape of the base.
        validate_args: As in every torch distribution.

    Raises:
        TypeError: The base is not a distribution of a registered family.
        ValueError: The base is multivariate, or one of its transforms is decreasing.

    Note:
        Unless the base is normal, samples and quantiles are limited to the base's quantiles at probability 1e-307.

    Example:
        A normal distribution with half the scale, shifted by one:

        >>> from torch.distributions import Normal
        >>> from fcal.distributions import AffineMap
        >>> pred = Warped(Normal(torch.tensor(0.0), torch.tensor(2.0)), AffineMap(torch.tensor(0.5), torch.tensor(0.5)))
        >>> pred.mean, pred.stddev
        (tensor(1.), tensor(1.))
        >>> pred.cdf(torch.tensor(1.0))
        tensor(0.5000)
    """

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
        law = law_of(self.base)
        _check_base(law, type(base).__name__)
        self._formulas = _WarpedFormulas(warp, law.kind, law.family)
        parameters = (*warp.tensors, *law.parameters)
        name = "Warped " + type(base).__name__
        self._law = Law(Warped, self._formulas.family(), parameters, law.transforms, name)
        super().__init__(shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """Expand to a larger batch shape."""
        shape = torch.Size(batch_shape)
        tensors = tuple(t.expand(shape) for t in self.warp.tensors)
        new = type(self)(self.base.expand(shape), self.warp.rebuilt(tensors), validate_args=False)
        new._validate_args, new.fitted_on = self._validate_args, self.fitted_on
        return new

    @constraints.dependent_property
    def support(self) -> constraints.Constraint | None:
        """Support of the base."""
        return self.base.support

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of results: the widest of the parameters, at least float32."""
        return torch.promote_types(super().dtype, torch.float32)

    def _moments(self) -> tuple[Tensor, Tensor]:
        return _moments(self._formulas, self._law.to(torch.float64), self.batch_shape)


def _check_base(law: Law, name: str) -> None:
    family = law.family
    if family.event_dim or family.quantile is None or family.log_cdf is None or family.log_survival is None:
        raise TypeError(f"expected `base` of a scalar family with a quantile, got {name}")
    for transform in law.transforms:
        if not is_tracing() and bool((torch.as_tensor(transform.sign) < 0).any()):
            raise ValueError(
                f"expected `base` under increasing transforms, got a decreasing {type(transform).__name__}"
            )


def _moments(own: _WarpedFormulas, law: Law, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Mean and variance of warped distributions, in float64. Shape ``shape`` each."""
    if own.has_closed_forms() and not law.transforms:
        assert isinstance(own.warp, PiecewiseLinear)
        loc, scale = law.parameters
        mean, variance = own.warp.moments
        return (loc + scale * mean).expand(shape), (scale.square() * variance).expand(shape)
    shared = not own.warp.names and not law.transforms
    if shared and own.base.parameters == ("loc", "scale") and own.base.support is None:
        loc, scale = law.parameters
        standard = law._replace(parameters=(loc.new_zeros(()), loc.new_ones(())))
        first, second = _by_quadrature(own, standard, torch.Size(), most=10_000)
        return (loc + scale * first).expand(shape), (scale.square() * second).expand(shape)
    return _by_quadrature(own, law, shape, most=_PANELS)


def _by_quadrature(own: _WarpedFormulas, law: Law, shape: torch.Size, most: int) -> tuple[Tensor, Tensor]:
    """Moments of the value as a function of its standard normal residual; many rows in chunks."""
    leaves = law.leaves(shape)
    step = max(_CHUNK // 512, 1)
    chunks = []
    for start in range(0, max(len(leaves[0]), 1), step):
        chunk = law.with_leaves([leaf[start : start + step].unsqueeze(1) for leaf in leaves])
        chunks.append(_weighted_moments(own, chunk, *_nodes(own, chunk, most)))
    mean, variance = (torch.cat(moment) for moment in zip(*chunks, strict=True))
    return mean.reshape(shape), variance.reshape(shape)


def _weighted_moments(own: _WarpedFormulas, law: Law, nodes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    inner = own.warp.inverse(nodes, *own.split(law.parameters)[0]).detach()
    far = (inner.abs() > _NO_MEAN) | (nodes.abs() > _NO_MEAN)
    values = law.push_forward(own.value_at(nodes, *law.parameters))
    terms = weights * values
    mean = terms.sum(-1)
    squares = weights * (values - mean.unsqueeze(-1)).square()
    variance = squares.sum(-1)
    if own.base is NORMAL and not law.transforms:
        return mean, variance
    no_mean, no_variance = (_share(p.abs(), far) > _COUNTS for p in (terms, squares))
    return torch.where(no_mean, math.nan, mean), torch.where(no_variance, math.inf, variance)


def _share(terms: Tensor, where: Tensor) -> Tensor:
    """Share of a sum that comes from ``where``; infinite where it is undefined."""
    return torch.nan_to_num((terms * where).sum(-1) / terms.sum(-1), nan=math.inf)


def _nodes(own: _WarpedFormulas, law: Law, most: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of an integral under the normal density. Shapes ``(nodes,)`` or ``(n, nodes)``.

    A smooth map of a normal distribution takes the trapezoidal rule. Otherwise panels end at the median of the base
    and at the knots of the map, where the integrand may have a kink.
    """
    tensors, like = own.split(law.parameters)[0], law.parameters[0]
    if isinstance(own.warp, PiecewiseLinear):
        edges = _panel_edges(own.warp.on(like), most)
    elif own.base is NORMAL and not law.transforms:
        nodes = torch.arange(-_REACH, _REACH + _SPACING, _SPACING, dtype=torch.float64, device=like.device)
        return nodes, _SPACING * log_normal_density(nodes).exp()
    else:
        middle, _ = own.warp.value_and_log_slope(like.new_zeros(()), *tensors)
        edges = middle.clamp(-_REACH, _REACH) + like.new_tensor(_EDGES)
    if own.base.component is not None:  # quantiles of a mixture may jump between components
        edges = _refined(edges, _PANELS_OF_MIXTURE)
    low, width = edges[..., :-1], edges.diff()
    nodes = torch.cat([low + node * width for node, _ in _RULE], -1)
    weights = torch.cat([weight * width for _, weight in _RULE], -1)
    return nodes, weights * log_normal_density(nodes).exp()


def _refined(edges: Tensor, count: int) -> Tensor:
    """Edges of panels, each split into ``count`` panels."""
    share = torch.arange(count, dtype=edges.dtype, device=edges.device) / count
    inner = (edges[..., :-1, None] + edges.diff()[..., None] * share).flatten(-2)
    return torch.cat([inner, edges[..., -1:]], -1)


def _panel_edges(segments: Segments, most: int) -> Tensor:
    """Knots of the map (at most ``most``), fixed edges, and the median of the base."""
    knots, middle = segments.y, segments.value_and_slope(segments.x.new_zeros(1))[0]
    kept = knots[torch.linspace(0, len(knots) - 1, min(len(knots), most), device=knots.device).round().long()]
    return torch.cat([kept, middle, knots.new_tensor(_EDGES)]).unique()
