"""One factor on every predicted sigma."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_values
from fcal.recalibration.location_scale import (
    best_factor,
    errors_in_scales,
    is_laplace,
    normal_scale,
    repaired,
)
from fcal.recalibration.recalibrator import add
from fcal.recalibration.rows import Rows
from fcal.recalibration.scale_repair import ScaleRepair, check_width


@add
class Temperature(ScaleRepair):
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
