"""The report of a state: every number, the verdict, the curves, and how scores decompose.

A monotone map of the predicted probabilities repairs a prediction. The best one for the likelihood has the density of
the PIT as its slope, and saves KL(distribution of z || N(0, 1)). The best one for the CRPS of normal predictions is the
CDF of the PIT with weights sigma, and saves mean(sigma) times the integral of its squared distance from Phi over z.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fcal._checks import check_count
from fcal.divergences import reverse_kl, wasserstein_printed
from fcal.metrics.calibration_errors import (
    expected_calibration_error,
    floor_of_q,
    floor_of_z,
    interpolated_floor_of_q,
    interpolated_floor_of_z,
    maximum_calibration_error,
)
from fcal.metrics.curves import ErrorsBySigma, curves_of
from fcal.metrics.report import LEVELS, Report, ScoreDecomposition
from fcal.metrics.state import Grid, State
from fcal.metrics.summary import MANY_OUT_OF_REACH, Summary, normal_cdf
from fcal.metrics.verdict import critical_value, interval_of_scale, interval_of_shift, smooth_p_value, verdict_of

_FEW_CLUSTERS = 200
_MANY_GROUPS = 20  # above, floors are interpolated: simulating one takes a tenth of a second
_MANY_TIES = 0.05  # share of residuals in one of thousands of narrow bins
_FEWEST_BINS = 8
_SMALLEST_VARIATION = 1e-12  # variance divided by mean square: rounding of the sums is about 1e-14


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to compute a report from a state.

    Attributes:
        grid: Bins of the state.
        tolerance: Relative error of scale, and error of shift in sd, that still counts as calibrated.
        fitted_on: Fingerprints of targets that recalibrators of the prediction were fitted on.
        groups: Names of the groups; None where there is one.
    """

    grid: Grid
    tolerance: float = 0.05
    fitted_on: frozenset[str] = frozenset()
    groups: Sequence[str] | None = None


def report_from_state(state: State, options: Options) -> Report:
    """Report of all groups together, with a report of each group in it.

    Raises:
        ValueError: Fewer than 2 targets count.
    """
    check_count(int(state.n.sum()), at_least=2)
    with np.errstate(all="ignore"):  # overflow becomes None in the report
        return _all_reports(state, options)


def _all_reports(state: State, options: Options) -> Report:
    groups: dict[str, Report] = {}
    if options.groups is not None:
        reported = [index for index in range(len(options.groups)) if int(state.n[index]) >= 2]
        for index in reported:
            summary = Summary(state.of_group(index), options.grid)
            groups[options.groups[index]] = _report(summary, options, len(reported), {})
    report = _report(Summary(state.whole(), options.grid), options, 1, groups)
    single = int((state.n == 1).sum()) if options.groups is not None else 0
    if single:
        warning = f"{single} of {len(options.groups or ())} groups have a single target and no report"
        report = replace(report, warnings=(*report.warnings, warning))
    return report


def _report(summary: Summary, options: Options, family_size: int, groups: Mapping[str, Report]) -> Report:
    grid = summary.grid
    limit = critical_value(summary, family_size)
    effects = tuple(max(x, 1.0) for x in summary.design_effect())
    effective = tuple(max(round(summary.n / x), 2) for x in effects)
    many = family_size > _MANY_GROUPS
    ece_z_floor, mce_z_floor = (interpolated_floor_of_z if many else floor_of_z)(effective[0], grid.bins)
    q_floor = (interpolated_floor_of_q if many else floor_of_q)(effective[1], grid.bins, grid.df)
    verdict = verdict_of(summary, tolerance=options.tolerance, groups=family_size)
    sigma = ErrorsBySigma(summary, effects[1]) if summary.mean("error_sq") is not None else None
    z_mean, z_var = summary.shift, summary.scale**2
    q_mean, q_var = _moments_of_q(summary)
    return Report(
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
        kld_z=_divergence(reverse_kl, z_mean, z_var, None),
        wdist_z=_divergence(wasserstein_printed, z_mean, z_var, None),
        kld_q=_divergence(reverse_kl, q_mean, q_var, grid.df),
        wdist_q=_divergence(wasserstein_printed, q_mean, q_var, grid.df),
        ence=None if sigma is None else sigma.ence(),
        ause=None if sigma is None else sigma.ause(),
        coverage={f"{level:g}": share for level, share in zip(LEVELS, summary.coverage, strict=True)},
        scale=interval_of_scale(summary, limit),
        shift=interval_of_shift(summary, limit),
        shape=summary.shape,
        verdict=verdict.word,
        reason=verdict.reason,
        conclusive=verdict.conclusive,
        p_value=min(smooth_p_value(summary) * family_size, 1.0),
        ece_z_floor=ece_z_floor,
        mce_z_floor=mce_z_floor,
        ece_q_floor=q_floor.ece,
        mce_q_floor=q_floor.mce,
        ence_floor=None if sigma is None else sigma.floor(),
        clusters=summary.cluster_count,
        assumption=_assumption(summary, family_size),
        fitted_on=summary.fingerprint in options.fitted_on,
        warnings=_warnings(summary, options),
        nll_split=_decompose_nll(summary),
        crps_split=_decompose_crps(summary),
        curves=curves_of(summary, sigma, effective[0], np.array(q_floor.spread)),
        groups=groups,
    )


def _moments_of_q(summary: Summary) -> tuple[float, float]:
    """Mean and variance of a sum of K squared residuals drawn with replacement."""
    m1, m2 = summary.means["z_sq"], summary.means["z_qu"]
    return summary.grid.df * m1, summary.grid.df * max(m2 - m1**2, 0.0)


def _divergence(function: Callable[..., float], mean: float, variance: float, df: int | None) -> float:
    try:
        return float(function(mean, variance, df))
    except (ValueError, ZeroDivisionError, OverflowError):  # all residuals alike, or beyond float64
        return math.inf


def _assumption(summary: Summary, family_size: int) -> str:
    rows = "assumes independent rows" if summary.clusters is None else f"{summary.cluster_count} independent clusters"
    return rows if family_size == 1 else f"{rows}; corrected for {family_size} groups"


def _warnings(summary: Summary, options: Options) -> tuple[str, ...]:
    warnings = []
    if summary.cluster_count is not None and summary.cluster_count < _FEW_CLUSTERS:
        warnings.append(
            f"only {summary.cluster_count} clusters: intervals and tests need {_FEW_CLUSTERS} to be trusted"
        )
    if summary.fingerprint in options.fitted_on:
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
    variance = square - summary.means["target"] ** 2
    return variance if variance > _SMALLEST_VARIATION * square else 0.0


def _entropy_of_z(summary: Summary) -> float:
    """Entropy of z by a histogram, corrected for its number of bins; of a normal fit where bins are too wide."""
    scale = summary.scale
    width = 2 * summary.grid.reach / (len(summary.z) - 2)
    if summary.out_of_reach() > MANY_OUT_OF_REACH or scale < _FEWEST_BINS * width:
        return 0.5 * math.log(2 * math.pi * math.e) + math.log(scale)
    merged = max(int(2 * scale * summary.n ** (-1 / 3) / width), 1)
    inner = summary.z[1:-1]
    counts = np.add.reduceat(inner, np.arange(0, len(inner), merged))
    share = counts[counts > 0] / summary.n
    return float(-(share * np.log(share / (merged * width))).sum()) + (len(share) - 1) / (2 * summary.n)
