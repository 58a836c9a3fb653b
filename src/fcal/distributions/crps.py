r"""Continuous ranked probability score of any law with tails and quantiles, by quadrature of its definition.

.. math:: CRPS(y) = \int_{-\infty}^y F(x)^2 \, dx + \int_y^\infty (1 - F(x))^2 \, dx

Panels end at y and at quantiles half a normal deviation apart (of every component, for a mixture), so all scales of the
law are resolved. The batch is worked off in pieces, of which only the slopes are kept.
"""

import math

import torch
from torch import Tensor

from fcal.distributions.functions import log_tails_of
from fcal.distributions.implicit import attach, legendre
from fcal.distributions.law import Law, in_rows

_FARTHEST = 9.0  # normal scores beyond it add nothing to a law with a finite score
_PANELS = 36
_RULE = legendre(8)
_PIECE = 1 << 16


def crps_by_quadrature(law: Law, target: Tensor) -> Tensor:
    """Scores of every element, once differentiable by targets and parameters. Shape of ``target``.

    Args:
        law: A law of scalars with a quantile and both log-tails.
        target: Float64 values, possible under the law or not.

    Raises:
        TypeError: The law has no quantile or no tails.
    """
    if law.family.event_dim:
        raise TypeError(f"expected `pred` of a scalar family with a quantile, got {law.name}")
    leaves = [in_rows(target, target.shape, 0), *law.leaves(target.shape)]
    value = torch.empty(leaves[0].shape, dtype=torch.float64, device=target.device)
    slopes = [torch.zeros_like(leaf) for leaf in leaves]
    step = max(_PIECE // (_PANELS * max(leaf[:1].numel() for leaf in leaves)), 1) if len(value) else 1
    for piece in (slice(start, start + step) for start in range(0, len(value), step)):
        taken = [leaf.detach()[piece].requires_grad_(leaf.requires_grad) for leaf in leaves]
        value[piece] = _scores(law, taken, [slope[piece] for slope in slopes])
    return _with_slopes(value, leaves, slopes).reshape(target.shape)


def _with_slopes(value: Tensor, leaves: list[Tensor], slopes: list[Tensor]) -> Tensor:
    """The scores as a function of the leaves, some of which have a row of numbers for every element."""
    columns = [column for leaf in leaves for column in leaf.reshape(len(value), -1).unbind(1)]
    by_column = [column for slope in slopes for column in slope.reshape(len(value), -1).unbind(1)]
    return attach(value, tuple(columns), tuple(by_column))


def _scores(law: Law, leaves: list[Tensor], slopes: list[Tensor]) -> Tensor:
    """Scores of a piece; their slopes are added to ``slopes``."""
    target, *parameters = leaves
    with torch.no_grad():
        inner, edges = _edges(law.with_leaves(parameters), target)
    total = (target.detach() - inner).abs()
    for node, weight in _RULE:
        part = _node(law, parameters, inner, edges, node).mul(weight)
        total = total + part.detach()
        _add_slopes(part, parameters, slopes[1:])
    slopes[0] += _slope_of_target(law.with_leaves(parameters), target.detach(), inner)
    return total


def _edges(law: Law, target: Tensor) -> tuple[Tensor, Tensor]:
    """Targets moved into the law's reach, and the ends of the panels. Shapes ``(n,)`` and ``(n, panels + 1)``."""
    scores = torch.linspace(-_FARTHEST, _FARTHEST, _PANELS + 1, dtype=torch.float64, device=target.device)
    below, above = (0.5 * torch.erfc(sign * scores * math.sqrt(0.5)) for sign in (-1, 1))
    columns = law.map(lambda p, _: p.unsqueeze(-1), lambda p: p.unsqueeze(-1))
    family, parameters = law.family, columns.parameters
    if family.component is not None:
        family, parameters = family.component, parameters[1:]
    if family.quantile is None:
        raise TypeError(f"expected `pred` of a scalar family with a quantile, got {law.name}")
    ends = columns.push_forward(family.quantile(below, above, *parameters).flatten(1))
    inner = torch.minimum(torch.maximum(target, ends.amin(-1)), ends.amax(-1))
    return inner, torch.cat([ends, inner.unsqueeze(-1)], -1).sort(-1).values


def _node(law: Law, parameters: list[Tensor], target: Tensor, edges: Tensor, node: float) -> Tensor:
    """One node of every panel, summed over the panels."""
    width = edges.diff(dim=-1)
    x = torch.addcmul(edges[:, :-1], width, torch.full_like(width, node))
    with torch.enable_grad():
        own = law.with_leaves([_repeated(leaf, x.shape) for leaf in parameters])
        possible = (x > edges[:, :1]) & (x < edges[:, -1:]) & _possible(own, x.reshape(-1)).reshape(x.shape)
        safe = torch.where(possible, x, edges[:, edges.shape[1] // 2].unsqueeze(-1))
        log_below, log_above = log_tails_of(own, safe.reshape(-1))
        nearer = torch.where(x < target.unsqueeze(-1), log_below.reshape(x.shape), log_above.reshape(x.shape))
        return (width * torch.where(possible, torch.exp(2 * nearer), 0.0)).sum(-1)


@torch.no_grad()
def _possible(law: Law, x: Tensor) -> Tensor:
    """Where x has not rounded to the end of the support."""
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


def _add_slopes(part: Tensor, leaves: list[Tensor], slopes: list[Tensor]) -> None:
    active = [(leaf, slope) for leaf, slope in zip(leaves, slopes, strict=True) if leaf.requires_grad]
    if active:
        found = torch.autograd.grad(part.sum(), [leaf for leaf, _ in active], allow_unused=True)
        for (_, slope), gradient in zip(active, found, strict=True):
            if gradient is not None:
                slope += gradient
