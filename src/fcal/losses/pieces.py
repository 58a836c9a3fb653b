"""Residuals of any law in pieces that stay in cache, with their slopes, so that memory is bounded by the batch.

Every element's residual depends on that element's parameters alone. So a piece's slopes can be stored as soon as it is
computed; when the loss is known, its gradient is a product with them and takes their place in memory.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fcal.constraints import slope_of_z
from fcal.distributions.law import in_rows
from fcal.distributions.observation import Observation, widened
from fcal.residuals import residuals_of
from fcal.scores import element_nll

_LARGEST_PRODUCT = 1e38  # float32 ends soon after
_PIECE = 1 << 16  # numbers in one parameter: the two dozen buffers of a tail formula then stay in cache


def leaves_of(observation: Observation) -> list[Tensor]:
    """Targets and every tensor of the law, in rows, one row per element."""
    law, elements = observation.law, observation.elements()
    return [in_rows(observation.target, elements, law.family.event_dim), *law.leaves(elements)]


@dataclass
class Pieces:
    """A batch in pieces.

    Attributes:
        observation: The batch, in the precision it came in.
        leaves: Its tensors in rows; autograd knows how they hang on the prediction.
        detach_mean: Whether residuals leave the location alone.
        z: Residuals, once computed. Shape ``(N,)`` or ``(N, D)``.
        slopes: Derivatives of the residuals by each leaf, once computed; None where not wanted.
    """

    observation: Observation
    leaves: list[Tensor]
    detach_mean: bool
    z: Tensor = field(init=False)
    slopes: list[Tensor | None] | None = field(init=False, default=None)

    def count(self) -> int:
        """Number of elements."""
        return self.leaves[0].shape[0]

    def _is_scalar(self) -> bool:
        return not self.observation.law.family.event_dim

    def wanted(self) -> list[bool]:
        """Which leaves take a gradient."""
        return [torch.is_grad_enabled() and leaf.requires_grad for leaf in self.leaves]

    def compute(self, *, with_nll: bool) -> float:
        """Residuals, and slopes where they are wanted; the weighted sum of the negative log-likelihoods."""
        wanted = self.wanted()
        self._compute_residuals(wanted if self._is_scalar() else [False] * len(wanted))
        return sum(self._piece_nll(piece).item() for piece in self._pieces()) if with_nll else 0.0

    def gradients(self, slopes: list[float], wanted: list[bool], weight: Tensor | None) -> list[Tensor | None]:
        """Gradients by the leaves, given that by the sums."""
        if self._is_scalar() and self.slopes is None:
            self._compute_residuals(wanted)
        stored, self.slopes = self.slopes, None  # they are overwritten: a second backward pass computes them anew
        gradients = stored or [_storage(leaf) if want else None for leaf, want in zip(self.leaves, wanted, strict=True)]
        for piece in self._pieces():
            by_z = slope_of_z(self.z[piece], None if weight is None else weight[piece], [*slopes[:5], 0.0])
            if stored is None:
                self._chain(piece, by_z, gradients)
            else:
                _multiply(piece, by_z, gradients)
            if slopes[5]:
                self._add_nll(piece, slopes[5], gradients)
        return [
            gradient if gradient is None or gradient.dtype == leaf.dtype else _narrowed(gradient, leaf.dtype)
            for gradient, leaf in zip(gradients, self.leaves, strict=True)
        ]

    def _pieces(self) -> Iterator[slice]:
        widest = max(leaf[:1].numel() for leaf in self.leaves) if self.count() else 1
        step = max(_PIECE // widest, 1) * torch.get_num_threads()
        if self.leaves[0].device.type != "cpu":
            step = self.count()
        return (slice(start, min(start + step, self.count())) for start in range(0, self.count(), step))

    def _compute_residuals(self, wanted: list[bool]) -> None:
        self.z = torch.empty(self.leaves[0].shape, dtype=torch.float64, device=self.leaves[0].device)
        slopes = [_storage(leaf) if want else None for leaf, want in zip(self.leaves, wanted, strict=True)]
        for piece in self._pieces():
            z, parts = self._quickly(piece) or self._by_formulas(piece, wanted)
            self.z[piece] = z
            _store(slopes, piece, parts)
        self.slopes = slopes if any(wanted) else None

    def _quickly(self, piece: slice) -> tuple[Tensor, list[Tensor | None]] | None:
        """Residuals and slopes by the family's short cut; None where it has none, or cannot tell."""
        law = self.observation.law
        if law.family.slopes is None or law.transforms or self.observation.dtype != torch.float32:
            return None
        found = law.family.slopes(*(leaf.detach()[piece].to(torch.float32) for leaf in self.leaves))
        if found is None or not all(math.isfinite(x.sum().item()) for x in (found[0], *found[1])):
            return None
        z, slopes = found
        parts: list[Tensor | None] = list(slopes)
        if self.detach_mean:
            parts[1 + law.family.parameters.index(law.location())] = None
        return z, parts

    def _by_formulas(self, piece: slice, wanted: list[bool]) -> tuple[Tensor, list[Tensor | None]]:
        leaves = self._taken(piece, wanted)
        with torch.set_grad_enabled(any(wanted)):
            z = self._residuals(piece, leaves)
        return z.detach(), _derivatives(z, torch.ones_like(z), leaves)

    def _taken(self, piece: slice, wanted: list[bool]) -> list[Tensor]:
        return [leaf.detach()[piece].requires_grad_(want) for leaf, want in zip(self.leaves, wanted, strict=True)]

    def _observation(self, piece: slice, leaves: list[Tensor]) -> Observation:
        target, *rest = (widened(leaf, torch.float64) for leaf in leaves)
        valid = None if self.observation.valid is None else self.observation.valid.reshape(-1)[piece]
        weight = None if self.observation.weight is None else self.observation.weight.reshape(-1)[piece]
        law = self.observation.law.with_leaves(rest)
        return replace(self.observation, law=law, target=target, valid=valid, weight=weight, row_dims=1)

    def _residuals(self, piece: slice, leaves: list[Tensor]) -> Tensor:
        observation = self._observation(piece, leaves)
        if self.detach_mean:
            observation = replace(observation, law=observation.law.detach_location())
        return residuals_of(observation)

    def _nll(self, piece: slice, leaves: list[Tensor]) -> Tensor:
        observation = self._observation(piece, leaves)
        scores = observation.hide(element_nll(observation), 0.0).to(torch.float64)
        return (scores if observation.weight is None else scores * observation.weight).sum()

    @torch.no_grad()
    def _piece_nll(self, piece: slice) -> Tensor:
        return self._nll(piece, self._taken(piece, [False] * len(self.leaves)))

    def _chain(self, piece: slice, by_z: Tensor, gradients: list[Tensor | None]) -> None:
        """Gradients of vectors, each coordinate of which depends on all parameters of its row."""
        leaves = self._taken(piece, [gradient is not None for gradient in gradients])
        with torch.enable_grad():
            z = self._residuals(piece, leaves)
        _store(gradients, piece, _derivatives(z, by_z, leaves))

    def _add_nll(self, piece: slice, slope: float, gradients: list[Tensor | None]) -> None:
        leaves = self._taken(piece, [gradient is not None for gradient in gradients])
        with torch.enable_grad():
            total = self._nll(piece, leaves)
        for gradient, part in zip(gradients, _derivatives(total, torch.ones_like(total), leaves), strict=True):
            if gradient is not None and part is not None:
                gradient[piece].add_(part, alpha=slope)


