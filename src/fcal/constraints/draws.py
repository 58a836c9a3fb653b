"""The paper's estimator: hyper-constraints from random draws, all draws at once."""

import torch
from torch import Tensor

from fcal.constraints.moments import Moments, floored


def draw_indices(count: int, df: int, draws: int, *, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Random subsets without replacement, independent of each other: Floyd's algorithm, side by side for every draw.

    Args:
        count: Number of elements to draw from.
        df: Elements in a draw, at most ``count``.
        draws: Number of draws.
        generator: Source of randomness; torch's default where None.
        device: Where the result lives; the generator's device draws.

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
    """Random draws in proportion to weights. With replacement: only then is the mean of q the weighted one.

    Args:
        weight: Non-negative weights. Shape ``(N,)``.
        df: Elements in a draw.
        draws: Number of draws.
        generator: Source of randomness; torch's default where None.

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


def sampled_moments_of_q(
    z: Tensor,
    df: int,
    draws: int,
    *,
    weight: Tensor | None = None,
    finite_batch: bool = True,
    generator: torch.Generator | None = None,
) -> Moments[Tensor]:
    r"""Mean and unbiased variance of q over random draws of the batch.

    As draws grow this tends to :func:`moments_of_q` with the same ``finite_batch``: a sample variance over draws
    without replacement carries the factor :math:`1 - K / N`, which ``finite_batch`` divides out (at N = K every draw is
    the whole batch, and the variance is zero either way).

    Args:
        z: Residuals that count. Shape ``(N,)``.
        df: Degrees of freedom :math:`K`, at most N.
        draws: Number of draws :math:`H`, at least 2.
        weight: Weights; with them, draws are with replacement. Shape ``(N,)``.
        finite_batch: As for :func:`moments_of_q`.
        generator: Source of randomness; torch's default where None.

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
    return Moments(mean, df * floored(factor * q.var() / df, mean / df))
