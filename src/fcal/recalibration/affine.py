"""A shift of every predicted mean, in sigmas, and a factor on every sigma."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_values
from fcal.recalibration.location_scale import (
    best_shift_and_factor,
    errors_in_scales,
    is_laplace,
    normal_scale,
    repaired,
)
from fcal.recalibration.recalibrator import add
from fcal.recalibration.rows import Rows
from fcal.recalibration.scale_repair import ScaleRepair, check_width


@add
class Affine(ScaleRepair):
    r"""Moves every prediction by b of its scales and multiplies the scale by s: :math:`z' = (z - b) / s`.

    Both are the most likely ones on the calibration data: mean and sd of z for normal predictions, median and mean
    absolute deviation for Laplace ones, else by L-BFGS until the likelihood's slopes are below 1e-9. Laws without a
    location and a scale have their residuals moved; a multivariate normal prediction its whitened residuals, by a
    vector b and one s.

    Args:
        per_output: Two numbers for each index of the last dimension, instead of two for all.

    Example:
        >>> from torch.distributions import Normal
        >>> pred = Normal(torch.zeros(4), torch.ones(4))
        >>> repaired = fcal.recalibration.Affine().fit(pred, torch.tensor([1.0, 3.0, 1.0, 3.0])).transform(pred)
        >>> repaired.loc, repaired.scale
        (tensor([2., 2., 2., 2.]), tensor([1., 1., 1., 1.]))
    """

    method = "affine"
    tensor_names = ("shift", "factor")

    @property
    def shift(self) -> Tensor:
        """The bias b, in scales. Shape ``()``, ``(outputs,)``, or ``(D,)`` for vectors."""
        return self._fitted_tensors()["shift"]

    def _fitted(self, rows: Rows) -> dict[str, Tensor]:
        shift, factor = self._most_likely(rows)
        check_values("target", "whose residuals differ (a scale > 0 is fitted)", factor, factor > 0)
        return {"shift": shift, "factor": factor}

    def _most_likely(self, rows: Rows) -> tuple[Tensor, Tensor]:
        if rows.law.family.event_dim:
            shift = rows.z.mean(0)
            return shift, (rows.z - shift).square().mean().sqrt()
        if normal_scale(rows.law):
            shift = rows.mean(rows.z, per_output=self.per_output)
            gap = rows.z - (shift[rows.output] if self.per_output else shift)
            return shift, rows.mean(gap.square(), per_output=self.per_output).sqrt()
        if self.per_output:
            found = [_of_others(rows.of(output)) for output in range(rows.outputs)]
            shifts, factors = zip(*found, strict=True)
            return torch.stack(shifts), torch.stack(factors)
        return _of_others(rows)

    def _repaired(self, pred: Distribution, tensors: Mapping[str, Tensor]) -> Distribution:
        shift, factor = tensors["shift"], tensors["factor"]
        if not pred.event_shape:
            check_width(pred, factor)
        elif len(shift) != pred.event_shape[-1]:
            raise ValueError(f"expected `pred` of {len(shift)} dimensions like at fit, got {pred.event_shape[-1]}")
        return repaired(pred, shift, factor)


def _of_others(rows: Rows) -> tuple[Tensor, Tensor]:
    """Shift and factor of laws whose scale does not multiply the residuals."""
    if not is_laplace(rows.law):
        return best_shift_and_factor(rows)
    errors = errors_in_scales(rows)
    middle = errors.quantile(0.5) if len(errors) < 10**7 else errors.median()  # quantile() has a limit
    return middle, (errors - middle).abs().mean()
