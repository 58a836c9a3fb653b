"""Statistics of one group: means, the distributions of z and q, and sampling variances."""

import math

import numpy as np
import torch

from fcal.metrics.q_distribution import chi2_edges, distribution_of_q, shares_between
from fcal.metrics.report import LEVELS
from fcal.metrics.state import CLUSTER_SUMS, CLUSTERS, SUMS, Array, Grid, State, fingerprint_text

MANY_OUT_OF_REACH = 0.01  # share of residuals that makes numbers doubtful
NORMAL_KURTOSIS = 3.0
_ENOUGH_FOR_TIES = 100
_PRIOR_ROWS = 30  # normal residuals that the fourth moment of few residuals is shrunk towards
_SKEWED = 0.5


class Summary:
    """The state of one group as NumPy arrays, and statistics of its residuals.

    Attributes:
        n: Number of residuals.
        rows: Number of predictions, fewer than ``n`` where they are vectors.
        means: Mean of each of ``SUMS``.
        coverage: Share of targets in the central region of each level.
        clusters: Sums per non-empty cluster, see ``CLUSTER_SUMS``; None where rows are independent.
        z_cdf: CDF of z at ``grid.z_edges``.
        q_values: Rising values of q; ``q_below`` is its CDF there.
        pit_shares: Share of the PIT in each of the S equal-probability bins; ``q_shares`` likewise.
        shift: Mean of z.
        scale: Standard deviation of z.
        shape: Largest gap between the CDF of z and the normal CDF with its mean and sd.
        raw_gap: Largest gap between the CDF of z and that of N(0, 1).
        coverage_gap: Largest gap between the levels of central regions and their coverage.
    """

    def __init__(self, state: State, grid: Grid) -> None:
        self.grid = grid
        self.n, self.rows = int(state.n[0]), int(state.rows[0])
        self.means = {name: float(x) / self.n for name, x in zip(SUMS, state.sums[0].tolist(), strict=True)}
        self.pit, self.z, self.z_sigma = (_array(x) for x in (state.pit, state.z, state.z_sigma))
        self.sigma, self.sigma_sq = _array(state.sigma), _array(state.sigma_sq)
        self.sigma_error, self.error = _array(state.sigma_error), _array(state.error)
        self.coverage = (state.coverage[0].cpu().numpy() / self.n).tolist()
        self.fingerprint = fingerprint_text(self.n, int(state.fingerprint[0]))
        table = state.clusters[0].cpu().numpy()
        self.clusters: Array | None = table[table[:, 0] > 0] if len(table) else None
        self.cluster_count = (
            None if self.clusters is None else _number_of_clusters(len(self.clusters), bool(state.hashed[0]))
        )
        self.z_cdf = np.minimum(self.z[:-1].cumsum() / self.n, 1.0)
        self.q_values, self.q_below = distribution_of_q(
            self.z, grid.z_edges, grid.df, mean_square=None if self.out_of_reach() else self.means["z_sq"]
        )
        self.pit_shares = self.pit.reshape(grid.bins, -1).sum(1) / self.n
        self.q_shares = self._shares_of_q()
        self.shift = self.means["z"]
        self.scale = math.sqrt(max(self.means["z_sq"] - self.shift**2, 0.0))
        self.shape = _normal_gap(self.z_cdf, (grid.z_edges - self.shift) / self.scale) if self.scale > 0 else 0.0
        self.raw_gap = _normal_gap(self.z_cdf, grid.z_edges)
        self.coverage_gap = max(abs(share - level) for share, level in zip(self.coverage, LEVELS, strict=True))

    def _shares_of_q(self) -> Array:
        """Shares of q in equal-probability bins; those of a single square are central intervals of z."""
        if self.grid.df > 1:
            return shares_between(chi2_edges(self.grid.df, self.grid.bins), self.q_values, self.q_below)
        lower, upper = np.split(self.pit, 2)
        shares: Array = (lower[::-1] + upper).reshape(self.grid.bins, -1).sum(1) / self.n
        return shares

    def mean(self, name: str) -> float | None:
        """A mean, or None where the prediction does not have it."""
        return None if math.isnan(self.means[name]) else self.means[name]

    def root_mean(self, name: str) -> float | None:
        """The root of a mean, or None."""
        mean = self.mean(name)
        return None if mean is None else math.sqrt(mean)

    def largest_tie(self) -> float:
        """Share of the residuals in the fullest narrow bin; 0 for too few residuals."""
        return float(self.z[1:-1].max()) / self.n if self.n >= _ENOUGH_FOR_TIES else 0.0

    def out_of_reach(self) -> float:
        """Share of residuals that are too large to be resolved."""
        return float(self.z[0] + self.z[-1]) / self.n

    def units(self) -> int:
        """Number of independent units."""
        return self.n if self.clusters is None else len(self.clusters)

    def variance_of_shift(self) -> float:
        """Sampling variance of the mean of z."""
        if self.clusters is not None:
            count, z = self._cluster_sums("count"), self._cluster_sums("z")
            return _cluster_variance(z - count * self.shift, self.n)
        return self.scale**2 / max(self.n - 1, 1)

    def variance_of_square(self) -> float:
        """Sampling variance of the variance of z."""
        if self.clusters is None:
            return self._independent_variance_of_square()
        count, z, z_sq = (self._cluster_sums(name) for name in ("count", "z", "z_sq"))
        centred = z_sq - 2 * self.shift * z + count * self.shift**2
        return _cluster_variance(centred - count * self.scale**2, self.n)

    def _independent_variance_of_square(self) -> float:
        # Few rows do not determine a fourth moment: it is shrunk towards that of a normal distribution.
        excess = self._central_moment(4) - self.scale**4
        shrunk = (self.n * excess + _PRIOR_ROWS * 2 * self.scale**4) / (self.n + _PRIOR_ROWS)
        return max(shrunk, 0.0) / max(self.n - 1, 1)

    def _central_moment(self, order: int) -> float:
        """Third or fourth central moment of z."""
        b, (m2, m3, m4) = self.shift, (self.means[name] for name in ("z_sq", "z_cu", "z_qu"))
        return m3 - 3 * b * m2 + 2 * b**3 if order == 3 else m4 - 4 * b * m3 + 6 * b**2 * m2 - 3 * b**4

    def describe_shape(self) -> str:
        """How the distribution of z differs from a normal one, in a word or two."""
        if self.scale <= 0:
            return "all alike"
        skewness, kurtosis = self._central_moment(3) / self.scale**3, self._central_moment(4) / self.scale**4
        if abs(skewness) > _SKEWED:
            return "skewed up" if skewness > 0 else "skewed down"
        return "heavier tails" if kurtosis > NORMAL_KURTOSIS else "lighter tails"

    def design_effect(self) -> tuple[float, float]:
        """Sampling variance with clusters relative to independent rows: of shares of the PIT, and of squares of z."""
        if self.clusters is None:
            return 1.0, 1.0
        counts = self.clusters[:, len(CLUSTER_SUMS) :]
        share = counts.sum(0) / self.n
        scatter = counts - self._cluster_sums("count")[:, None] * share
        independent = float((share * (1 - share)).sum()) / self.n
        of_pit = sum(_cluster_variance(column, self.n) for column in scatter.T) / max(independent, 1e-300)
        plain = self._independent_variance_of_square()
        return of_pit, self.variance_of_square() / plain if plain > 0 else 1.0

    def _cluster_sums(self, name: str) -> Array:
        assert self.clusters is not None
        column: Array = self.clusters[:, CLUSTER_SUMS.index(name)]
        return column


def _array(field: torch.Tensor) -> Array:
    values: Array = field[0].cpu().numpy().astype(np.float64)
    return values


def _number_of_clusters(buckets: int, hashed: bool) -> int:
    """Number of clusters in so many non-empty buckets; with hashing, the number that fills them on average."""
    if not hashed:
        return buckets
    return round(-CLUSTERS * math.log1p(-min(buckets, CLUSTERS - 0.5) / CLUSTERS))


def _cluster_variance(totals: Array, n: int) -> float:
    """Variance of a mean over n rows from the totals of their deviations within clusters; infinite for one cluster."""
    units = len(totals)
    return float((totals**2).sum()) * units / (units - 1) / n**2 if units > 1 else math.inf


def _normal_gap(cdf: Array, z: Array) -> float:
    return float(np.abs(cdf - normal_cdf(z)).max())


def normal_cdf(z: Array) -> Array:
    """CDF of the standard normal distribution."""
    cdf: Array = 0.5 * torch.erfc(torch.from_numpy(-math.sqrt(0.5) * z)).numpy()
    return cdf
