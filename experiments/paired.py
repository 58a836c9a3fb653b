"""Differences paired over seeds or splits, with their limits by Student's t, each with a confidence of 95 %.

"Below" means that the upper limit of the difference is below 0, "not above" that it is below a margin.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch.distributions import StudentT

from fcal.distributions import quantile

CONFIDENCE = 0.95  # of each limit of a difference


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A mean of paired differences and its limits.

    Attributes:
        mean: Mean of the differences; None without pairs.
        low: Lower limit; None for fewer than two pairs.
        high: Upper limit; likewise.
        seeds: Number of pairs.
    """

    mean: float | None
    low: float | None
    high: float | None
    seeds: int

    @property
    def word(self) -> str:
        """``"below"`` or ``"above"`` 0 by the limits, ``"unclear"`` if 0 is between them."""
        if self.low is None or self.high is None:
            return "unknown"
        return "below" if self.high < 0 else "above" if self.low > 0 else "unclear"

    def is_below(self, margin: float = 0.0) -> bool:
        """Whether the upper limit is known and below a margin."""
        return self.high is not None and self.high < margin

    def text(self, factor: float = 1.0) -> str:
        """Mean and limits, times a factor."""
        if self.mean is None:
            return "no seed has both"
        if self.low is None or self.high is None:
            return f"{factor * self.mean:+.3g} (one seed)"
        return f"{factor * self.mean:+.3g} ({factor * self.low:+.3g} to {factor * self.high:+.3g})"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "word": self.word}


def difference(values: Sequence[float], *, test_share: float = 0.0, confidence: float = CONFIDENCE) -> Difference:
    """Mean of paired differences, and its limits.

    Args:
        values: A difference for each seed or split.
        test_share: Test rows relative to training rows, for splits of one table. These share rows, so their differences
            vary together, and the variance of the mean is 1/n + ``test_share`` times theirs (Nadeau and Bengio, 2003).
        confidence: Of each limit: 0.975 for an interval of 95 %.

    Example:
        >>> found = difference([1.0, 2.0, 3.0])
        >>> round(found.low, 3), round(found.high, 3), found.word
        (0.314, 3.686, 'above')
    """
    count = len(values)
    if count < 2:
        return Difference(mean=values[0] if values else None, low=None, high=None, seeds=count)
    df, below, above = torch.tensor([count - 1, confidence, 1 - confidence], dtype=torch.float64)
    width = quantile(StudentT(df), below, above).item() * stdev(values) * math.sqrt(1 / count + test_share)
    mean = fmean(values)
    return Difference(mean=mean, low=mean - width, high=mean + width, seeds=count)
