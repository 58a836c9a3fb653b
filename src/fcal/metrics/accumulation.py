"""From predictions and targets to counts and sums: one pass, in chunks that stay in cache."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from fcal._checks import check_beside_target
from fcal.distributions import normal_quantile
from fcal.distributions.family import Law
from fcal.distributions.observation import Observation, Selection, observe_valid
from fcal.distributions.tails import LOG_SQRT_2PI
from fcal.distributions.warped_integrals import fast_moments_and_crps
from fcal.metrics.calibration_errors import chi2_quantiles
from fcal.metrics.report import LEVELS
from fcal.metrics.row_sample import RowSampler
from fcal.metrics.state import (
    CLUSTER_BINS,
    CLUSTER_SUMS,
    CLUSTERS,
    LOG_BINS,
    Z_BINS,
    Grid,
    GroupCounter,
    State,
    Term,
    cluster_buckets,
    empty_state,
    folded_bits,
    log_index,
    sums_of_runs,
)
from fcal.residuals import residuals_of
from fcal.scores import element_crps, element_nll

_CHUNK = 1 << 17  # scalars: with far fewer the calls cost more than the work, with far more nothing stays in cache
LARGEST_Z = 1e70  # its fourth power is still a float64
_LEVEL_STEPS = 200  # the central interval of every level ends at multiples of 1 / 200


@dataclass(frozen=True)
class Scored:
    """Scalars of one chunk, flat; float64, or float32 where normal predictions are.

    Attributes:
        z: Residuals.
        t: 2 Phi(z) - 1.
        error: Target minus predicted mean; None where the prediction has no mean or no sd, as are the next two.
        sigma: Predicted sd.
        ratio: Error divided by sigma.
        nll: Per scalar.
        crps: Per scalar; None for vectors.
        target: Targets.
        squared_distance: Sum of squared residuals of each vector; None for scalars. Shape ``(rows,)``.
    """

    z: Tensor
    t: Tensor
    error: Tensor | None
    sigma: Tensor | None
    ratio: Tensor | None
    nll: Tensor
    crps: Tensor | None
    target: Tensor
    squared_distance: Tensor | None


def accumulate(
    pred: Distribution,
    target: Tensor,
    grid: Grid,
    *,
    valid_mask: Tensor | None = None,
    group: Tensor | None = None,
    groups: int = 1,
    cluster: Tensor | None = None,
    fingerprinted: bool = False,
    state: State | None = None,
    rows: RowSampler | None = None,
) -> State:
    """State of one batch, or ``state`` with the batch added in place, which saves the time to add a large one.

    ``rows`` collects single rows. Other arguments are those of :func:`fcal.evaluate`, but groups are numbers below
    ``groups``.

    Raises:
        TypeError: Labels that are not integers.
        ValueError: Labels of another shape, or out of range.
    """
    with torch.no_grad():
        selection = observe_valid(pred, target, valid_mask=valid_mask)
        labels = labels_of("group", group, selection, below=groups), labels_of("cluster", cluster, selection)
        if state is None:
            state = empty_state(grid, groups=groups, clustered=cluster is not None, device=target.device)
        first = 0
        for chunk, chunk_group, chunk_cluster in chunks(selection.observation, labels):
            if chunk.target.numel():
                scored = score_chunk(chunk)
                count_scored(state, scored, chunk_group, chunk_cluster, grid, fingerprinted=fingerprinted)
                if rows is not None:
                    size = chunk.elements().numel()
                    index = torch.arange(first, first + size, device=target.device)
                    index = index if selection.index is None else selection.index[first : first + size]
                    outputs = max(selection.elements.numel() // max(selection.rows.numel(), 1), 1)
                    rows.add(chunk, index, outputs, scored.z, scored.error, scored.sigma)
                    first += size
        if rows is not None:
            rows.pass_batch(selection.elements.numel())
        return state


def labels_of(name: str, labels: Tensor | None, selection: Selection, below: int | None = None) -> Tensor | None:
    """Labels of what counts, from those of targets, rows, or leading dimensions of either, such as images."""
    if labels is None:
        return None
    elements, rows, target = selection.elements, selection.rows, selection.target
    if isinstance(labels, Tensor) and 0 < labels.dim() <= len(elements):
        padded = labels.reshape(labels.shape + (1,) * (len(elements) - labels.dim()))
        if all(own in (1, whole) for own, whole in zip(padded.shape, elements, strict=True)):
            labels, rows = padded.expand(elements), elements
    checked = check_beside_target(name, labels, target, rows)
    if checked.is_floating_point() or checked.is_complex() or checked.dtype == torch.bool:
        raise TypeError(f"expected `{name}` of an integer dtype, got {checked.dtype}")
    if checked.shape != elements:
        raise ValueError(f"expected `{name}` of shape {tuple(elements)}, one per row, got {tuple(checked.shape)}")
    flat = checked.reshape(-1)
    if below is not None and len(flat) and not (int(flat.min()) >= 0 and int(flat.max()) < below):
        raise ValueError(f"expected `{name}` within 0 to {below - 1}, got {int(flat.min())} to {int(flat.max())}")
    chosen = flat if selection.index is None else flat.index_select(0, selection.index)
    return chosen.to(torch.int64)


def chunks(
    observation: Observation, labels: tuple[Tensor | None, Tensor | None]
) -> Iterator[tuple[Observation, Tensor | None, Tensor | None]]:
    """Consecutive slices of rows and their labels; only normal predictions keep float32."""
    law, elements = observation.law, observation.elements()
    dtype = observation.dtype if _is_normal(law) else torch.float64
    leaves = [observation.target, *law.leaves(elements)]
    widest = max(leaf[:1].numel() for leaf in leaves)
    step = max(_CHUNK // max(widest, 1), 1)
    for start in range(0, elements.numel(), step):
        where = slice(start, start + step)
        target, *parameters = (leaf[where].to(dtype) for leaf in leaves)
        group, cluster = (None if label is None else label[where] for label in labels)
        yield replace(observation, law=law.with_leaves(parameters), target=target), group, cluster


def _is_normal(law: Law) -> bool:
    return law.kind is Normal and not law.transforms


def score_chunk(chunk: Observation) -> Scored:
    """Residuals, errors and scores of a chunk."""
    law = chunk.law
    if _is_normal(law):
        return _scored_normal(chunk.target, *law.parameters)
    z = residuals_of(chunk)
    mean, sigma, crps = _moments_and_crps(chunk)
    dims = z.shape[1] if z.dim() == 2 else 1
    error = None if mean is None else (chunk.target - mean).reshape(-1)
    spread = None if sigma is None else sigma.expand(chunk.target.shape).reshape(-1).contiguous()
    return Scored(
        z=z.reshape(-1).clamp(-LARGEST_Z, LARGEST_Z),
        t=torch.erf(z.reshape(-1) * math.sqrt(0.5)),
        error=error,
        sigma=spread,
        ratio=None if error is None or spread is None else (error / spread).clamp_(-LARGEST_Z, LARGEST_Z),
        nll=element_nll(chunk).repeat_interleave(dims) / dims,
        crps=crps,
        target=chunk.target.reshape(-1),
        squared_distance=z.square().sum(-1) if law.family.event_dim else None,
    )


def _scored_normal(target: Tensor, loc: Tensor, scale: Tensor) -> Scored:
    """The same for normal predictions, from one error function and one exponential.

    In float32 each term is rounded separately, so that their float64 sums do not depend on the order.
    """
    error = target - loc
    largest = min(LARGEST_Z, torch.finfo(error.dtype).max)
    z = torch.div(error, scale).clamp_(-largest, largest)
    t = torch.mul(z, math.sqrt(0.5)).erf_()
    half_square = z.square().mul_(0.5)
    nll = torch.log(scale).add_(half_square).add_(LOG_SQRT_2PI)
    if not math.isfinite(nll.sum().item()):  # beyond float32
        nll = z.double().square().mul_(0.5).add_(scale.double().log()).add_(LOG_SQRT_2PI)
    density = half_square.neg_().exp_()
    crps = torch.mul(z, t).add_(density, alpha=math.sqrt(2 / math.pi)).sub_(1 / math.sqrt(math.pi)).mul_(scale)
    return Scored(z, t, error, scale, z, nll, crps, target, None)


def _moments_and_crps(chunk: Observation) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Mean and sd as :func:`_moments` has them, and CRPS, which vectors do not have."""
    law = chunk.law
    if law.family.event_dim:
        return *_moments(law), None
    fast = fast_moments_and_crps(law, chunk.target)
    if fast is not None:
        mean, variance, crps = fast
        return *_usable(mean, variance.sqrt()), crps
    return *_moments(law), element_crps(chunk)