def _storage(leaf: Tensor) -> Tensor:
    return torch.zeros(leaf.shape, dtype=torch.promote_types(leaf.dtype, torch.float32), device=leaf.device)


def _derivatives(value: Tensor, by_value: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
    active = [leaf for leaf in leaves if leaf.requires_grad]
    if not (active and value.requires_grad):
        return [None] * len(leaves)
    found = iter(torch.autograd.grad(value, active, by_value, allow_unused=True))
    return [next(found) if leaf.requires_grad else None for leaf in leaves]


def _store(storage: list[Tensor | None], piece: slice, parts: list[Tensor | None]) -> None:
    for kept, part in zip(storage, parts, strict=True):
        if kept is None or part is None:
            continue
        if part.dim() == 2 and part.stride(0) == 1:  # by columns: several times as fast as a transposed copy
            for column, values in zip(kept[piece].unbind(1), part.unbind(1), strict=True):
                column.copy_(values)
        else:
            kept[piece] = part


def _multiply(piece: slice, by_z: Tensor, gradients: list[Tensor | None]) -> None:
    """Turn slopes into gradients, in place."""
    for gradient in gradients:
        if gradient is None:
            continue
        part = gradient[piece]
        factor = by_z.reshape(by_z.shape + (1,) * (part.dim() - 1))
        steepest = _largest(by_z)
        if steepest < _LARGEST_PRODUCT and _largest(part) * steepest < _LARGEST_PRODUCT:
            part.mul_(factor.to(part.dtype))
        else:
            part.copy_(_narrowed(part.to(torch.float64) * factor, part.dtype))


def _largest(values: Tensor) -> float:
    low, high = torch.aminmax(values)
    return max(abs(low.item()), abs(high.item()))


def _narrowed(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast down; what exceeds the dtype becomes its largest number."""
    largest = torch.finfo(dtype).max
    return values.clamp(-largest, largest).to(dtype)
