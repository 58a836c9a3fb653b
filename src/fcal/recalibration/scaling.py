"""Temperature and affine scaling: the most likely factor of every scale, and shift of every location."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, LogNormal, LowRankMultivariateNormal, MultivariateNormal

from fcal._checks import check_flag, check_values
from fcal.distributions import AffineMap, Warped
from fcal.distributions.family import Law, law_of
from fcal.distributions.functional import with_cdf
from fcal.distributions.location_scale import LAPLACE, NORMAL
from fcal.recalibration.calibration_data import CalibrationData
from fcal.recalibration.location_and_scale import errors_in_scales, has_scale, location_and_scale, rescaled
from fcal.recalibration.recalibrator import Recalibrator, register

_CLOSE = 1e-12  # of log factors
_STEPS = 200
_LARGEST_POWER = 4.0  # errors that vary more are no matter of scales
_SAME_SCALE = 1e-6  # of logarithms: scales that differ less determine no power


class _Scaling(Recalibrator):
    """Base class of methods that multiply the scale.

    Args:
        per_output: Whether every output, in the last dimension, has a factor of its own.
    """

    def __init__(self, *, per_output: bool = False) -> None:
        self.per_output = check_flag("per_output", per_output)

    @property
    def factor(self) -> Tensor:
        """Factor of the scales. Shape ``()``, or ``(outputs,)``."""
        return self._fitted_tensors()["factor"]

    @property
    def keeps_family(self) -> bool:
        """True, because only location and scale change."""
        return True

    def _options(self) -> dict[str, Any]:
        return {"per_output": self.per_output}

    def _check_law(self, data: CalibrationData) -> None:
        law = data.law
        if law.family.event_dim and law.kind not in (MultivariateNormal, LowRankMultivariateNormal):
            name = type(self).__name__
            raise TypeError(f"expected `pred` of scalars or multivariate normal for {name}, got {law.name}")
        if self.per_output:
            _check_outputs(data)

    def _repaired(self, pred: Distribution, tensors: Mapping[str, Tensor]) -> Distribution:
        factor = tensors["factor"]
        shift = tensors.get("shift", torch.zeros_like(factor))
        if pred.event_shape and shift.dim() and len(shift) != pred.event_shape[-1]:
            raise ValueError(f"expected `pred` of {len(shift)} dimensions like at fit, got {pred.event_shape[-1]}")
        if factor.dim() and (pred.batch_shape[-1:] or (1,))[0] != len(factor):
            shape = tuple(pred.batch_shape)
            raise ValueError(f"expected `pred` with {len(factor)} outputs like at fit, got shape {shape}")
        return rescaled_prediction(pred, shift, factor)


def _check_outputs(data: CalibrationData) -> None:
    """A factor per output needs scalars in two dimensions, and two targets of every output."""
    if data.law.family.event_dim or data.outputs < 2:
        got = data.law.name if data.law.family.event_dim else "one output"
        raise ValueError(f"expected `per_output` with scalar predictions of shape (..., outputs), got {got}")
    counts = torch.bincount(data.output, minlength=data.outputs)
    few = counts < 2
    if bool(few.any()):
        first = int(few.nonzero()[0])
        raise ValueError(f"expected `target` with at least 2 values per output, got {int(counts[first])} of {first}")


@register
class Temperature(_Scaling):
    r"""Temperature scaling: multiplies every predicted scale by the most likely factor on the calibration data.

    For normal predictions the factor is :math:`\sqrt{\overline{z^2}}`, for Laplace ones the mean of
    :math:`|y - \mu| / s`; for other families with a location and a scale the root of the likelihood's derivative, to
    1e-12. Components of a mixture of such families, as an ensemble predicts, move apart by the same factor, so that its
    shape stays. Families without a scale have their residuals divided by :math:`\sqrt{\overline{z^2}}`, the most likely
    factor there. The covariance of a multivariate normal prediction is multiplied by the factor's square.

    It repairs predictions that are over- or under-confident by the same factor everywhere, and needs few data; it
    changes neither the location nor the shape.

    Args:
        per_output: One factor per index of the last dimension, instead of one for all.

    Example:
        >>> from torch.distributions import Normal
        >>> pred = Normal(torch.zeros(4), torch.ones(4))
        >>> repaired = fcal.recalibration.Temperature().fit(pred, torch.tensor([1.0, -3.0, 3.0, 1.0])).transform(pred)
        >>> repaired.scale  # the root of (1 + 9 + 9 + 1) / 4
        tensor([2.2361, 2.2361, 2.2361, 2.2361])
    """

    method = "temperature"
    tensor_names = ("factor",)

    def _fitted(self, data: CalibrationData) -> dict[str, Tensor]:
        data = data.without_wild_rows()
        if is_normal_scale(data.law):
            factor = data.mean(data.z.square(), per_output=self.per_output).sqrt()
        elif data.law.family is LAPLACE:
            factor = data.mean(errors_in_scales(data.law, data.target).abs(), per_output=self.per_output)
        elif self.per_output:
            factor = torch.stack([_best_factor(data.of_output(output)) for output in range(data.outputs)])
        else:
            factor = _best_factor(data)
        check_values("target", "that differ from the predictions (a factor > 0 is fitted)", factor, factor > 0)
        return {"factor": factor}


@register
class Affine(_Scaling):
    r"""Shifts every prediction by b times its scale and multiplies the scale by s: :math:`z' = (z - b) / s`.

    Both are the most likely values on the calibration data: mean and sd of z for normal predictions, median and mean
    absolute deviation for Laplace ones, else by L-BFGS until the gradient is below 1e-9. Families without a location
    and a scale have their residuals shifted and scaled; multivariate normal predictions have their whitened residuals
    shifted by a vector b and scaled by one s.

    Args:
        per_output: A shift and a factor per index of the last dimension, instead of one of each for all.

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
        """The shift b, in scales. Shape ``()``, ``(outputs,)``, or ``(D,)`` for vectors."""
        return self._fitted_tensors()["shift"]

    def _fitted(self, data: CalibrationData) -> dict[str, Tensor]:
        shift, factor = self._most_likely(data.without_wild_rows())
        check_values("target", "whose residuals differ (a scale > 0 is fitted)", factor, factor > 0)
        return {"shift": shift, "factor": factor}

    def _most_likely(self, data: CalibrationData) -> tuple[Tensor, Tensor]:
        if data.law.family.event_dim:
            shift = data.z.mean(0)
            return shift, (data.z - shift).square().mean().sqrt()
        if is_normal_scale(data.law):
            shift = data.mean(data.z, per_output=self.per_output)
            gap = data.z - (shift[data.output] if self.per_output else shift)
            return shift, data.mean(gap.square(), per_output=self.per_output).sqrt()
        if self.per_output:
            fits = [_most_likely_of_scale(data.of_output(output)) for output in range(data.outputs)]
            shifts, factors = zip(*fits, strict=True)
            return torch.stack(shifts), torch.stack(factors)
        return _most_likely_of_scale(data)