def _moments(law: Law) -> tuple[Tensor | None, Tensor | None]:
    """Mean and sd, NaN where one of them is not finite; None where torch does not implement them."""
    try:
        pred = law.distribution()
        mean, sigma = pred.mean, pred.stddev
    except (NotImplementedError, AttributeError):  # not implemented in torch
        return None, None
    return _usable(mean, sigma)


def _usable(mean: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    usable = torch.isfinite(mean) & torch.isfinite(sigma) & (sigma > 0)
    return mean.where(usable, torch.nan), sigma.where(usable, torch.nan)


def count_scored(
    state: State, scored: Scored, group: Tensor | None, cluster: Tensor | None, grid: Grid, *, fingerprinted: bool
) -> None:
    """Add a chunk with the labels of its rows to the state."""
    z = scored.z
    dims = 1 if scored.squared_distance is None else len(z) // len(scored.squared_distance)
    row_group = group
    if dims > 1:
        group, cluster = (None if label is None else label.repeat_interleave(dims) for label in (group, cluster))
    counter = GroupCounter(group, state.groups(), z.device)
    counted: Tensor | int = len(z) if group is None else torch.bincount(group, minlength=state.groups())
    state.n.add_(counted)
    state.rows.add_(counted // dims)
    pit = counter.counts(grid.pit_index(scored.t), grid.pit_bins)
    state.pit.add_(pit)
    z_index = grid.z_index(z)
    state.z.add_(counter.counts(z_index, Z_BINS + 2))
    if scored.squared_distance is None and grid.pit_bins % _LEVEL_STEPS == 0:
        state.coverage.add_(_coverage_of_pit(pit))
    else:
        _count_coverage(state, scored, row_group, dims)
    squares = _count_sigma(state, scored, z_index, counter)
    state.sums.add_(counter.sums([*squares, *_terms(scored)]))
    if cluster is not None:
        _count_clusters(state, scored, group, cluster)
    if fingerprinted:
        hashes = folded_bits(scored.target)
        if group is None:
            state.fingerprint[0] += hashes.sum()
        else:
            state.fingerprint.scatter_add_(0, group, hashes)


def _terms(scored: Scored) -> list[Term]:
    """The columns of ``SUMS`` after the squares of error and sigma."""
    z, t, target, ratio = scored.z.double(), scored.t.double(), scored.target.double(), scored.ratio
    z_sq = z * z
    ratio_sq = z_sq if ratio is scored.z else None if ratio is None else ratio.double().square()
    return [
        None if scored.error is None else (scored.error.double(), None),
        (scored.nll.double(), None),
        None if scored.crps is None else (scored.crps.double(), None),
        *_power_terms(z, z_sq),
        *_power_terms(t, t * t),
        (target, None),
        (target, target),
        None if ratio_sq is None else (ratio_sq, ratio_sq),
    ]


def _power_terms(x: Tensor, square: Tensor) -> list[Term]:
    return [(x, None), (square, None), (square, x), (square, square)]


def _coverage_of_pit(pit: Tensor) -> Tensor:
    """Counts in central intervals, which end at edges of the PIT bins. Shape ``(groups, levels)``."""
    bins = pit.shape[1]
    below = torch.cat([pit.new_zeros(len(pit), 1), pit.cumsum(1)], 1)
    outside = [round((1 - level) / 2 * bins) for level in LEVELS]
    return torch.stack([below[:, bins - cut] - below[:, cut] for cut in outside], 1)


def _count_coverage(state: State, scored: Scored, group: Tensor | None, dims: int) -> None:
    if scored.squared_distance is None:
        above = 0.5 * (1 - torch.tensor(LEVELS, dtype=torch.float64))
        distance, limits = scored.z.abs(), normal_quantile(1 - above, above).tolist()
    else:
        distance, limits = scored.squared_distance, chi2_quantiles(dims, np.array(LEVELS)).tolist()
    for column, limit in enumerate(limits):
        within = distance <= limit
        if group is None:
            state.coverage[0, column] += dims * int(torch.count_nonzero(within))
        else:
            state.coverage[:, column] += dims * torch.bincount(group[within], minlength=state.groups())


def _count_sigma(state: State, scored: Scored, z_index: Tensor, counter: GroupCounter) -> tuple[Term, Term]:
    """Count by sigma and by error; return the sums of squared errors and of squared sigmas."""
    if scored.sigma is None or scored.error is None:
        return None, None
    index, sigma = log_index(scored.sigma), scored.sigma.double()
    error_sq = counter.counts(index, LOG_BINS, scored.error.double().square())
    sigma_sq = counter.counts(index, LOG_BINS, sigma.square())
    state.sigma.add_(counter.counts(index, LOG_BINS))
    state.sigma_sq.add_(sigma_sq)
    state.sigma_error.add_(error_sq)
    state.error.add_(counter.counts(log_index(scored.error.abs()), LOG_BINS))
    state.z_sigma.add_(counter.counts(z_index, Z_BINS + 2, sigma))
    return error_sq.sum(1), sigma_sq.sum(1)


def _count_clusters(state: State, scored: Scored, group: Tensor | None, cluster: Tensor) -> None:
    """Add the sums of each cluster."""
    z, t = scored.z.double(), scored.t.double()
    t_sq = t * t
    clusters, lengths = torch.unique_consecutive(cluster, return_counts=True)  # pixels of an image come in a run
    bucket, hashed = cluster_buckets(clusters)
    state.hashed.add_((hashed * lengths).sum())
    joint, of_run = bucket.repeat_interleave(lengths), bucket
    if group is not None:
        joint = group * CLUSTERS + joint
        of_run, lengths = torch.unique_consecutive(joint, return_counts=True)
    table = state.clusters.view(state.groups() * CLUSTERS, -1)
    sums = sums_of_runs([torch.ones_like(t), z, z * z, t, t_sq, t_sq * t, t_sq * t_sq], lengths)
    table[:, : len(CLUSTER_SUMS)].index_add_(0, of_run, sums)
    index = torch.add(t, 1).mul_(0.5 * CLUSTER_BINS).clamp_(max=CLUSTER_BINS - 0.5).to(torch.int64)
    counts = torch.bincount(joint.mul_(CLUSTER_BINS).add_(index), minlength=len(table) * CLUSTER_BINS)
    table[:, len(CLUSTER_SUMS) :].add_(counts.view(len(table), CLUSTER_BINS))
