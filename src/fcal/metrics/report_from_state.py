"""The report of a state: every number, the verdict, the curves, and how scores decompose.

A monotone map of the predicted probabilities repairs a prediction. The best one for the likelihood has the density of
the PIT as its slope, and saves KL(distribution of z || N(0, 1)). The best one for the CRPS of normal predictions is the
CDF of the PIT with weights sigma, and saves mean(sigma) times the integral of its squared distance from Phi over z.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from fcal._checks import check_count
from fcal.distributions import normal_quantile
from fcal.divergences import reverse_kl, wasserstein_printed
from fcal.metrics.calibration_errors import (
    SIGMA_BINS,
    expected_calibration_error,
    floor_of_ence,
    floors,
    interpolated_floors,
    maximum_calibration_error,
)
from fcal.metrics.report import (
    LEVELS,
    Curves,
    Floor,
    Histogram,
    Reliability,
    Report,
    ScoreDecomposition,
    SigmaBins,
    Sparsification,
)
from fcal.metrics.report_text import ERRORS
from fcal.metrics.row_sample import RowSampler
from fcal.metrics.state import Array, Grid, Integers, State, log_edges, sum_limit, usual_sums
from fcal.metrics.summary import (
    MANY_OUT_OF_REACH,
    NORMAL_KURTOSIS,
    Summary,
    intervals,
    normal_cdf,
    smooth_p_value,
    verdict_of,
)

_ALPHA = 0.05
_FEW_CLUSTERS = 200
_MANY_GROUPS = 20  # above, floors are interpolated: simulating one takes a tenth of a second
_MANY_TIES = 0.05  # share of residuals in one of thousands of narrow bins
_FEWEST_BINS = 8
_SMALLEST_VARIATION = 1e-12  # variance divided by mean square: rounding of the sums is about 1e-14
_NORMAL_95 = 1.959963984540054  # quantile 0.975 of the normal distribution
_STEPS = 100  # of a reliability curve, at most
_BARS = 64
_QUANTILES = 99
_SMALLEST_TAIL = 1e-6
_SMALLEST_REACH = 4.0
DROPPED = np.linspace(0, 0.99, 100)


@np.errstate(all="ignore")  # overflow becomes None in the report
def report_from_state(
    state: State,
    grid: Grid,
    *,
    tolerance: float = 0.05,
    fitted_on: Collection[str] = (),
    group_names: Sequence[str] | None = None,
    rows: RowSampler | None = None,
) -> Report:
    """Report of all groups together, with a report of each group in it.

    Args:
        state: Counts and sums.
        grid: Its bins.
        tolerance: Relative error of scale, and error of shift in sd, that still counts as calibrated.
        fitted_on: Fingerprints of targets that recalibrators of the prediction were fitted on.
        group_names: Names of the groups; None where there is one.
        rows: Single rows for pictures, if they were collected.

    Raises:
        ValueError: Fewer than 2 targets count.
    """
    check_count(int(state.n.sum()), at_least=2)
    whole = _report(Summary(state.whole(), grid), tolerance, fitted_on, 1)
    if rows is not None:
        whole = replace(whole, curves=replace(whole.curves, sample=rows.sample(), worst=rows.worst()))
    if group_names is None:
        return whole
    counts = state.n.tolist()
    reported = [index for index in range(len(group_names)) if counts[index] >= 2]
    groups = {
        group_names[index]: _report(Summary(state.of_group(index), grid), tolerance, fitted_on, len(reported))
        for index in reported
    }
    single = counts.count(1)
    warning = f"{single} of {len(group_names)} groups have a single target and no report"
    return replace(whole, groups=groups, warnings=(*whole.warnings, warning) if single else whole.warnings)


def _report(summary: Summary, tolerance: float, fitted_on: Collection[str], family_size: int) -> Report:
    """Report of one of ``family_size`` groups, or of all together."""
    grid = summary.grid
    effects = tuple(max(x, 1.0) for x in summary.design_effect())
    effective = tuple(max(round(summary.n / x), 2) for x in effects)
    floors_on = interpolated_floors if family_size > _MANY_GROUPS else floors
    z_floors, q_floors = floors_on(effective[0], grid.bins, 1), floors_on(effective[1], grid.bins, grid.df)
    scale, shift = intervals(summary, family_size)
    verdict, reason, conclusive = verdict_of(summary, scale, shift, tolerance=tolerance, groups=family_size)
    sigma = _errors_by_sigma(summary, effects[1])
    z_mean = summary.means["z"]
    z_var = max(summary.means["z_sq"] - z_mean**2, 0.0)
    m1, m2 = summary.means["z_sq"], summary.means["z_qu"]
    q_mean, q_var = grid.df * m1, grid.df * max(m2 - m1**2, 0.0)  # of K squares drawn with replacement
    report = Report(
        n=summary.n,
        df=grid.df,
        bins=grid.bins,
        nll=summary.mean("nll"),
        crps=summary.mean("crps"),
        rmse=summary.root_mean("error_sq"),
        bias=summary.mean("error"),
        sharpness=summary.root_mean("sigma_sq"),
        ece_z=float(expected_calibration_error(summary.pit_shares)),
        mce_z=float(maximum_calibration_error(summary.pit_shares)),
        ece_q=float(expected_calibration_error(summary.q_shares)),
        mce_q=float(maximum_calibration_error(summary.q_shares)),
        kld_z=divergence_of_moments(reverse_kl, z_mean, z_var, None),
        wdist_z=divergence_of_moments(wasserstein_printed, z_mean, z_var, None),
        kld_q=divergence_of_moments(reverse_kl, q_mean, q_var, grid.df),
        wdist_q=divergence_of_moments(wasserstein_printed, q_mean, q_var, grid.df),
        ence=sigma.ence,
        ause=sigma.ause,
        coverage={f"{level:g}": share for level, share in zip(LEVELS, summary.coverage, strict=True)},
        scale=scale,
        shift=shift,
        shape=summary.shape,
        verdict=verdict,
        reason=reason,
        conclusive=conclusive,
        p_value=min(smooth_p_value(summary) * family_size, 1.0),
        ece_z_floor=z_floors.ece,
        mce_z_floor=z_floors.mce,
        ece_q_floor=q_floors.ece,
        mce_q_floor=q_floors.mce,
        ence_floor=sigma.floor,
        clusters=summary.cluster_count,
        assumption=_assumption(summary, family_size),
        fitted_on=summary.fingerprint in fitted_on,
        warnings=_warnings(summary, fitted_on),
        nll_split=_decompose_nll(summary),
        crps_split=_decompose_crps(summary),
        curves=_curves(summary, sigma, effective[0], np.array(q_floors.spread)),
        wild=summary.wild,
    )
    return replace(report, reason=_in_full(report, tolerance))


def _in_full(report: Report, tolerance: float) -> str:
    """The reason, with the wild values before it and the errors that are marked behind it."""
    reason = report.reason if report.wild is None else f"{report.wild}; without them: {report.reason}"
    if report.verdict != "calibrated" or not report.marked:
        return reason
    *names, last = (ERRORS[name] for name in report.marked)
    listed = f"{', '.join(names)} and {last} are" if names else f"{last} is"
    return f"{reason}; but {listed} above what 95 % of calibrated models score: {_cause(report, tolerance)}"


def _cause(report: Report, tolerance: float) -> str:
    """Why calibration errors are above their floors although the verdict is "calibrated"."""
    if report.wild is not None:
        return "wild values count there"
    if not report.conclusive:
        return "more rows would tell whether that is chance"
    if report.sizes_are_off(tolerance):
        return f"error bars of one size are too small and of another too large, by {report.ence:.0%} on average"
    if report.p_value < _ALPHA or not (report.scale.low <= 1 <= report.scale.high):
        return f"a deviation that is measurable, but smaller than {tolerance:.0%}"
    return "chance does that to one in twenty calibrated models, for each of these numbers"


def divergence_of_moments(function: Callable[..., float], mean: float, variance: float, df: int | None) -> float:
    """A divergence of fitted moments; infinite where all residuals are alike, or beyond float64."""
    try:
        return float(function(mean, variance, df))
    except (ValueError, ZeroDivisionError, OverflowError):
        return math.inf


def _assumption(summary: Summary, family_size: int) -> str:
    rows = "assumes independent rows" if summary.clusters is None else f"{summary.cluster_count} independent clusters"
    return rows if family_size == 1 else f"{rows}; corrected for {family_size} groups"


def _warnings(summary: Summary, fitted_on: Collection[str]) -> tuple[str, ...]:
    warnings = []
    if summary.cluster_count is not None and summary.cluster_count < _FEW_CLUSTERS:
        warnings.append(
            f"only {summary.cluster_count} clusters: intervals and tests need {_FEW_CLUSTERS} to be trusted"
        )
    if summary.fingerprint in fitted_on:
        warnings.append("measured on the rows the recalibrator was fitted on: expect new data to look worse")
    if _MANY_TIES < summary.largest_tie() < 1:
        share = f"{summary.largest_tie():.0%} of residuals are nearly the same number"
        warnings.append(f"{share}: are the targets rounded? Their distribution is then not smooth")
    if summary.out_of_reach() > MANY_OUT_OF_REACH:
        share = f"{summary.out_of_reach():.0%} of residuals are beyond {summary.grid.reach:g} sd"
        warnings.append(f"{share}: is the spread in the right unit (sd, not variance)?")
    return tuple(warnings)


def _decompose_nll(summary: Summary) -> ScoreDecomposition | None:
    """Decomposition of the NLL; None where targets or residuals do not vary."""
    score, variance = summary.mean("nll"), _variance_of_target(summary)
    if score is None or not variance > 0 or not summary.scale > 0:
        return None
    cross = 0.5 * math.log(2 * math.pi) + 0.5 * summary.means["z_sq"]
    miscalibration = max(cross - _entropy_of_z(summary), 0.0)
    uncertainty = 0.5 * math.log(2 * math.pi * math.e * variance)
    return ScoreDecomposition(miscalibration, uncertainty - (score - miscalibration), uncertainty)


def _decompose_crps(summary: Summary) -> ScoreDecomposition | None:
    """Decomposition of the CRPS, exact for normal predictions, else as if z were linear in the target.

    None where there is no CRPS, or too many residuals are out of reach.
    """
    score, variance = summary.mean("crps"), _variance_of_target(summary)
    total = summary.z_sigma.sum()
    if score is None or not variance > 0 or not total > 0 or summary.out_of_reach() > MANY_OUT_OF_REACH:
        return None
    weighted = summary.z_sigma[:-1].cumsum() / total
    gap = (weighted - normal_cdf(summary.grid.z_edges)) ** 2
    miscalibration = float(total / summary.n * np.trapezoid(gap, summary.grid.z_edges))
    uncertainty = math.sqrt(variance / math.pi)
    return ScoreDecomposition(miscalibration, uncertainty - (score - miscalibration), uncertainty)


def _variance_of_target(summary: Summary) -> float:
    """Variance of the targets; 0 where it is within the rounding error of the mean square."""
    square = summary.means["target_sq"]
    mean = summary.means["target"]
    variance = square - mean * mean  # Python's power would raise an error where a product is infinite
    return variance if variance > _SMALLEST_VARIATION * square else 0.0


def _entropy_of_z(summary: Summary) -> float:
    """Entropy of z by a histogram, corrected for its number of bins; of a normal fit where bins are too wide."""
    scale = summary.scale
    width = 2 * summary.grid.reach / (len(summary.z) - 2)
    if summary.out_of_reach() > MANY_OUT_OF_REACH or scale < _FEWEST_BINS * width:
        return 0.5 * math.log(2 * math.pi * math.e) + math.log(scale)
    inner = summary.z[1:-1]
    merged = int(min(max(2 * scale * summary.n ** (-1 / 3) / width, 1.0), len(inner)))  # one residual may be huge
    counts = np.add.reduceat(inner, np.arange(0, len(inner), merged))
    share = counts[counts > 0] / summary.n
    return float(-(share * np.log(share / (merged * width))).sum()) + (len(share) - 1) / (2 * summary.n)


# Curves: reliability, histograms and quantiles of residuals; errors by predicted sigma.


class _BySigma(NamedTuple):
    """ENCE and its floor, AUSE, and the curves behind them; None where the prediction has no sd."""

    ence: float | None = None
    floor: Floor | None = None
    ause: float | None = None
    bins: SigmaBins | None = None
    sparsification: Sparsification | None = None


def _errors_by_sigma(summary: Summary, design_effect: float) -> _BySigma:
    """Errors in bins of sigma of about equal counts; the design effect is that of mean squares."""
    if summary.mean("error_sq") is None:
        return _BySigma()
    filled = summary.sigma > 0
    narrow = count, sigma_sq, error_sq = [x[filled] for x in (summary.sigma, summary.sigma_sq, summary.sigma_error)]
    middle = count.cumsum() - 0.5 * count
    merged_bin = np.unique(np.floor(SIGMA_BINS * middle / count.sum()), return_inverse=True)[1]
    counts, sigma_squares, error_squares = (np.bincount(merged_bin, x) for x in narrow)
    kurtosis = _kurtosis(summary, float((count * error_sq / sigma_sq).sum()) / summary.n)
    sigma, error = np.sqrt(sigma_squares / counts), np.sqrt(error_squares / counts)
    half = _NORMAL_95 * np.sqrt((kurtosis - 1) * design_effect / counts)
    low, high = sigma * np.sqrt(np.maximum(1 - half, 0)), sigma * np.sqrt(1 + half)
    edges = log_edges()
    squared_errors = summary.error * (0.5 * (edges[1:] + edges[:-1])) ** 2
    by_sigma, by_error = (
        np.sqrt(remaining_mean(*sums)) for sums in ((count, error_sq), (summary.error, squared_errors))
    )
    if not error_sq.sum() > 0:  # the bins of errors do not resolve 0
        by_error = np.zeros_like(DROPPED)
    return _BySigma(
        ence=float(np.abs(1 - np.sqrt(error_squares / sigma_squares)).mean()),
        floor=floor_of_ence(count / design_effect, sigma_sq, merged_bin, kurtosis),
        ause=mean_gap(by_sigma, by_error),
        bins=SigmaBins(*(tuple(x.tolist()) for x in (sigma, error, low, high, counts.astype(int)))),
        sparsification=Sparsification(*(tuple(x.tolist()) for x in (DROPPED, by_sigma, by_error))),
    )


def _kurtosis(summary: Summary, second_moment: float) -> float:
    """Kurtosis of error / sigma under the prediction: 3 for normal predictions, else that of the data."""
    fourth = summary.means["ratio_qu"]
    if math.isclose(fourth, summary.means["z_qu"], rel_tol=1e-9) or not second_moment > 0:
        return NORMAL_KURTOSIS
    return max(fourth / second_moment**2, 1.0 + 1e-3)


def remaining_mean(count: Array, total: Array) -> Array:
    """Mean of the data that remain after dropping a share from the last bin on, relative to that of all.

    Args:
        count: Number of data in each bin; a bin that is dropped in part loses all its data alike. Shape ``(bins,)``.
        total: Their sums, not negative. Shape ``(bins,)``.

    Returns:
        Relative mean with each share of ``DROPPED`` dropped; zeros where all data are zero.
    """
    kept, kept_total = (np.concatenate([[0.0], x.cumsum()]) for x in (count, total))
    if kept_total[-1] <= 0:
        return np.zeros_like(DROPPED)
    share = 1 - DROPPED
    remaining: Array = np.interp(share, kept / kept[-1], kept_total / kept_total[-1]) / share
    return remaining


def mean_gap(upper: Array, lower: Array) -> float:
    """Area between two curves over ``DROPPED``, divided by its length."""
    return float(np.trapezoid(upper - lower, DROPPED) / DROPPED[-1])


def _curves(summary: Summary, sigma: _BySigma, effective: int, q_spread: Array) -> Curves:
    """Every curve; bands are those of ``effective`` residuals, and of sums q whose shares have the sd ``q_spread``."""
    return Curves(
        z=_reliability_of_z(summary, effective),
        central=_reliability_of_intervals(summary, effective),
        q=_reliability_of_q(summary, q_spread),
        z_histogram=_histogram_of_z(summary),
        q_histogram=_histogram_of_q(summary),
        qq=_quantiles(summary),
        sigma=sigma.bins,
        sparsification=sigma.sparsification,
    )


def _reliability(nominal: Array, empirical: Array, spread: Array) -> Reliability:
    low, high = (np.clip(nominal + side * _NORMAL_95 * spread, 0, 1) for side in (-1, 1))
    return Reliability(*(tuple(x.tolist()) for x in (nominal, empirical, low, high)))


def _evenly_spaced(count: int) -> Integers:
    """Indices of at most ``_STEPS`` evenly spaced steps, both ends included."""
    return np.unique(np.linspace(0, count, min(count, _STEPS) + 1).round().astype(np.int64))


def _reliability_of_z(summary: Summary, effective: int) -> Reliability:
    fine = summary.grid.pit_bins
    steps = _evenly_spaced(summary.grid.bins) * (fine // summary.grid.bins)
    nominal = steps / fine
    return _reliability(nominal, summary.pit_cdf[steps], np.sqrt(nominal * (1 - nominal) / effective))


def _reliability_of_intervals(summary: Summary, effective: int) -> Reliability:
    fine = summary.grid.pit_bins
    cut = _evenly_spaced(fine // 2)[::-1]  # bins cut off at either end
    nominal = (fine - 2 * cut) / fine
    empirical = summary.pit_cdf[fine - cut] - summary.pit_cdf[cut]
    return _reliability(nominal, empirical, np.sqrt(nominal * (1 - nominal) / effective))


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
