r"""Continuous ranked probability score of any distribution with tails and quantiles, by quadrature of its definition.

.. math:: CRPS(y) = \int_{-\infty}^y F(x)^2 \, dx + \int_y^\infty (1 - F(x))^2 \, dx

Panels end at y and at quantiles half a normal deviation apart (of every component of a mixture), so that all scales are
resolved; where the CDF may be a power of the distance from an end, nodes are spaced in the logarithm of the distance.
The batch is processed in chunks, of which only the derivatives are kept.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fcal.distributions.family import Law, in_rows
from fcal.distributions.functional import log_tails_of
from fcal.distributions.implicit import attach, legendre
from fcal.distributions.monotone import WARP_OF

# Normal scores at which panels end. Beyond 9, only distributions without a mean contribute.
_TAIL = [6.75, 7.5, 8.5, 10.0, 12.0, 14.5, 17.0, 20.0]
_SCORES = [*(-v for v in reversed(_TAIL)), *(0.5 * k for k in range(-12, 13)), *_TAIL]
_FAR = 1e100  # quantiles are clamped to it
_WIDE = 1.5  # ratio of distances from which a panel is spaced logarithmically
_RULE = legendre(8)
_CHUNK = 1 << 16


def crps_by_quadrature(law: Law, target: Tensor) -> Tensor:
    """CRPS of every element, differentiable once in targets and parameters. Shape of ``target``.

    Args:
        law: A scalar distribution with a quantile and both log-tails.
        target: Float64 values, inside the support or not.

    Raises:
        TypeError: The family has no quantile or no tails.
    """
    if law.family.event_dim:
        raise TypeError(f"expected `pred` of a scalar family with a quantile, got {law.name}")
    leaves = [in_rows(target, target.shape, 0), *law.leaves(target.shape)]
    value = torch.empty(leaves[0].shape, dtype=torch.float64, device=target.device)
    slopes = [torch.zeros_like(leaf) for leaf in leaves]
    if not len(value):
        return torch.zeros_like(target)
    step = max(_CHUNK // (len(_SCORES) * max(leaf[:1].numel() for leaf in leaves)), 1)
    for chunk in (slice(start, start + step) for start in range(0, len(value), step)):
        inputs = [leaf.detach()[chunk].requires_grad_(leaf.requires_grad) for leaf in leaves]
        value[chunk] = _scores(law, inputs, [slope[chunk] for slope in slopes])
    return _with_slopes(value, leaves, slopes).reshape(target.shape)


def _with_slopes(value: Tensor, leaves: list[Tensor], slopes: list[Tensor]) -> Tensor:
    """Attach derivatives to the scores; leaves may have several columns."""
    columns = [column for leaf in leaves for column in _columns(leaf)]
    by_column = [column for slope in slopes for column in _columns(slope)]
    return attach(value, tuple(columns), tuple(by_column))


def _columns(rows: Tensor) -> tuple[Tensor, ...]:
    return rows.unbind(1) if rows.dim() > 1 else (rows,)


def _scores(law: Law, leaves: list[Tensor], slopes: list[Tensor]) -> Tensor:
    """Scores of a chunk; their derivatives are added to ``slopes``."""
    target, *parameters = leaves
    with torch.no_grad():
        inner, grid = _panels(law.with_leaves(parameters), target)
    total = (target.detach() - inner).abs()
    for node, weight in _RULE:
        term = _node(law, parameters, inner, grid, node).mul(weight)
        total = total + term.detach()
        _add_slopes(term, parameters, slopes[1:])
    slopes[0] += _slope_of_target(law.with_leaves(parameters), target.detach(), inner)
    return total


def _panels(law: Law, target: Tensor) -> tuple[Tensor, "_Grid"]:
    """Targets clamped to the range of the panels, shape ``(n,)``, and the panels."""
    scores = torch.tensor(_SCORES, dtype=torch.float64, device=target.device)
    below, above = (0.5 * torch.erfc(sign * scores * math.sqrt(0.5)) for sign in (-1, 1))
    columns = law.map(lambda p, _: p.unsqueeze(-1), lambda p: p.unsqueeze(-1))
    family, parameters = law.family, columns.parameters
    if family in WARP_OF and WARP_OF[family].family.component is not None:
        # Between distant modes, which are those of the base, the CDF is flat, and it rises steeply at each of them.
        own = WARP_OF[family]
        family, parameters = own.family, tuple(p.mT for p in own.split(parameters)[1])
    if family.component is not None:
        family, parameters = family.component, parameters[1:]
    if family.quantile is None:
        raise TypeError(f"expected `pred` of a scalar family with a quantile, got {law.name}")
    ends = columns.push_forward(family.quantile(below, above, *parameters).flatten(1)).clamp(-_FAR, _FAR)
    inner = torch.minimum(torch.maximum(target, ends.amin(-1)), ends.amax(-1))
    middle = len(_SCORES) // 2
    core = ends[:, middle - 2 : middle + 3].sort(-1).values  # first component, one deviation to both sides
    return inner, _grid(torch.cat([ends, inner.unsqueeze(-1)], -1).sort(-1).values, core)


def _node(law: Law, parameters: list[Tensor], target: Tensor, grid: "_Grid", node: float) -> Tensor:
    """Integrand at one node of every panel, summed over the panels."""
    x, width = grid.points(node)
    with torch.enable_grad():
        own = law.with_leaves([_repeated(leaf, x.shape) for leaf in parameters])
        possible = grid.is_inside(x) & _possible(own, x.reshape(-1)).reshape(x.shape)
        safe = torch.where(possible, x, grid.centre)
        log_below, log_above = log_tails_of(own, safe.reshape(-1))
        nearer = torch.where(x < target.unsqueeze(-1), log_below.reshape(x.shape), log_above.reshape(x.shape))
        return (width * torch.where(possible, torch.exp(2 * nearer), 0.0)).sum(-1)


class _Grid(NamedTuple):
    """Panels of n distributions, between neighbouring edges.

    A panel whose ends differ much in their distance from an anchor (an end or the centre of the distribution) has its
    nodes spaced evenly in the logarithm of that distance, because the CDF may be a power of it.

    Attributes:
        edges: Shape ``(n, panels + 1)``.
        centre: Shape ``(n, 1)``.
        anchor: Anchor of every panel. Shape ``(n, panels)``.
        by_logarithm: Whether a panel is spaced logarithmically. Shape ``(n, panels)``.
    """

    edges: Tensor
    centre: Tensor
    anchor: Tensor
    by_logarithm: Tensor

    def points(self, node: float) -> tuple[Tensor, Tensor]:
        """Position and weight of a node in every panel."""
        low, high = self.edges[:, :-1], self.edges[:, 1:]
        width = high - low
        sign = torch.where(self.anchor <= low, 1.0, -1.0)
        near, far = sign * (low - self.anchor), sign * (high - self.anchor)
        near, far = (torch.where(self.by_logarithm, d, 1.0).log() for d in (near, far))
        distance = torch.exp(torch.lerp(near, far, node))
        x = torch.where(self.by_logarithm, self.anchor + sign * distance, torch.lerp(low, high, node))
        return x, torch.where(self.by_logarithm, sign * distance * (far - near), width)

    def is_inside(self, x: Tensor) -> Tensor:
        """Where x has not been rounded to the first or the last edge."""
        return (x > self.edges[:, :1]) & (x < self.edges[:, -1:])


def _grid(edges: Tensor, core: Tensor) -> _Grid:
    low, high, centre = edges[:, :-1], edges[:, 1:], core[:, 2:3]
    best, anchor = torch.ones_like(low), low
    everywhere = torch.ones_like(low, dtype=torch.bool)
    outside = (high <= core[:, :1]) | (low >= core[:, -1:])  # the centre is an anchor of the tails only
    for candidate, allowed in ((edges[:, :1], everywhere), (edges[:, -1:], everywhere), (centre, outside)):
        ratio = (high - candidate) / (low - candidate)
        ratio = torch.where(allowed & (ratio > 0) & ratio.isfinite(), torch.maximum(ratio, 1 / ratio), 1.0)
        better = ratio > best
        best, anchor = torch.where(better, ratio, best), torch.where(better, candidate, anchor)
    return _Grid(edges, centre, anchor, best > _WIDE)


@torch.no_grad()
def _possible(law: Law, x: Tensor) -> Tensor:
    """Where x has not been rounded to an end of the support."""
    inner, _, _ = law.pull_back(x)
    good = torch.isfinite(inner)
    return good if law.family.support is None else good & law.family.support(inner, *law.parameters)


def _repeated(leaf: Tensor, shape: torch.Size) -> Tensor:
    event = leaf.shape[1:]
    return leaf.unsqueeze(1).expand(*shape, *event).reshape(-1, *event)


def _slope_of_target(law: Law, target: Tensor, inner: Tensor) -> Tensor:
    with torch.no_grad():
        log_below, log_above = log_tails_of(law, inner)
        inside = torch.nan_to_num(log_below.exp() - log_above.exp())
        return torch.where(target == inner, inside, (target - inner).sign())


def _add_slopes(term: Tensor, leaves: list[Tensor], slopes: list[Tensor]) -> None:
    active = [(leaf, slope) for leaf, slope in zip(leaves, slopes, strict=True) if leaf.requires_grad]
    if active:
        gradients = torch.autograd.grad(term.sum(), [leaf for leaf, _ in active], allow_unused=True)
        for (_, slope), gradient in zip(active, gradients, strict=True):
            if gradient is not None:
                slope += gradient
