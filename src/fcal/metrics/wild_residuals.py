"""Residuals far beyond all others, found in their histogram, so that streams and shards tell them too."""

import math
from collections.abc import Mapping

import numpy as np
import torch

from fcal.metrics.report import WildValues
from fcal.metrics.state import Array

_WILD = 10.0  # standard deviations
_WILD_SHARE, _FEW_WILD = 0.005, 3  # of residuals that may be wild; or this many, of few
_QUARTILES = 1.3489795003921634  # distance of the quartiles of the standard normal distribution


def wild_values(counts: Array, edges: Array, n: int, means: Mapping[str, float]) -> tuple[WildValues | None, Array]:
    """Residuals that are far beyond all others, and the counts within the edges without them.

    Residuals are wild beyond 10, and beyond 10 robust standard deviations of all times the fourth power of a factor by
    which the tails of the data are longer than normal ones; the few residuals that may be wild do not count there.
    Beside normal residuals one of 11 is wild, beside those of a Student-t distribution none is. The largest ones are
    known by their sums of powers alone.

    Args:
        counts: Residuals in each bin, the first and the last for those out of reach. Shape ``(bins + 2,)``.
        edges: Edges of the other bins. Shape ``(bins + 1,)``.
        n: Number of residuals.
        means: Means of the second and fourth powers of all.
    """
    inner, centres = counts[1:-1], 0.5 * (edges[1:] + edges[:-1])
    beyond = float(counts[0] + counts[-1])
    is_far = np.abs(centres) > _WILD
    limit = _limit_of_wild(counts, centres, n) if beyond or inner[is_far].any() else None
    if limit is None:
        return None, inner
    middle, farthest = limit
    is_wild = (np.abs(centres - middle) > farthest) & is_far
    squares, fourth = (
        max(n * means[f"z_{name}"] - float(inner @ centres**power), 0.0) for name, power in (("sq", 2), ("qu", 4))
    )
    if farthest > edges[-1] and beyond and math.sqrt(squares / beyond) <= farthest:
        beyond = 0.0  # far out, but so may be the others
    count = int(inner[is_wild].sum() + beyond)
    if not count:
        return None, inner
    size = (
        math.sqrt(fourth / squares) if beyond and squares > 0 else float(np.abs(centres[is_wild & (inner > 0)]).max())
    )
    usual = np.where(is_wild, 0.0, inner)
    if not beyond:
        usual[0], usual[-1] = usual[0] + counts[0], usual[-1] + counts[-1]
    return WildValues(count, n, size), usual


def _limit_of_wild(counts: Array, centres: Array, n: int) -> tuple[float, float] | None:
    """Median of residuals, and the distance from it beyond which they may be wild; None where these are not known."""
    spared = max(math.ceil(_WILD_SHARE * n), min(_FEW_WILD, n // 10))
    below = counts[:-1].cumsum()
    quartiles = [int(np.searchsorted(below, share * n)) for share in (0.25, 0.5, 0.75)]
    if quartiles[0] == 0 or quartiles[-1] > len(centres):  # out of reach
        return None
    low, middle, high = (float(centres[index - 1]) for index in quartiles)
    distance = np.abs(centres - middle)
    order = np.argsort(distance)
    index = int(np.searchsorted(counts[1:-1][order].cumsum(), n - spared))
    if spared >= n or index == len(order):  # more than a few are out of reach
        return None
    spread = max((high - low) / _QUARTILES, float(centres[1] - centres[0]))
    tail = torch.tensor((spared + 1) / (2 * (n + 1)), dtype=torch.float64)
    heavier = max(float(distance[order[index]]) / spread / -float(torch.special.ndtri(tail)), 1.0)
    return middle, _WILD * spread * heavier**4


def moments_of_counts(counts: Array, edges: Array) -> dict[str, float]:
    """Means of powers of residuals in narrow bins."""
    centres, share = 0.5 * (edges[1:] + edges[:-1]), counts / counts.sum()
    return {name: float(share @ centres**power) for power, name in enumerate(("z", "z_sq", "z_cu", "z_qu"), start=1)}
