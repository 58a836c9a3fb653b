"""Calibration errors from shares of the data in bins that should hold equally much."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_count, check_integer, check_values
from fcal.constraints import draw_indices
from fcal.distributions import normal_quantile
from fcal.distributions.law import law_of
from fcal.metrics.grid import Array, chi2_edges
from fcal.residuals import standardize


def expected_calibration_error(shares: Array) -> Array:
    r"""Mean gap between the share of the data in a bin and the share it should hold, as in the paper.

    .. math:: \mathrm{ECE} = \sum_s p_s \left| 1/S - p_s \right|

    Args:
        shares: Share :math:`p_s` of the data in each of S bins of equal probability. Shape ``(..., S)``.

    Returns:
        0 for equal shares, ``1 - 1/S`` when one bin holds everything.

    Example:
        >>> expected_calibration_error(np.array([[0.5, 0.5], [1.0, 0.0]])).tolist()
        [0.0, 0.5]
    """
    error: Array = (shares * np.abs(1 / shares.shape[-1] - shares)).sum(-1)
    return error


def maximum_calibration_error(shares: Array) -> Array:
    """Largest gap between the share of the data in a bin and the share it should hold.

    Args:
        shares: As for :func:`expected_calibration_error`.

    Returns:
        0 for equal shares, ``1 - 1/S`` when one bin holds everything.

    Example:
        >>> float(maximum_calibration_error(np.array([0.75, 0.25])))
        0.25
    """
    error: Array = np.abs(1 / shares.shape[-1] - shares).max(-1)
    return error


def drawn_calibration_error(
    pred: Distribution,
    target: Tensor,
    *,
    df: int = 75,
    bins: int = 20,
    draws: int = 1000,
    valid_mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> float:
    """ECE(q) by random draws, as the paper computes it; :func:`fcal.evaluate` has its limit of many draws.

    Args:
        pred: Prediction of any registered family.
        target: Targets, NaN where missing.
        df: Residuals in a draw, at most as many as count.
        bins: Number of equal-probability bins of chi-squared.
        draws: Number of draws.
        valid_mask: True where a target counts.
        generator: Source of randomness; torch's default where None.

    Returns:
        The error; of few draws it is mostly noise.

    Example:
        >>> from torch.distributions import Normal
        >>> drawn_calibration_error(Normal(torch.zeros(99), 1e9), torch.randn(99), bins=2)  # far too large a sigma
        0.5
    """
    check_integer("df", df, at_least=1)
    check_integer("bins", bins, at_least=2)
    check_integer("draws", draws, at_least=1)
    z = standardize(pred, target, valid_mask=valid_mask).detach().to(torch.float64)
    z = z[~torch.isnan(z)]
    check_count(len(z), at_least=df)
    index = draw_indices(len(z), df, draws, generator=generator, device=z.device)
    sums = z.square()[index].sum(1)
    counts = torch.bincount(torch.searchsorted(torch.from_numpy(chi2_edges(df, bins)), sums), minlength=bins)
    return float(expected_calibration_error((counts / draws).numpy()))


def quantile_calibration_error(
    pred: Distribution,
    target: Tensor,
    *,
    levels: Tensor | None = None,
    valid_mask: Tensor | None = None,
) -> float:
    r"""Mean gap between probability levels and the share of targets below the predicted quantiles of these levels.

    .. math:: \frac{1}{L} \sum_l \left| \frac{1}{n} \sum_i 1\{y_i \le F_i^{-1}(p_l)\} - p_l \right|

    Args:
        pred: Prediction of a scalar family.
        target: Targets, NaN where missing.
        levels: Probabilities :math:`p_l`; 0.05, 0.10, ..., 0.95 by default. Shape ``(L,)``.
        valid_mask: True where a target counts.

    Returns:
        The error, at most 1/2 when levels are spread evenly.

    Example:
        >>> from torch.distributions import Normal
        >>> pred, levels = Normal(torch.zeros(2), 1.0), torch.tensor([0.5])
        >>> quantile_calibration_error(pred, torch.tensor([-1.0, 1.0]), levels=levels)
        0.0
    """
    return _level_error(pred, target, levels, valid_mask, central=False)


def interval_calibration_error(
    pred: Distribution,
    target: Tensor,
    *,
    levels: Tensor | None = None,
    valid_mask: Tensor | None = None,
) -> float:
    """Mean gap between probability levels and the share of targets in the predicted central intervals.

    Args:
        pred: Prediction of a scalar family.
        target: Targets, NaN where missing.
        levels: Probabilities of the intervals; 0.05, 0.10, ..., 0.95 by default. Shape ``(L,)``.
        valid_mask: True where a target counts.

    Returns:
        The error; about half of what the quantile version gives for a biased mean, twice for a wrong scale.

    Example:
        >>> from torch.distributions import Normal
        >>> pred, levels = Normal(torch.zeros(2), 1.0), torch.tensor([0.5])
        >>> interval_calibration_error(pred, torch.tensor([0.1, 3.0]), levels=levels)
        0.0
    """
    return _level_error(pred, target, levels, valid_mask, central=True)


def _level_error(
    pred: Distribution, target: Tensor, levels: Tensor | None, valid_mask: Tensor | None, *, central: bool
) -> float:
    p = torch.arange(1, 20, dtype=torch.float64) / 20 if levels is None else _checked_levels(levels)
    if isinstance(pred, Distribution) and law_of(pred).family.event_dim:
        raise ValueError(f"expected `pred` of a scalar family, got {type(pred).__name__}")
    z = standardize(pred, target, valid_mask=valid_mask).detach().reshape(-1)
    if valid_mask is not None or bool(torch.isnan(z.sum())):
        z = z[~torch.isnan(z)]
    check_count(len(z), at_least=1)
    upper = (1 - p) / 2 if central else 1 - p
    limits = normal_quantile(1 - upper, upper)
    rising = limits.to(z).sort()
    between = torch.bucketize(z.abs() if central else z, rising.values, out_int32=True)
    inside = torch.bincount(between, minlength=len(p) + 1).cumsum(0)[:-1]
    return float((inside.double() / len(z) - p[rising.indices]).abs().mean())


def _checked_levels(levels: Any) -> Tensor:
    if not isinstance(levels, Tensor) or not levels.is_floating_point():
        raise TypeError(f"expected `levels` a tensor of a floating dtype, got {type(levels).__name__}")
    if levels.dim() != 1 or not len(levels):
        raise ValueError(f"expected `levels` of shape (L,), got {tuple(levels.shape)}")
    check_values("levels", "within [0, 1]", levels, (levels >= 0) & (levels <= 1))
    return levels.to(torch.float64)