@register
class Power(Recalibrator):
    r"""Raises every predicted scale to a power and multiplies it by a factor: :math:`\log s' = a + b \log s`.

    Both are the most likely values on the calibration data, b between 0 and 4. Networks that were trained too long
    often spread their scales too much, small ones being too small and large ones too large (b < 1); averages of several
    networks spread them too little (b > 1). It changes neither the location nor the shape. The scale of a mixture is
    that of all its components together.

    Example:
        Errors of 1 where 0.1 was predicted, and of 2 where 10 was:

        >>> from torch.distributions import Normal
        >>> pred = Normal(torch.zeros(4), torch.tensor([0.1, 0.1, 10.0, 10.0]))
        >>> power = fcal.recalibration.Power().fit(pred, torch.tensor([1.0, -1.0, 2.0, -2.0]))
        >>> power.transform(pred).scale
        tensor([1.0000, 1.0000, 2.0000, 2.0000])
    """

    method = "power"
    tensor_names = ("factor", "exponent", "unit")
    least_rows = 4

    @property
    def keeps_family(self) -> bool:
        """True, because only the scale changes."""
        return True

    def _options(self) -> dict[str, Any]:
        return {}

    def _check_law(self, data: CalibrationData) -> None:
        super()._check_law(data)
        if not has_scale(data.law):
            raise TypeError(f"expected `pred` with a location and a scale for Power, got {data.law.name}")

    def _fitted(self, data: CalibrationData) -> dict[str, Tensor]:
        data = data.without_wild_rows()
        log_scale = location_and_scale(data.law).scale.double().expand(data.z.shape).log()
        middle = log_scale.mean()
        steps = log_scale - middle
        factor = Temperature()._fitted(data)["factor"].double()
        at = torch.stack([factor.log(), torch.full_like(factor, -math.log(_LARGEST_POWER - 1))]).requires_grad_()
        if bool(steps.abs().max() > _SAME_SCALE):
            minimise(lambda: _mean_nll(data, torch.zeros(()), (at[0] + (_power(at[1]) - 1) * steps).exp()), at)
        return {"factor": at.detach()[0].exp(), "exponent": _power(at.detach()[1]), "unit": middle.exp()}

    def _repaired(self, pred: Distribution, tensors: Mapping[str, Tensor]) -> Distribution:
        scale = location_and_scale(law_of(pred)).scale
        factor, exponent, unit = (tensors[name].to(scale) for name in self.tensor_names)
        return rescaled_prediction(pred, torch.zeros(()), factor * (scale / unit).pow(exponent - 1))


def _power(at: Tensor) -> Tensor:
    """A power between 0 and its largest value; 1 at ``-log(largest - 1)``."""
    return _LARGEST_POWER * torch.sigmoid(at)


def _most_likely_of_scale(data: CalibrationData) -> tuple[Tensor, Tensor]:
    """Shift and factor of families whose scale does not multiply the residuals."""
    if data.law.family is not LAPLACE:
        return _best_shift_and_factor(data)
    errors = errors_in_scales(data.law, data.target)
    middle = errors.quantile(0.5) if len(errors) < 10**7 else errors.median()  # quantile() has a size limit
    return middle, (errors - middle).abs().mean()


