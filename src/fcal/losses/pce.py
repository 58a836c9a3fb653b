"""Distance of a batch's probability integral transforms from uniform ones."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fcal._checks import check_count, check_flag, check_integer, check_number, check_once
from fcal._ranks import gathered
from fcal._registry import Registry
from fcal.losses.batch import Batch, BatchLoss
from fcal.losses.elements import PITValues, pit_values

_ROOM = 1 << 19  # entries of the largest table of steps


class PCELoss(BatchLoss):
    r"""Probabilistic calibration error: how far the transforms :math:`Z_i = F_i(y_i)` are from uniform.

    .. math:: \frac 1M \sum_{j=1}^M \Bigl| \alpha_j - \frac 1n \sum_i \sigma(\tau (\alpha_j - Z_i)) \Bigr|^p
        \quad\text{(kde)} \qquad
        \frac 1n \sum_i \Bigl| Z_{(i)} - \frac{i}{n + 1} \Bigr|^p \quad\text{(sort)}

    with levels :math:`\alpha_j = j / (M + 1)` and the logistic function :math:`\sigma`. The first compares a smoothed
    distribution function with that of the uniform law, the second the quantiles. Both see only the pooled transforms:
    spreads that are wrong in opposite ways here and there may cancel.

    Args:
        kind: ``"kde"`` or ``"sort"``.
        levels: Number of levels :math:`M` (kde).
        sharpness: Steepness :math:`\tau` of the smoothed steps (kde).
        p: 1 or 2.
        sync: Under ``torch.distributed``, take the batch of all ranks together; every rank must then call the loss.

    Shape:
        As for :class:`fcal.FCalLoss`. A vector counts by the coordinates of its whitened residual.

    Note:
        The loss couples the elements of a batch, so accumulating gradients over micro-batches is not the same as one
        large batch. A perfectly calibrated batch scores about :math:`0.31 / \sqrt n` for p = 1, not 0, and smoothing
        adds a bias near the levels 0 and 1. In the sorted form weights say how much an element matters, not how
        often it occurred: with :math:`v_i = w_i \sum w / \sum w^2`, the level of an element is
        :math:`(\sum_{j < i} v_j + v_i / 2 + 1/2) / (\sum v + 1)`. The loss is once differentiable and cannot be traced
        by ``torch.compile``.

    Reference:
        Dheur and Ben Taieb, "A large-scale study of probabilistic calibration in neural network regression",
        ICML 2023.

    Example:
        >>> from torch.distributions import Uniform
        >>> pred = Uniform(torch.zeros(3), torch.ones(3))  # whose transforms are the targets themselves
        >>> fcal.losses.PCELoss(kind="sort")(pred, torch.tensor([0.75, 0.25, 0.5]))
        tensor(0.)
        >>> fcal.losses.PCELoss(kind="sort")(pred, torch.tensor([0.5, 0.5, 0.5]))
        tensor(0.1667)
    """

    def __init__(
        self, kind: str = "kde", *, levels: int = 100, sharpness: float = 100.0, p: int = 1, sync: bool = True
    ) -> None:
        super().__init__()
        _KINDS[kind]  # unknown names are refused here, not in the first step
        self.kind = kind
        self.levels = check_integer("levels", levels, at_least=1, at_most=_ROOM)
        self.sharpness = check_number("sharpness", sharpness, low=1e-3, high=1e6)
        self.p = check_integer("p", p, at_least=1, at_most=2)
        self.sync = check_flag("sync", sync)

    def of_batch(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        return _KINDS[self.kind](self, batch).to(batch.dtype())

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"{self.kind!r}, levels={self.levels}, sharpness={self.sharpness}, p={self.p}, sync={self.sync}"


def _kde(loss: PCELoss, batch: Batch) -> Tensor:
    levels = torch.arange(1, loss.levels + 1, dtype=torch.float64, device=batch.device()) / (loss.levels + 1)

    def local() -> Tensor:
        pit = pit_values(batch.observe(widest=True))
        below: Tensor = _SmoothCounts.apply(pit.values, pit.weight, levels, loss.sharpness)
        return torch.cat([below, pit.weight.sum().reshape(1)])

    sums = loss.over_ranks(local, loss.levels + 1, batch)
    _check_total(sums[-1])
    return (levels - sums[:-1] / sums[-1]).abs().pow(loss.p).mean()


class _SmoothCounts(torch.autograd.Function):
    r"""Weight of the values below each level, :math:`\sum_i w_i \sigma(\tau (\alpha_j - Z_i))`, piece by piece."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, levels: Tensor, sharpness: float) -> Tensor:
        ctx.save_for_backward(values, weight, levels)
        ctx.sharpness = sharpness
        size = max(1, _ROOM // len(levels))
        counts = torch.zeros_like(levels)
        for piece, part in zip(values.split(size), weight.split(size), strict=True):
            counts += part @ torch.sigmoid(sharpness * (levels - piece.unsqueeze(-1)))
        return counts

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        check_once("the PCE loss")
        values, weight, levels = ctx.saved_tensors
        slopes = []
        for piece in values.split(max(1, _ROOM // len(levels))):
            step = torch.sigmoid(ctx.sharpness * (levels - piece.unsqueeze(-1)))
            slopes.append((step * (1 - step)) @ grads[0])
        return -ctx.sharpness * weight * torch.cat(slopes), None, None, None


def _sort(loss: PCELoss, batch: Batch) -> Tensor:
    own: list[PITValues] = []

    def local_rows() -> Tensor:
        own.append(pit_values(batch.observe(widest=True)))
        return torch.stack([own[0].values.detach(), own[0].weight], dim=-1)

    rows, start = gathered(local_rows, columns=2, device=batch.device(), sync=loss.sync)
    pit = own[0]
    levels = _sorted_levels(*rows.unbind(-1))[start : start + len(pit.values)]

    def local() -> Tensor:
        gap = (pit.values - levels).abs().pow(loss.p)
        return torch.stack([(pit.weight * gap).sum(), pit.weight.sum()])

    sums = loss.over_ranks(local, 2, batch)
    _check_total(sums[1])
    return sums[0] / sums[1]


def _sorted_levels(values: Tensor, weight: Tensor) -> Tensor:
    """The level each value should have by its place among all: i / (n + 1), or the weighted form of it."""
    order = values.argsort(stable=True)
    share = weight[order] * (weight.sum() / weight.square().sum())
    place = (share.cumsum(0) - share / 2 + 0.5) / (share.sum() + 1)
    return torch.empty_like(values).scatter_(0, order, place)


def _check_total(total: Tensor) -> None:
    if not total.item() > 0:
        check_count(0, at_least=1)


_KINDS: Registry[Callable[[PCELoss, Batch], Tensor]] = Registry("kind")
_KINDS.add("kde", _kde)
_KINDS.add("sort", _sort)
