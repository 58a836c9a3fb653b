"""The energy score, a proper score of scalars and vectors that needs only draws."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcal._checks import check_count, check_flag, check_integer, check_once, check_values
from fcal.distributions.observation import Observation
from fcal.losses.batch import Batch, BatchLoss
from fcal.losses.draws import check_generator, reparametrised_draws
from fcal.losses.elements import is_empty, nothing

_ROOM = 1 << 19  # entries of the largest table of differences


class EnergyLoss(BatchLoss):
    r"""Mean energy score, from reparametrised draws :math:`X_1, \dots, X_m` of every prediction.

    .. math:: \frac 1n \sum_i \Bigl( \frac 1m \sum_k \| X_{ik} - y_i \|
        - \frac{1}{2 m (m - 1)} \sum_{k \ne l} \| X_{ik} - X_{il} \| \Bigr)

    No draw is paired with itself, so the mean over draws is the exact score :math:`E \|X - y\| - \frac 12 E \|X - X'\|`
    and its gradient the exact gradient; one batch may score below 0. For scalars the exact score is the CRPS.

    Args:
        draws: Draws per prediction :math:`m`, at least 2. Families without ``rsample``, such as mixtures, draw
            quantiles of uniform numbers.
        generator: Source of randomness, torch's default where None. Give every rank a seed of its own.
        sync: Under ``torch.distributed``, average over all ranks; every rank must then call the loss.

    Shape:
        As for :class:`fcal.FCalLoss`, but a row of an ``Independent`` or multivariate prediction is one vector. Missing
        coordinates of an ``Independent`` row are left out of its distances; its weight is one for the whole row.

    Note:
        A mean over predictions: gradients may be accumulated over micro-batches. All coordinates are measured by one
        ruler, so bring them to one unit first. The loss is once differentiable and cannot be traced by
        ``torch.compile``.

    Reference:
        Gneiting and Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 2007.

    Example:
        >>> from torch.distributions import Independent, Normal
        >>> sure = Independent(Normal(torch.zeros(1, 2), 1e-6 * torch.ones(1, 2)), 1)
        >>> fcal.losses.EnergyLoss()(sure, torch.tensor([[3.0, 4.0]]))  # how far off a sure prediction is
        tensor(5.0000)
    """

    def __init__(self, *, draws: int = 8, generator: torch.Generator | None = None, sync: bool = True) -> None:
        super().__init__()
        self.draws = check_integer("draws", draws, at_least=2, at_most=1000)  # all pairs of them
        self.generator = check_generator(generator)
        self.sync = check_flag("sync", sync)

    def of_batch(self, batch: Batch) -> Tensor:
        """The loss of a batch."""

        def local() -> Tensor:
            return self._local_sums(batch.observe(widest=True))

        total, count = self.over_ranks(local, 2, batch).unbind()
        if not count.item() > 0:
            check_count(0, at_least=1)
        return (total / count).to(batch.dtype())

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"draws={self.draws}, sync={self.sync}"

    def _local_sums(self, observation: Observation) -> Tensor:
        if is_empty(observation):
            values, weight = nothing(observation)
            return torch.stack([values.sum(), weight.sum()])
        rows = _rows_of(observation)
        drawn = reparametrised_draws(observation, self.draws, self.generator)
        drawn = drawn.reshape(self.draws, *rows.counts.shape)
        scores: Tensor = _Scores.apply(drawn, rows.target, rows.counts)
        return torch.stack([rows.weight @ scores, rows.weight.sum()])


class _Rows(NamedTuple):
    """A batch as vectors.

    Attributes:
        target: One row per prediction. Shape ``(n, d)``.
        counts: True where a coordinate counts. Shape ``(n, d)``.
        weight: Weight of every row, 0 where none of its coordinates counts. Shape ``(n,)``.
    """

    target: Tensor
    counts: Tensor
    weight: Tensor


def _rows_of(observation: Observation) -> _Rows:
    target = observation.target
    shape = (target.shape[: observation.row_dims].numel(), target.shape[observation.row_dims :].numel())

    def spread(values: Tensor) -> Tensor:
        return values.reshape(values.shape + (1,) * (target.dim() - values.dim())).expand(target.shape).reshape(shape)

    ones = torch.ones((), dtype=torch.bool, device=target.device)
    counts = spread(ones if observation.valid is None else observation.valid)
    weights = counts.to(torch.float64) if observation.weight is None else spread(observation.weight)
    weight = weights.amax(-1)
    least = torch.where(counts, weights, torch.inf).amin(-1)
    check_values("weight", "the same for all coordinates of a row", weight, (least == weight) | (weight == 0))
    return _Rows(target.reshape(shape), counts, weight)


class _Scores(torch.autograd.Function):
    """Energy score of every row; its gradient by draws and targets is known with it, so no difference is kept."""

    @staticmethod
    def forward(ctx: Any, draws: Tensor, target: Tensor, counts: Tensor) -> Tensor:
        scores = torch.empty(len(target), dtype=torch.float64, device=target.device)
        by_draws, by_target = torch.empty_like(draws), torch.empty_like(target)
        size = max(1, _ROOM // (len(draws) ** 2 * target.shape[1]))
        for start in range(0, len(target), size):
            piece = slice(start, start + size)
            scores[piece], by_draws[:, piece], by_target[piece] = _piece(draws[:, piece], target[piece], counts[piece])
        ctx.save_for_backward(by_draws, by_target)
        return scores

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        check_once("the energy score")
        by_draws, by_target = ctx.saved_tensors
        grad = grads[0].unsqueeze(-1)
        return grad * by_draws, grad * by_target, None


def _piece(draws: Tensor, target: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of some rows and their gradients by draws and targets."""
    number = len(draws)
    error, direction = _length_and_direction((draws - target) * counts)
    gap, away = _length_and_direction((draws.unsqueeze(1) - draws) * counts)
    pairs = number * (number - 1)
    score = error.mean(0) - gap.sum((0, 1)) / (2 * pairs)
    return score, direction / number - away.sum(1) / pairs, -direction.mean(0)


def _length_and_direction(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Length of every vector, and the vector of length 1 along it; no direction where the length is 0."""
    length = torch.linalg.vector_norm(vectors, dim=-1)
    return length, vectors / torch.where(length == 0, 1.0, length).unsqueeze(-1)
