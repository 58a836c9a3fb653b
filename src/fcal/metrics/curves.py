"""Curves of a report: reliability, histograms and quantiles of residuals; errors by predicted sigma."""

import math
from functools import cached_property

import numpy as np
import torch

from fcal.distributions import normal_quantile
from fcal.metrics.calibration_errors import floor_of_ence
from fcal.metrics.report import Curves, Floor, Histogram, Reliability, SigmaBins, Sparsification
from fcal.metrics.state import Array, Integers, log_edges, sum_limit, usual_sums
from fcal.metrics.summary import NORMAL_KURTOSIS, Summary

_NORMAL_95 = 1.959963984540054  # quantile 0.975 of the normal distribution
_STEPS = 100  # of a reliability curve, at most
_BARS = 64
_QUANTILES = 99
_SMALLEST_TAIL = 1e-6
_SMALLEST_REACH = 4.0
_SIGMA_BINS = 15
_DROPPED = np.linspace(0, 0.99, 100)


class ErrorsBySigma:
    """Errors by predicted sigma.

    Args:
        summary: Statistics of predictions that have an sd.
        design_effect: Sampling variance of mean squares, relative to that of independent rows.
    """

    def __init__(self, summary: Summary, design_effect: float) -> None:
        self._summary = summary
        self._effect = design_effect
        filled = summary.sigma > 0
        self._count, self._sigma_sq, self._error_sq = (
            x[filled] for x in (summary.sigma, summary.sigma_sq, summary.sigma_error)
        )
        middle = self._count.cumsum() - 0.5 * self._count
        merged_bin = np.floor(_SIGMA_BINS * middle / self._count.sum())
        self._merged_bin: Integers = np.unique(merged_bin, return_inverse=True)[1].astype(np.int64)

    def _merged(self, values: Array) -> Array:
        return np.bincount(self._merged_bin, values).astype(np.float64, copy=False)

    @cached_property
    def _kurtosis(self) -> float:
        """Kurtosis of error / sigma under the prediction: 3 for normal predictions, else that of the data."""
        fourth = self._summary.means["ratio_qu"]
        if math.isclose(fourth, self._summary.means["z_qu"], rel_tol=1e-9):
            return NORMAL_KURTOSIS
        second = float((self._count * self._error_sq / self._sigma_sq).sum()) / self._summary.n
        return max(fourth / second**2, 1.0 + 1e-3) if second > 0 else NORMAL_KURTOSIS

    def ence(self) -> float:
        """Mean over bins of | RMS sigma - RMS error | / RMS sigma."""
        return float(np.abs(1 - np.sqrt(self._merged(self._error_sq) / self._merged(self._sigma_sq))).mean())

    def floor(self) -> Floor:
        """ENCE of a calibrated model."""
        return floor_of_ence(self._count / self._effect, self._sigma_sq, self._merged_bin, self._kurtosis)

    def bins(self) -> SigmaBins:
        """RMS error in each bin of sigma, with its consistency band."""
        count = self._merged(self._count)
        sigma, error = (np.sqrt(self._merged(x) / count) for x in (self._sigma_sq, self._error_sq))
        half = _NORMAL_95 * np.sqrt((self._kurtosis - 1) * self._effect / count)
        return SigmaBins(
            sigma=tuple(sigma.tolist()),
            error=tuple(error.tolist()),
            low=tuple((sigma * np.sqrt(np.maximum(1 - half, 0))).tolist()),
            high=tuple((sigma * np.sqrt(1 + half)).tolist()),
            count=tuple(count.astype(int).tolist()),
        )

    @cached_property
    def _curves(self) -> tuple[Array, Array]:
        if not self._error_sq.sum() > 0:
            return np.zeros_like(_DROPPED), np.zeros_like(_DROPPED)
        error_count = self._summary.error
        edges = log_edges()
        return (
            _remaining_rmse(self._count[::-1], self._error_sq[::-1]),
            _remaining_rmse(error_count[::-1], (error_count * (0.5 * (edges[1:] + edges[:-1])) ** 2)[::-1]),
        )

    def ause(self) -> float:
        """Area between the sparsification curves."""
        by_sigma, by_error = self._curves
        return float(np.trapezoid(by_sigma - by_error, _DROPPED) / _DROPPED[-1])

    def sparsification(self) -> Sparsification:
        """Relative RMSE of what remains when the largest sigmas, or the largest errors, are dropped."""
        by_sigma, by_error = self._curves
        return Sparsification(tuple(_DROPPED.tolist()), tuple(by_sigma.tolist()), tuple(by_error.tolist()))


def _remaining_rmse(count: Array, square: Array) -> Array:
    """RMSE after dropping a share of the data from the front, relative to that of all; ties in any order."""
    total = square.sum()
    if total <= 0:
        return np.zeros_like(_DROPPED)
    dropped = np.concatenate([[0.0], count.cumsum() / count.sum()])
    squares_dropped = np.concatenate([[0.0], square.cumsum() / total])
    remaining = np.maximum(1 - np.interp(_DROPPED, dropped, squares_dropped), 0) / (1 - _DROPPED)
    return np.sqrt(remaining)


