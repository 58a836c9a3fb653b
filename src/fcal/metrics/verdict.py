"""Scale, shift and shape of residuals with their noise, and the one word they add up to."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch.distributions import FisherSnedecor, StudentT

from fcal.distributions import log_survival, normal_quantile, quantile
from fcal.metrics.grid import Array
from fcal.metrics.report import Interval
from fcal.metrics.state import CLUSTER_SUMS

_ALPHA = 0.05
_ANYTHING = 100.0  # an interval from e^-100 to e^100 of the value says nothing
_QUESTIONS = 3  # scale, shift, shape
_DENSITY_AT_MEAN = 1 / math.sqrt(2 * math.pi)
_PRIOR_ROWS = 30  # of a normal law, that the fourth moment of few residuals is joined by
_SKEWED = 0.5
_NORMAL_KURTOSIS = 3.0
_FEW = 100  # degrees of freedom from which on Student-t is an expansion about the normal law
# Normalised Legendre polynomials of degree 1 to 4 as sums of powers t, t^2, t^3, t^4, and their constant parts.
_LEGENDRE = np.sqrt([[3], [5], [7], [9]]) * np.array(
    [[1, 0, 0, 0], [0, 1.5, 0, 0], [-1.5, 0, 2.5, 0], [0, -3.75, 0, 4.375]]
)
_CONSTANT = np.sqrt([3, 5, 7, 9]) * np.array([0, -0.5, 0, 0.375])


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Moments of residuals and the noise of their means.

    Attributes:
        n: Number of residuals.
        powers_of_z: Means of z, z^2, z^3, z^4.
        powers_of_t: Means of t, t^2, t^3, t^4, t = 2 Phi(z) - 1.
        shape: Largest gap between the CDF of z and the normal one with its moments.
        raw_gap: Largest gap between the CDF of z and that of N(0, 1).
        clusters: Sums per cluster that is not empty; see ``CLUSTER_SUMS``. None where rows are independent.
        coverage_gap: Largest gap between the levels of central regions and what they hold.
        rows: Number of predictions, fewer than ``n`` where they are vectors.
    """

    n: int
    powers_of_z: Array
    powers_of_t: Array
    shape: float
    raw_gap: float
    clusters: Array | None
    coverage_gap: float
    rows: int

    @property
    def shift(self) -> float:
        """Mean of z."""
        return float(self.powers_of_z[0])

    @property
    def scale(self) -> float:
        """Standard deviation of z."""
        return math.sqrt(max(float(self.powers_of_z[1]) - self.shift**2, 0.0))

    def units(self) -> int:
        """Number of independent units."""
        return self.n if self.clusters is None else len(self.clusters)

    def variance_of_shift(self) -> float:
        """Sampling variance of the mean of z."""
        if self.clusters is not None:
            count, z = self._column("count"), self._column("z")
            return _cluster_variance(z - count * self.shift, self.n)
        return self.scale**2 / max(self.n - 1, 1)

    def variance_of_square(self) -> float:
        """Sampling variance of the variance of z."""
        if self.clusters is not None:
            count, z, z_sq = (self._column(name) for name in ("count", "z", "z_sq"))
            centred = z_sq - 2 * self.shift * z + count * self.shift**2
            return _cluster_variance(centred - count * self.scale**2, self.n)
        # Few rows say nothing of a fourth moment: they are joined by some of a normal law.
        excess = self._central(4) - self.scale**4
        shrunk = (self.n * excess + _PRIOR_ROWS * 2 * self.scale**4) / (self.n + _PRIOR_ROWS)
        return max(shrunk, 0.0) / max(self.n - 1, 1)

    def _central(self, order: int) -> float:
        """Third or fourth central moment of z."""
        b, (_, m2, m3, m4) = self.shift, self.powers_of_z
        return float(m3 - 3 * b * m2 + 2 * b**3 if order == 3 else m4 - 4 * b * m3 + 6 * b**2 * m2 - 3 * b**4)

    def look(self) -> str:
        """How the law of z differs from a normal one, in a word or two."""
        if self.scale <= 0:
            return "all alike"
        skewness, kurtosis = self._central(3) / self.scale**3, self._central(4) / self.scale**4
        if abs(skewness) > _SKEWED:
            return "skewed up" if skewness > 0 else "skewed down"
        return "heavier tails" if kurtosis > _NORMAL_KURTOSIS else "lighter tails"

    def ellipsoids_fail(self, tolerance: float, groups: int) -> bool:
        """Whether regions of vectors hold another share than they say, as when correlations are wrong."""
        limit = max(_DENSITY_AT_MEAN * tolerance, _largest_chance_gap(self, groups) * math.sqrt(self.n / self.rows))
        return self.rows < self.n and self.coverage_gap > limit

    def _column(self, name: str) -> Array:
        assert self.clusters is not None
        column: Array = self.clusters[:, CLUSTER_SUMS.index(name)]
        return column

    def design_effect(self) -> tuple[float, float]:
        """How much noisier clusters are than independent rows: shares of the PIT, and squares of z."""
        if self.clusters is None:
            return 1.0, 1.0
        counts = self.clusters[:, len(CLUSTER_SUMS) :]
        share = counts.sum(0) / self.n
        scatter = counts - self._column("count")[:, None] * share
        independent = float((share * (1 - share)).sum()) / self.n
        of_pit = sum(_cluster_variance(column, self.n) for column in scatter.T) / max(independent, 1e-300)
        plain = Evidence(**{**self.__dict__, "clusters": None}).variance_of_square()
        of_square = self.variance_of_square() / plain if plain > 0 else 1.0
        return of_pit, of_square


