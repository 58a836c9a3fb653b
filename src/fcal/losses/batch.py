"""What a loss is called with, and the base of all losses."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal._ranks import sum_over_ranks
from fcal.distributions.law import law_of
from fcal.distributions.observation import Observation, observe, result_dtype


class Batch(NamedTuple):
    """A prediction, its targets, and which of them count how much."""

    pred: Distribution
    target: Tensor
    valid_mask: Tensor | None
    weight: Tensor | None

    def device(self) -> torch.device:
        """Where the targets live, also when they turn out not to be a tensor."""
        return self.target.device if isinstance(self.target, Tensor) else torch.device("cpu")

    def dtype(self) -> torch.dtype:
        """Dtype of the loss: that of the inputs, float32 at least."""
        return result_dtype(law_of(self.pred), self.target)

    def observe(self, *, widest: bool = False, anywhere: bool = False, as_given: bool = False) -> Observation:
        """The batch, checked and with what is missing hidden; see :func:`fcal.distributions.observation.observe`."""
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
    """Base of losses: what is called is the same for all, what they do with a batch is :meth:`of_batch`."""

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
            target: Targets, shaped like the prediction's samples; NaN where missing.
            valid_mask: True where a target counts; shaped like ``target`` or its rows. A vector with one missing
                coordinate is missing as a whole, unless the coordinates are ``Independent``.
            weight: Non-negative weights, shaped like ``target`` or its rows; constants for autograd.

        Returns:
            A scalar of the inputs' dtype, float32 at least.
        """
        return self.of_batch(Batch(pred, target, valid_mask, weight))

    def of_batch(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        raise NotImplementedError

    def over_ranks(self, local: Callable[[], Tensor], size: int, batch: Batch) -> Tensor:
        """Sum of what ``local`` returns over the ranks that share the batch. Shape ``(size,)``."""
        return sum_over_ranks(local, size=size, device=batch.device()) if self.sync else local()
