"""Baselines that average over predictions: NLL, beta-NLL, CRPS, the energy score and the loss of Feng et al."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcal._checks import check_flag, check_integer, check_number, check_once, check_values
from fcal._datasets import per_target
from fcal._registry import Registry
from fcal.distributions.observation import Observation
from fcal.losses.batch import (
    Batch,
    BatchLoss,
    MeanLoss,
    check_generator,
    check_total,
    no_values,
    reparametrised_draws,
)
from fcal.scores import element_crps, element_nll

_LARGEST_TABLE = 1 << 19  # entries of the table of differences between draws


class NLLLoss(MeanLoss):
    r"""Mean negative log-likelihood, the default task loss.

    Equal to ``fcal.nll(..., reduction="mean")`` over all ranks.

    Args:
        sync: Under ``torch.distributed``, average over all ranks.

    Example:
        >>> from torch.distributions import Normal
        >>> fcal.losses.NLLLoss()(Normal(torch.zeros(2), torch.ones(2)), torch.tensor([0.0, torch.nan]))
        tensor(0.9189)
    """

    widest = False

    def element_loss(self, observation: Observation) -> Tensor:
        """Negative log-likelihood of every element."""
        return element_nll(observation)


class CRPSLoss(MeanLoss):
    r"""Mean continuous ranked probability score, in the unit of the target.

    .. math:: \frac 1n \sum_i \int (F_i(x) - 1\{x \ge y_i\})^2 \, dx

    Equal to ``fcal.crps(..., reduction="mean")`` over all ranks. The score grows linearly with the distance of an
    outlier, where the normal likelihood grows with its square; targets may lie outside the support. Families without a
    closed form (see :func:`fcal.crps`) are integrated numerically, which is a thousand times slower.

    Args:
        sync: Under ``torch.distributed``, average over all ranks.

    Reference:
        Gneiting et al., "Calibrated probabilistic forecasting using ensemble model output statistics and minimum CRPS
        estimation", Monthly Weather Review 2005.

    Example:
        >>> from torch.distributions import Uniform
        >>> fcal.losses.CRPSLoss()(Uniform(torch.zeros(2), torch.ones(2)), torch.tensor([0.5, torch.nan]))
        tensor(0.0833)
    """

    anywhere = True

    def element_loss(self, observation: Observation) -> Tensor:
        """Score of every element."""
        return element_crps(observation)


class BetaNLLLoss(MeanLoss):
    r"""Negative log-likelihood weighted by the predicted variance, a constant for autograd.

    .. math:: \frac 1n \sum_i \lfloor \sigma_i^{2 \beta} \rfloor \, (-\log p(y_i))

    The plain NLL (:math:`\beta = 0`) has the smallest gradients where sigma is large; :math:`\beta = 1` weighs errors
    like the mean squared error.

    Args:
        beta: Within [0, 1].
        sync: Under ``torch.distributed``, average over all ranks.

    Reference:
        Seitzer et al., "On the pitfalls of heteroscedastic uncertainty estimation with probabilistic neural
        networks", ICLR 2022.

    Example:
        >>> from torch.distributions import Normal
        >>> pred = Normal(torch.zeros(1), 2 * torch.ones(1))
        >>> fcal.losses.BetaNLLLoss(beta=1.0)(pred, torch.zeros(1)) / fcal.nll(pred, torch.zeros(1)).mean()
        tensor(4.)
    """

    def __init__(self, beta: float = 0.5, *, sync: bool = True) -> None:
        super().__init__(sync=sync)
        self.beta = check_number("beta", beta, low=0.0, high=1.0)

    def element_loss(self, observation: Observation) -> Tensor:
        """Weighted negative log-likelihood of every element."""
        _, spread = _mean_and_spread(observation)
        weight = spread.detach().pow(2 * self.beta)
        weight = weight.mean(-1) if observation.law.family.event_dim else weight
        return weight * element_nll(observation)


class CalibrationLoss(MeanLoss):
    r"""Distance between the predicted spread of every element and its actual error.

    .. math:: \frac 1n \sum_i \left| \sigma_i^2 - (y_i - \mu_i)^2 \right|^p
        \quad\text{or}\quad \frac 1n \sum_i \bigl| \sigma_i - |y_i - \mu_i| \bigr|^p

    Combine it with the likelihood by :class:`CombinedLoss`. The paper does not state norm and power, so state the
    choice beside results. The loss has the unit of the target, squared or to the fourth power: in float32 it is the
    largest number of that type where it would be beyond.

    Args:
        on: ``"variance"`` or ``"std"``.
        p: 1 or 2.
        detach_mean: Let no gradient of this loss reach the predicted mean.
        sync: Under ``torch.distributed``, average over all ranks.

    Reference:
        Feng et al., "Can we trust you? On calibration of a probabilistic object detector for autonomous driving",
        IROS workshop 2019.

    Example:
        >>> from torch.distributions import Normal
        >>> fcal.losses.CalibrationLoss(on="std")(Normal(torch.zeros(1), torch.ones(1)), torch.tensor([3.0]))
        tensor(2.)
    """

    def __init__(self, on: str = "variance", p: int = 1, *, detach_mean: bool = False, sync: bool = True) -> None:
        super().__init__(sync=sync)
        _GAPS[on]  # refuse an unknown name here, not in the first step
        self.on = on
        self.p = check_integer("p", p, at_least=1, at_most=2)
        self.detach_mean = check_flag("detach_mean", detach_mean)

    def element_loss(self, observation: Observation) -> Tensor:
        """Gap between spread and error of every element to the power p; for vectors, the mean over coordinates."""
        mean, spread = _mean_and_spread(observation)
        error = observation.target - (mean.detach() if self.detach_mean else mean)
        gap = _GAPS[self.on](spread, error).abs().pow(self.p)
        return gap.mean(-1) if observation.law.family.event_dim else gap

    def in_dtype(self, loss: Tensor, dtype: torch.dtype) -> Tensor:
        """The loss in the dtype of the inputs, at most its largest number; gradients do not depend on that."""
        saturated: Tensor = _Saturated.apply(loss, dtype)
        return saturated


class _Saturated(torch.autograd.Function):
    """A number in another dtype, at most the largest one there, with the gradient of the number itself."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = value.dtype
        return value.clamp(max=torch.finfo(dtype).max).to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].to(ctx.dtype), None