def curves_of(summary: Summary, sigmas: ErrorsBySigma | None, effective: int, q_spread: Array) -> Curves:
    """Every curve of a report.

    Args:
        summary: Statistics of the summary.
        sigmas: Errors by sigma; None where the prediction has no sd.
        effective: Effective number of independent residuals, for the bands.
        q_spread: Sampling sd of the share of sums below each bin's upper edge. Shape ``(bins,)``.
    """
    return Curves(
        z=_reliability_of_z(summary, effective),
        central=_reliability_of_intervals(summary, effective),
        q=_reliability_of_q(summary, q_spread),
        z_histogram=_histogram_of_z(summary),
        q_histogram=_histogram_of_q(summary),
        qq=_quantiles(summary),
        sigma=None if sigmas is None else sigmas.bins(),
        sparsification=None if sigmas is None else sigmas.sparsification(),
    )


def _reliability(nominal: Array, empirical: Array, spread: Array) -> Reliability:
    low, high = (np.clip(nominal + side * _NORMAL_95 * spread, 0, 1) for side in (-1, 1))
    return Reliability(*(tuple(x.tolist()) for x in (nominal, empirical, low, high)))


def _binomial_spread(nominal: Array, effective: int) -> Array:
    return np.sqrt(nominal * (1 - nominal) / effective)


def _evenly_spaced(count: int) -> Integers:
    """Indices of at most ``_STEPS`` evenly spaced steps, both ends included."""
    return np.unique(np.linspace(0, count, min(count, _STEPS) + 1).round().astype(np.int64))


def _reliability_of_z(summary: Summary, effective: int) -> Reliability:
    fine = summary.grid.pit_bins
    steps = _evenly_spaced(summary.grid.bins) * (fine // summary.grid.bins)
    nominal = steps / fine
    below = np.concatenate([[0.0], summary.pit.cumsum() / summary.n])
    return _reliability(nominal, below[steps], _binomial_spread(nominal, effective))


def _reliability_of_intervals(summary: Summary, effective: int) -> Reliability:
    fine = summary.grid.pit_bins
    cut = _evenly_spaced(fine // 2)[::-1]  # bins cut off at either end
    below = np.concatenate([[0.0], summary.pit.cumsum() / summary.n])
    nominal = (fine - 2 * cut) / fine
    return _reliability(nominal, below[fine - cut] - below[cut], _binomial_spread(nominal, effective))


def _reliability_of_q(summary: Summary, spread: Array) -> Reliability:
    steps = _evenly_spaced(summary.grid.bins)
    empirical = np.concatenate([[0.0], summary.q_shares.cumsum()])
    return _reliability(steps / summary.grid.bins, empirical[steps], np.concatenate([[0.0], spread])[steps])


def _histogram_of_z(summary: Summary) -> Histogram:
    edges = summary.grid.z_edges
    spread = math.sqrt(max(summary.means["z_sq"], 1.0))
    reach = min(max(4 * spread, _SMALLEST_REACH), summary.grid.reach)
    width = edges[1] - edges[0]
    per_bar = max(int(reach / (_BARS // 2) / width), 1)
    chosen = len(edges) // 2 + per_bar * np.arange(-_BARS // 2, _BARS // 2 + 1)
    chosen = chosen[(chosen >= 0) & (chosen < len(edges))]
    return _histogram(edges[chosen], summary.z_cdf[chosen])


def _histogram_of_q(summary: Summary) -> Histogram:
    low, high = usual_sums(summary.grid.df)
    first, last = (float(np.interp(level, summary.q_below, summary.q_values)) for level in (1e-3, 1 - 1e-3))
    edges = np.linspace(min(low, first), min(max(high, last), sum_limit(summary.grid.df)), _BARS + 1)
    return _histogram(edges, np.interp(edges, summary.q_values, summary.q_below))


def _histogram(edges: Array, cdf: Array) -> Histogram:
    shares = np.diff(cdf)
    return Histogram(tuple(edges.tolist()), tuple((shares / np.diff(edges)).tolist()), float(1 - shares.sum()))


def _quantiles(summary: Summary) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Evenly spaced normal quantiles and the quantiles of z at the same probabilities, within the range of the data."""
    tail = torch.tensor(max(0.5 / summary.n, _SMALLEST_TAIL), dtype=torch.float64)
    normal = np.linspace(-1, 1, _QUANTILES) * float(normal_quantile(1 - tail, tail))
    levels = np.array([0.5 * math.erfc(-x * math.sqrt(0.5)) for x in normal])
    resolved = (levels >= summary.z_cdf[0]) & (levels <= summary.z_cdf[-1])
    quantiles = np.interp(levels, summary.z_cdf, summary.grid.z_edges)
    return tuple(normal[resolved].tolist()), tuple(quantiles[resolved].tolist())
