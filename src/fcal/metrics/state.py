"""All that an evaluation remembers of the data: integer counts and float64 sums of a fixed size per group.

States add up, so shards may come in any order, from any rank.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fcal.metrics.grid import LOG_BINS, Z_BINS, Grid
from fcal.metrics.report import LEVELS

SUMS = (
    "error_sq", "sigma_sq", "error", "nll", "crps", "z", "z_sq", "z_cu", "z_qu",
    "t", "t_sq", "t_cu", "t_qu", "target", "target_sq", "ratio_qu",
)  # fmt: skip
CLUSTERS = 2048  # buckets that clusters are put into; together they are clusters again
CLUSTER_BINS = 20  # equal-probability bins counted in each
CLUSTER_SUMS = ("count", "z", "z_sq", "t", "t_sq", "t_cu", "t_qu")


class State(NamedTuple):
    """Counts and sums of G groups; the whole is their sum.

    Attributes:
        sums: See ``SUMS``; t = 2 Phi(z) - 1. Shape ``(G, len(SUMS))``.
        n: Number of scalars. Shape ``(G,)``.
        rows: Number of predictions: of vectors, each counts once. Shape ``(G,)``.
        hashed: Number of scalars, of all groups, whose cluster was put into a bucket by hash. Shape ``(G,)``.
        pit: Counts of Phi(z). Shape ``(G, pit_bins)``.
        z: Counts of residuals. Shape ``(G, Z_BINS + 2)``.
        z_sigma: Sums of sigma in the same bins.
        coverage: Counts within the central region of each level, in scalars. Shape ``(G, len(LEVELS))``.
        sigma: Counts of sigma. Shape ``(G, LOG_BINS)``.
        sigma_sq: Sums of its squares in the same bins.
        sigma_error: Sums of squared errors in the same bins.
        error: Counts of the absolute errors. Shape ``(G, LOG_BINS)``.
        fingerprint: Of the targets; see :mod:`fcal.metrics.fingerprint`. Shape ``(G,)``.
        clusters: Per cluster, ``CLUSTER_SUMS`` and counts of ``CLUSTER_BINS`` bins of Phi(z); without clusters of no
            length. Shape ``(G, CLUSTERS or 0, len(CLUSTER_SUMS) + CLUSTER_BINS)``.
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
        return State(*(part[index : index + 1] for part in self))

    def whole(self) -> "State":
        """State of all groups together."""
        return State(*(part.sum(0, keepdim=True) for part in self)) if self.groups() > 1 else self

    def with_groups(self, groups: int) -> "State":
        """The same with room for more groups."""
        return State(*(torch.cat([p, p.new_zeros(groups - len(p), *p.shape[1:])]) for p in self))


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
