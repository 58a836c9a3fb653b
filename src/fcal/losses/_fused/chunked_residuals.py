"""Residuals of any family chunk by chunk, with their derivatives, so that memory is bounded by the batch.

The residual of an element depends on the parameters of that element alone, so the derivatives of a chunk are stored as
soon as they are computed. Once the loss is known, the gradient is a product with them and overwrites them in place.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fcal.distributions.family import in_rows
from fcal.distributions.observation import Observation, widened
from fcal.losses._fused.fused_sums import gradient_by_z
from fcal.residuals import residuals_of
from fcal.scores import element_nll

_LARGEST_PRODUCT = 1e38  # close to the end of float32
_CHUNK = 1 << 16  # numbers in one parameter: the two dozen buffers of a tail formula then stay in cache


def leaves_of(observation: Observation) -> list[Tensor]:
    """The targets and every tensor of the prediction, with one row per element."""
    law, elements = observation.law, observation.elements()
    return [in_rows(observation.target, elements, law.family.event_dim), *law.leaves(elements)]


@dataclass
class ChunkedResiduals:
    """Residuals of a batch and their derivatives by its leaves.

    Attributes:
        observation: The batch, in the precision of the inputs.
        leaves: Its tensors in rows; autograd knows how they depend on the prediction.
        detach_mean: Whether residuals do not differentiate the location.
        z: Residuals, once computed. Shape ``(N,)`` or ``(N, D)``.
        slopes: Derivatives of the residuals by each leaf, once computed; None where not wanted.
    """

    observation: Observation
    leaves: list[Tensor]
    detach_mean: bool
    z: Tensor = field(init=False)
    slopes: list[Tensor | None] | None = field(init=False, default=None)

    def compute(self, *, with_nll: bool) -> float:
        """Compute residuals, and derivatives where wanted; return the weighted sum of negative log-likelihoods."""
        wanted = [torch.is_grad_enabled() and leaf.requires_grad for leaf in self.leaves]
        self._compute_residuals(wanted if self._is_scalar() else [False] * len(wanted))
        return sum(self._chunk_nll(chunk).item() for chunk in self._chunks()) if with_nll else 0.0

    def gradients(self, derivatives: list[float], wanted: list[bool], weight: Tensor | None) -> list[Tensor | None]:
        """Gradients by the leaves, given the derivatives by the sums."""
        if self._is_scalar() and self.slopes is None:
            self._compute_residuals(wanted)
        stored, self.slopes = self.slopes, None  # overwritten below: a second backward pass computes them again
        gradients = stored or [_storage(leaf) if want else None for leaf, want in zip(self.leaves, wanted, strict=True)]
        for chunk in self._chunks():
            by_z = gradient_by_z(self.z[chunk], None if weight is None else weight[chunk], [*derivatives[:5], 0.0])
            if stored is None:
                self._chain(chunk, by_z, gradients)
            else:
                _multiply(chunk, by_z, gradients)
            if derivatives[5]:
                self._add_nll(chunk, derivatives[5], gradients)
        return [
            gradient if gradient is None or gradient.dtype == leaf.dtype else _narrowed(gradient, leaf.dtype)
            for gradient, leaf in zip(gradients, self.leaves, strict=True)
        ]

    def _is_scalar(self) -> bool:
        return not self.observation.law.family.event_dim

    def _chunks(self) -> Iterator[slice]:
        count = self.leaves[0].shape[0]
        widest = max(leaf[:1].numel() for leaf in self.leaves) if count else 1
        step = max(_CHUNK // widest, 1) * torch.get_num_threads()
        if self.leaves[0].device.type != "cpu":
            step = max(count, 1)
        return (slice(start, min(start + step, count)) for start in range(0, count, step))

    def _compute_residuals(self, wanted: list[bool]) -> None:
        self.z = torch.empty(self.leaves[0].shape, dtype=torch.float64, device=self.leaves[0].device)
        slopes = [_storage(leaf) if want else None for leaf, want in zip(self.leaves, wanted, strict=True)]
        for chunk in self._chunks():
            z, chunk_slopes = self._by_family_slopes(chunk) or self._by_autograd(chunk, wanted)
            self.z[chunk] = z
            _store(slopes, chunk, chunk_slopes)
        self.slopes = slopes if any(wanted) else None

    def _by_family_slopes(self, chunk: slice) -> tuple[Tensor, list[Tensor | None]] | None:
        """Residuals and derivatives by the float32 formulas of the family; None where it has none or they fail."""
        law = self.observation.law
        if law.family.slopes is None or law.transforms or self.observation.dtype != torch.float32:
            return None
        result = law.family.slopes(*(leaf.detach()[chunk].to(torch.float32) for leaf in self.leaves))
        if result is None or not all(math.isfinite(x.sum().item()) for x in (result[0], *result[1])):
            return None
        slopes: list[Tensor | None] = list(result[1])
        if self.detach_mean:
            slopes[1 + law.family.parameters.index(law.location())] = None
        return result[0], slopes

    def _by_autograd(self, chunk: slice, wanted: list[bool]) -> tuple[Tensor, list[Tensor | None]]:
        leaves = self._taken(chunk, wanted)
        with torch.set_grad_enabled(any(wanted)):
            z = self._residuals(chunk, leaves)
        return z.detach(), _derivatives(z, torch.ones_like(z), leaves)

    def _taken(self, chunk: slice, wanted: list[bool]) -> list[Tensor]:
        return [leaf.detach()[chunk].requires_grad_(want) for leaf, want in zip(self.leaves, wanted, strict=True)]

    def _observation(self, chunk: slice, leaves: list[Tensor]) -> Observation:
        target, *parameters = (widened(leaf, torch.float64) for leaf in leaves)
        valid = None if self.observation.valid is None else self.observation.valid.reshape(-1)[chunk]
        weight = None if self.observation.weight is None else self.observation.weight.reshape(-1)[chunk]
        law = self.observation.law.with_leaves(parameters)
        return replace(self.observation, law=law, target=target, valid=valid, weight=weight, row_dims=1)

    def _residuals(self, chunk: slice, leaves: list[Tensor]) -> Tensor:
        observation = self._observation(chunk, leaves)
        if self.detach_mean:
            observation = replace(observation, law=observation.law.detach_location())
        return residuals_of(observation)

    def _nll(self, chunk: slice, leaves: list[Tensor]) -> Tensor:
        observation = self._observation(chunk, leaves)
        scores = observation.hide(element_nll(observation), 0.0).to(torch.float64)
        return (scores if observation.weight is None else scores * observation.weight).sum()

    @torch.no_grad()
    def _chunk_nll(self, chunk: slice) -> Tensor:
        return self._nll(chunk, self._taken(chunk, [False] * len(self.leaves)))

    def _chain(self, chunk: slice, by_z: Tensor, gradients: list[Tensor | None]) -> None:
        """Gradients of vectors, each coordinate of which depends on all parameters of its row."""
        leaves = self._taken(chunk, [gradient is not None for gradient in gradients])
        with torch.enable_grad():
            z = self._residuals(chunk, leaves)
        _store(gradients, chunk, _derivatives(z, by_z, leaves))

    def _add_nll(self, chunk: slice, derivative: float, gradients: list[Tensor | None]) -> None:
        leaves = self._taken(chunk, [gradient is not None for gradient in gradients])
        with torch.enable_grad():
            total = self._nll(chunk, leaves)
        by_leaves = _derivatives(total, torch.ones_like(total), leaves)
        for gradient, by_leaf in zip(gradients, by_leaves, strict=True):
            if gradient is not None and by_leaf is not None:
                gradient[chunk].add_(by_leaf, alpha=derivative)


def _storage(leaf: Tensor) -> Tensor:
    return torch.zeros(leaf.shape, dtype=torch.promote_types(leaf.dtype, torch.float32), device=leaf.device)


def _derivatives(value: Tensor, by_value: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
    active = [leaf for leaf in leaves if leaf.requires_grad]
    if not (active and value.requires_grad):
        return [None] * len(leaves)
    gradients = iter(torch.autograd.grad(value, active, by_value, allow_unused=True))
    return [next(gradients) if leaf.requires_grad else None for leaf in leaves]


def _store(storage: list[Tensor | None], chunk: slice, tensors: list[Tensor | None]) -> None:
    for stored, values in zip(storage, tensors, strict=True):
        if stored is None or values is None:
            continue
        if values.dim() == 2 and values.stride(0) == 1:  # by columns: several times as fast as a transposed copy
            for column, entries in zip(stored[chunk].unbind(1), values.unbind(1), strict=True):
                column.copy_(entries)
        else:
            stored[chunk] = values


def _multiply(chunk: slice, by_z: Tensor, slopes: list[Tensor | None]) -> None:
    """Turn derivatives of the residuals into gradients of the loss, in place."""
    for slope in slopes:
        if slope is None:
            continue
        selected = slope[chunk]
        factor = by_z.reshape(by_z.shape + (1,) * (selected.dim() - 1))
        largest = _largest(by_z)
        if largest < _LARGEST_PRODUCT and _largest(selected) * largest < _LARGEST_PRODUCT:
            selected.mul_(factor.to(selected.dtype))
        else:
            selected.copy_(_narrowed(selected.to(torch.float64) * factor, selected.dtype))


def _largest(values: Tensor) -> float:
    low, high = torch.aminmax(values)
    return max(abs(low.item()), abs(high.item()))


def _narrowed(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast to a narrower dtype, clamped to its finite numbers."""
    largest = torch.finfo(dtype).max
    return values.clamp(-largest, largest).to(dtype)
