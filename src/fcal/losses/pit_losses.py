"""Losses of the probability integral transforms F(y), which are uniform on [0, 1] when the predictions are right."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcal._checks import check_flag, check_integer, check_number, check_once
from fcal._ranks import gather_rows
from fcal._registry import Registry
from fcal.distributions.observation import Observation
from fcal.losses.batch import (
    Batch,
    BatchLoss,
    check_effective_count,
    check_total,
    counting,
    counting_weight,
    no_values,
    valid_residuals,
)
from fcal.losses.fourier import fourier_series, fourier_sums
from fcal.scores import element_nll

_LARGEST_TABLE = 1 << 19  # entries of the table of smoothed steps
_LARGEST_EXPONENT = 36.0  # x / sinh(x) is below 2e-14 beyond it


class PITValues(NamedTuple):
    """Probability integral transforms of the elements that count.

    Attributes:
        values: :math:`F(y)` of every scalar; for a vector family, one per coordinate of its whitened residual.
            Shape ``(N,)``.
        weight: Their weights; ones without weights. Shape ``(N,)``.
    """

    values: Tensor
    weight: Tensor


def pit_values(observation: Observation) -> PITValues:
    """Transforms of the elements that count, in float64."""
    if not observation.count():
        values = no_values(observation)
        return PITValues(values, values.detach())
    z, weight = valid_residuals(observation)
    return PITValues(torch.special.ndtr(z), weight)


class PCELoss(BatchLoss):
    r"""Probabilistic calibration error: distance of the transforms :math:`Z_i = F_i(y_i)` from uniform ones.

    .. math:: \frac 1M \sum_{j=1}^M \Bigl| \alpha_j - \frac 1n \sum_i \sigma(\tau (\alpha_j - Z_i)) \Bigr|^p
        \quad\text{(kde)} \qquad
        \frac 1n \sum_i \Bigl| Z_{(i)} - \frac{i}{n + 1} \Bigr|^p \quad\text{(sort)}

    with levels :math:`\alpha_j = j / (M + 1)` and the logistic function :math:`\sigma`. The first compares a smoothed
    distribution function with the uniform one, the second compares quantiles. Both depend on the pooled transforms
    alone: spreads that are wrong in opposite directions may cancel.

    Args:
        kind: ``"kde"`` or ``"sort"``.
        levels: Number of levels :math:`M` (kde).
        sharpness: Steepness :math:`\tau` of the smoothed steps (kde).
        p: 1 or 2.
        sync: Under ``torch.distributed``, use the batch of all ranks; every rank must then call the loss.

    Shape:
        As for :class:`fcal.FCalLoss`. Of a vector, the coordinates of its whitened residual count.

    Note:
        The loss couples the elements of a batch, so accumulating gradients over micro-batches is not the same as one
        large batch. A perfectly calibrated batch scores about :math:`0.31 / \sqrt n` for p = 1, not 0, and smoothing
        adds a bias near the levels 0 and 1. In the sorted form weights express importance, not multiplicity: with
        :math:`v_i = w_i \sum w / \sum w^2`, the level of an element is
        :math:`(\sum_{j < i} v_j + v_i / 2 + 1/2) / (\sum v + 1)`. The loss is once differentiable and cannot be traced
        by ``torch.compile``.

    Reference:
        Dheur and Ben Taieb, "A large-scale study of probabilistic calibration in neural network regression",
        ICML 2023.

    Example:
        >>> from torch.distributions import Uniform
        >>> pred = Uniform(torch.zeros(3), torch.ones(3))  # its transforms are the targets
        >>> fcal.losses.PCELoss(kind="sort")(pred, torch.tensor([0.75, 0.25, 0.5]))
        tensor(0.)
        >>> fcal.losses.PCELoss(kind="sort")(pred, torch.tensor([0.5, 0.5, 0.5]))
        tensor(0.1667)
    """

    def __init__(
        self, kind: str = "kde", *, levels: int = 100, sharpness: float = 100.0, p: int = 1, sync: bool = True
    ) -> None:
        super().__init__()
        _KINDS[kind]  # refuse an unknown name here, not in the first step
        self.kind = kind
        self.levels = check_integer("levels", levels, at_least=1, at_most=_LARGEST_TABLE)
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
    check_total(sums[-1])
    return (levels - sums[:-1] / sums[-1]).abs().pow(loss.p).mean()


class _SmoothCounts(torch.autograd.Function):
    r"""Weight of the values below each level, :math:`\sum_i w_i \sigma(\tau (\alpha_j - Z_i))`, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, levels: Tensor, sharpness: float) -> Tensor:
        ctx.save_for_backward(values, weight, levels)
        ctx.sharpness = sharpness
        size = max(1, _LARGEST_TABLE // len(levels))
        counts = torch.zeros_like(levels)
        for chunk, chunk_weight in zip(values.split(size), weight.split(size), strict=True):
            counts += chunk_weight @ torch.sigmoid(sharpness * (levels - chunk.unsqueeze(-1)))
        return counts

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        check_once("the PCE loss")
        values, weight, levels = ctx.saved_tensors
        slopes = []
        for chunk in values.split(max(1, _LARGEST_TABLE // len(levels))):
            step = torch.sigmoid(ctx.sharpness * (levels - chunk.unsqueeze(-1)))
            slopes.append((step * (1 - step)) @ grads[0])
        return -ctx.sharpness * weight * torch.cat(slopes), None, None, None


def _sort(loss: PCELoss, batch: Batch) -> Tensor:
    own: list[PITValues] = []

    def local_rows() -> Tensor:
        own.append(pit_values(batch.observe(widest=True)))
        return torch.stack([own[0].values.detach(), own[0].weight], dim=-1)

    rows, start = gather_rows(local_rows, columns=2, device=batch.device(), sync=loss.sync)
    pit = own[0]
    levels = _sorted_levels(*rows.unbind(-1))[start : start + len(pit.values)]

    def local() -> Tensor:
        gap = (pit.values - levels).abs().pow(loss.p)
        return torch.stack([(pit.weight * gap).sum(), pit.weight.sum()])

    sums = loss.over_ranks(local, 2, batch)
    check_total(sums[1])
    return sums[0] / sums[1]


def _sorted_levels(values: Tensor, weight: Tensor) -> Tensor:
    """The level of each value by its rank, i / (n + 1), or the weighted form of it."""
    order = values.argsort(stable=True)
    share = weight[order] * (weight.sum() / weight.square().sum())
    level = (share.cumsum(0) - share / 2 + 0.5) / (share.sum() + 1)
    return torch.empty_like(values).scatter_(0, order, level)


_KINDS: Registry[Callable[[PCELoss, Batch], Tensor]] = Registry("kind")
_KINDS.add("kde", _kde)
_KINDS.add("sort", _sort)


class QuantileRecalibrationLoss(BatchLoss):
    r"""Negative log-likelihood of the predictions, recalibrated by the transforms :math:`Z_i = F_i(y_i)` of the batch.

    .. math:: \frac 1n \sum_i -\log f_i(y_i) - \log r(Z_i), \qquad
        r(z) = \frac 1n \sum_j \sum_{k \in \mathbb Z} \kappa_h(z - 2k - Z_j) + \kappa_h(z - 2k + Z_j)

    :math:`r` is the density of the transforms, estimated with a logistic kernel of scale
    :math:`h = b \, n^{-1/5}` and reflected at 0 and 1, and :math:`f r(F)` the recalibrated density. Gradients flow
    through all terms, and the kernel of an element is part of its own density, as in the paper.

    Reflected at both ends, r is the cosine series :math:`1 + 2 \sum_m \frac{x_m}{\sinh x_m} C_m \cos(\pi m z)` with
    :math:`x_m = \pi^2 h m` and :math:`C_m` the mean of :math:`\cos(\pi m Z_j)`. It is truncated where its terms are
    below 2e-14, so time grows with n / h, not with n^2, and no n x n matrix is formed.

    Args:
        bandwidth: Factor :math:`b` of the kernel's scale.
        sync: Under ``torch.distributed``, use the batch of all ranks; every rank must then call the loss.

    Shape:
        As for :class:`fcal.FCalLoss`. Of a vector, the coordinates of its whitened residual count, all recalibrated
        by one map.

    Note:
        A model trained with this loss must be recalibrated by the same map before it is used. The loss is nearly
        blind to errors that one map repairs, such as sigmas that are all too large by one factor (sigmas that are too
        small push the transforms towards 0 and 1, closer than the kernel resolves). It couples the elements of a batch,
        so accumulating gradients over micro-batches is not the same as one large batch. With weights, n in the scale of
        the kernel is :math:`(\sum w)^2 / \sum w^2`. The paper reflects the kernel once at each end, we infinitely
        often: then r integrates to 1, and differs by less than :math:`2 e^{-1/h} / h`. The loss is once differentiable
        and cannot be traced by ``torch.compile``.

    Reference:
        Dheur and Ben Taieb, "Probabilistic calibration by design for neural network regression", AISTATS 2024.

    Example:
        A common factor on all sigmas hardly changes the loss, while the likelihood alone changes by 0.65:

        >>> from torch.distributions import Normal
        >>> target = torch.special.ndtri(torch.arange(0.5, 1000) / 1000)
        >>> criterion = fcal.losses.QuantileRecalibrationLoss()
        >>> [round(criterion(Normal(torch.zeros(1000), s * torch.ones(1000)), target).item(), 2) for s in (1, 3)]
        [1.42, 1.42]
    """

    def __init__(self, *, bandwidth: float = 0.1, sync: bool = True) -> None:
        super().__init__()
        self.bandwidth = check_number("bandwidth", bandwidth, low=1e-3, high=1e3)
        self.sync = check_flag("sync", sync)

    def of_batch(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        terms: list[_Terms] = []

        def weights() -> Tensor:
            terms.append(_terms_of(batch))
            weight = terms[0].pit.weight
            return torch.stack([weight.sum(), weight.square().sum()])

        total, square = self.over_ranks(weights, 2, batch).tolist()
        effective = total * total / square if square else 0.0
        check_effective_count(effective, 0)
        scale = self.bandwidth * effective**-0.2
        damping = _damping(scale, batch.device())
        pit = terms[0].pit

        def cosines() -> Tensor:
            return fourier_sums(pit.values, pit.weight, math.pi, len(damping)).real

        coefficients = damping * self.over_ranks(cosines, len(damping), batch) / total

        def scores() -> Tensor:
            density = fourier_series(pit.values, coefficients.to(torch.complex128), math.pi)
            least = pit.weight / (4 * scale * total)  # the kernel of the element itself: rounding must not go below
            recalibrated = terms[0].nll - (pit.weight * torch.maximum(density, least).log()).sum()
            return torch.stack([terms[0].event_size * recalibrated, terms[0].total])

        score, count = self.over_ranks(scores, 2, batch).unbind()
        return (score / count).to(batch.dtype())

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"bandwidth={self.bandwidth}, sync={self.sync}"


class _Terms(NamedTuple):
    """The contribution of this rank.

    Attributes:
        pit: Transforms.
        nll: Weighted sum of the negative log-likelihoods of the elements. Shape ``()``.
        total: Sum of the weights of the elements. Shape ``()``.
        event_size: Number of elements in one prediction.
    """

    pit: PITValues
    nll: Tensor
    total: Tensor
    event_size: int


def _terms_of(batch: Batch) -> _Terms:
    observation = batch.observe(widest=True)
    pit = pit_values(observation)
    if not observation.count():
        return _Terms(pit, pit.values.sum(), pit.weight.sum(), observation.event_size())
    weight = counting_weight(observation)
    nll = weight @ counting(element_nll(observation).to(torch.float64), observation)
    return _Terms(pit, nll, weight.sum(), observation.event_size())


def _damping(scale: float, device: torch.device) -> Tensor:
    """Coefficients of the cosine series of one reflected kernel about 0."""
    count = math.ceil(_LARGEST_EXPONENT / (math.pi**2 * scale)) + 1
    x = math.pi**2 * scale * torch.arange(1, count, dtype=torch.float64, device=device)
    return torch.cat([x.new_ones(1), 2 * x / torch.sinh(x)])
