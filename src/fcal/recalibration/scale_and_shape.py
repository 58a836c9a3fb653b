"""Scale and shape of the residuals in one repair: a factor, and the observed shape as far as the data show one."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal.distributions import PiecewiseLinear, Warped
from fcal.recalibration.calibration_data import CalibrationData
from fcal.recalibration.quantile_maps import centred_map
from fcal.recalibration.recalibrator import Recalibrator, register
from fcal.recalibration.scaling import Temperature, is_normal_scale
from fcal.residuals import standardize

_ENOUGH_FOR_SHAPE = 200  # rows
_FOLDS = 5
_MOST_COMPARED = 200_000  # rows: more would not change the weight
_DOUBT = 2.0  # standard errors
_LARGEST_GAIN = 2.0  # nats
_CUT = 4.0  # robust standard deviations
_MEDIAN_SIZE = 0.6744897501960817  # of a standard normal number
# Mean of the smaller of the square of a standard normal number and of the cut.
_CUT_VARIANCE = math.erf(_CUT / math.sqrt(2)) - 2 * _CUT * math.exp(-(_CUT**2) / 2) / math.sqrt(2 * math.pi)
_CUT_VARIANCE += _CUT**2 * math.erfc(_CUT / math.sqrt(2))


@register
class ScaleAndShape(Recalibrator):
    r"""Temperature scaling, then the observed shape of the residuals, weighted by how clearly the data show it.

    The factor is that of :class:`Temperature`, with residuals beyond four robust standard deviations cut off where it
    would be their root mean square. The rescaled residuals z have the map g of ``Conformal(centred=True)``, which
    repairs their shape around the median, and predictions are repaired by

    .. math:: z' = (1 - w) z + w\, g(z), \qquad w = \min(\max((t + 2) / 4, 0), 1)

    where t is the gain of g in cross-validated log-likelihood over a factor alone, in standard errors; the gain of a
    single row counts as 2 nats at most. With t below
    -2 the shape stays as predicted, and the family with it; above 2 the shape is the observed one. Because the weight
    is continuous, no single row decides between two different repairs, as it may where the better of two is chosen.

    The median of every prediction stays where it is, but that of skewed families with a location and a scale, such as
    Gumbel, moves with the scale. With fewer than 200 rows the weight is 0.

    Example:
        >>> from torch.distributions import Laplace, Normal
        >>> pred, target = Normal(torch.zeros(999), 1.0), Laplace(0.0, 1.0).icdf(torch.arange(1, 1000) / 1000)
        >>> repair = fcal.recalibration.ScaleAndShape().fit(pred, target)
        >>> repair.weight  # the errors are not normal
        1.0
        >>> repair.transform(pred).icdf(torch.tensor(0.75))[0]  # log 2 is the quartile of the Laplace distribution
        tensor(0.69...)
    """

    method = "scale-and-shape"
    tensor_names = ("factor", "weight", "x", "y", "slopes")

    @property
    def factor(self) -> Tensor:
        """Factor of the scales. Shape ``()``."""
        return self._fitted_tensors()["factor"]

    @property
    def weight(self) -> float:
        """Weight of the observed shape, from 0 to 1."""
        return float(self._fitted_tensors()["weight"])

    @property
    def keeps_family(self) -> bool:
        """Whether the shape stays as predicted."""
        return not self.weight

    def _options(self) -> dict[str, Any]:
        return {}

    def _fitted(self, data: CalibrationData) -> dict[str, Tensor]:
        factor = _factor(data)
        z = _rescaled_residuals(data, factor)
        weight = _weight_of_shape(z, ~data.wild)
        shape = centred_map(z[~data.wild].abs().sort().values) if weight else _identity(z)
        blended = {name: torch.lerp(plain, shape[name], weight) for name, plain in _unchanged(shape).items()}
        return {"factor": factor, "weight": z.new_tensor(weight), "x": shape["x"], **blended}

    def _repaired(self, pred: Distribution, tensors: Mapping[str, Tensor]) -> Distribution:
        scaled = Temperature()._repaired(pred, tensors)
        if not float(tensors["weight"]):
            return scaled
        below, above = tensors["slopes"].tolist()
        return Warped(scaled, PiecewiseLinear(tensors["x"], tensors["y"], below=below, above=above))


def _factor(data: CalibrationData) -> Tensor:
    """The most likely factor; of residuals, with the largest ones cut off."""
    factor = _cut_factor(data.without_wild_rows().z) if is_normal_scale(data.law) else None
    return Temperature()._fitted(data)["factor"] if factor is None else factor


def _cut_factor(z: Tensor) -> Tensor | None:
    """Root mean square of residuals that are cut off as in a normal distribution; None if half of them are 0."""
    size = z.abs()
    spread = size.median() / _MEDIAN_SIZE
    return size.clamp(max=_CUT * spread).square().mean().div(_CUT_VARIANCE).sqrt() if bool(spread > 0) else None


def _rescaled_residuals(data: CalibrationData, factor: Tensor) -> Tensor:
    """Residuals of predictions whose scale is multiplied. Shape ``(n,)``."""
    if is_normal_scale(data.law):
        return data.z / factor
    scaled = Temperature()._repaired(data.law.distribution(), {"factor": factor})
    return standardize(scaled, data.target)


def _identity(like: Tensor) -> dict[str, Tensor]:
    ends = like.new_tensor([-1.0, 1.0])
    return {"x": ends, "y": ends, "slopes": torch.ones_like(ends)}


def _unchanged(shape: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The identity at the knots of a map."""
    return {"y": shape["x"], "slopes": torch.ones_like(shape["slopes"])}


def _weight_of_shape(z: Tensor, counts: Tensor) -> float:
    """Weight by the gain of the shape in cross-validated log-likelihood, in standard errors.

    The folds depend on the number of rows alone, so that rows which do not count leave the others where they are.
    """
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))[:_MOST_COMPARED].to(z.device)
    if int(counts[order].sum()) < _ENOUGH_FOR_SHAPE or not bool(z[counts].abs().median() > 0):
        return 0.0
    gains = []
    for fold in range(_FOLDS):
        rows = order[fold::_FOLDS]
        others = torch.cat([order[other::_FOLDS] for other in range(_FOLDS) if other != fold])
        gains.append(_gains(z[others[counts[others]]], z[rows[counts[rows]]]))
    gain = torch.cat(gains)
    error = float(gain.std()) * math.sqrt(len(gain))
    return min(max((float(gain.sum()) / error + _DOUBT) / (2 * _DOUBT), 0.0), 1.0) if error else 0.0


def _gains(fitted: Tensor, judged: Tensor) -> Tensor:
    """Gain in log-likelihood of judged residuals by the shape of the fitted ones, over their factor alone."""
    shape = centred_map(fitted.abs().sort().values)
    below, above = shape["slopes"].tolist()
    value, log_slope = PiecewiseLinear(shape["x"], shape["y"], below=below, above=above).value_and_log_slope(judged)
    factor = _cut_factor(fitted)
    if factor is None:
        factor = fitted.square().mean().sqrt()
    gain = (log_slope - value.square() / 2) - (-factor.log() - (judged / factor).square() / 2)
    return gain.clamp(-_LARGEST_GAIN, _LARGEST_GAIN)  # no single row decides
