"""Mean and variance of the residuals z, and of the hyper-constraints q built from them."""

from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor

from fcal.constraints.sums import BatchSums, Scalar

_RELATIVE_SPREAD_FLOOR = 1e-14  # variances below it, relative to the squared mean, are rounding noise
_LEAST_VARIANCE = 1e-280  # and this one has a logarithm


@dataclass(frozen=True)
class Moments(Generic[Scalar]):
    """Mean and variance of a fitted normal law. Shapes ``()``."""

    mean: Scalar
    variance: Scalar


def moments_of_z(sums: BatchSums[Scalar]) -> Moments[Scalar]:
    r"""Mean and unbiased variance of the residuals.

    With weights, :math:`s^2 = \sum w (z - \bar z)^2 / (\sum w - \sum w^2 / \sum w)`: n becomes the effective
    :math:`(\sum w)^2 / \sum w^2`.

    Example:
        >>> from fcal.constraints import SumInputs, SumOptions, batch_sums
        >>> numbers = batch_sums(SumInputs(torch.tensor([1.0, 2.0, 3.0])), SumOptions())
        >>> moments_of_z(BatchSums(*numbers))
        Moments(mean=2.0, variance=1.0)
    """
    mean = sums.z / sums.total
    spread = sums.square - sums.z * mean
    variance = spread / _freedom(sums)
    return Moments(mean, floored(variance, mean))


def moments_of_q(sums: BatchSums[Scalar], df: int, *, finite_batch: bool = True) -> Moments[Scalar]:
    r"""Mean and variance of q, a sum of K squared residuals drawn from the batch without replacement.

    .. math:: E[q] = K \, \overline{z^2}, \qquad Var[q] = K s^2 (1 - K / n)

    with :math:`s^2` the unbiased variance of :math:`z^2`.

    Args:
        sums: Sums of the batch.
        df: Degrees of freedom :math:`K`.
        finite_batch: Remove the factor :math:`1 - K / n`, an artefact of drawing from a finite batch.

    Example:
        >>> from fcal.constraints import SumInputs, SumOptions, batch_sums
        >>> numbers = batch_sums(SumInputs(torch.tensor([0.0, 1.0, 2.0])), SumOptions())
        >>> moments_of_q(BatchSums(*numbers), df=3)
        Moments(mean=5.0, variance=13.0)
    """
    mean = sums.square / sums.total
    variance = (sums.fourth - sums.square * mean) / _freedom(sums)
    if not finite_batch:
        variance = variance * (1 - df * sums.total_square / (sums.total * sums.total))
    return Moments(mean * df, floored(variance, mean) * df)


def _freedom(sums: BatchSums[Scalar]) -> Scalar:
    return sums.total - sums.total_square / sums.total


def floored(variance: Scalar, mean: Scalar) -> Scalar:
    """Keep a variance positive: divergences and their gradients are infinite at zero."""
    if isinstance(variance, Tensor):
        floor = _RELATIVE_SPREAD_FLOOR * mean.detach().square() + _LEAST_VARIANCE
        return torch.where(variance > floor, variance, floor)
    number = _RELATIVE_SPREAD_FLOOR * mean.real * mean.real + _LEAST_VARIANCE
    return variance if variance.real > number else complex(number)
