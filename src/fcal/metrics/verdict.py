"""Confidence intervals of scale and shift, the smooth test, and the verdict."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch.distributions import FisherSnedecor, StudentT

from fcal.distributions import log_survival, normal_quantile, quantile
from fcal.metrics.report import Interval
from fcal.metrics.state import CLUSTER_SUMS
from fcal.metrics.summary import Summary

_ALPHA = 0.05
_MAX_LOG_WIDTH = 100.0  # a wider interval of the logarithm is no information
_QUESTIONS = 3  # scale, shift, shape
_DENSITY_AT_MEAN = 1 / math.sqrt(2 * math.pi)
_FEW = 100  # degrees of freedom; above, the Student-t quantile is an expansion around the normal one
# Coefficients of t, t^2, t^3, t^4 in the normalised Legendre polynomials of degree 1 to 4, and their constants.
_LEGENDRE = np.sqrt([[3], [5], [7], [9]]) * np.array(
    [[1, 0, 0, 0], [0, 1.5, 0, 0], [-1.5, 0, 2.5, 0], [0, -3.75, 0, 4.375]]
)
_CONSTANT = np.sqrt([3, 5, 7, 9]) * np.array([0, -0.5, 0, 0.375])


def critical_value(summary: Summary, tests: int) -> float:
    """Two-sided Student-t critical value of each of several tests at a joint level of 5 %."""
    return _student_limit(max(summary.units() - 1, 1), tests)


@lru_cache(maxsize=4096)
def _student_limit(df: int, tests: int) -> float:
    tail = torch.tensor(_ALPHA / (2 * tests), dtype=torch.float64)
    if df < _FEW:
        return float(quantile(StudentT(torch.tensor(float(df), dtype=torch.float64)), 1 - tail, tail))
    # An expansion in 1 / df, right to 1e-6 from here on: reports of many groups need many of these.
    z = float(normal_quantile(1 - tail, tail))
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / df + second / df**2 + third / df**3


def interval_of_scale(summary: Summary, limit: float) -> Interval:
    """Confidence interval of the sd of z, symmetric in its logarithm."""
    s = summary.scale
    widening = limit * math.sqrt(summary.variance_of_square()) / (2 * s**2) if s > 0 else 0.0
    if widening > _MAX_LOG_WIDTH:
        return Interval(s, 0.0, math.inf)
    return Interval(s, s / math.exp(widening), s * math.exp(widening))


def interval_of_shift(summary: Summary, limit: float) -> Interval:
    """Confidence interval of the mean of z."""
    half = limit * math.sqrt(summary.variance_of_shift())
    return Interval(summary.shift, summary.shift - half, summary.shift + half)


def smooth_p_value(summary: Summary) -> float:
    """P-value of Neyman's smooth test that Phi(z) is uniform, on four normalised Legendre polynomials.

    For independent rows, n times the sum of their squared means is chi-squared with 4 degrees of freedom; for
    clusters the statistic is Hotelling's, of the cluster totals.
    """
    means = _LEGENDRE @ np.array([summary.means[name] for name in ("t", "t_sq", "t_cu", "t_qu")]) + _CONSTANT
    if summary.clusters is None:
        half = 0.5 * summary.n * float(means @ means)
        return math.exp(-half) * (1 + half)
    units = len(summary.clusters)
    if units <= len(means):
        return math.nan
    first = CLUSTER_SUMS.index("t")
    count = summary.clusters[:, 0]
    totals = summary.clusters[:, first : first + 4] @ _LEGENDRE.T + np.outer(count, _CONSTANT)
    scatter = totals - np.outer(count, means)
    covariance = scatter.T @ scatter * units / (units - 1) / summary.n**2
    statistic = float(means @ np.linalg.lstsq(covariance, means, rcond=None)[0])
    return _hotelling_tail(statistic, len(means), units)


def _hotelling_tail(statistic: float, dims: int, units: int) -> float:
    ratio = statistic * (units - dims) / (dims * (units - 1))
    if ratio <= 0:
        return 1.0
    law = FisherSnedecor(*torch.tensor([dims, units - dims], dtype=torch.float64))
    return float(log_survival(law, torch.tensor(ratio, dtype=torch.float64)).exp())


class Verdict(NamedTuple):
    """One word, its reason, and whether a deviation of the tolerance could have been detected on so much data."""

    word: str
    reason: str
    conclusive: bool


def verdict_of(summary: Summary, *, tolerance: float, groups: int) -> Verdict:
    """The verdict from effect sizes that exceed both the tolerance and their noise.

    Scale, shift and shape are tested at a joint level of 5 %, shared by all groups. The effect that moves the CDF of z
    most wins, but the shape is wrong where correcting scale and shift would not bring the CDF closer to the normal one.
    """
    limit = critical_value(summary, _QUESTIONS * groups)
    gaps = _exceeded(summary, limit, tolerance, groups)
    shown = critical_value(summary, groups)
    scale, shift = interval_of_scale(summary, shown), interval_of_shift(summary, shown)
    known = _resolution(scale, shift)
    if not gaps:
        return Verdict("calibrated", _reason_if_calibrated(scale, shift, known, tolerance), known <= tolerance)
    word = max(gaps, key=lambda name: gaps[name])
    if "wrong shape" in gaps and summary.shape >= summary.raw_gap:
        word = "wrong shape"
    if word == "wrong shape" and summary.coverage_gap > summary.shape and summary.rows < summary.n:
        gap = f"regions of vectors hold a share that is up to {summary.coverage_gap:.3f} off"
        return Verdict(word, f"{gap}: are the predicted correlations right?", True)
    return Verdict(word, _reason(word, scale, shift, summary), True)


def _exceeded(summary: Summary, limit: float, tolerance: float, groups: int) -> dict[str, float]:
    """Verdicts that apply, and by how much each effect moves the CDF of z."""
    scale, shift = interval_of_scale(summary, limit), interval_of_shift(summary, limit)
    gaps = {}
    if scale.value > 1 + tolerance and scale.low > 1:
        gaps["over-confident"] = gap_of_scale(scale.value)
    if scale.value < 1 / (1 + tolerance) and scale.high < 1:
        gaps["under-confident"] = gap_of_scale(scale.value)
    if abs(shift.value) > tolerance and not shift.low <= 0 <= shift.high:
        gaps["biased"] = math.erf(abs(shift.value) / math.sqrt(8))
    if summary.shape > max(_DENSITY_AT_MEAN * tolerance, _largest_chance_gap(summary, groups)):
        gaps["wrong shape"] = summary.shape
    if _ellipsoids_fail(summary, tolerance, groups):
        gaps["wrong shape"] = max(summary.coverage_gap, summary.shape)
    return gaps


def _ellipsoids_fail(summary: Summary, tolerance: float, groups: int) -> bool:
    """Whether central regions of vectors hold another share than their level, as with wrong correlations."""
    chance = _largest_chance_gap(summary, groups) * math.sqrt(summary.n / summary.rows)
    return summary.rows < summary.n and summary.coverage_gap > max(_DENSITY_AT_MEAN * tolerance, chance)


def gap_of_scale(scale: float) -> float:
    """Largest gap between the CDFs of N(0, scale^2) and N(0, 1)."""
    if scale <= 0:
        return 0.5
    ratio = max(scale, 1 / scale)
    if ratio == 1:
        return 0.0
    x = math.sqrt(2 * math.log(ratio) / -math.expm1(-2 * math.log(ratio)))
    return 0.5 * (math.erf(x * math.sqrt(0.5)) - math.erf(x / ratio * math.sqrt(0.5)))


def _largest_chance_gap(summary: Summary, groups: int) -> float:
    """Kolmogorov's bound on the gap of a calibrated model; the gap to a fitted normal CDF is smaller still."""
    tail = _ALPHA / (_QUESTIONS * groups)
    return math.sqrt(-0.5 * math.log(tail / 2) * summary.design_effect()[0] / summary.n)


