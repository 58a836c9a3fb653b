"""How errors follow the predicted sd: by bins of sigma, and by what remains when the least sure are dropped."""

import math
from functools import cached_property

import numpy as np

from fcal.metrics.floors import floor_of_ence
from fcal.metrics.grid import Array, Integers, log_edges
from fcal.metrics.report import Floor, SigmaBins, Sparsification
from fcal.metrics.summary import Summary

_BINS = 15
_NORMAL_KURTOSIS = 3.0
NORMAL_95 = 1.959963984540054  # quantile 0.975 of the normal law
_CURVE = np.linspace(0, 0.99, 100)


class Sigmas:
    """Errors by predicted sigma.

    Args:
        data: Summary of predictions that have an sd.
        design_effect: How much noisier mean squares are than of independent rows.
    """

    def __init__(self, data: Summary, design_effect: float) -> None:
        self._data = data
        self._effect = design_effect
        told = data.sigma > 0
        self._count, self._sigma_sq, self._error_sq = (x[told] for x in (data.sigma, data.sigma_sq, data.sigma_error))
        middle = self._count.cumsum() - 0.5 * self._count
        part = np.floor(_BINS * middle / self._count.sum())
        self._which: Integers = np.unique(part, return_inverse=True)[1].astype(np.int64)

    def _merged(self, values: Array) -> Array:
        return np.bincount(self._which, values).astype(np.float64, copy=False)

    @cached_property
    def _kurtosis(self) -> float:
        """Fourth moment of errors by their sigma under the prediction: known of normal ones, else that of the data."""
        fourth = self._data.means["ratio_qu"]
        if math.isclose(fourth, self._data.means["z_qu"], rel_tol=1e-9):
            return _NORMAL_KURTOSIS
        second = float((self._count * self._error_sq / self._sigma_sq).sum()) / self._data.n
        return max(fourth / second**2, 1.0 + 1e-3) if second > 0 else _NORMAL_KURTOSIS

    def ence(self) -> float:
        """Mean over bins of | RMS sigma - RMS error | / RMS sigma."""
        return float(np.abs(1 - np.sqrt(self._merged(self._error_sq) / self._merged(self._sigma_sq))).mean())

    def floor(self) -> Floor:
        """ENCE of a calibrated model."""
        return floor_of_ence(self._count / self._effect, self._sigma_sq, self._which, self._kurtosis)

    def bins(self) -> SigmaBins:
        """RMS error of each bin of sigma, and where it should lie."""
        count = self._merged(self._count)
        sigma, error = (np.sqrt(self._merged(x) / count) for x in (self._sigma_sq, self._error_sq))
        half = NORMAL_95 * np.sqrt((self._kurtosis - 1) * self._effect / count)
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
            return np.zeros_like(_CURVE), np.zeros_like(_CURVE)
        error_count = self._data.error
        edges = log_edges()
        return (
            _remaining(self._count[::-1], self._error_sq[::-1]),
            _remaining(error_count[::-1], (error_count * (0.5 * (edges[1:] + edges[:-1])) ** 2)[::-1]),
        )

    def ause(self) -> float:
        """Area between the sparsification curves."""
        by_sigma, by_error = self._curves
        return float(np.trapezoid(by_sigma - by_error, _CURVE) / _CURVE[-1])

    def sparsification(self) -> Sparsification:
        """Relative RMSE of what remains when the largest sigmas, or the largest errors, are dropped."""
        by_sigma, by_error = self._curves
        return Sparsification(tuple(_CURVE.tolist()), tuple(by_sigma.tolist()), tuple(by_error.tolist()))


def _remaining(count: Array, square: Array) -> Array:
    """RMSE after dropping a share of the data from the front, relative to that of all; ties go in any order."""
    total = square.sum()
    if total <= 0:
        return np.zeros_like(_CURVE)
    dropped = np.concatenate([[0.0], count.cumsum() / count.sum()])
    gone = np.concatenate([[0.0], square.cumsum() / total])
    left = np.maximum(1 - np.interp(_CURVE, dropped, gone), 0) / (1 - _CURVE)
    return np.sqrt(left)
