"""Losses that are a mean over elements, and how that mean is taken over masks, weights and ranks."""

from functools import partial

import torch
from torch import Tensor

from fcal._checks import check_count, check_flag, is_tracing
from fcal.distributions.observation import Observation
from fcal.losses.batch import Batch, BatchLoss
from fcal.losses.elements import is_empty, nothing


class MeanLoss(BatchLoss):
    """Base of losses that average :meth:`element_loss` over the elements that count, of all ranks together.

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

    widest = True  # whether the elements are computed in float64 whatever the inputs are
    anywhere = False  # whether targets may lie outside of the prediction's support

    def __init__(self, *, sync: bool = True) -> None:
        super().__init__()
        self.sync = check_flag("sync", sync)

    def element_loss(self, observation: Observation) -> Tensor:
        """Loss of every element, unreduced; hidden elements may hold anything."""
        raise NotImplementedError

    def of_batch(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        local = partial(self._local_sums, batch)
        total, count = self.over_ranks(local, 2, batch).unbind()
        if not is_tracing() and not count.item() > 0:
            check_count(0, at_least=1)
        return (total / count).to(batch.dtype())

    def _local_sums(self, batch: Batch) -> Tensor:
        observation = batch.observe(widest=self.widest, anywhere=self.anywhere)
        if not is_tracing() and is_empty(observation):
            values, _ = nothing(observation)
            return torch.stack([values.sum(), observation.total_weight()])
        values = observation.hide(self.element_loss(observation), 0.0).to(torch.float64)
        if observation.weight is not None:
            values = values * observation.weight
        return torch.stack([observation.event_size() * values.sum(), observation.total_weight()])
