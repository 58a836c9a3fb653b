r"""Moments of the residuals z and of the hyper-constraints q, sums of K squared residuals.

The moments follow from a few sums over the batch (:class:`BatchSums`), which are additive: chunks and ranks add up. The
exact moments of q need no random draws; :func:`sampled_moments_of_q` draws them as the paper does.
"""

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

_RELATIVE_SPREAD_FLOOR = 1e-14  # a variance below it, relative to the squared mean, is rounding noise
_LEAST_VARIANCE = 1e-280  # its logarithm is finite

Scalar = TypeVar("Scalar", Tensor, complex)


class BatchSums(NamedTuple, Generic[Scalar]):
    r"""Sums over a batch, with weights :math:`w`: scalar tensors or numbers.

    Attributes:
        total: :math:`\sum w`.
        total_square: :math:`\sum w^2`.
        z: :math:`\sum w z`.
        square: :math:`\sum w z^2`.
        fourth: :math:`\sum w z^4`.
        nll: :math:`\sum w \ell`, with :math:`\ell` the negative log-likelihood; 0 where it is not needed.
    """

    total: Scalar
    total_square: Scalar
    z: Scalar
    square: Scalar
    fourth: Scalar
    nll: Scalar


SIZE = len(BatchSums._fields)


@dataclass(frozen=True)
class Moments(Generic[Scalar]):
    """Mean and variance of the fitted normal distribution. Shapes ``()``."""

    mean: Scalar
    variance: Scalar


def residual_sums(z: Tensor, weight: Tensor | None = None) -> Tensor:
    """The sums of :class:`BatchSums` as one differentiable float64 vector, with 0 for the negative log-likelihood.

    Args:
        z: Residuals of any shape.
        weight: Weights or a mask of the same shape; None for ones.

    Returns:
        The sums. Shape ``(SIZE,)``.

    Example:
        >>> residual_sums(torch.tensor([1.0, -2.0, 1.0]))
        tensor([ 3.,  3.,  0.,  6., 18.,  0.], dtype=torch.float64)
    """
    z = z.to(torch.float64)
    weight = torch.ones_like(z) if weight is None else weight.to(torch.float64)
    square = z.square()
    terms = [weight, weight.square(), weight * z, weight * square, weight * square.square()]
    return torch.stack([term.sum() for term in terms] + [z.new_zeros(())])


def moments_of_z(sums: BatchSums[Scalar]) -> Moments[Scalar]:
    r"""Mean and unbiased variance of the residuals.

    With weights, :math:`s^2 = \sum w (z - \bar z)^2 / (\sum w - \sum w^2 / \sum w)`: n becomes the effective
    :math:`(\sum w)^2 / \sum w^2`.

    Example:
        >>> moments_of_z(BatchSums(*residual_sums(torch.tensor([1.0, 2.0, 3.0])).tolist()))
        Moments(mean=2.0, variance=1.0)
    """
    mean = sums.z / sums.total
    spread = sums.square - sums.z * mean
    variance = spread / _unbiased_divisor(sums)
    return Moments(mean, _floored(variance, mean))


def moments_of_q(sums: BatchSums[Scalar], df: int, *, finite_batch: bool = True) -> Moments[Scalar]:
    r"""Mean and variance of q, a sum of K squared residuals drawn from the batch without replacement.

    .. math:: E[q] = K \, \overline{z^2}, \qquad Var[q] = K s^2 (1 - K / n)

    with :math:`s^2` the unbiased variance of :math:`z^2`.

    Args:
        sums: Sums of the batch.
        df: Degrees of freedom :math:`K`.
        finite_batch: Remove the factor :math:`1 - K / n`, an artefact of drawing from a finite batch.

    Example:
        >>> moments_of_q(BatchSums(*residual_sums(torch.tensor([0.0, 1.0, 2.0])).tolist()), df=3)
        Moments(mean=5.0, variance=13.0)
    """
    mean = sums.square / sums.total
    variance = (sums.fourth - sums.square * mean) / _unbiased_divisor(sums)
    if not finite_batch:
        variance = variance * (1 - df * sums.total_square / (sums.total * sums.total))
    return Moments(mean * df, _floored(variance, mean) * df)


