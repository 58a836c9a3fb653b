"""Statistics of one group: means, distributions of z and q, sampling variances, intervals, tests and the verdict."""

import math
from functools import lru_cache

import numpy as np
import torch
from torch.distributions import FisherSnedecor, StudentT

from fcal.distributions import log_survival, normal_quantile, quantile
from fcal.metrics.calibration_errors import chi2_edges, distribution_of_q, shares_between
from fcal.metrics.report import LEVELS, Interval
from fcal.metrics.state import CLUSTER_SUMS, CLUSTERS, SUMS, Array, Grid, State, fingerprint_text
from fcal.metrics.wild_residuals import moments_of_counts, wild_values

MANY_OUT_OF_REACH = 0.01  # share of residuals that makes numbers doubtful
NORMAL_KURTOSIS = 3.0
_ENOUGH_FOR_TIES = 100
_PRIOR_ROWS = 30  # normal residuals that the fourth moment of few residuals is shrunk towards
_SKEWED = 0.5
_ALPHA = 0.05
_MAX_LOG_WIDTH = 100.0  # a wider interval of the logarithm is no information
_QUESTIONS = 3  # scale, shift, shape
_FEW_VALUES = 10  # so many are tested by the chi-squared law of calibrated ones too
_DENSITY_AT_MEAN = 1 / math.sqrt(2 * math.pi)
_FEW = 100  # degrees of freedom; above, the Student-t quantile is an expansion around the normal one
# Coefficients of t, t^2, t^3, t^4 in the normalised Legendre polynomials of degree 1 to 4, and their constants.
_LEGENDRE = np.sqrt([[3], [5], [7], [9]]) * np.array(
    [[1, 0, 0, 0], [0, 1.5, 0, 0], [-1.5, 0, 2.5, 0], [0, -3.75, 0, 4.375]]
)
_CONSTANT = np.sqrt([3, 5, 7, 9]) * np.array([0, -0.5, 0, 0.375])


