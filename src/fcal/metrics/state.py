"""The state of an evaluation: integer counts and float64 sums of a fixed size per group.

The bins are fixed in advance, so states add up: batches and shards may come in any order, from any rank.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fcal._checks import check_integer
from fcal._datasets import per_target
from fcal.metrics.report import LEVELS

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Integers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

SUMS = (
    "error_sq", "sigma_sq", "error", "nll", "crps", "z", "z_sq", "z_cu", "z_qu",
    "t", "t_sq", "t_cu", "t_qu", "target", "target_sq", "ratio_qu",
)  # fmt: skip
CLUSTERS = 2048  # buckets of clusters; those that share a bucket count as one cluster
CLUSTER_BINS = 20  # equal-probability bins counted in each cluster
CLUSTER_SUMS = ("count", "z", "z_sq", "t", "t_sq", "t_cu", "t_qu")

Z_BINS = 8192
_MIN_PIT_BINS = 1000
MAX_GROUPS = 1000
_MIN_DF = 100  # every state resolves z well enough for sums of this many squares
_MAX_DF = 10_000
_MAX_BINS = 10_000
_HEADROOM = 1.75
_SHOWN_DEVIATIONS = 3.72  # of sums q in a figure: 1e-4 of them lie further out on either side

# Log-linear bins: the leading bits of a float are its binary exponent, then its mantissa, of which five count.
_STEPS = 32  # per octave, so bins are 2 to 3 % wide
_OCTAVES = 64  # on either side of 1
LOG_BINS = 2 * _OCTAVES * _STEPS
_BITS = {torch.float32: (torch.int32, 18, 127), torch.float64: (torch.int64, 47, 1023)}  # integer, shift, exponent of 1

# Odd 64-bit constants of a multiplicative hash: golden ratio and a prime, as signed integers.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_PRIME = 0xC2B2AE3D27D4EB4F - 2**64


@dataclass(frozen=True)
class Grid:
    """Bins of one evaluation. The bounds keep a state below a megabyte per group.

    Args:
        df: Degrees of freedom K of the sums q, at most 10,000.
        bins: Number S of equal-probability bins, 2 to 10,000.
    """

    df: int
    bins: int

    def __post_init__(self) -> None:
        check_integer("df", self.df, at_least=1, at_most=_MAX_DF)
        check_integer("bins", self.bins, at_least=2, at_most=_MAX_BINS)

    @property
    def pit_bins(self) -> int:
        """Number of bins of the PIT: a multiple of 2 S, so that S central intervals end at bin edges."""
        return 2 * self.bins * math.ceil(_MIN_PIT_BINS / (2 * self.bins))

    @cached_property
    def reach(self) -> float:
        """Largest residual that is resolved; the square of a larger one alone exceeds every q that is counted."""
        return math.ceil(math.sqrt(sum_limit(max(self.df, _MIN_DF))))

    def pit_index(self, t: Tensor) -> Tensor:
        """Bin of the probability (1 + t) / 2."""
        half = 0.5 * self.pit_bins
        return torch.mul(t, half).add_(half).clamp_(max=self.pit_bins - 0.5).to(torch.int32)

    def z_index(self, z: Tensor) -> Tensor:
        """Bin of a residual; the first and the last hold those out of reach."""
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


def usual_sums(df: int) -> tuple[float, float]:
    """Interval that holds nearly all sums q of a calibrated model, by the approximation of Wilson and Hilferty."""
    spread = 2 / (9 * df)
    low, high = (
        df * max(1 - spread + z * math.sqrt(spread), 0.0) ** 3 for z in (-_SHOWN_DEVIATIONS, _SHOWN_DEVIATIONS)
    )
    return low, high


def sum_limit(df: int) -> float:
    """Largest q that is resolved: a figure of over-confident predictions needs headroom."""
    return _HEADROOM * usual_sums(df)[1]


class State(NamedTuple):
    """Counts and sums of G groups.

    Attributes:
        sums: See ``SUMS``; t = 2 Phi(z) - 1. Shape ``(G, len(SUMS))``.
        n: Number of scalars. Shape ``(G,)``.
        rows: Number of predictions: a vector counts once. Shape ``(G,)``.
        hashed: Number of scalars, of all groups, whose cluster was put into a bucket by hash. Shape ``(G,)``.
        pit: Counts of Phi(z). Shape ``(G, pit_bins)``.
        z: Counts of residuals. Shape ``(G, Z_BINS + 2)``.
        z_sigma: Sums of sigma in the same bins.
        coverage: Number of scalars within the central region of each level. Shape ``(G, len(LEVELS))``.
        sigma: Counts of sigma. Shape ``(G, LOG_BINS)``.
        sigma_sq: Sums of its squares in the same bins.
        sigma_error: Sums of squared errors in the same bins.
        error: Counts of the absolute errors. Shape ``(G, LOG_BINS)``.
        fingerprint: Sum of :func:`folded_bits` of the targets. Shape ``(G,)``.
        clusters: Per cluster, ``CLUSTER_SUMS`` and counts of ``CLUSTER_BINS`` bins of Phi(z); empty without clusters.
            Shape ``(G, CLUSTERS or 0, len(CLUSTER_SUMS) + CLUSTER_BINS)``.
    """

    sums: Tensor
    n: Tensor
    rows: Tensor
    hashed: Tensor
    pit: Tensor
    z: Tensor
    z_sigma: Tensor
    coverage: Tensor
    sigma: Tensor
    sigma_sq: Tensor
    sigma_error: Tensor
    error: Tensor
    fingerprint: Tensor
    clusters: Tensor

    def groups(self) -> int:
        """Number of groups."""
        return len(self.n)

    def add_(self, other: "State") -> None:
        """Add counts and sums of the same groups, in place."""
        for own, more in zip(self, other, strict=True):
            own.add_(more)

    def of_group(self, index: int) -> "State":
        """State of one group alone."""
        return State(*(field[index : index + 1] for field in self))

    def whole(self) -> "State":
        """State of all groups together."""
        return State(*(field.sum(0, keepdim=True) for field in self)) if self.groups() > 1 else self

    def with_groups(self, groups: int) -> "State":
        """The same state, with empty groups appended."""
        return State(*(torch.cat([f, f.new_zeros(groups - len(f), *f.shape[1:])]) for f in self))


def empty_state(grid: Grid, *, groups: int = 1, clustered: bool = False, device: torch.device | None = None) -> State:
    """State before any data."""

    def counts(*shape: int) -> Tensor:
        return torch.zeros(groups, *shape, dtype=torch.int64, device=device)

    def sums(*shape: int) -> Tensor:
        return torch.zeros(groups, *shape, dtype=torch.float64, device=device)

    return State(
        sums=sums(len(SUMS)),
        n=counts(),
        rows=counts(),
        hashed=counts(),
        pit=counts(grid.pit_bins),
        z=counts(Z_BINS + 2),
        z_sigma=sums(Z_BINS + 2),
        coverage=counts(len(LEVELS)),
        sigma=counts(LOG_BINS),
        sigma_sq=sums(LOG_BINS),
        sigma_error=sums(LOG_BINS),
        error=counts(LOG_BINS),
        fingerprint=counts(),
        clusters=sums(CLUSTERS if clustered else 0, len(CLUSTER_SUMS) + CLUSTER_BINS),
    )


# A column of sums: already summed per group, or the factors of a product (the second is 1 where None); None where the
# prediction does not have it.
Term = Tensor | tuple[Tensor, Tensor | None] | None


@dataclass(frozen=True)
class GroupCounter:
    """Counts and sums by group."""

    group: Tensor | None
    groups: int
    device: torch.device

    def counts(self, index: Tensor, bins: int, weights: Tensor | None = None) -> Tensor:
        """Number of elements, or sum of their weights, in each bin of each group. Shape ``(groups, bins)``."""
        joint = index if self.group is None else self.group * bins + index
        return torch.bincount(joint, weights, minlength=self.groups * bins).view(self.groups, bins)

    def sums(self, terms: Sequence[Term]) -> Tensor:
        """Sums of several terms; NaN where a term is None. Shape ``(groups, terms)``."""
        return torch.stack([self._sum(term) for term in terms], -1)

    def _sum(self, term: Term) -> Tensor:
        if term is None:
            return torch.full((self.groups,), torch.nan, dtype=torch.float64, device=self.device)
        if isinstance(term, Tensor):
            return term
        value, factor = term
        if self.group is not None:
            return torch.bincount(self.group, value if factor is None else value * factor, minlength=self.groups)
        return (value.sum() if factor is None else torch.dot(value, factor)).reshape(1)


def sums_of_runs(terms: Sequence[Tensor], lengths: Tensor) -> Tensor:
    """Sums of terms over consecutive runs, such as the pixels of images; much faster than a weighted count of each.

    Args:
        terms: In float64. Shape ``(n,)`` each.
        lengths: Lengths of the runs, at least 1 each and ``n`` together. Shape ``(runs,)``.

    Returns:
        Shape ``(runs, terms)``.

    Example:
        >>> values = torch.arange(4, dtype=torch.float64)
        >>> sums_of_runs([values, 2 * values], torch.tensor([1, 3]))
        tensor([[ 0.,  0.],
                [ 6., 12.]], dtype=torch.float64)
    """
    stacked = torch.stack(list(terms))
    if stacked.device.type == "cpu":
        starts = lengths.cumsum(0) - lengths
        return torch.from_numpy(np.add.reduceat(stacked.numpy(), starts.numpy(), axis=1)).T
    run = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
    return stacked.new_zeros(len(stacked), len(lengths)).index_add_(1, run, stacked).T


def hash_integers(bits: Tensor) -> Tensor:
    """Hash of 64-bit integers, one by one; multiplication wraps."""
    spread = bits * _GOLDEN
    return spread.bitwise_xor_(spread >> 29).mul_(_PRIME)


def cluster_buckets(cluster: Tensor) -> tuple[Tensor, Tensor]:
    """Bucket of each cluster, and whether it was found by hash: small numbers have a bucket of their own."""
    small = (cluster >= 0) & (cluster < CLUSTERS)
    return torch.where(small, cluster, hash_integers(cluster).bitwise_right_shift(20) % CLUSTERS), ~small


def folded_bits(target: Tensor) -> Tensor:
    """Hash of targets as float64, one by one; sums of hashes differ even where sums of targets agree."""
    bits = (target.double() + 0.0).view(torch.int64)  # -0.0 becomes 0.0
    spread = (bits >> 32).bitwise_xor_(bits).mul_(_GOLDEN)
    return torch.bitwise_right_shift(spread, 29, out=bits).bitwise_xor_(spread)


def fingerprint(target: Tensor, valid_mask: Tensor | None = None) -> str:
    """Short string that identifies a set of targets: a recalibrator keeps that of the targets it was fitted on.

    The same values in any order, float32 or float64, give the same string.

    Args:
        target: Targets, NaN where missing. Any shape.
        valid_mask: True where a target counts; shaped like ``target`` or its leading dimensions.

    Returns:
        Number of targets and sixteen hexadecimal digits.

    Example:
        >>> first = fingerprint(torch.tensor([1.0, 2.0, torch.nan]))
        >>> first == fingerprint(torch.tensor([2.0, 1.0])), first == fingerprint(torch.tensor([2.0, 1.5]))
        (True, False)
    """
    valid = ~torch.isnan(target)
    if valid_mask is not None:
        valid = valid & per_target(valid_mask, target)
    counted = target.detach()[valid]
    return fingerprint_text(counted.numel(), int(folded_bits(counted).sum()))


def fingerprint_text(count: int, hash_sum: int) -> str:
    """Fingerprint from the number of targets and the sum of their hashes."""
    return f"{count}-{int(hash_integers(torch.tensor(hash_sum))) % 2**64:016x}"