def is_normal_scale(law: Law) -> bool:
    """Whether rescaling the prediction rescales its residuals: normal families, and families without a scale."""
    return not has_scale(law) or law.family is NORMAL or law.kind is LogNormal


def _mean_nll(data: CalibrationData, shift: Tensor, factor: Tensor) -> Tensor:
    """Mean negative log-likelihood after the shift (in scales) and rescaling, up to a constant."""
    law = rescaled(data.law, shift, factor)
    value, _, _ = law.pull_back(data.target)
    if law.family.log_prob is not None:
        return -law.family.log_prob(value, *law.parameters).mean()
    return -law._replace(transforms=()).distribution().log_prob(value).mean()


def rescaled_prediction(pred: Distribution, shift: Tensor, factor: Tensor) -> Distribution:
    """Elementwise predictions, shifted and rescaled by their parameters where they have a scale, else by residuals."""
    law = law_of(pred)
    if law.family.event_dim:
        return _shifted_vectors(law, shift, factor)
    if has_scale(law):
        return with_cdf(rescaled(law, shift, factor).distribution())
    like = law.parameters[0]
    return Warped(pred, AffineMap(shift.to(like), factor.to(like)))


def _shifted_vectors(law: Law, shift: Tensor, factor: Tensor) -> Distribution:
    """Multivariate normal predictions; the shift is one of whitened residuals."""
    loc, *rest = law.parameters
    factor = factor.to(loc)
    if bool((shift != 0).any()):
        tril = getattr(law.distribution(), "scale_tril")  # noqa: B009 - of both classes, but not of a common base
        per_row = shift.unsqueeze(-1).expand(loc.shape) if shift.shape == loc.shape[:-1] else shift
        loc = loc + (tril @ per_row.to(loc).unsqueeze(-1)).squeeze(-1)
    powers = (1, 2) if law.kind is LowRankMultivariateNormal else (1,)  # covariance factor and diagonal
    scaled = (
        value * factor.pow(power).reshape(factor.shape + (1,) * (value.dim() - factor.dim() if factor.dim() else 0))
        for value, power in zip(rest, powers, strict=True)
    )
    return law._replace(parameters=(loc, *scaled)).distribution()


def _best_factor(data: CalibrationData) -> Tensor:
    """The most likely factor, to a relative error of 1e-12: a root of the derivative of the likelihood."""

    def slope(log_factor: float) -> float:
        with torch.enable_grad():
            at = torch.tensor(log_factor, dtype=torch.float64, requires_grad=True)
            (gradient,) = torch.autograd.grad(_mean_nll(data, torch.zeros(()), at.exp()), at)
        return float(gradient)

    size = errors_in_scales(data.law, data.target).abs().median().clamp(min=1e-300).log()
    return torch.tensor(math.exp(_root(slope, float(size))), dtype=torch.float64)


def _root(rising: Callable[[float], float], start: float) -> float:
    """Root of an increasing function: a bracket by doubling steps, then regula falsi (Illinois)."""
    low = high = start
    f_low = f_high = rising(start)
    step = 1.0
    while f_low > 0 and step < 1e3:
        low, step = low - step, 2 * step
        f_low = rising(low)
    step = 1.0
    while f_high < 0 and step < 1e3:
        high, step = high + step, 2 * step
        f_high = rising(high)
    if f_low > 0 or f_high < 0:
        raise ValueError("expected `target` for which one scale is the most likely, got residuals without such a scale")
    kept = 0  # the end that was kept; kept twice, its value is halved so that it moves
    for _ in range(_STEPS):
        if high - low < _CLOSE or f_low == 0 or f_high == 0:
            break
        middle = (low * f_high - high * f_low) / (f_high - f_low)
        f_middle = rising(middle)
        if f_middle > 0:
            f_low = f_low / 2 if kept < 0 else f_low
            high, f_high, kept = middle, f_middle, -1
        else:
            f_high = f_high / 2 if kept > 0 else f_high
            low, f_low, kept = middle, f_middle, 1
    return low if abs(f_low) < abs(f_high) else high


def _best_shift_and_factor(data: CalibrationData) -> tuple[Tensor, Tensor]:
    """The most likely shift and factor, by L-BFGS until the gradient is below 1e-9."""
    errors = errors_in_scales(data.law, data.target)
    middle = errors.median()
    size = (errors - middle).abs().median().clamp(min=1e-300)
    # The shift is measured from the median, in units of the size.
    at = torch.stack([torch.zeros_like(middle), size.log()]).requires_grad_()
    minimise(lambda: _mean_nll(data, middle + size * at[0], at[1].exp()), at)
    return (middle + size * at[0]).detach(), at[1].exp().detach()


def minimise(function: Callable[[], Tensor], at: Tensor) -> None:
    """Minimise a smooth function of a small float64 tensor in place, until its gradient is below 1e-9."""
    optimizer = torch.optim.LBFGS(
        [at], max_iter=_STEPS, tolerance_grad=1e-9, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimizer.zero_grad()
        loss = function()
        loss.backward()
        return loss.item()

    with torch.enable_grad():
        optimizer.step(closure)
