"""Curves for pictures, read off a summary."""

import math

import numpy as np
import torch

from fcal.distributions import normal_quantile
from fcal.metrics.grid import Array, Integers, sum_limit, usual_sums
from fcal.metrics.report import Curves, Histogram, Reliability
from fcal.metrics.sigmas import NORMAL_95, Sigmas
from fcal.metrics.summary import Summary

_STEPS = 100  # at most, of a reliability curve
_BARS = 64
_QUANTILES = 99
_LEAST_TAIL = 1e-6
_LEAST_REACH = 4.0


def curves_of(data: Summary, sigmas: Sigmas | None, effective: int, q_spread: Array) -> Curves:
    """Every curve of a report.

    Args:
        data: Counts of the data.
        sigmas: Errors by sigma, where there is one.
        effective: Number of independent residuals that bands assume.
        q_spread: sd of the share of sums below each bin's upper edge. Shape ``(bins,)``.
    """
    return Curves(
        z=_reliability_of_z(data, effective),
        central=_reliability_of_intervals(data, effective),
        q=_reliability_of_q(data, q_spread),
        z_histogram=_histogram_of_z(data),
        q_histogram=_histogram_of_q(data),
        qq=_quantiles(data),
        sigma=None if sigmas is None else sigmas.bins(),
        sparsification=None if sigmas is None else sigmas.sparsification(),
    )


def _reliability(nominal: Array, empirical: Array, spread: Array) -> Reliability:
    low, high = (np.clip(nominal + side * NORMAL_95 * spread, 0, 1) for side in (-1, 1))
    return Reliability(*(tuple(x.tolist()) for x in (nominal, empirical, low, high)))


def _binomial_spread(nominal: Array, effective: int) -> Array:
    return np.sqrt(nominal * (1 - nominal) / effective)


def _chosen(count: int) -> Integers:
    """At most so many of a row of steps, both ends included."""
    return np.unique(np.linspace(0, count, min(count, _STEPS) + 1).round().astype(np.int64))


def _reliability_of_z(data: Summary, effective: int) -> Reliability:
    fine = data.grid.pit_bins
    steps = _chosen(data.grid.bins) * (fine // data.grid.bins)
    nominal = steps / fine
    below = np.concatenate([[0.0], data.pit.cumsum() / data.n])
    return _reliability(nominal, below[steps], _binomial_spread(nominal, effective))


def _reliability_of_intervals(data: Summary, effective: int) -> Reliability:
    fine = data.grid.pit_bins
    cut = _chosen(fine // 2)[::-1]  # bins left out at either end
    below = np.concatenate([[0.0], data.pit.cumsum() / data.n])
    nominal = (fine - 2 * cut) / fine
    return _reliability(nominal, below[fine - cut] - below[cut], _binomial_spread(nominal, effective))


def _reliability_of_q(data: Summary, spread: Array) -> Reliability:
    steps = _chosen(data.grid.bins)
    empirical = np.concatenate([[0.0], data.q_shares.cumsum()])
    return _reliability(steps / data.grid.bins, empirical[steps], np.concatenate([[0.0], spread])[steps])


def _histogram_of_z(data: Summary) -> Histogram:
    edges = data.grid.z_edges
    spread = math.sqrt(max(data.means["z_sq"], 1.0))
    reach = min(max(4 * spread, _LEAST_REACH), data.grid.reach)
    width = edges[1] - edges[0]
    per_bar = max(int(reach / (_BARS // 2) / width), 1)
    chosen = len(edges) // 2 + per_bar * np.arange(-_BARS // 2, _BARS // 2 + 1)
    chosen = chosen[(chosen >= 0) & (chosen < len(edges))]
    return _histogram(edges[chosen], data.z_cdf[chosen])


def _histogram_of_q(data: Summary) -> Histogram:
    low, high = usual_sums(data.grid.df)
    first, last = (float(np.interp(level, data.q_below, data.q_values)) for level in (1e-3, 1 - 1e-3))
    edges = np.linspace(min(low, first), min(max(high, last), sum_limit(data.grid.df)), _BARS + 1)
    return _histogram(edges, np.interp(edges, data.q_values, data.q_below))


def _histogram(edges: Array, cdf: Array) -> Histogram:
    shares = np.diff(cdf)
    return Histogram(tuple(edges.tolist()), tuple((shares / np.diff(edges)).tolist()), float(1 - shares.sum()))


def _quantiles(data: Summary) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Normal quantiles, evenly spaced, and those of z; none beyond what the data can tell."""
    tail = torch.tensor(max(0.5 / data.n, _LEAST_TAIL), dtype=torch.float64)
    normal = np.linspace(-1, 1, _QUANTILES) * float(normal_quantile(1 - tail, tail))
    levels = np.array([0.5 * math.erfc(-x * math.sqrt(0.5)) for x in normal])
    told = (levels >= data.z_cdf[0]) & (levels <= data.z_cdf[-1])
    seen = np.interp(levels, data.z_cdf, data.grid.z_edges)
    return tuple(normal[told].tolist()), tuple(seen[told].tolist())
