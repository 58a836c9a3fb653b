"""Measured and predicted spread of errors: of all rows, in bins, and along the axis."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal.benchmarks.sensors.files import Array
from fcal.benchmarks.sensors.readings import Flags, Readings
from fcal.benchmarks.sensors.settings import SensorTable
from fcal.distributions import log_cdf
from fcal.distributions.family import law_of
from fcal.distributions.functional import index_select

_NORMAL_QUARTILE = 0.6745  # of a standard normal distribution: the median of its absolute value
_POINTS = 14  # of a curve
_SIZES = 161  # of errors, between which a median is interpolated
_ROWS = 300  # approximate number of rows for that


def measured_spreads(table: SensorTable, readings: Readings) -> dict[str, Any]:
    """Stated and measured standard deviations of all readings, and of those in each bin and along the axis."""
    axis, curve = readings.state[table.axis], _along_axis(table, readings)

    def measured(inside: Flags) -> float:
        errors = readings.error[inside]
        return float(np.median(np.abs(errors)) / _NORMAL_QUARTILE if table.robust else errors.std())

    return {
        "stated_sd": _root_mean_square(readings.stated),
        "measured_sd": measured(np.ones(len(readings), dtype=bool)),
        "bins": [
            {"low": low, "high": high, "n": int(inside.sum()), "measured_sd": measured(inside)}
            for low, high, inside in _bins(table, readings)
        ],
        "curve": {
            "x": [float(axis[inside].mean()) for inside in curve],
            "n": [int(inside.sum()) for inside in curve],
            "measured": [measured(inside) for inside in curve],
            "stated": [_root_mean_square(readings.stated[inside]) for inside in curve],
        },
    }


def predicted_spreads(
    table: SensorTable, readings: Readings, dists: Sequence[Distribution], rows: Sequence[Tensor]
) -> dict[str, Any]:
    """Predicted spread of the errors of all readings, and of those in each bin and along the axis.

    Args:
        table: Axis and bins.
        readings: All readings.
        dists: Predictions of every fold.
        rows: Indices of the readings that these are for.
    """

    def spread(inside: Flags) -> ErrorSpread:
        mask = torch.from_numpy(inside)
        parts = [(dist, mask[of_fold].nonzero().squeeze(1)) for dist, of_fold in zip(dists, rows, strict=True)]
        return error_spread(parts, robust=table.robust)

    return {
        "all": asdict(spread(np.ones(len(readings), dtype=bool))),
        "bins": [asdict(spread(inside)) for _, _, inside in _bins(table, readings)],
        "curve": [spread(inside).sd for inside in _along_axis(table, readings)],
    }


def _bins(table: SensorTable, readings: Readings) -> list[tuple[float, float, Flags]]:
    """Edges and readings of every bin that is not empty."""
    axis = readings.state[table.axis]
    bins = [(low, high, (axis >= low) & (axis < high)) for low, high in pairwise(table.edges)]
    return [(low, high, inside) for low, high, inside in bins if inside.any()]


def _along_axis(table: SensorTable, readings: Readings) -> list[Flags]:
    """Bins of about equally many readings along the axis."""
    axis = readings.state[table.axis]
    edges = np.unique(np.quantile(axis, np.linspace(0, 1, _POINTS + 1)))
    which = np.clip(np.searchsorted(edges, axis, side="right") - 1, 0, len(edges) - 2)
    return [which == number for number in range(len(edges) - 1) if (which == number).any()]


def in_double(pred: Distribution) -> Distribution:
    """The same prediction in double precision.

    Example:
        >>> from torch.distributions import Normal
        >>> in_double(Normal(torch.zeros(2), torch.ones(2))).mean.dtype
        torch.float64
    """
    return (
        law_of(pred).map(lambda value, _: value.detach().double(), lambda value: value.detach().double()).distribution()
    )


@dataclass(frozen=True)
class ErrorSpread:
    """Spread of the errors of several rows, as predicted.

    Attributes:
        total: Root of the mean variance plus the variance of the means: the sd of all errors about the known model.
        noise: Root of the mean variance: the sd about the corrected model.
        mean: Mean of the standard deviations.
        robust: 1.4826 times the median size of errors; None if it was not requested.
    """

    total: float
    noise: float
    mean: float
    robust: float | None = None

    @property
    def sd(self) -> float:
        """The value that is compared with known standard deviations."""
        return self.total if self.robust is None else self.robust


def error_spread(parts: Sequence[tuple[Distribution, Tensor]], *, robust: bool = False) -> ErrorSpread:
    r"""Spread of the errors of several rows together.

    .. math:: \mathrm{sd}^2 = \overline{\sigma_i^2} + \overline{(\mu_i - \bar\mu)^2}

    Args:
        parts: Predictions, each with the indices of the rows that count.
        robust: Whether to compute the median size too.

    Example:
        >>> from torch.distributions import Normal
        >>> error_spread([(Normal(torch.tensor([-4.0, 4.0, 9.0]), 3.0), torch.tensor([0, 1]))]).total
        5.0
    """
    mean = torch.cat([pred.mean.double()[rows] for pred, rows in parts])
    variance = torch.cat([pred.variance.double().expand(pred.mean.shape)[rows] for pred, rows in parts])
    noise = variance.mean()
    return ErrorSpread(
        float((noise + mean.var(correction=0)).sqrt()),
        float(noise.sqrt()),
        float(variance.sqrt().mean()),
        _robust_sd(parts) if robust else None,
    )


def _robust_sd(parts: Sequence[tuple[Distribution, Tensor]]) -> float:
    """1.4826 times the size that half of the errors stay below, interpolated between many sizes."""
    step = -(-sum(len(rows) for _, rows in parts) // _ROWS)
    preds = [_rows_of(pred, rows[::step]) for pred, rows in parts if len(rows)]
    typical = torch.cat([pred.stddev + pred.mean.abs() for pred in preds]).median()
    sizes = typical * torch.logspace(-2, 2, _SIZES, dtype=torch.float64)
    below = torch.cat([_shares_below(pred, sizes) for pred in preds]).mean(0)
    at = int((below < 0.5).sum().clamp(1, _SIZES - 1))
    share = (0.5 - below[at - 1]) / (below[at] - below[at - 1])
    return float(torch.lerp(sizes[at - 1], sizes[at], share)) / _NORMAL_QUARTILE


def _rows_of(pred: Distribution, rows: Tensor) -> Distribution:
    selected = index_select(pred, rows)
    assert isinstance(selected, Distribution)
    return selected


def _shares_below(pred: Distribution, sizes: Tensor) -> Tensor:
    """Probability that an error of each row is smaller than each size. Shape ``(rows, sizes)``."""
    count = len(pred.mean)
    repeated = _rows_of(pred, torch.arange(count).repeat_interleave(len(sizes)))
    edge = sizes.repeat(count)
    return (log_cdf(repeated, edge).exp() - log_cdf(repeated, -edge).exp()).reshape(count, -1)


def _root_mean_square(values: Array) -> float:
    return float(np.sqrt(np.square(values).mean()))
