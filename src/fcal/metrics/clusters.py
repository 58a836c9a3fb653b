"""Calibration of data in clusters, such as the pixels of images: sums q within clusters, and bands by resampling them.

The state is a histogram of residuals per cluster, so that resampling whole clusters is a product of matrices.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_count, check_integer
from fcal.distributions import normal_quantile
from fcal.distributions.observation import observe_valid, true_positions
from fcal.divergences import reverse_kl, wasserstein_printed
from fcal.metrics.accumulation import LARGEST_Z, chunks, labels_of
from fcal.metrics.calibration_errors import (
    chi2_edges,
    distribution_of_q,
    expected_calibration_error,
    floors,
    maximum_calibration_error,
    shares_between,
)
from fcal.metrics.report import Floor, Interval, plain
from fcal.metrics.report_from_state import divergence_of_moments
from fcal.metrics.state import CLUSTERS, Array, Grid, Integers, cluster_buckets, hash_integers
from fcal.metrics.summary import normal_cdf, number_of_clusters
from fcal.residuals import residuals_of

_MAX_BINS = 100  # a state of every cluster has twice as many cells, beside those of the lattice below
_INNER = 10.0  # residuals up to here are counted in cells of a sixteenth, larger ones in growing cells
_INNER_CELLS = 160
_OUTER_CELLS = 12
_SAME = 1e-9  # edges closer than this are one
_RUNS = 1000
_POINTS = 1024  # lattice of q of a resampled histogram
_POINTS_OF_FEW = 4096
_FEW = 10
_LATTICE = 256  # steps per unit of z, narrower than all distances between equal-probability edges
_NODES = 8  # of a quadrature over a cell
_KEY_BITS = 40  # of a random number that sorts the residuals of a cluster


@dataclass(frozen=True, kw_only=True)
class ClusterReport:
    """Calibration errors of data in clusters, with their noise from resampling whole clusters.

    Attributes:
        n: Number of valid residuals.
        clusters: Number of clusters.
        df: Number K of squared residuals in a sum q.
        bins: Number S of equal-probability bins.
        ece_z: ECE(z) of all residuals and its 95 % interval.
        ece_z_band: ECE(z) of a calibrated model with the same dependence within clusters: mean and 95 % quantile.
        ece_q: ECE(q) with draws pooled over all clusters, and its interval: it ignores dependence.
        ece_q_band: ECE(q) of a calibrated model with the same dependence within clusters.
        ece_q_within: ECE(q) where each q sums K residuals of one cluster, and its interval; None, as are all others of
            ``within``, where no cluster has K residuals.
        ece_q_within_floor: The same of a calibrated model with independent residuals: only this score and the next
            three can show dependence.
        mce_q_within: MCE(q) within clusters.
        kld_q_within: KL(N(K, 2K) || normal distribution with the moments of q within clusters).
        wdist_q_within: Squared 2-Wasserstein distance between the same two.
        sums_within: Number of sums q within clusters.
        short_clusters: Number of clusters with fewer than K residuals, which have no such sum.

    Example:
        >>> from torch.distributions import Normal
        >>> pred, target = Normal(torch.zeros(2, 5), 1.0), torch.linspace(-2, 2, 10).reshape(2, 5)
        >>> report = cluster_calibration(pred, target, cluster=torch.arange(2), df=2, bins=4)
        >>> report.n, report.clusters, report.sums_within  # a fifth residual is left out in each cluster
        (10, 2, 4)
        >>> round(report.ece_z.value, 6)  # of 10 residuals, 3 are in each outer bin and 2 in each inner one
        0.05
    """

    n: int
    clusters: int
    df: int
    bins: int
    ece_z: Interval
    ece_z_band: Floor
    ece_q: Interval
    ece_q_band: Floor
    ece_q_within: Interval | None
    ece_q_within_floor: Floor | None
    mce_q_within: float | None
    kld_q_within: float | None
    wdist_q_within: float | None
    sums_within: int
    short_clusters: int

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and dictionaries for JSON; numbers that are not finite become None."""
        return {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}


