"""What a loss is called with."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

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