def sampled_moments_of_q(
    z: Tensor,
    df: int,
    draws: int,
    *,
    weight: Tensor | None = None,
    finite_batch: bool = True,
    generator: torch.Generator | None = None,
) -> Moments[Tensor]:
    r"""Mean and unbiased variance of q over random draws from the batch, the estimator of the paper.

    With many draws it converges to :func:`moments_of_q` with the same ``finite_batch``: the sample variance over draws
    without replacement contains the factor :math:`1 - K / N`, which ``finite_batch`` divides out (at N = K every draw
    is the whole batch, and the variance is zero either way).

    Args:
        z: Residuals that count. Shape ``(N,)``.
        df: Degrees of freedom :math:`K`, at most N.
        draws: Number of draws :math:`H`, at least 2.
        weight: Weights; with them, draws are with replacement. Shape ``(N,)``.
        finite_batch: As for :func:`moments_of_q`.
        generator: Source of randomness; torch's default if None.

    Example:
        >>> sampled_moments_of_q(torch.ones(10), 5, 100).mean
        tensor(5., dtype=torch.float64)
    """
    if weight is None:
        indices = draw_indices(z.numel(), df, draws, generator=generator, device=z.device)
        remaining = 1 - df / z.numel()
        factor = (1 / remaining if remaining else 1.0) if finite_batch else 1.0
    else:
        indices = weighted_indices(weight, df, draws, generator=generator)
        effective = float(weight.sum().square() / weight.square().sum())
        factor = effective / (effective - 1) * (1.0 if finite_batch else 1 - df / effective)
    q = z.to(torch.float64)[indices].square().sum(1)
    mean = q.mean()
    return Moments(mean, df * _floored(factor * q.var() / df, mean / df))


def draw_indices(count: int, df: int, draws: int, *, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Independent random subsets without replacement, by Floyd's algorithm for all draws at once.

    Args:
        count: Number of elements to draw from.
        df: Elements in a draw, at most ``count``.
        draws: Number of draws.
        generator: Source of randomness; torch's default if None.
        device: Device of the result; random numbers come from the device of the generator.

    Returns:
        Indices below ``count``, all different within a row. Shape ``(draws, df)``.

    Example:
        >>> draw_indices(3, 3, 1, generator=None, device=torch.device("cpu")).sort().values
        tensor([[0, 1, 2]])
    """
    source = device if generator is None else generator.device
    uniform = torch.rand(draws, df, dtype=torch.float64, generator=generator, device=source).to(device)
    tops = torch.arange(count - df, count, device=device)
    picks = (uniform * (tops + 1)).long().minimum(tops)
    chosen = torch.full_like(picks, -1)
    for step in range(df):
        pick = picks[:, step]
        taken = (chosen[:, :step] == pick.unsqueeze(1)).any(1)
        chosen[:, step] = torch.where(taken, tops[step], pick)
    return chosen


def weighted_indices(weight: Tensor, df: int, draws: int, *, generator: torch.Generator | None) -> Tensor:
    """Random draws in proportion to weights; with replacement, so that the mean of q is the weighted one.

    Args:
        weight: Non-negative weights. Shape ``(N,)``.
        df: Elements in a draw.
        draws: Number of draws.
        generator: Source of randomness; torch's default if None.

    Returns:
        Indices below N. Shape ``(draws, df)``.

    Example:
        >>> weighted_indices(torch.tensor([0.0, 1.0]), 2, 1, generator=None)
        tensor([[1, 1]])
    """
    source = weight.device if generator is None else generator.device
    uniform = torch.rand(draws, df, dtype=torch.float64, generator=generator, device=source).to(weight.device)
    cumulative = weight.to(torch.float64).cumsum(0)
    indices = torch.searchsorted(cumulative, uniform * cumulative[-1], right=True)
    last = weight.nonzero().max()
    return indices.clamp(max=int(last))


def _unbiased_divisor(sums: BatchSums[Scalar]) -> Scalar:
    return sums.total - sums.total_square / sums.total


def _floored(variance: Scalar, mean: Scalar) -> Scalar:
    """Keep a variance positive: divergences and their gradients are infinite at zero."""
    if isinstance(variance, Tensor):
        floor = _RELATIVE_SPREAD_FLOOR * mean.detach().square() + _LEAST_VARIANCE
        return torch.where(variance > floor, variance, floor)
    number = _RELATIVE_SPREAD_FLOOR * mean.real * mean.real + _LEAST_VARIANCE
    return variance if variance.real > number else complex(number)
