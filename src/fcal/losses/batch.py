"""What all losses share: the batch, the base classes of losses, and the elements of a batch that count."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal._checks import check_count, check_flag, check_values, is_tracing
from fcal._ranks import sum_over_ranks
from fcal.distributions.family import law_of, result_dtype
from fcal.distributions.observation import Observation, observe
from fcal.residuals import residuals_of

_LEAST_PROBABILITY = 2.0**-54  # half the smallest step of uniform numbers: the quantile of 0 may be infinite


class Batch(NamedTuple):
    """A prediction, its targets, their mask and their weights."""

    pred: Distribution
    target: Tensor
    valid_mask: Tensor | None
    weight: Tensor | None

    def device(self) -> torch.device:
        """Device of the targets, also where they are not a tensor, which is refused later."""
        return self.target.device if isinstance(self.target, Tensor) else torch.device("cpu")

    def dtype(self) -> torch.dtype:
        """Dtype of the loss: that of the inputs, float32 at least."""
        return result_dtype(law_of(self.pred), self.target)

    def observe(self, *, widest: bool = False, anywhere: bool = False, as_given: bool = False) -> Observation:
        """The batch, checked and with missing elements hidden; see :func:`fcal.distributions.observation.observe`."""
        return observe(
            self.pred,
            self.target,
            valid_mask=self.valid_mask,
            weight=self.weight,
            widest=widest,
            anywhere=anywhere,
            as_given=as_given,
        )


class BatchLoss(nn.Module):
    """Base class of losses; subclasses implement :meth:`of_batch`."""

    sync: bool = True

    def forward(
        self,
        pred: Distribution,
        target: Tensor,
        *,
        valid_mask: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch.

        Args:
            pred: Prediction of any registered family.
            target: Targets, shaped like samples of ``pred``; NaN where missing.
            valid_mask: True where a target counts; shaped like ``target`` or its rows. A vector with one missing
                coordinate is missing as a whole, unless the coordinates are ``Independent``.
            weight: Non-negative weights, shaped like ``target`` or its rows; constants for autograd.

        Returns:
            A scalar of the dtype of the inputs, float32 at least.
        """
        return self.of_batch(Batch(pred, target, valid_mask, weight))

    def of_batch(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        raise NotImplementedError

    def over_ranks(self, local: Callable[[], Tensor], size: int, batch: Batch) -> Tensor:
        """Sum of the vector that ``local`` returns over the ranks that share the batch. Shape ``(size,)``."""
        return sum_over_ranks(local, size=size, device=batch.device()) if self.sync else local()


class MeanLoss(BatchLoss):
    """Base class of losses that average :meth:`element_loss` over the elements that count, on all ranks.

    Args:
        sync: Under ``torch.distributed``, average over all ranks; every rank must then call the loss.

    Example:
        >>> from torch.distributions import Normal
        >>> class SquaredError(MeanLoss):
        ...     def element_loss(self, observation):
        ...         return (observation.target - observation.law.distribution().mean).square()
        >>> SquaredError()(Normal(torch.zeros(3), torch.ones(3)), torch.tensor([1.0, 3.0, torch.nan]))
        tensor(5.)
    """

    widest = True  # compute the elements in float64 whatever the dtype of the inputs
    anywhere = False  # accept targets outside the support of the prediction

    def __init__(self, *, sync: bool = True) -> None:
        super().__init__()
        self.sync = check_flag("sync", sync)

    def element_loss(self, observation: Observation) -> Tensor:
        """Loss of every element, unreduced; values of hidden elements are ignored."""
        raise NotImplementedError

    def of_batch(self, batch: Batch) -> Tensor:
        """The loss of a batch."""

        def local() -> Tensor:
            observation = batch.observe(widest=self.widest, anywhere=self.anywhere)
            if not is_tracing() and not observation.count():
                return torch.stack([no_values(observation).sum(), observation.total_weight()])
            values = observation.hide(self.element_loss(observation), 0.0).to(torch.float64)
            if observation.weight is not None:
                values = values * observation.weight
            return torch.stack([observation.event_size() * values.sum(), observation.total_weight()])

        total, count = self.over_ranks(local, 2, batch).unbind()
        if not is_tracing():
            check_total(count)
        return self.in_dtype(total / count, batch.dtype())

    def in_dtype(self, loss: Tensor, dtype: torch.dtype) -> Tensor:
        """The loss, computed in float64, in the dtype of the inputs; infinite if it is too large for that."""
        return loss.to(dtype)


def check_total(total: Tensor) -> None:
    """At least one target counts."""
    if not total.item() > 0:
        check_count(0, at_least=1)


def check_effective_count(effective: float, least: float) -> None:
    """More than one target counts, and at least as many as a draw takes."""
    if not effective > 1 + 1e-9:
        raise ValueError(f"expected `target` with at least 2 values that count, got {effective:g}")
    if effective < least:
        raise ValueError(f"expected `target` with at least `df` = {least:g} values that count, got {effective:g}")


# Elements: scalars, or rows of a vector family.


def weights_of(observation: Observation) -> Tensor | None:
    """Weights of all elements, or the mask; 0 where hidden, None where all count alike."""
    return observation.weight if observation.weight is not None else observation.valid


def weighted_residuals(observation: Observation, *, detach_mean: bool = False) -> tuple[Tensor, Tensor | None]:
    """Residuals of all elements, and weights of the same shape that are 0 where hidden; None for ones."""
    z, weight = residuals_of(_detached(observation, detach_mean)), weights_of(observation)
    if weight is not None and z.dim() > weight.dim():
        weight = weight.unsqueeze(-1).expand(z.shape)
    return z, weight


def valid_residuals(observation: Observation, *, detach_mean: bool = False) -> tuple[Tensor, Tensor]:
    """Residuals of the elements that count, coordinate by coordinate, and their weights. Shapes ``(N,)``."""
    z = counting(residuals_of(_detached(observation, detach_mean)), observation)
    return z.reshape(-1), counting_weight(observation).repeat_interleave(z[:1].numel())


def counting(values: Tensor, observation: Observation) -> Tensor:
    """Values of the elements that count. Shape ``(n, ...)``."""
    dims = len(observation.elements())
    rows = values.reshape(-1, *values.shape[dims:])
    return rows if observation.valid is None else rows[observation.valid.reshape(-1)]


def counting_weight(observation: Observation) -> Tensor:
    """Weights of the elements that count; ones without weights. Shape ``(n,)``."""
    if observation.weight is None:
        return torch.ones(observation.count(), dtype=torch.float64, device=observation.target.device)
    return counting(observation.weight, observation)


def no_values(observation: Observation) -> Tensor:
    """An empty tensor that depends on the prediction: a rank without targets takes part in the backward pass."""
    return torch.cat([parameter.reshape(-1)[:0].to(torch.float64) for parameter in observation.law.parameters])


def _detached(observation: Observation, detach_mean: bool) -> Observation:
    return replace(observation, law=observation.law.detach_location()) if detach_mean else observation


# Draws of a prediction that are differentiable by its parameters.


def check_generator(generator: Any) -> torch.Generator | None:
    """A source of randomness, or None for torch's default."""
    if not (generator is None or isinstance(generator, torch.Generator)):
        raise TypeError(f"expected `generator` a torch.Generator, got {type(generator).__name__}")
    return generator


def reparametrised_draws(observation: Observation, count: int, generator: torch.Generator | None) -> Tensor:
    """Independent draws from every prediction by ``rsample``, or else as quantiles of uniform numbers.

    Args:
        observation: The batch; hidden elements have the draws of a valid one.
        count: Draws per prediction.
        generator: Source of randomness, on the device of the targets; torch's default if None.

    Returns:
        The draws. Shape ``(count, *target.shape)``.

    Raises:
        TypeError: The prediction has neither ``rsample`` nor quantiles.
    """
    with _default_generator_as(generator, observation.target.device):
        draws = _draws(observation, count)
    check_values("pred", "with finite draws", draws.detach(), torch.isfinite(draws))
    return draws


def _draws(observation: Observation, count: int) -> Tensor:
    law, shape = observation.law, observation.target.shape
    pred = law.distribution()
    if pred.has_rsample:
        own = pred.batch_shape + pred.event_shape
        draws: Tensor = pred.rsample(torch.Size((count, *shape[: len(shape) - len(own)])))
        return draws
    if law.family.quantile is None:
        raise TypeError(f"expected `pred` with reparametrised draws (rsample) or quantiles, got {law.name}")
    lower = torch.rand(count, *shape, dtype=torch.float64, device=observation.target.device)
    lower = lower.clamp(min=_LEAST_PROBABILITY)
    return law.push_forward(law.family.quantile(lower, 1 - lower, *law.parameters))


@contextmanager
def _default_generator_as(generator: torch.Generator | None, device: torch.device) -> Iterator[None]:
    """Give torch's default generator the state of ``generator`` for a while: ``rsample`` accepts no generator."""
    if generator is None:
        yield
        return
    if generator.device.type != device.type:
        raise ValueError(f"expected `generator` on the device of `target`, {device}, got {generator.device}")
    default = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]
    before = default.get_state()
    default.set_state(generator.get_state())
    try:
        yield
        generator.set_state(default.get_state())
    finally:
        default.set_state(before)