def _mean_and_spread(observation: Observation) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every element."""
    try:
        pred = observation.law.distribution()
        mean, spread = pred.mean, pred.stddev
    except (NotImplementedError, TypeError):
        raise TypeError(f"expected `pred` with a mean and a variance, got {observation.law.name}") from None
    check_values("pred.stddev", "finite", spread.detach(), spread.isfinite())
    return mean, spread


_GAPS: Registry[Callable[[Tensor, Tensor], Tensor]] = Registry("on")
_GAPS.add("variance", lambda spread, error: spread.square() - error.square())
_GAPS.add("std", lambda spread, error: spread - error.abs())


class EnergyLoss(BatchLoss):
    r"""Mean energy score, from reparametrised draws :math:`X_1, \dots, X_m` of every prediction.

    .. math:: \frac 1n \sum_i \Bigl( \frac 1m \sum_k \| X_{ik} - y_i \|
        - \frac{1}{2 m (m - 1)} \sum_{k \ne l} \| X_{ik} - X_{il} \| \Bigr)

    No draw is paired with itself, so the expected value is the exact score :math:`E \|X - y\| - \frac 12 E \|X - X'\|`
    and the gradient is unbiased; the loss of one batch may be negative. For scalars the exact score is the CRPS.

    Args:
        draws: Draws per prediction :math:`m`, at least 2. Families without ``rsample``, such as mixtures, draw
            quantiles of uniform numbers.
        generator: Source of randomness, torch's default if None. Give every rank its own seed.
        sync: Under ``torch.distributed``, average over all ranks; every rank must then call the loss.

    Shape:
        As for :class:`fcal.FCalLoss`, but a row of an ``Independent`` or multivariate prediction is one vector. Missing
        coordinates of an ``Independent`` row are left out of its distances; its coordinates share one weight.

    Note:
        A mean over predictions: gradients may be accumulated over micro-batches. Distances are Euclidean, so scale
        all coordinates to one unit first. The loss is once differentiable and cannot be traced by ``torch.compile``.

    Reference:
        Gneiting and Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 2007.

    Example:
        >>> from torch.distributions import Independent, Normal
        >>> certain = Independent(Normal(torch.zeros(1, 2), 1e-6 * torch.ones(1, 2)), 1)
        >>> fcal.losses.EnergyLoss()(certain, torch.tensor([[3.0, 4.0]]))  # the error of a certain prediction
        tensor(5.0000)
    """

    def __init__(self, *, draws: int = 8, generator: torch.Generator | None = None, sync: bool = True) -> None:
        super().__init__()
        self.draws = check_integer("draws", draws, at_least=2, at_most=1000)  # the cost is quadratic
        self.generator = check_generator(generator)
        self.sync = check_flag("sync", sync)

    def of_batch(self, batch: Batch) -> Tensor:
        """The loss of a batch."""

        def local() -> Tensor:
            return self._local_sums(batch.observe(widest=True))

        total, count = self.over_ranks(local, 2, batch).unbind()
        check_total(count)
        return (total / count).to(batch.dtype())

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"draws={self.draws}, sync={self.sync}"

    def _local_sums(self, observation: Observation) -> Tensor:
        if not observation.count():
            total = no_values(observation).sum()
            return torch.stack([total, total.detach()])
        rows = _rows_of(observation)
        draws = reparametrised_draws(observation, self.draws, self.generator)
        draws = draws.reshape(self.draws, *rows.counts.shape)
        scores: Tensor = _EnergyScores.apply(draws, rows.target, rows.counts)
        return torch.stack([rows.weight @ scores, rows.weight.sum()])


class _Rows(NamedTuple):
    """A batch of vectors.

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
        return per_target(values, target).reshape(shape)

    ones = torch.ones((), dtype=torch.bool, device=target.device)
    counts = spread(ones if observation.valid is None else observation.valid)
    weights = counts.to(torch.float64) if observation.weight is None else spread(observation.weight)
    weight = weights.amax(-1)
    least = torch.where(counts, weights, torch.inf).amin(-1)
    check_values("weight", "the same for all coordinates of a row", weight, (least == weight) | (weight == 0))
    return _Rows(target.reshape(shape), counts, weight)