def _reason(word: str, scale: Interval, shift: Interval, summary: Summary) -> str:
    spread = f"{_figure(scale.value)} ({_figure(scale.low)} to {_figure(scale.high)})"
    if word == "over-confident":
        return f"errors are {spread} times as large as the predicted sd says"
    if word == "under-confident":
        return f"errors are only {spread} times as large as the predicted sd says"
    if word == "biased":
        side = "above" if shift.value > 0 else "below"
        near, far = sorted((abs(shift.low), abs(shift.high)))
        where = f"{_figure(abs(shift.value))} ({_figure(near)} to {_figure(far)})"
        return f"targets lie {where} predicted sd {side} the mean on average"
    gap = f"even with their own mean and scale, the CDF of residuals is {summary.shape:.3f} off the normal one"
    return f"{gap} ({summary.describe_shape()})"


def _resolution(scale: Interval, shift: Interval) -> float:
    """Uncertainty of scale and shift: the larger half-width of their intervals."""
    return max(scale.high / scale.value - 1 if scale.value > 0 else math.inf, 0.5 * (shift.high - shift.low))


def _reason_if_calibrated(scale: Interval, shift: Interval, known: float, tolerance: float) -> str:
    text = f"scale {scale.value:.3f} ({scale.low:.3f} to {scale.high:.3f}) and shift {shift.value:+.3f}"
    if known > tolerance:
        reach = f"so few data tell scale and shift only to {known:.0%}"
        return f"nothing found beyond {tolerance:.0%} and chance, but {reach}: {text}"
    return f"{text} are within {tolerance:.0%} or chance"


def _figure(value: float) -> str:
    """Two decimals, or three significant digits of very small or large values."""
    return f"{value:.2f}" if 0.1 <= abs(value) < 100 else f"{value:.3g}"