def cluster_calibration(
    pred: Distribution,
    target: Tensor,
    *,
    cluster: Tensor,
    df: int = 75,
    bins: int = 20,
    valid_mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> ClusterReport:
    r"""ECE(z) and ECE(q) of data in clusters, such as images: pooled, within clusters, and with bands of either.

    Neighbouring pixels share their errors. With draws pooled over all images, a sum q of K squared residuals hardly
    holds two pixels of an image, so ECE(q) depends on the pooled histogram of z alone. Within images, dependence makes
    q vary more than chi-squared does: :math:`\mathrm{Var}(q) = 2K (1 + (K - 1) \rho)`, where :math:`\rho` is the mean
    correlation of :math:`z^2` between pixels of an image. Error bars that are too small in some images and too large
    in others look the same.

    Within a cluster, residuals are put in random order and summed K at a time; a remainder of fewer than K is left
    out. Sums of a calibrated model with independent residuals are independent draws of chi-squared, so the floor is
    that of multinomial counts.

    Intervals and bands resample whole clusters. An interval of a score T ends at the 97.5 % quantile of resampled
    scores and reaches as far below T as above, since resampling adds noise to a score that cannot be negative; its
    lower end is 0 where T is within its band (of ``ece_q_within``: below ``q95`` of its floor).

    A band describes the model after a perfect recalibration: residuals z are replaced by
    :math:`\Phi^{-1}(\hat F(z))`, with :math:`\hat F` their pooled CDF. This makes the pooled histogram exactly that of
    N(0, 1), and keeps the order of residuals, hence their dependence and the variation of clusters. Then clusters are
    resampled, and deviations from N(0, 1) are multiplied by :math:`\sqrt{C / \chi^2_{C - 1}}`, because few clusters do
    not tell how much they vary; C is the number of clusters, or of equal ones that would vary as much. In simulations
    with strong dependence, at most 6 % of calibrated models exceed ``q95`` of ECE(z), with 10 clusters or more; that of
    ECE(q) is exceeded by 12 to 18 % with 10 clusters, 10 to 14 % with 25, and 3 to 8 % with 100 or more.

    Args:
        pred: Prediction of any registered family, scalar or multivariate.
        target: Targets, shaped like the prediction's samples; NaN where missing.
        cluster: Integers, equal for targets that belong together. Shaped like ``target``, its rows, or leading
            dimensions of either: ``(B,)`` for maps of shape ``(B, H, W)``.
        df: Number K of squared residuals in a sum q.
        bins: Number S of equal-probability bins, at most 100.
        valid_mask: True where a target counts; shaped like ``target`` or its rows.
        generator: Source of randomness; torch's default where None. One number is drawn from it.

    Returns:
        Scores with intervals and bands.

    Raises:
        TypeError: Wrong types or dtypes, or a family that is not registered.
        ValueError: Shapes that do not fit, values out of range, or fewer than 2 clusters with a valid target.

    Example:
        >>> from torch.distributions import Normal
        >>> generator = torch.Generator().manual_seed(0)
        >>> shared, own = torch.randn(400, 1, generator=generator), torch.randn(400, 150, generator=generator)
        >>> target = 0.5**0.5 * (shared + own)  # N(0, 1), but alike within a row
        >>> report = cluster_calibration(
        ...     Normal(torch.zeros(400, 150), 1.0), target, cluster=torch.arange(400), generator=generator
        ... )
        >>> report.ece_z.value < report.ece_z_band.q95, report.ece_q.value < report.ece_q_band.q95
        (True, True)
        >>> report.ece_q_within.value > 10 * report.ece_q_within_floor.q95
        True
    """
    grid = cluster_grid(df, bins)
    state = empty_cluster_state(grid, device=target.device if isinstance(target, Tensor) else None)
    seed = draw_seed(generator)
    count_clusters_(state, pred, target, grid, cluster=cluster, valid_mask=valid_mask, seed=seed)
    return cluster_report(state, grid, seed=seed)


def cluster_grid(df: int, bins: int) -> Grid:
    """Bins of an evaluation with clusters."""
    check_integer("bins", bins, at_least=2, at_most=_MAX_BINS)
    return Grid(df, bins)


def draw_seed(generator: torch.Generator | None) -> int:
    """Seed of everything random in an evaluation; a generator on any device will do."""
    device = None if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device))