class _EnergyScores(torch.autograd.Function):
    """Energy score of every row; the gradient is computed with it, so that no table of differences is kept."""

    @staticmethod
    def forward(ctx: Any, draws: Tensor, target: Tensor, counts: Tensor) -> Tensor:
        scores = torch.empty(len(target), dtype=torch.float64, device=target.device)
        by_draws, by_target = torch.empty_like(draws), torch.empty_like(target)
        size = max(1, _LARGEST_TABLE // (len(draws) ** 2 * target.shape[1]))
        for start in range(0, len(target), size):
            chunk = slice(start, start + size)
            scores[chunk], by_draws[:, chunk], by_target[chunk] = _energy_scores(
                draws[:, chunk], target[chunk], counts[chunk]
            )
        ctx.save_for_backward(by_draws, by_target)
        return scores

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        check_once("the energy score")
        by_draws, by_target = ctx.saved_tensors
        grad = grads[0].unsqueeze(-1)
        return grad * by_draws, grad * by_target, None


def _energy_scores(draws: Tensor, target: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of rows and their gradients by draws and targets."""
    number = len(draws)
    error, direction = _length_and_direction((draws - target) * counts)
    gap, away = _length_and_direction((draws.unsqueeze(1) - draws) * counts)
    pairs = number * (number - 1)
    score = error.mean(0) - gap.sum((0, 1)) / (2 * pairs)
    return score, direction / number - away.sum(1) / pairs, -direction.mean(0)


def _length_and_direction(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Length of every vector and the unit vector along it; 0 where the length is 0."""
    length = torch.linalg.vector_norm(vectors, dim=-1)
    return length, vectors / torch.where(length == 0, 1.0, length).unsqueeze(-1)
