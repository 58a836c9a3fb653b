"""The fixed bins that residuals, sigmas and errors are counted in, so that shards of one data set agree."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from fcal.distributions import normal_quantile

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Integers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

Z_BINS = 8192
_LEAST_PIT_BINS = 1000
_LARGEST_DF_SERVED = 100  # sums of so many squares can be read off any state, as tables need it
_ROOM = 1.75
_NEWTON_STEPS = 12
_FARTHEST = 3.72  # deviations of sums that a picture shows: 1e-4 of them are farther on either side

# Log-linear bins: the leading bits of a float are its binary exponent and then its mantissa, of which five count.
_STEPS = 32  # per octave, so bins are 2 to 3 % wide
_OCTAVES = 64  # on either side of 1
LOG_BINS = 2 * _OCTAVES * _STEPS
_BITS = {torch.float32: (torch.int32, 18, 127), torch.float64: (torch.int64, 47, 1023)}  # integer, shift, exponent of 1


@dataclass(frozen=True)
class Grid:
    """Bins of one evaluation.

    Args:
        df: Degrees of freedom K of the sums q.
        bins: Number S of equal-probability bins.
    """

    df: int
    bins: int

    @property
    def pit_bins(self) -> int:
        """Number of bins of the probabilities: a multiple of 2 S, so that S central intervals end at edges."""
        return 2 * self.bins * math.ceil(_LEAST_PIT_BINS / (2 * self.bins))

    @cached_property
    def reach(self) -> float:
        """Residuals are told apart up to here; the square of a larger one alone is more than q ever counts."""
        return math.ceil(math.sqrt(sum_limit(max(self.df, _LARGEST_DF_SERVED))))

    def pit_index(self, t: Tensor) -> Tensor:
        """Bin of the probability (1 + t) / 2."""
        half = 0.5 * self.pit_bins
        return torch.mul(t, half).add_(half).clamp_(max=self.pit_bins - 0.5).to(torch.int32)

    def z_index(self, z: Tensor) -> Tensor:
        """Bin of a residual; the first and the last are for those out of reach."""
        index = torch.mul(z, 0.5 * Z_BINS / self.reach).add_(0.5 * Z_BINS + 1)
        return index.clamp_(0, Z_BINS + 1).to(torch.int32)

    @cached_property
    def z_edges(self) -> Array:
        """Edges of the bins of residuals within reach. Shape ``(Z_BINS + 1,)``."""
        return np.linspace(-self.reach, self.reach, Z_BINS + 1)


def log_index(value: Tensor) -> Tensor:
    """Bin of a non-negative float32 or float64 by its leading bits."""
    integer, shift, one = _BITS[value.dtype]
    index = value.view(integer).bitwise_right_shift(shift).sub_((one - _OCTAVES) * _STEPS)
    return index.clamp_(0, LOG_BINS - 1).to(torch.int32)


def log_edges() -> Array:
    """Edges of the bins of :func:`log_index`. Shape ``(LOG_BINS + 1,)``."""
    step = np.arange(LOG_BINS + 1)
    return np.ldexp(1 + (step % _STEPS) / _STEPS, step // _STEPS - _OCTAVES)


@lru_cache(maxsize=64)
def chi2_edges(df: int, bins: int) -> Array:
    """Inner edges of bins of equal probability under chi-squared. Shape ``(bins - 1,)``."""
    return chi2_quantiles(df, np.arange(1, bins) / bins)


def usual_sums(df: int) -> tuple[float, float]:
    """Where nearly all sums q of a calibrated model lie.

    By the approximation of Wilson and Hilferty: these ends need no digits.
    """
    spread = 2 / (9 * df)
    low, high = (df * max(1 - spread + z * math.sqrt(spread), 0.0) ** 3 for z in (-_FARTHEST, _FARTHEST))
    return low, high


def sum_limit(df: int) -> float:
    """The largest q that is told apart from larger ones: room for a picture of error bars that are too small."""
    return _ROOM * usual_sums(df)[1]


def chi2_quantiles(df: int, levels: Array) -> Array:
    """Quantiles of chi-squared, by Newton's method from the approximation of Wilson and Hilferty.

    These are moderate levels of a law that torch has the CDF of: the family's own quantile, made for far tails and with
    gradients, would take most of the time of an evaluation.
    """
    p, half = torch.from_numpy(levels), torch.tensor(0.5 * df, dtype=torch.float64)
    spread = 2 / (9 * df)
    x = 0.5 * df * (1 - spread + normal_quantile(p, 1 - p) * math.sqrt(spread)).clamp(min=1e-3) ** 3
    for _ in range(_NEWTON_STEPS):
        log_density = (half - 1) * x.log() - x - torch.lgamma(half)
        step = (torch.special.gammainc(half, x) - p) * (-log_density).exp()
        x = torch.maximum(x - step, 0.1 * x)  # below 0 from a start that is too far up
    values: Array = (2 * x).numpy()
    return values