class ClusterState(NamedTuple):
    """Counts and sums of a fixed size; clusters share buckets where there are more than 2048.

    Attributes:
        cells: Residuals of each cluster in each cell of :func:`cell_edges`. Shape ``(CLUSTERS, cells)``.
        squares: Sums of squared residuals in each cell, of all clusters. Shape ``(cells,)``.
        q: Sums within each cluster in equal-probability bins of chi-squared. Shape ``(CLUSTERS, bins)``.
        deviations: Sums of q - K and of its square. Shape ``(2,)``.
        hashed: Number of residuals whose cluster was put into a bucket by hash. Shape ``()``.
    """

    cells: Tensor
    squares: Tensor
    q: Tensor
    deviations: Tensor
    hashed: Tensor


def empty_cluster_state(grid: Grid, device: torch.device | None = None) -> ClusterState:
    """State before any data."""
    cells = len(cell_edges(grid)) + 1
    return ClusterState(
        cells=torch.zeros(CLUSTERS, cells, dtype=torch.int64, device=device),
        squares=torch.zeros(cells, dtype=torch.float64, device=device),
        q=torch.zeros(CLUSTERS, grid.bins, dtype=torch.int64, device=device),
        deviations=torch.zeros(2, dtype=torch.float64, device=device),
        hashed=torch.zeros((), dtype=torch.int64, device=device),
    )


@lru_cache(maxsize=16)
def cell_edges(grid: Grid) -> Array:
    """Rising edges of cells of z: those of 2 S equal-probability bins, and others that resolve q."""
    level = torch.arange(1, 2 * grid.bins, dtype=torch.float64) / (2 * grid.bins)
    probable = normal_quantile(level, 1 - level).numpy()
    inner = np.linspace(-_INNER, _INNER, _INNER_CELLS + 1)
    outer = np.geomspace(_INNER, max(grid.reach, 2 * _INNER), _OUTER_CELLS + 1)[1:]
    others = np.concatenate([inner, outer, -outer])
    apart = np.abs(others[:, None] - probable).min(1) > _SAME
    edges: Array = np.sort(np.concatenate([probable, others[apart]]))
    return edges


def cell_index(z: Tensor, grid: Grid) -> Tensor:
    """Cell of each residual, the number of edges at or below it.

    The steps of a fine lattice, which are powers of two and therefore exact, tell the edges at or below their start;
    no step has more than one edge inside. This is several times faster than a binary search.

    Args:
        z: In float64. Shape ``(n,)``.
        grid: Bins of the evaluation.
    """
    below, inside, edges = (table.to(z.device) for table in _cell_tables(grid))
    half = len(below) // 2
    step = (z * _LATTICE).floor_().clamp_(-half, half - 1).to(torch.int64).add_(half)
    cell = below.index_select(0, step).add_(z >= inside.index_select(0, step))
    outer = true_positions(z.abs() >= _INNER)
    return cell.index_copy_(0, outer, torch.bucketize(z.index_select(0, outer), edges, right=True))