def _cluster_variance(totals: Array, n: int) -> float:
    """Variance of a mean over n rows whose deviations add up to these totals within clusters; one tells nothing."""
    units = len(totals)
    return float((totals**2).sum()) * units / (units - 1) / n**2 if units > 1 else math.inf


def critical_value(evidence: Evidence, tests: int) -> float:
    """Two-sided Student-t limit for one of so many tests at a joint level of 5 %."""
    return _student_limit(max(evidence.units() - 1, 1), tests)


@lru_cache(maxsize=4096)
def _student_limit(df: int, tests: int) -> float:
    tail = torch.tensor(_ALPHA / (2 * tests), dtype=torch.float64)
    if df < _FEW:
        return float(quantile(StudentT(torch.tensor(float(df), dtype=torch.float64)), 1 - tail, tail))
    # The expansion in 1 / df, as many reports ask for it; from here on right to 1e-6.
    z = float(normal_quantile(1 - tail, tail))
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / df + second / df**2 + third / df**3


def interval_of_scale(evidence: Evidence, limit: float) -> Interval:
    """Interval of the sd of z, symmetric in its logarithm."""
    s = evidence.scale
    widening = limit * math.sqrt(evidence.variance_of_square()) / (2 * s**2) if s > 0 else 0.0
    if widening > _ANYTHING:
        return Interval(s, 0.0, math.inf)
    return Interval(s, s / math.exp(widening), s * math.exp(widening))


def interval_of_shift(evidence: Evidence, limit: float) -> Interval:
    """Interval of the mean of z."""
    half = limit * math.sqrt(evidence.variance_of_shift())
    return Interval(evidence.shift, evidence.shift - half, evidence.shift + half)


def smooth_p_value(evidence: Evidence) -> float:
    """P-value of Neyman's smooth test that Phi(z) is uniform, on four normalised Legendre polynomials.

    With independent rows n times the sum of their squared means is chi-squared with 4 degrees of freedom; with
    clusters it is Hotelling's statistic of the cluster totals.
    """
    means = _LEGENDRE @ evidence.powers_of_t + _CONSTANT
    if evidence.clusters is None:
        half = 0.5 * evidence.n * float(means @ means)
        return math.exp(-half) * (1 + half)
    units = len(evidence.clusters)
    if units <= len(means):
        return math.nan
    first = CLUSTER_SUMS.index("t")
    count = evidence.clusters[:, 0]
    totals = evidence.clusters[:, first : first + 4] @ _LEGENDRE.T + np.outer(count, _CONSTANT)
    scatter = totals - np.outer(count, means)
    covariance = scatter.T @ scatter * units / (units - 1) / evidence.n**2
    statistic = float(means @ np.linalg.lstsq(covariance, means, rcond=None)[0])
    return _hotelling_tail(statistic, len(means), units)


def _hotelling_tail(statistic: float, dims: int, units: int) -> float:
    ratio = statistic * (units - dims) / (dims * (units - 1))
    if ratio <= 0:
        return 1.0
    law = FisherSnedecor(*torch.tensor([dims, units - dims], dtype=torch.float64))
    return float(log_survival(law, torch.tensor(ratio, dtype=torch.float64)).exp())


class Verdict(NamedTuple):
    """One word, why, and whether so much data could have told a deviation of the tolerance."""

    word: str
    reason: str
    conclusive: bool


