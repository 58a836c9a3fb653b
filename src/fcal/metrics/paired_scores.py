"""Scores of several models on the same targets, paired row by row and added up in one pass.

What is kept has a fixed size: for every model the state of an evaluation in 64 blocks of rows, and means and products
of the scores of the first model and of the differences from them. Differences are summed themselves, so that models
which hardly differ are told apart to the last digits.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal.distributions import normal_quantile
from fcal.distributions.family import law_of
from fcal.distributions.functional import quantile_of
from fcal.distributions.observation import Observation, Selection, observe_valid
from fcal.metrics.accumulation import Scored, chunks, count_scored, labels_of, score_chunk
from fcal.metrics.calibration_errors import chi2_quantiles, distribution_of_q, expected_calibration_error
from fcal.metrics.report import Interval
from fcal.metrics.state import CLUSTERS, Array, Grid, State, cluster_buckets, empty_state
from fcal.metrics.summary import shares_of_q, student_limit

LEVELS = (0.5, 0.9, 0.95)  # of intervals whose coverage is compared
WIDTH_LEVEL = 0.9
COVERAGES = tuple(f"coverage_{level:g}" for level in LEVELS)
WIDTH = f"width_{WIDTH_LEVEL:g}"
_MEANS = ("nll", "crps", *COVERAGES, WIDTH)
_ROOTS = {"rmse": "error_sq", "sharpness": "sigma_sq"}  # roots of means
_TERMS = (*_MEANS, *_ROOTS.values())
_BLOCKS = 64
_ROUNDING = 1e-12  # relative: smaller differences of means are rounding
_SAME = 1e-9  # relative: models that differ less on average differ by rounding


class PairedScores:
    """Scores of models on the same targets, added batch by batch.

    Args:
        models: Number of models.
        grid: Bins of the evaluation.
        clustered: Whether clusters are independent, not rows.
    """

    def __init__(self, models: int, grid: Grid, *, clustered: bool = False) -> None:
        self.grid, self.clustered = grid, clustered
        self.models = models
        self.states: list[State] = []  # on the device of the first batch
        self.rows = 0
        size = 1 + models * len(_TERMS)
        self._moments = _Moments(size)
        self._totals: Array = np.zeros((CLUSTERS if clustered else 0, size))

    def add(
        self,
        preds: Sequence[Distribution],
        target: Tensor,
        *,
        valid_mask: Tensor | None = None,
        cluster: Tensor | None = None,
    ) -> None:
        """Add a batch: a prediction of each model, and the targets of all; arguments as for :func:`fcal.evaluate`."""
        valid = _valid_for_all(preds, target, valid_mask)
        if not self.states:
            options: dict[str, Any] = {"groups": _BLOCKS, "clustered": self.clustered, "device": target.device}
            self.states = [empty_state(self.grid, **options) for _ in range(self.models)]
        tables = []
        with torch.no_grad():
            for pred, state in zip(preds, self.states, strict=True):
                selection = observe_valid(pred, target, valid_mask=valid)
                of_cluster = labels_of("cluster", cluster, selection)
                row = _row_of_elements(selection)
                tables.append(_totals_of_rows(self._scored(state, selection, row, of_cluster), row, selection))
            first = tables[0]
            own = np.concatenate([first, *(table[:, 1:] - first[:, 1:] for table in tables[1:])], 1)
            self._add_units(own, _first_of_rows(of_cluster, row))
        self.rows += selection.rows.numel()

    def _scored(self, state: State, selection: Selection, row: Tensor, cluster: Tensor | None) -> Array:
        """Scores of every element, which are counted too. Shape ``(elements, 1 + terms)``, the first its scalars."""
        block = (self.rows + row if cluster is None else cluster_buckets(cluster)[0]) % _BLOCKS
        found: list[Array] = [np.zeros((0, 1 + len(_TERMS)))]
        for chunk, group, own_cluster in chunks(selection.observation, (block, cluster)):
            if chunk.target.numel():
                scored = score_chunk(chunk)
                count_scored(state, scored, group, own_cluster, self.grid, fingerprinted=False)
                found.append(_terms_of(chunk, scored))
        return np.concatenate(found)

    def _add_units(self, units: Array, cluster: Tensor | None) -> None:
        if cluster is None:
            self._moments.add(units)
        else:
            np.add.at(self._totals, cluster_buckets(cluster)[0].cpu().numpy(), units)

    def means(self, model: int) -> dict[str, float | None]:
        """Mean scores of a model, per scalar; roots of mean squares as such."""
        moments = self._units()
        found = {name: moments.mean_of(model, _TERMS.index(name)) for name in _MEANS}
        found |= {name: _root(moments.mean_of(model, _TERMS.index(term))) for name, term in _ROOTS.items()}
        return {name: None if value is None or math.isnan(value) else value for name, value in found.items()}

    def differences(self, model: int) -> dict[str, Interval]:
        """Scores of a model less those of the first, with 95 % intervals; those that do not exist are left out."""
        moments = self._units()
        limit = student_limit(max(moments.count - 1, 1), 1)
        found = {name: moments.difference(model, _TERMS.index(name)) for name in _MEANS}
        found |= {name: moments.root_difference(model, _TERMS.index(term)) for name, term in _ROOTS.items()}
        if not self.clustered and moments.is_one_scalar_each():
            for name in COVERAGES:  # few rows in which only one model is right say less than their variance
                value, _ = found[name]
                found[name] = value, moments.error_of_matched_shares(model, _TERMS.index(name))
        intervals = {name: _interval(value, error, limit) for name, (value, error) in found.items()}
        for name, errors in (("ece_z", _ece_of_z), ("ece_q", _ece_of_q)):
            gap = errors(self.states[model], self.grid) - errors(self.states[0], self.grid)
            error, blocks = _jackknife_error(gap, self.states[0].n.cpu().numpy().astype(np.float64))
            intervals[name] = _interval(float(gap[0]), error, student_limit(max(blocks - 1, 1), 1))
        return {name: interval for name, interval in intervals.items() if not math.isnan(interval.value)}

    def is_same(self, model: int) -> bool:
        """Whether every score of a model is that of the first in every row, up to rounding."""
        return self._units().is_same(model)

    def units(self) -> int:
        """Number of rows, or clusters, that count."""
        return self._units().count

    def _units(self) -> "_Moments":
        if not self.clustered:
            return self._moments
        moments = _Moments(self._totals.shape[1])
        moments.add(self._totals[self._totals[:, 0] > 0])
        return moments


class _Moments:
    """Mean and summed products of the totals of units: scalars, scores of the first model, differences of the others.

    Means per scalar are ratios of these means; their variances are those of the linearised ratio, which for one scalar
    in every row is that of a mean, and the interval that of the paired t-test.
    """

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean: Array = np.zeros(size)
        self.products: Array = np.zeros((size, size))  # of deviations from the mean

    @np.errstate(all="ignore")  # scores beyond float64 are left out of the result
    def add(self, units: Array) -> None:
        """Add units, by the update of Chan, Golub and LeVeque. Shape ``(units, size)``."""
        if not len(units):
            return
        mean = units.mean(0)
        centred, step = units - mean, mean - self.mean
        total = self.count + len(units)
        self.products += centred.T @ centred + np.outer(step, step) * (self.count * len(units) / total)
        self.mean = self.mean + step * (len(units) / total)
        self.count = total

    def mean_of(self, model: int, term: int) -> float:
        """Mean of a term per scalar."""
        first = self.mean[_column(0, term)]
        return float((first + (self.mean[_column(model, term)] if model else 0.0)) / self.mean[0])

    def difference(self, model: int, term: int) -> tuple[float, float]:
        """Difference of a mean from that of the first model, and its standard error."""
        value = float(self.mean[_column(model, term)] / self.mean[0])
        if abs(value) <= _ROUNDING * abs(self.mean_of(0, term)):
            value = 0.0
        return value, self._error({_column(model, term): 1.0})

    @np.errstate(all="ignore")
    def root_difference(self, model: int, term: int) -> tuple[float, float]:
        """Difference of roots of means, and its standard error by the delta method."""
        first, other = _root(self.mean_of(0, term)), _root(self.mean_of(model, term))
        gap, _ = self.difference(model, term)
        if not (first > 0 and other > 0):
            return other - first, 0.0 if gap == 0 else math.nan
        slopes = 0.5 / other, 0.5 / other - 0.5 / first
        return gap / (first + other), self._error({_column(model, term): slopes[0], _column(0, term): slopes[1]})

    @np.errstate(all="ignore")
    def _error(self, slopes: dict[int, float]) -> float:
        """Standard error of a linear function of means per scalar; infinite for a single unit."""
        columns = [*slopes, 0]
        weights = np.array([*slopes.values(), 0.0])
        weights[-1] = -float(weights @ self.mean[columns]) / self.mean[0]
        variance = float(weights @ self.products[np.ix_(columns, columns)] @ weights)
        if self.count < 2:
            return math.inf
        return math.sqrt(max(variance, 0.0) / (self.count * (self.count - 1))) / float(self.mean[0])

    def is_one_scalar_each(self) -> bool:
        """Whether every unit is one scalar."""
        return self.mean[0] == 1.0 and self.products[0, 0] == 0.0

    def error_of_matched_shares(self, model: int, term: int) -> float:
        """Standard error of a difference of shares of the same rows, after Agresti and Min: half a row in each cell."""
        column = _column(model, term)
        gap = float(self.mean[column]) * self.count
        discordant = float(self.products[column, column]) + gap**2 / self.count
        if self.count < 2:
            return math.inf
        more = self.count + 2
        return math.sqrt(max(discordant + 1 - gap**2 / more, 0.0)) / more

    def is_same(self, model: int) -> bool:
        """Whether all differences of a model are zero, up to rounding."""
        columns = [_column(model, term) for term in range(len(_TERMS))]
        first = [_column(0, term) for term in range(len(_TERMS))]
        spread = np.sqrt(np.diagonal(self.products)[columns] / max(self.count, 1)) + np.abs(self.mean[columns])
        return bool((np.nan_to_num(spread) <= _SAME * np.nan_to_num(np.abs(self.mean[first]) + 1)).all())


def _column(model: int, term: int) -> int:
    return 1 + model * len(_TERMS) + term


def _root(value: float) -> float:
    return math.sqrt(value) if value >= 0 else math.nan


def _interval(value: float, error: float, limit: float) -> Interval:
    return Interval(value, value - limit * error, value + limit * error)


def _valid_for_all(preds: Sequence[Distribution], target: Tensor, valid_mask: Tensor | None) -> Tensor | None:
    """A mask without the vectors of which a coordinate is missing, where a model predicts vectors as a whole."""
    if not any(law_of(pred).family.event_dim for pred in preds) or not bool(target.isnan().any()):
        return valid_mask
    complete = ~target.isnan().any(-1, keepdim=True).expand(target.shape)
    if valid_mask is None:
        return complete
    return complete & valid_mask.reshape(valid_mask.shape + (1,) * (target.dim() - valid_mask.dim()))


def _per_row(selection: Selection) -> int:
    """Elements in a row of the prediction."""
    return selection.elements.numel() // max(selection.rows.numel(), 1)


def _row_of_elements(selection: Selection) -> Tensor:
    """Row of every element that counts, among the rows of the batch."""
    index = selection.index
    if index is None:
        index = torch.arange(selection.elements.numel(), device=selection.target.device)
    return index // max(_per_row(selection), 1)


def _totals_of_rows(scores: Array, row: Tensor, selection: Selection) -> Array:
    """Sums over the elements of every row that has any. Shape ``(rows, terms)``."""
    if _per_row(selection) == 1:
        return scores
    of_row = np.unique(row.cpu().numpy(), return_inverse=True)[1]
    totals: Array = np.stack([np.bincount(of_row, column) for column in scores.T], 1)
    return totals


def _first_of_rows(labels: Tensor | None, row: Tensor) -> Tensor | None:
    """Label of every row that has elements; elements of a row follow each other."""
    if labels is None or not len(row):
        return labels
    starts = torch.cat([row.new_ones(1, dtype=torch.bool), row[1:] != row[:-1]])
    return labels[starts]


def _terms_of(chunk: Observation, scored: Scored) -> Array:
    """Number of scalars of every element, and its terms summed over them."""
    vectors = scored.squared_distance is not None
    dims = len(scored.z) // len(scored.squared_distance) if scored.squared_distance is not None else 1
    limits = _limits(dims, vectors=vectors)
    distance = scored.z.abs() if scored.squared_distance is None else scored.squared_distance
    covered = [dims * (distance <= limit).double() for limit in limits]
    columns: list[Tensor | None] = [
        _summed(scored.nll, dims),
        None if scored.crps is None else _summed(scored.crps, dims),
        *covered,
        None if vectors else _width(chunk),
        None if scored.error is None else _summed(scored.error.double().square(), dims),
        None if scored.sigma is None else _summed(scored.sigma.double().square(), dims),
    ]
    count = len(distance)
    missing = torch.full((count,), torch.nan, dtype=torch.float64, device=distance.device)
    scalars = torch.full_like(missing, float(dims))
    terms: Array = torch.stack([scalars, *(missing if c is None else c for c in columns)], 1).cpu().numpy()
    return terms


def _summed(values: Tensor, dims: int) -> Tensor:
    return values.double() if dims == 1 else values.double().reshape(-1, dims).sum(1)


def _limits(dims: int, *, vectors: bool) -> list[float]:
    """Largest distance of a target in the central region of each level: of residuals, or squared ones of vectors."""
    if vectors:
        squared: list[float] = chi2_quantiles(dims, np.array(LEVELS)).tolist()
        return squared
    above = 0.5 * (1 - torch.tensor(LEVELS, dtype=torch.float64))
    found: list[float] = normal_quantile(1 - above, above).tolist()
    return found


def _width(chunk: Observation) -> Tensor:
    """Width of central intervals."""
    law, tail = chunk.law.to(torch.float64), chunk.target.new_tensor(0.5 * (1 - WIDTH_LEVEL), dtype=torch.float64)
    low, high = (tail.expand(chunk.target.shape), (1 - tail).expand(chunk.target.shape))
    return (quantile_of(law, high, low) - quantile_of(law, low, high)).reshape(-1)


# Calibration errors of all rows, and of all but each block: their noise.


def _without_each_block(counts: Tensor) -> Array:
    """Counts of all blocks together, then of all but each. Shape ``(1 + blocks, bins)``."""
    own: Array = counts.cpu().numpy().astype(np.float64)
    whole = own.sum(0, keepdims=True)
    return np.concatenate([whole, whole - own])


@np.errstate(all="ignore")  # a block that holds everything
def _ece_of_z(state: State, grid: Grid) -> Array:
    counts = _without_each_block(state.pit)
    shares = counts.reshape(len(counts), grid.bins, -1).sum(-1) / counts.sum(-1, keepdims=True)
    return expected_calibration_error(shares)


@np.errstate(all="ignore")
def _ece_of_q(state: State, grid: Grid) -> Array:
    values, below = distribution_of_q(_without_each_block(state.z), grid.z_edges, grid.df)
    return expected_calibration_error(shares_of_q(_without_each_block(state.pit), values, below, grid))


def _jackknife_error(values: Array, sizes: Array) -> tuple[float, int]:
    """Standard error by leaving out blocks of different sizes (Busing, Meijer and van der Leeden), and their number.

    Args:
        values: Statistic of all rows, then of all rows but those of each block. Shape ``(1 + blocks,)``.
        sizes: Rows of each block. Shape ``(blocks,)``.
    """
    filled = sizes > 0
    blocks = int(filled.sum())
    if blocks < 2:
        return math.inf, blocks
    left, ratio = values[1:][filled], sizes.sum() / sizes[filled]
    centre = blocks * values[0] - ((1 - 1 / ratio) * left).sum()
    pseudo = ratio * values[0] - (ratio - 1) * left
    return math.sqrt(float(((pseudo - centre) ** 2 / (ratio - 1)).mean())), blocks