@lru_cache(maxsize=16)
def _cell_tables(grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
    """For each step of the lattice, the number of edges at or below its start and the next edge; all edges."""
    edges = cell_edges(grid)
    starts = np.arange(-_INNER * _LATTICE, _INNER * _LATTICE) / _LATTICE
    below = np.searchsorted(edges, starts, side="right")
    return torch.from_numpy(below), torch.from_numpy(edges[below]), torch.from_numpy(edges)


def count_clusters_(
    state: ClusterState,
    pred: Distribution,
    target: Tensor,
    grid: Grid,
    *,
    cluster: Tensor,
    valid_mask: Tensor | None,
    seed: int,
) -> None:
    """Add a batch to the state, in place; the sums within a cluster are those of its residuals in this batch."""
    if not isinstance(cluster, Tensor):
        raise TypeError(f"expected `cluster` a tensor of integers, got {type(cluster).__name__}")
    with torch.no_grad():
        selection = observe_valid(pred, target, valid_mask=valid_mask)
        labels = labels_of("cluster", cluster, selection)
        residuals = [
            _residuals_of_chunk(residuals_of(chunk), label)
            for chunk, _, label in chunks(selection.observation, (None, labels))
            if label is not None and len(label)
        ]
        if residuals:
            z, of_cluster = (torch.cat(parts) for parts in zip(*residuals, strict=True))
            _count(state, z, of_cluster, grid, seed)


def _residuals_of_chunk(z: Tensor, cluster: Tensor) -> tuple[Tensor, Tensor]:
    """Flat residuals in float64, and the cluster of each."""
    dims = z.numel() // len(cluster)
    return z.reshape(-1).double().clamp(-LARGEST_Z, LARGEST_Z), cluster.repeat_interleave(dims) if dims > 1 else cluster


def _count(state: ClusterState, z: Tensor, cluster: Tensor, grid: Grid, seed: int) -> None:
    clusters, number = _numbered(cluster)
    bucket, hashed = cluster_buckets(clusters)
    cell = cell_index(z, grid)
    square = z.square()
    state.cells.index_add_(0, bucket, _table(number, cell, state.cells, clusters))
    state.squares.add_(torch.bincount(cell, square, minlength=len(state.squares)))
    state.hashed.add_((hashed * torch.bincount(number)).sum())
    sums, number_of_sum = _sums_within(square, number, clusters, grid.df, seed)
    index = torch.bucketize(sums, torch.from_numpy(chi2_edges(grid.df, grid.bins)).to(z.device), right=True)
    state.q.index_add_(0, bucket, _table(number_of_sum, index, state.q, clusters))
    deviation = sums - grid.df
    state.deviations.add_(torch.stack([deviation.sum(), torch.dot(deviation, deviation)]))


def _table(number: Tensor, index: Tensor, like: Tensor, clusters: Tensor) -> Tensor:
    """Counts of each cluster of a batch in as many bins as the state has. Shape ``(clusters, bins)``."""
    bins = like.shape[1]
    return torch.bincount(number * bins + index, minlength=len(clusters) * bins).view(-1, bins)


def _numbered(cluster: Tensor) -> tuple[Tensor, Tensor]:
    """Rising clusters, and the position of each row's cluster among them; pixels of an image come in a run."""
    runs, run = torch.unique_consecutive(cluster, return_inverse=True)
    clusters, number = torch.unique(runs, return_inverse=True)
    return clusters, number.index_select(0, run)


def _sums_within(square: Tensor, number: Tensor, clusters: Tensor, df: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sums of ``df`` squares of one cluster, drawn in random order, and the number of the cluster of each sum.

    The order depends on the seed, the cluster and the order of its squares only: batches may be split between clusters.
    """
    if not bool((number[1:] >= number[:-1]).all()):
        order = torch.argsort(number, stable=True)
        square, number = square[order], number[order]
    size = torch.bincount(number, minlength=len(clusters))
    position = torch.arange(len(number), device=number.device) - (size.cumsum(0) - size).index_select(0, number)
    start = hash_integers(hash_integers(clusters) + seed).index_select(0, number)
    key = hash_integers(hash_integers(position + start)).bitwise_right_shift(64 - _KEY_BITS)
    key = key.bitwise_and(2**_KEY_BITS - 1).add_(number << _KEY_BITS)
    summed = true_positions(position < (size // df * df).index_select(0, number))
    drawn = square.index_select(0, _order(key).index_select(0, summed))
    return drawn.view(-1, df).sum(1), number.index_select(0, summed[::df])


def _order(key: Tensor) -> Tensor:
    """Positions that sort a key."""
    if key.device.type == "cpu":
        return torch.from_numpy(np.argsort(key.numpy()))  # several times faster than torch
    return torch.argsort(key)


def cluster_report(state: ClusterState, grid: Grid, *, seed: int) -> ClusterReport:
    """Report of a state.

    Raises:
        ValueError: No residual, or fewer than 2 clusters.
    """
    cells, q = (table.cpu().numpy() for table in (state.cells, state.q))
    filled = cells.sum(1) > 0
    cells, q = cells[filled], q[filled]
    check_count(cells.sum(), at_least=1)
    if len(cells) < 2:
        raise ValueError(f"expected `cluster` with at least 2 clusters that count, got {len(cells)}")
    generator = np.random.default_rng(seed)
    weights = generator.multinomial(len(cells), np.full(len(cells), 1 / len(cells)), _RUNS).astype(np.float64)
    pooled = cells.sum(0)
    squares = state.squares.cpu().numpy() / np.maximum(pooled, 1)
    calibrated, normal_squares = _calibrated(weights, cells, grid, generator), _normal_squares(grid)
    bands = _band(_ece_of_z(calibrated, grid)), _band(_ece_of_q(calibrated, normal_squares, grid))
    values = _ece_of_z(pooled, grid), _ece_of_q(pooled, squares, grid)
    resampled = weights @ cells
    return ClusterReport(
        n=int(pooled.sum()),
        clusters=number_of_clusters(len(cells), bool(state.hashed)),
        df=grid.df,
        bins=grid.bins,
        ece_z=interval_of_error(values[0], _ece_of_z(resampled, grid), bands[0]),
        ece_z_band=bands[0],
        ece_q=interval_of_error(values[1], _ece_of_q(resampled, squares, grid), bands[1]),
        ece_q_band=bands[1],
        **_within(q, state.deviations.tolist(), weights, grid),
        short_clusters=int((q.sum(1) == 0).sum()),
    )


def _calibrated(weights: Array, cells: Integers, grid: Grid, generator: np.random.Generator) -> Array:
    """Shares of cells in resampled data sets of the recalibrated model. Shape ``(runs, cells)``."""
    nominal = np.concatenate([[0.0], normal_cdf(cell_edges(grid)), [1.0]])
    resampled = weights @ _recalibrated(cells, nominal, generator)
    shares = resampled / resampled.sum(1, keepdims=True)
    # Resampled clusters vary too little, and how much they vary is itself uncertain, as in Student's t.
    size = cells.sum(1)
    effective = float(size.sum()) ** 2 / float((size.astype(np.float64) ** 2).sum())
    freedom = max(effective - 1, 1.0)
    widening = np.sqrt(effective / generator.chisquare(freedom, (len(weights), 1)))
    calibrated: Array = np.maximum(np.diff(nominal) + widening * (shares - np.diff(nominal)), 0)
    return calibrated


def _recalibrated(cells: Integers, nominal: Array, generator: np.random.Generator) -> Integers:
    """Counts of clusters after a map of residuals that makes the pooled CDF at the edges of cells ``nominal``.

    A cell of the data holds parts of several cells afterwards. Its residuals are distributed over them at random:
    equal shares for every cluster would hide part of the noise of independent residuals.
    """
    below = np.concatenate([[0.0], cells.sum(0).cumsum() / cells.sum()])
    below[-1] = 1.0
    recalibrated = np.zeros_like(cells)
    for index in np.flatnonzero(np.diff(below)):
        inside = np.clip(nominal, below[index], below[index + 1])
        targets = np.flatnonzero(np.diff(inside))
        shares = np.diff(inside)[targets]
        recalibrated[:, targets] += generator.multinomial(cells[:, index], shares / shares.sum())
    return recalibrated


@lru_cache(maxsize=16)
def _normal_squares(grid: Grid) -> Array:
    """Mean of z^2 in each cell under N(0, 1), by quadrature; the outer cells, which are open, do not count."""
    node, weight = np.polynomial.legendre.leggauss(_NODES)
    edges = cell_edges(grid)
    middle, half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges)
    square = (middle[:, None] + half[:, None] * node) ** 2
    density = weight * np.exp(-0.5 * (square - square.min(1, keepdims=True)))
    return np.pad((square * density).sum(1) / density.sum(1), 1)


def _shares_of_z(cells: Array, grid: Grid, bins: int) -> Array:
    """Shares of cells in equal-probability bins, S or 2 S of them. Shape ``(..., bins)``."""
    level = np.arange(1, 2 * grid.bins) / (2 * grid.bins)
    edges = normal_quantile(torch.from_numpy(level), torch.from_numpy(1 - level)).numpy()
    starts = np.concatenate([[0], np.searchsorted(cell_edges(grid), edges) + 1])[:: 2 * grid.bins // bins]
    counts: Array = np.add.reduceat(cells, starts, axis=-1)
    return counts / counts.sum(-1, keepdims=True)


def _ece_of_z(cells: Array, grid: Grid) -> Array:
    return expected_calibration_error(_shares_of_z(cells, grid, grid.bins))


def _ece_of_q(cells: Array, squares: Array, grid: Grid) -> Array:
    """ECE(q) with draws pooled over all cells, from the mean square in each; one square is a central interval of z."""
    if grid.df == 1:
        lower, upper = np.split(_shares_of_z(cells, grid, 2 * grid.bins), 2, axis=-1)
        return expected_calibration_error(lower[..., ::-1] + upper)
    points = _POINTS_OF_FEW if grid.df < _FEW else _POINTS
    values, below = distribution_of_q(cells, cell_edges(grid), grid.df, points=points, squares=squares[1:-1])
    return expected_calibration_error(shares_between(chi2_edges(grid.df, grid.bins), values, below))


def _within(q: Integers, deviations: list[float], weights: Array, grid: Grid) -> dict[str, Any]:
    """Scores of sums within clusters; resampled data sets without any such sum do not count."""
    count = int(q.sum())
    names = ("ece_q_within", "ece_q_within_floor", "mce_q_within", "kld_q_within", "wdist_q_within")
    if not count:
        return {**dict.fromkeys(names), "sums_within": 0}
    shares, resampled = q.sum(0) / count, weights @ q
    resampled = resampled[resampled.sum(1) > 0]
    errors = expected_calibration_error(resampled / resampled.sum(1, keepdims=True))
    first, second = (total / count for total in deviations)
    mean, variance, floor = grid.df + first, max(second - first**2, 0.0), floors(count, grid.bins, 1).ece
    values = (
        interval_of_error(expected_calibration_error(shares), errors, floor),
        floor,
        float(maximum_calibration_error(shares)),
        divergence_of_moments(reverse_kl, mean, variance, grid.df),
        divergence_of_moments(wasserstein_printed, mean, variance, grid.df),
    )
    return {**dict(zip(names, values, strict=True)), "sums_within": count}


def interval_of_error(value: Array, resampled: Array, calibrated: Floor) -> Interval:
    """Interval of a score from resampled ones, which noise makes too large where the score is near 0."""
    reach = max(float(np.quantile(resampled, 0.975)) - float(value), 0.0)
    low = max(float(value) - reach, 0.0) if value > calibrated.q95 else 0.0
    return Interval(float(value), low, float(value) + reach)


def _band(resampled: Array) -> Floor:
    return Floor(float(resampled.mean()), float(np.quantile(resampled, 0.95)))
