"""What the numbers of one report are computed from: means, counts and laws of one group."""

import math

import numpy as np
import torch

from fcal.metrics.fingerprint import as_text
from fcal.metrics.grid import Array, Grid, chi2_edges
from fcal.metrics.report import LEVELS
from fcal.metrics.state import CLUSTERS, SUMS, State
from fcal.metrics.sums_law import law_of_sums, shares_between
from fcal.metrics.verdict import Evidence

MANY_OUT_OF_REACH = 0.01  # share of residuals that makes numbers doubtful
_ENOUGH_TO_BE_ALIKE = 100


class Summary:
    """Numpy's view of the state of one group, and what several numbers share."""

    def __init__(self, state: State, grid: Grid) -> None:
        self.grid = grid
        self.n, self.rows = int(state.n[0]), int(state.rows[0])
        self.means = {name: float(x) / self.n for name, x in zip(SUMS, state.sums[0].tolist(), strict=True)}
        self.pit, self.z, self.z_sigma, self.sigma, self.sigma_sq, self.sigma_error, self.error = (
            part[0].cpu().numpy().astype(np.float64)
            for part in (
                state.pit,
                state.z,
                state.z_sigma,
                state.sigma,
                state.sigma_sq,
                state.sigma_error,
                state.error,
            )
        )
        self.coverage = (state.coverage[0].cpu().numpy() / self.n).tolist()
        self.fingerprint = as_text(self.n, int(state.fingerprint[0]))
        table = state.clusters[0].cpu().numpy()
        self.clusters: Array | None = table[table[:, 0] > 0] if len(table) else None
        self.cluster_count = None if self.clusters is None else _number_of(len(self.clusters), bool(state.hashed[0]))
        self.z_cdf = np.minimum(self.z[:-1].cumsum() / self.n, 1.0)  # at z_edges
        self.q_values, self.q_below = law_of_sums(
            self.z, grid.z_edges, grid.df, mean_square=None if self.out_of_reach() else self.means["z_sq"]
        )
        self.pit_shares = self.pit.reshape(grid.bins, -1).sum(1) / self.n
        self.q_shares = self._shares_of_q()

    def _shares_of_q(self) -> Array:
        """Shares of sums in bins that should hold equally much; a single square is in one of central intervals."""
        if self.grid.df > 1:
            return shares_between(chi2_edges(self.grid.df, self.grid.bins), self.q_values, self.q_below)
        lower, upper = np.split(self.pit, 2)
        shares: Array = (lower[::-1] + upper).reshape(self.grid.bins, -1).sum(1) / self.n
        return shares

    def mean(self, name: str) -> float | None:
        """A mean, or None where a prediction does not have it."""
        return None if math.isnan(self.means[name]) else self.means[name]

    def root_mean(self, name: str) -> float | None:
        """The root of a mean, or None."""
        mean = self.mean(name)
        return None if mean is None else math.sqrt(mean)

    def most_alike(self) -> float:
        """Share of the residuals in the fullest narrow bin; 0 where there are too few to tell."""
        return float(self.z[1:-1].max()) / self.n if self.n >= _ENOUGH_TO_BE_ALIKE else 0.0

    def out_of_reach(self) -> float:
        """Share of residuals too large to be told apart."""
        return float(self.z[0] + self.z[-1]) / self.n

    def evidence(self) -> Evidence:
        """What the verdict rests on."""
        z = np.array([self.means[name] for name in ("z", "z_sq", "z_cu", "z_qu")])
        t = np.array([self.means[name] for name in ("t", "t_sq", "t_cu", "t_qu")])
        edges = self.grid.z_edges
        scale = math.sqrt(max(z[1] - z[0] ** 2, 0.0))
        return Evidence(
            n=self.n,
            powers_of_z=z,
            powers_of_t=t,
            shape=_largest_gap(self.z_cdf, (edges - z[0]) / scale) if scale > 0 else 0.0,
            raw_gap=_largest_gap(self.z_cdf, edges),
            clusters=self.clusters,
            coverage_gap=max(abs(share - level) for share, level in zip(self.coverage, LEVELS, strict=True)),
            rows=self.rows,
        )


def _number_of(buckets: int, hashed: bool) -> int:
    """How many clusters fill so many buckets: each its own, or, put there by hash, as many as fill them on average."""
    if not hashed:
        return buckets
    return round(-CLUSTERS * math.log1p(-min(buckets, CLUSTERS - 0.5) / CLUSTERS))


def _largest_gap(cdf: Array, z: Array) -> float:
    return float(np.abs(cdf - normal_cdf(z)).max())


def normal_cdf(z: Array) -> Array:
    """CDF of the standard normal law."""
    cdf: Array = 0.5 * torch.erfc(torch.from_numpy(-math.sqrt(0.5) * z)).numpy()
    return cdf
