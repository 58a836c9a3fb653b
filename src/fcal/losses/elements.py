"""The elements of a batch that count, one below the other, for losses that look at all of them together."""

from typing import NamedTuple

import torch
from torch import Tensor

from fcal.distributions.observation import Observation
from fcal.residuals import residuals_of


class PITValues(NamedTuple):
    """Probability integral transforms, uniform on [0, 1] when the predictions are right.

    Attributes:
        values: :math:`F(y)` of every scalar; for a vector family, one per coordinate of its whitened residual.
            Shape ``(N,)``.
        weight: Their weights, one where there are none. Shape ``(N,)``.
    """

    values: Tensor
    weight: Tensor


def pit_values(observation: Observation) -> PITValues:
    """Transforms of the elements that count, in float64."""
    if is_empty(observation):
        return PITValues(*nothing(observation))
    z, weight = counting_residuals(observation)
    return PITValues(torch.special.ndtr(z), weight)


def counting_residuals(observation: Observation) -> tuple[Tensor, Tensor]:
    """Residuals of the elements that count, coordinate by coordinate, and their weights. Shapes ``(N,)``."""
    z = counting(residuals_of(observation), observation)
    return z.reshape(-1), element_weight(observation).repeat_interleave(z[:1].numel())


def is_empty(observation: Observation) -> bool:
    """Whether no element counts."""
    return not observation.count()


def nothing(observation: Observation) -> tuple[Tensor, Tensor]:
    """No values and no weights, but hanging on the prediction: a rank without targets takes part in backward."""
    values = torch.cat([parameter.reshape(-1)[:0].to(torch.float64) for parameter in observation.law.parameters])
    return values, values.detach()


def counting(values: Tensor, observation: Observation) -> Tensor:
    """The elements that count. Shape of ``values``, with the dimensions of the elements made one."""
    dims = len(observation.elements())
    rows = values.reshape(-1, *values.shape[dims:])
    return rows if observation.valid is None else rows[observation.valid.reshape(-1)]


def element_weight(observation: Observation) -> Tensor:
    """Weights of the elements that count; ones where there are none. Shape ``(n,)``."""
    if observation.weight is None:
        return torch.ones(observation.count(), dtype=torch.float64, device=observation.target.device)
    return counting(observation.weight, observation)