def verdict_of(evidence: Evidence, *, tolerance: float, groups: int) -> Verdict:
    """One word, and why, from effect sizes that exceed the tolerance and their own noise.

    Scale, shift and shape are asked at a joint level of 5 %, shared by all groups. What moves the CDF of z most wins; a
    scale or shift whose repair would not bring the CDF nearer to the normal one is a matter of shape.
    """
    limit = critical_value(evidence, _QUESTIONS * groups)
    gaps = _exceeded(evidence, limit, tolerance, groups)
    shown = critical_value(evidence, groups)
    scale, shift = interval_of_scale(evidence, shown), interval_of_shift(evidence, shown)
    known = _resolution(scale, shift)
    if not gaps:
        return Verdict("calibrated", _reason_of_none(scale, shift, known, tolerance), known <= tolerance)
    word = max(gaps, key=lambda name: gaps[name])
    if "wrong shape" in gaps and evidence.shape >= evidence.raw_gap:
        word = "wrong shape"
    if word == "wrong shape" and evidence.coverage_gap > evidence.shape and evidence.rows < evidence.n:
        gap = f"regions of vectors hold a share that is up to {evidence.coverage_gap:.3f} off"
        return Verdict(word, f"{gap}: are the predicted correlations right?", True)
    return Verdict(word, _reason(word, scale, shift, evidence), True)


def _exceeded(evidence: Evidence, limit: float, tolerance: float, groups: int) -> dict[str, float]:
    """Which words hold, and by how much each moves the CDF of z."""
    scale, shift = interval_of_scale(evidence, limit), interval_of_shift(evidence, limit)
    gaps = {}
    if scale.value > 1 + tolerance and scale.low > 1:
        gaps["over-confident"] = gap_of_scale(scale.value)
    if scale.value < 1 / (1 + tolerance) and scale.high < 1:
        gaps["under-confident"] = gap_of_scale(scale.value)
    if abs(shift.value) > tolerance and not shift.low <= 0 <= shift.high:
        gaps["biased"] = math.erf(abs(shift.value) / math.sqrt(8))
    if evidence.shape > max(_DENSITY_AT_MEAN * tolerance, _largest_chance_gap(evidence, groups)):
        gaps["wrong shape"] = evidence.shape
    if evidence.ellipsoids_fail(tolerance, groups):
        gaps["wrong shape"] = max(evidence.coverage_gap, evidence.shape)
    return gaps


def gap_of_scale(scale: float) -> float:
    """Largest gap between the CDFs of N(0, scale^2) and N(0, 1)."""
    if scale <= 0:
        return 0.5
    ratio = max(scale, 1 / scale)
    if ratio == 1:
        return 0.0
    x = math.sqrt(2 * math.log(ratio) / -math.expm1(-2 * math.log(ratio)))
    return 0.5 * (math.erf(x * math.sqrt(0.5)) - math.erf(x / ratio * math.sqrt(0.5)))


def _largest_chance_gap(evidence: Evidence, groups: int) -> float:
    """Kolmogorov's limit, by which a calibrated model's CDF stays near the normal one (nearer still when fitted)."""
    tail = _ALPHA / (_QUESTIONS * groups)
    return math.sqrt(-0.5 * math.log(tail / 2) * evidence.design_effect()[0] / evidence.n)


def _reason(word: str, scale: Interval, shift: Interval, evidence: Evidence) -> str:
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
    gap = f"even with their own mean and scale, the CDF of residuals is {evidence.shape:.3f} off the normal one"
    return f"{gap} ({evidence.look()})"


def _resolution(scale: Interval, shift: Interval) -> float:
    """How well scale and shift are known."""
    return max(scale.high / scale.value - 1 if scale.value > 0 else math.inf, 0.5 * (shift.high - shift.low))


def _reason_of_none(scale: Interval, shift: Interval, known: float, tolerance: float) -> str:
    text = f"scale {scale.value:.3f} ({scale.low:.3f} to {scale.high:.3f}) and shift {shift.value:+.3f}"
    if known > tolerance:
        reach = f"so few data tell scale and shift only to {known:.0%}"
        return f"nothing found beyond {tolerance:.0%} and chance, but {reach}: {text}"
    return f"{text} are within {tolerance:.0%} or chance"


def _figure(value: float) -> str:
    """Two decimals where they tell enough."""
    return f"{value:.2f}" if 0.1 <= abs(value) < 100 else f"{value:.3g}"