class Summary:
    """The state of one group as NumPy arrays, and statistics of its residuals.

    Attributes:
        n: Number of residuals.
        rows: Number of predictions, fewer than ``n`` where they are vectors.
        means: Mean of each of ``SUMS``.
        coverage: Share of targets in the central region of each level.
        wild: Residuals far beyond all others; what follows from z without them is marked by a star.
        counted: Number of residuals that are not wild.
        clusters: Sums per non-empty cluster, see ``CLUSTER_SUMS``; None where rows are independent.
        pit_cdf: CDF of the PIT at the edges of its bins.
        z_cdf: CDF of z at ``grid.z_edges``.
        q_values: Rising values of q; ``q_below`` is its CDF there.
        pit_shares: Share of the PIT in each of the S equal-probability bins; ``q_shares`` likewise.
        moments: Means of powers of z *.
        shift: Mean of z *.
        scale: Standard deviation of z *.
        shape: Largest gap between the CDF of z and the normal CDF with its mean and sd *.
        raw_gap: Largest gap between the CDF of z and that of N(0, 1) *.
        coverage_gap: Largest gap between the levels of central regions and their coverage *.
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
            None if self.clusters is None else number_of_clusters(len(self.clusters), bool(state.hashed[0]))
        )
        self.pit_cdf = np.concatenate([[0.0], self.pit.cumsum() / self.n])
        self.z_cdf = np.minimum(self.z[:-1].cumsum() / self.n, 1.0)
        self.q_values, self.q_below = distribution_of_q(
            self.z, grid.z_edges, grid.df, mean_square=None if self.out_of_reach() else self.means["z_sq"]
        )
        self.pit_shares = self.pit.reshape(grid.bins, -1).sum(1) / self.n
        self.q_shares = shares_of_q(self.pit, self.q_values, self.q_below, grid)
        self.moments = {name: self.means[name] for name in ("z", "z_sq", "z_cu", "z_qu")}
        self.counted, cdf = self.n, self.z_cdf
        self.wild, usual = wild_values(self.z, grid.z_edges, self.n, self.means)
        if self.wild is not None:
            self.counted = self.n - self.wild.count
            self.moments, cdf = moments_of_counts(usual, grid.z_edges), usual.cumsum() / self.counted
            cdf = np.concatenate([[0.0], cdf])
        self.shift = self.moments["z"]
        self.scale = math.sqrt(max(self.moments["z_sq"] - self.shift**2, 0.0))
        self.shape = _normal_gap(cdf, (grid.z_edges - self.shift) / self.scale) if self.scale > 0 else 0.0
        self.raw_gap = _normal_gap(cdf, grid.z_edges)
        held = (share * self.n / self.counted for share in self.coverage)
        self.coverage_gap = max(abs(share - level) for share, level in zip(held, LEVELS, strict=True))

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

    def variance_of_shift(self) -> float:
        """Sampling variance of the mean of z."""
        if self.clusters is not None and self.wild is None:
            count, z = self._cluster_sums("count"), self._cluster_sums("z")
            return _cluster_variance(z - count * self.shift, self.n)
        return self._inflation() * self.scale**2 / max(self.counted - 1, 1)

    def _inflation(self) -> float:
        """Factor of variances where sums of clusters hold wild values: that of shares, which these do not spoil."""
        return 1.0 if self.clusters is None else max(self._effect_on_shares(), 1.0)

    def variance_of_square(self) -> float:
        """Sampling variance of the variance of z."""
        if self.clusters is None or self.wild is not None:
            return self._inflation() * self._independent_variance_of_square()
        count, z, z_sq = (self._cluster_sums(name) for name in ("count", "z", "z_sq"))
        centred = z_sq - 2 * self.shift * z + count * self.shift**2
        return _cluster_variance(centred - count * self.scale**2, self.n)

    def _independent_variance_of_square(self) -> float:
        # Few rows do not determine a fourth moment: it is shrunk towards that of a normal distribution.
        excess = self._central_moment(4) - self.scale**4
        shrunk = (self.counted * excess + _PRIOR_ROWS * 2 * self.scale**4) / (self.counted + _PRIOR_ROWS)
        return max(shrunk, 0.0) / max(self.counted - 1, 1)

    def _central_moment(self, order: int) -> float:
        """Third or fourth central moment of z."""
        b, (m2, m3, m4) = self.shift, (self.moments[name] for name in ("z_sq", "z_cu", "z_qu"))
        return m3 - 3 * b * m2 + 2 * b**3 if order == 3 else m4 - 4 * b * m3 + 6 * b**2 * m2 - 3 * b**4

    def describe_shape(self) -> str:
        """How the distribution of z differs from a normal one, in a word or two."""
        if self.scale**4 <= 0:  # also where it is too small to be raised to a power
            return "all alike"
        skewness, kurtosis = self._central_moment(3) / self.scale**3, self._central_moment(4) / self.scale**4
        if abs(skewness) > _SKEWED:
            return "skewed up" if skewness > 0 else "skewed down"
        return "heavier tails" if kurtosis > NORMAL_KURTOSIS else "lighter tails"

    def design_effect(self) -> tuple[float, float]:
        """Sampling variance with clusters relative to independent rows: of shares of the PIT, and of squares of z."""
        if self.clusters is None:
            return 1.0, 1.0
        plain = self._independent_variance_of_square()
        return self._effect_on_shares(), self.variance_of_square() / plain if plain > 0 else 1.0

    def _effect_on_shares(self) -> float:
        assert self.clusters is not None
        counts = self.clusters[:, len(CLUSTER_SUMS) :]
        share = counts.sum(0) / self.n
        scatter = counts - self._cluster_sums("count")[:, None] * share
        independent = float((share * (1 - share)).sum()) / self.n
        return sum(_cluster_variance(column, self.n) for column in scatter.T) / max(independent, 1e-300)

    def _cluster_sums(self, name: str) -> Array:
        assert self.clusters is not None
        column: Array = self.clusters[:, CLUSTER_SUMS.index(name)]
        return column


def shares_of_q(pit: Array, q_values: Array, q_below: Array, grid: Grid) -> Array:
    """Shares of q in equal-probability bins; those of a single square are central intervals of z. Shape (..., S)."""
    if grid.df > 1:
        return shares_between(chi2_edges(grid.df, grid.bins), q_values, q_below)
    lower, upper = np.split(pit, 2, axis=-1)
    folded = (lower[..., ::-1] + upper).reshape(*pit.shape[:-1], grid.bins, -1).sum(-1)
    shares: Array = folded / pit.sum(-1, keepdims=True)
    return shares


def _array(field: torch.Tensor) -> Array:
    values: Array = field[0].cpu().numpy().astype(np.float64)
    return values


def number_of_clusters(buckets: int, hashed: bool) -> int:
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


# Confidence intervals of scale and shift, the smooth test, and the verdict.


@lru_cache(maxsize=4096)
def student_limit(df: int, tests: int) -> float:
    """Two-sided critical value of each of several tests at a joint level of 5 %."""
    tail = torch.tensor(_ALPHA / (2 * tests), dtype=torch.float64)
    if df < _FEW:
        return float(quantile(StudentT(torch.tensor(float(df), dtype=torch.float64)), 1 - tail, tail))
    # An expansion in 1 / df, right to 1e-6 from here on: reports of many groups need many of these.
    z = float(normal_quantile(1 - tail, tail))
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / df + second / df**2 + third / df**3


def intervals(summary: Summary, tests: int) -> tuple[Interval, Interval]:
    """Confidence intervals of the sd of z (symmetric in its logarithm) and of its mean, of several at a joint 95 %."""
    units = summary.n if summary.clusters is None else len(summary.clusters)
    limit = student_limit(max(units - 1, 1), tests)
    scale, shift = summary.scale, summary.shift
    half = limit * math.sqrt(summary.variance_of_shift())
    widening = limit * math.sqrt(summary.variance_of_square()) / (2 * scale**2) if scale > 0 else 0.0
    low, high = 0.0, math.inf
    if widening <= _MAX_LOG_WIDTH:
        low, high = scale / math.exp(widening), scale * math.exp(widening)
    return Interval(scale, low, high), Interval(shift, shift - half, shift + half)


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
    dims, rest = len(means), units - len(means)
    ratio = statistic * rest / (dims * (units - 1))
    if ratio <= 0:
        return 1.0
    law = FisherSnedecor(*torch.tensor([dims, rest], dtype=torch.float64))
    return float(log_survival(law, torch.tensor(ratio, dtype=torch.float64)).exp())


def verdict_of(
    summary: Summary, scale: Interval, shift: Interval, *, tolerance: float, groups: int
) -> tuple[str, str, bool]:
    """The verdict from effect sizes that exceed both the tolerance and their noise.

    Scale, shift and shape are tested at a joint level of 5 %, shared by all groups. The effect that moves the CDF of z
    most wins, but the shape is wrong where correcting scale and shift would not bring the CDF closer to the normal one.

    Returns:
        One word, its reason, and whether a deviation of the tolerance could have been detected on so much data.
    """
    gaps = _exceeded(summary, tolerance, groups)
    if not gaps:
        half_width = scale.high / scale.value - 1 if scale.value > 0 else math.inf
        known = max(half_width, 0.5 * (shift.high - shift.low))
        return "calibrated", _reason_if_calibrated(scale, shift, known, tolerance), known <= tolerance
    word = max(gaps, key=lambda name: gaps[name])
    if "wrong shape" in gaps and summary.shape >= summary.raw_gap:
        word = "wrong shape"
    if word == "wrong shape" and summary.coverage_gap > summary.shape and summary.rows < summary.n:
        gap = f"regions of vectors hold a share that is up to {summary.coverage_gap:.3f} off"
        return word, f"{gap}: are the predicted correlations right?", True
    return word, _reason(word, scale, shift, summary), True


def _exceeded(summary: Summary, tolerance: float, groups: int) -> dict[str, float]:
    """Verdicts that apply, and by how much each effect moves the CDF of z."""
    scale, shift = intervals(summary, _QUESTIONS * groups)
    gaps = {}
    too_large, too_small = _scale_of_few(summary, scale.value, _ALPHA / (_QUESTIONS * groups))
    if scale.value > 1 + tolerance and (scale.low > 1 or too_large):
        gaps["over-confident"] = gap_of_scale(scale.value)
    if scale.value < 1 / (1 + tolerance) and (scale.high < 1 or too_small):
        gaps["under-confident"] = gap_of_scale(scale.value)
    if abs(shift.value) > tolerance and not shift.low <= 0 <= shift.high:
        gaps["biased"] = math.erf(abs(shift.value) / math.sqrt(8))
    # Kolmogorov's bound on the gap of a calibrated model; the gap to a fitted normal CDF is smaller still.
    log_tail = math.log(_ALPHA / (_QUESTIONS * groups) / 2)
    chance = math.sqrt(-0.5 * log_tail * summary.design_effect()[0] / summary.counted)
    tolerated = _DENSITY_AT_MEAN * tolerance
    if summary.shape > max(tolerated, chance):
        gaps["wrong shape"] = summary.shape
    # Regions of vectors hold another share than their level where the predicted correlations are wrong.
    chance_of_rows = chance * math.sqrt(summary.n / summary.rows)
    if summary.rows < summary.n and summary.coverage_gap > max(tolerated, chance_of_rows):
        gaps["wrong shape"] = max(summary.coverage_gap, summary.shape)
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


def _scale_of_few(summary: Summary, scale: float, level: float) -> tuple[bool, bool]:
    """Whether the scale of a few values is too large, or too small, for calibrated ones by their chi-squared law.

    So few do not tell their own noise: an interval estimated from two values holds nearly everything.
    """
    count = summary.counted
    if not 2 <= count <= _FEW_VALUES or not math.isfinite(scale):
        return False, False
    half = torch.tensor([0.5 * (count - 1), 0.5 * (count - 1) * scale**2], dtype=torch.float64)
    above, below = torch.special.gammaincc(*half), torch.special.gammainc(*half)
    return bool(above < level / 2), bool(below < level / 2)


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
        return f"targets lie {where} predicted sd {side} the mean on average; around it, errors are {spread} of that sd"
    gap = f"even with their own mean and scale, the CDF of residuals is {summary.shape:.3f} off the normal one"
    return f"{gap} ({summary.describe_shape()})"


def _reason_if_calibrated(scale: Interval, shift: Interval, known: float, tolerance: float) -> str:
    text = f"scale {scale.value:.3f} ({scale.low:.3f} to {scale.high:.3f}) and shift {shift.value:+.3f}"
    if known > tolerance:
        reach = f"so few data tell scale and shift only to {known:.0%}"
        return f"nothing found beyond {tolerance:.0%} and chance, but {reach}: {text}"
    return f"{text} are within {tolerance:.0%} or chance"


def _figure(value: float) -> str:
    """Two decimals, or three significant digits of very small or large values."""
    return f"{value:.2f}" if 0.1 <= abs(value) < 100 else f"{value:.3g}"
