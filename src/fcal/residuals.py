"""Residuals: predictions and targets in, draws of N(0, 1) out when the prediction is right."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._arrays import as_observed
from fcal._checks import check_pair, check_values
from fcal.distributions import quantile
from fcal.distributions.family import Law, family_residual, law_of
from fcal.distributions.implicit import attach
from fcal.distributions.observation import Observation, observe

__all__ = ["standardize", "unstandardize"]

_FARTHEST = 37.5  # beyond it the tail probability is subnormal in float64


def standardize(pred: Distribution, target: Any, *, valid_mask: Any = None) -> Tensor:
    r"""Residuals z that follow N(0, 1) when the prediction is right.

    .. math:: z = \Phi^{-1}(F(y))

    For a normal prediction this is :math:`(y - \mu) / \sigma`; a multivariate normal is whitened by the Cholesky
    factor of its covariance. Other families use the logarithm of the nearer tail, so that no probability rounds to 0 or
    1 and the gradient is accurate however far out y lies.

    Args:
        pred: Prediction of any registered family, also inside ``Independent`` or under monotone transforms.
        target: Targets :math:`y`, shaped like samples of ``pred``; NaN where missing. A tensor, or an array, series or
            list, as is the mask.
        valid_mask: True where a target counts; shaped like ``target`` or its rows.

    Returns:
        Residuals, shaped like ``target``; NaN where a target is missing, zero at the predicted median.

    Raises:
        TypeError: The family is not registered, or the dtypes are wrong.
        ValueError: Shapes do not match, parameters are out of range, or a target is outside the support.

    Note:
        Half precision is widened to float32; families other than Normal compute in float64 and return the input's
        dtype.

    Example:
        >>> from torch.distributions import Laplace, Normal
        >>> fcal.standardize(Normal(torch.tensor([1.0]), torch.tensor([2.0])), torch.tensor([5.0]))
        tensor([2.])
        >>> fcal.standardize(Laplace(torch.tensor([0.0]), torch.tensor([1.0])), torch.tensor([500.0]))
        tensor([31.5063])
    """
    observation = observe(pred, **as_observed(target=target, valid_mask=valid_mask))
    return observation.hide(residuals_of(observation), torch.nan).to(observation.dtype)


def unstandardize(pred: Distribution, z: Tensor) -> Tensor:
    r"""The value whose residual is z, :math:`F^{-1}(\Phi(z))`.

    The inverse of :func:`standardize` for scalar families; it maps normal draws to draws of the prediction.

    Args:
        pred: Prediction of a scalar family.
        z: Residuals within [-37.5, 37.5], shaped like samples of ``pred``; NaN is refused.

    Returns:
        Values, shaped like ``z``.

    Example:
        >>> from torch.distributions import Exponential
        >>> law = Exponential(torch.tensor([1.0]))
        >>> fcal.residuals.unstandardize(law, torch.tensor([0.0]))  # the median, log 2
        tensor([0.6931])
    """
    check_pair(pred, z, "z")
    check_values("z", f"within [-{_FARTHEST:g}, {_FARTHEST:g}]", z.detach(), z.abs() <= _FARTHEST)
    wide = z.detach().to(torch.float64)
    lower = 0.5 * torch.erfc(-wide * math.sqrt(0.5))
    upper = 0.5 * torch.erfc(wide * math.sqrt(0.5))
    value = quantile(pred, lower, upper)
    if z.requires_grad:
        slope = _slope_of_value(pred, value.detach())
        value = value + attach(torch.zeros_like(wide), (z.to(torch.float64),), (slope,))
    return value.to(torch.promote_types(z.dtype, torch.float32))


def _slope_of_value(pred: Distribution, value: Tensor) -> Tensor:
    """Derivative of a value by its residual, without the probability, which underflows; 0 at an end of the support."""
    law = law_of(pred)
    law = law.map(lambda p, _: p.detach().to(torch.float64), lambda p: p.detach().to(torch.float64))
    with torch.enable_grad():
        value = value.requires_grad_()
        (slope,) = torch.autograd.grad(_residuals(law, value).sum(), value)
    return torch.nan_to_num(1 / slope, nan=0.0)


def scaled_errors(target: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r"""Errors in units of the scale, :math:`(y - \mu) / \sigma`: the residuals of a normal prediction, unchecked.

    The fused pass calls it chunk by chunk and without autograd. One new tensor is allocated.
    """
    return torch.sub(target, loc).div_(scale)


def residuals_of(observation: Observation) -> Tensor:
    """Residuals of an observation in its working precision; hidden elements have those of a valid one."""
    law, z = observation.law, _residuals(observation.law, observation.target)
    if z.shape != observation.target.shape:
        raise ValueError(
            f"expected {law.name} residuals of shape {tuple(observation.target.shape)}, got {tuple(z.shape)}"
        )
    good = observation.hide(torch.isfinite(z.detach()), True)
    check_values("target", f"possible under {law.name}", observation.target.detach(), good)
    return z


def _residuals(law: Law, target: Tensor) -> Tensor:
    inner, direction, _ = law.pull_back(target)
    z = family_residual(law.family, inner, *law.parameters)
    return direction * z if law.transforms else z
