"""Where an empirical distribution of residuals becomes a map: a few knots between straight pieces."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fcal.distributions import PiecewiseLinear, normal_quantile

_FEWEST, _MOST = 10, 400
_NARROWEST = 1e-3  # gap between knots, in sds of the residuals: a smaller one is a tie
_ENOUGH = 8  # residuals beyond a knot that its slope may rest on
_ROUNDING = 1e-6
_QUARTILES = 1.3489795003921634  # distance of the quartiles of the standard normal law


def ranks_of_knots(count: int, knots: int | None, *, outermost: int) -> Tensor:
    """Ranks from 1 to ``count``: equal probabilities apart, and halving towards both ends.

    Args:
        count: How many residuals there are.
        knots: How many ranks to take at equal distances; about the root of ``count`` where None.
        outermost: Where the halving ends.

    Returns:
        Rising ranks. Shape ``(K,)``.

    Example:
        >>> ranks_of_knots(99, 4, outermost=5)
        tensor([ 5, 10, 20, 40, 60, 80, 90, 95])
    """
    number = min(knots or min(max(round(math.sqrt(count)), _FEWEST), _MOST), count)
    equal = torch.linspace(0, count + 1, number + 2, dtype=torch.float64)[1:-1].round().long().clamp(1, count)
    outer = []
    rank = int(equal[0]) // 2
    while rank >= outermost:
        outer.append(rank)
        rank //= 2
    ends = torch.tensor(outer, dtype=torch.long)
    return torch.cat([ends, equal, count + 1 - ends]).unique()


def robust_spread(scores: Tensor) -> Tensor:
    """The sd of a normal law with the quartiles of sorted residuals, or else their own sd. Shape ``()``.

    One outlier would make the sd of all as large as it likes.

    Raises:
        ValueError: All residuals are the same.
    """
    low, high = (scores[round(share * (len(scores) - 1))] for share in (0.25, 0.75))
    spread = (high - low) / _QUARTILES if bool(high > low) else scores.std(correction=0)
    if not bool(spread > 0):
        raise ValueError(f"expected `target` whose residuals differ, got {len(scores)} that are all {scores[0]:g}")
    return spread


def map_through(scores: Tensor, ranks: Tensor, levels: Tensor) -> dict[str, Tensor]:
    """Knots that take sorted residuals at some ranks to normal quantiles, and the slope beyond them.

    Args:
        scores: Residuals, rising. Shape ``(n,)``.
        ranks: Which become knots. Shape ``(K,)``.
        levels: Their probabilities. Shape ``(K,)``.

    Returns:
        ``x``, ``y`` and ``slopes`` below and above, each that from the middle knot to one far out: what lies beyond
        follows the prediction's own law, rescaled as it is there.

    Raises:
        ValueError: All residuals are the same.
    """
    spread = robust_spread(scores)
    x, y = scores[ranks.to(scores.device) - 1], normal_quantile(levels, 1 - levels).to(scores.device)
    x, y = _without_ties(x, y, float(_NARROWEST * spread))
    if len(x) < 2:
        x, y = scores[[0, -1]], y[0] + torch.stack([scores[0] - x[0], scores[-1] - x[0]]) / spread
    return {"x": x, "y": y, "slopes": _slopes_beyond(x, y, len(scores))}


def _slopes_beyond(x: Tensor, y: Tensor, count: int) -> Tensor:
    """Slopes from the middle knot to the last one on either side that enough residuals stand behind. Shape ``(2,)``."""
    tail = torch.tensor(min(_ENOUGH / count, 0.25), dtype=y.dtype, device=y.device)
    inside = (y.abs() <= -normal_quantile(tail, 1 - tail) + _ROUNDING).nonzero()
    low, high = (int(inside[0]), int(inside[-1])) if len(inside) > 1 else (0, len(x) - 1)
    middle = min(max((low + high) // 2, low + 1), high)
    below = (y[middle] - y[low]) / (x[middle] - x[low])
    above = (y[high] - y[middle]) / (x[high] - x[middle]) if high > middle else below
    return torch.stack([below, above])


def _without_ties(x: Tensor, y: Tensor, narrowest: float) -> tuple[Tensor, Tensor]:
    """Knots too close to one another, joined in their middle."""
    group, start = [], -math.inf
    number = -1
    for value in x.tolist():
        if value - start >= narrowest:
            start, number = value, number + 1
        group.append(number)
    index = torch.tensor(group, device=x.device)
    sizes = torch.bincount(index)
    joined = (v.new_zeros(number + 1).index_add(0, index, v) / sizes for v in (x, y))
    return next(joined), next(joined)


def map_of(tensors: Mapping[str, Tensor]) -> PiecewiseLinear:
    """The map that :func:`map_through` describes."""
    below, above = tensors["slopes"].tolist()
    return PiecewiseLinear(tensors["x"], tensors["y"], below=below, above=above)
