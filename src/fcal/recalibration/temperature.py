"""One factor on every predicted sigma."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_flag, check_values
from fcal.recalibration.location_scale import (
    best_factor,
    check_vector,
    errors_in_scales,
    is_laplace,
    normal_scale,
    repaired,
)
from fcal.recalibration.recalibrator import Recalibrator, add
from fcal.recalibration.rows import Rows


@add
class Temperature(Recalibrator):
    r"""Multiplies every predicted scale by one factor, the most likely one on the calibration data.

    For normal predictions the factor is :math:`\sqrt{\overline{z^2}}`, for Laplace ones the mean of
    :math:`|y - \mu| / s`; for other laws with a location and a scale the root of the likelihood's slope, to 1e-12. Laws
    without a scale have their residuals divided by :math:`\sqrt{\overline{z^2}}`, which is the most likely factor
    there. A multivariate normal prediction has its covariance multiplied by the factor's square.

    It repairs predictions that are over- or under-confident by the same factor everywhere, and needs few data; it
    changes neither the mean nor the shape.

    Args:
        per_output: One factor for each index of the last dimension, instead of one for all.

    Example:
        >>> from torch.distributions import Normal
        >>> pred = Normal(torch.zeros(4), torch.ones(4))
        >>> repaired = fcal.recalibration.Temperature().fit(pred, torch.tensor([1.0, -3.0, 3.0, 1.0])).transform(pred)
        >>> repaired.scale  # the root of (1 + 9 + 9 + 1) / 4
        tensor([2.2361, 2.2361, 2.2361, 2.2361])
    """

    method = "temperature"
    tensor_names = ("factor",)

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

    def _fitted(self, rows: Rows) -> dict[str, Tensor]:
        if rows.law.family.event_dim:
            factor = rows.z.square().mean().sqrt()
        elif normal_scale(rows.law):
            factor = rows.mean(rows.z.square(), per_output=self.per_output).sqrt()
        elif is_laplace(rows.law):
            factor = rows.mean(errors_in_scales(rows).abs(), per_output=self.per_output)
        elif self.per_output:
            factor = torch.stack([best_factor(rows.of(output)) for output in range(rows.outputs)])
        else:
            factor = best_factor(rows)
        check_values("target", "that differ from the predictions (a factor > 0 is fitted)", factor, factor > 0)
        return {"factor": factor}

    def _repaired(self, pred: Distribution, tensors: Mapping[str, Tensor]) -> Distribution:
        factor = tensors["factor"]
        check_width(pred, factor)
        return repaired(pred, torch.zeros_like(factor), factor)


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
