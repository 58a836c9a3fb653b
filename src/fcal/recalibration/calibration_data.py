"""Calibration data: valid predictions and targets with their residuals, one row each."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from fcal._checks import check_count
from fcal.distributions.family import Law, law_of
from fcal.distributions.observation import observe
from fcal.residuals import residuals_of


@dataclass(frozen=True)
class CalibrationData:
    """What a recalibrator is fitted on, in float64 and without gradient.

    Attributes:
        law: The valid predictions.
        target: Their targets. Shape ``(n,)``, or ``(n, D)`` for vectors.
        z: Their residuals. Shape of ``target``.
        output: Index of each row in the last dimension of the data; all 0 where it has one dimension. Shape ``(n,)``.
        outputs: Number of outputs.
    """

    law: Law
    target: Tensor
    z: Tensor
    output: Tensor
    outputs: int

    def of_output(self, output: int) -> "CalibrationData":
        """The rows of one output."""
        where = (self.output == output).nonzero().squeeze(1)
        elements = self.target.shape[:1]
        law = self.law.with_leaves([leaf[where] for leaf in self.law.leaves(elements)])
        return CalibrationData(law, self.target[where], self.z[where], torch.zeros_like(where), 1)

    def mean(self, values: Tensor, *, per_output: bool) -> Tensor:
        """Mean over all rows, of shape ``()``, or over the rows of each output, of shape ``(outputs,)``."""
        if not per_output:
            return values.mean()
        totals = values.new_zeros(self.outputs).index_add(0, self.output, values)
        return totals / torch.bincount(self.output, minlength=self.outputs)


@torch.no_grad()
def calibration_data(
    pred: Distribution, target: Tensor, valid_mask: Tensor | None, *, at_least: int
) -> CalibrationData:
    """The valid rows of a prediction and its targets.

    Args:
        pred: Prediction of any registered family.
        target: Targets, NaN where missing.
        valid_mask: True where a target counts.
        at_least: Smallest number of valid targets.

    Raises:
        TypeError: Wrong types, or a family that is not registered.
        ValueError: Shapes or values that do not fit, or too few rows.
    """
    observation = observe(pred, target, valid_mask=valid_mask, widest=True)
    check_count(observation.count(), at_least=at_least)
    law, elements = observation.law, observation.elements()
    event = observation.target.shape[len(elements) :]
    z = residuals_of(observation).reshape(-1, *event)
    y = observation.target.reshape(-1, *event)
    outputs = elements[-1] if len(elements) > 1 else 1
    output = torch.arange(elements.numel(), device=y.device) % outputs
    leaves = [leaf.detach() for leaf in law.leaves(elements)]
    if observation.valid is not None:
        where = observation.valid.reshape(-1).nonzero().squeeze(1)
        z, y, output, leaves = z[where], y[where], output[where], [leaf[where] for leaf in leaves]
    return CalibrationData(law.with_leaves(leaves), y, z, output, outputs)


def elementwise(pred: Distribution) -> Distribution:
    """The prediction without ``Independent``: one distribution per scalar, or per vector of a vector family."""
    while isinstance(pred, Independent):
        pred = pred.base_dist
    law = law_of(pred)
    if len(pred.event_shape) == law.family.event_dim:
        return pred
    return law.distribution().expand(pred.batch_shape + pred.event_shape)


def shaped_like(pred: Distribution, elements: Distribution) -> Distribution:
    """Elementwise distributions with the event dimensions of a prediction."""
    extra = len(pred.event_shape) - len(elements.event_shape)
    return Independent(elements, extra, validate_args=False) if extra else elements


def signature(law: Law) -> str:
    """Family and transforms of a prediction, which must be the same at ``fit`` and ``transform``."""
    return " under ".join([law.kind.__name__, *(type(t).__name__ for t in law.transforms)])
