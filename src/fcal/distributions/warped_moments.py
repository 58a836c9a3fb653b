"""Mean and variance of a warped law: a closed form, or quadrature under the normal density of its residual."""

import math

import torch
from torch import Tensor

from fcal.distributions.implicit import legendre
from fcal.distributions.law import Law
from fcal.distributions.location_scale import NORMAL
from fcal.distributions.monotone import PiecewiseLinear, Segments, log_normal_density
from fcal.distributions.warp import WARP_OF

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


def moments_of(law: Law, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Mean and variance of every law, in float64. Shape ``shape`` each."""
    own = WARP_OF[law.family]
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
    own = WARP_OF[law.family]
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
    return WARP_OF[law.family].family is NORMAL and not law.transforms


def _share(parts: Tensor, where: Tensor) -> Tensor:
    """Share of the parts that lies where the law's quantiles end; of a law with moments next to nothing does."""
    return torch.nan_to_num((parts * where).sum(-1) / parts.sum(-1), nan=math.inf)


def _nodes(law: Law, most: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of an integral under the normal density. Shapes ``(nodes,)`` or ``(n, nodes)``.

    Smooth maps of normal laws have the trapezoidal rule. Other laws may bend at their median and maps at their knots,
    so there panels end.
    """
    own = WARP_OF[law.family]
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
