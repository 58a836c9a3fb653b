"""What the repairs of a scale share: one factor for all, or one per output."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_flag
from fcal.recalibration.location_scale import check_vector
from fcal.recalibration.recalibrator import Recalibrator
from fcal.recalibration.rows import Rows


class ScaleRepair(Recalibrator):
    """Base of repairs that multiply the scale.

    Args:
        per_output: Whether every output, in the last dimension, has a factor of its own.
    """

    def __init__(self, *, per_output: bool = False) -> None:
        self.per_output = check_flag("per_output", per_output)

    @property
    def factor(self) -> Tensor:
        """What scales are multiplied by. Shape ``()``, or ``(outputs,)``."""
        return self._fitted_tensors()["factor"]

    def _options(self) -> dict[str, Any]:
        return {"per_output": self.per_output}

    def _check_law(self, rows: Rows) -> None:
        check_vector(rows.law, type(self).__name__)
        check_outputs(rows, self.per_output)


def check_outputs(rows: Rows, per_output: bool) -> None:
    """What a number for each output needs: scalars in two dimensions, and data for every output."""
    if not per_output:
        return
    if rows.law.family.event_dim or rows.outputs < 2:
        got = rows.law.name if rows.law.family.event_dim else "one output"
        raise ValueError(f"expected `per_output` with scalar predictions of shape (..., outputs), got {got}")
    counts = torch.bincount(rows.output, minlength=rows.outputs)
    few = counts < 2
    if bool(few.any()):
        first = int(few.nonzero()[0])
        raise ValueError(f"expected `target` with at least 2 values per output, got {int(counts[first])} of {first}")


def check_width(pred: Distribution, numbers: Tensor) -> None:
    """Refuse predictions with another number of outputs than at fit."""
    if numbers.dim() and (pred.batch_shape[-1:] or (1,))[0] != len(numbers):
        shape = tuple(pred.batch_shape)
        raise ValueError(f"expected `pred` with {len(numbers)} outputs like at fit, got shape {shape}")
