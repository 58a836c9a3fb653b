"""From counts and sums to a report."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fcal._checks import check_count
from fcal.divergences import reverse_kl, wasserstein_printed
from fcal.metrics.calibration_errors import expected_calibration_error, maximum_calibration_error
from fcal.metrics.curves import curves_of
from fcal.metrics.floors import floor_of_q, floor_of_z, near_floor_of_q, near_floor_of_z
from fcal.metrics.grid import Grid
from fcal.metrics.report import LEVELS, Report
from fcal.metrics.sigmas import Sigmas
from fcal.metrics.splits import split_of_crps, split_of_nll
from fcal.metrics.state import State
from fcal.metrics.summary import MANY_OUT_OF_REACH, Summary
from fcal.metrics.verdict import critical_value, interval_of_scale, interval_of_shift, smooth_p_value, verdict_of

_FEW_CLUSTERS = 200
_MANY_GROUPS = 20  # from then on floors are read between others: each takes a tenth of a second
_MANY_ALIKE = 0.05  # in one of thousands of narrow bins


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to read a state.

    Attributes:
        grid: Its bins.
        tolerance: Relative error of scale, and error of shift in sd, that still counts as calibrated.
        fitted_on: Fingerprints of targets that recalibrators of the prediction were fitted on.
        groups: Names of the groups; none where there is one.
    """

    grid: Grid
    tolerance: float = 0.05
    fitted_on: frozenset[str] = frozenset()
    groups: Sequence[str] | None = None


def report_of(state: State, options: Options) -> Report:
    """Report of all groups together, with one of each beside it.

    Raises:
        ValueError: Fewer than 2 targets count.
    """
    check_count(int(state.n.sum()), at_least=2)
    with np.errstate(all="ignore"):  # what overflows becomes None
        return _all_reports(state, options)


def _all_reports(state: State, options: Options) -> Report:
    groups: dict[str, Report] = {}
    if options.groups is not None:
        told = [index for index in range(len(options.groups)) if int(state.n[index]) >= 2]
        for index in told:
            groups[options.groups[index]] = _report(
                Summary(state.of_group(index), options.grid), options, len(told), {}
            )
    report = _report(Summary(state.whole(), options.grid), options, 1, groups)
    single = int((state.n == 1).sum()) if options.groups is not None else 0
    if single:
        text = f"{single} of {len(options.groups or ())} groups have a single target and no report"
        report = replace(report, warnings=(*report.warnings, text))
    return report


def _report(data: Summary, options: Options, family_size: int, groups: Mapping[str, Report]) -> Report:
    grid, evidence = data.grid, data.evidence()
    limit = critical_value(evidence, family_size)
    effects = tuple(max(x, 1.0) for x in evidence.design_effect())
    effective = tuple(max(round(data.n / x), 2) for x in effects)
    many = family_size > _MANY_GROUPS
    ece_z_floor, mce_z_floor = (near_floor_of_z if many else floor_of_z)(effective[0], grid.bins)
    q_floor = (near_floor_of_q if many else floor_of_q)(effective[1], grid.bins, grid.df)
    verdict = verdict_of(evidence, tolerance=options.tolerance, groups=family_size)
    sigma = Sigmas(data, effects[1]) if data.mean("error_sq") is not None else None
    z_mean, z_var = data.means["z"], evidence.scale**2
    q_mean, q_var = _moments_of_q(data)
    return Report(
        n=data.n,
        df=grid.df,
        bins=grid.bins,
        nll=data.mean("nll"),
        crps=data.mean("crps"),
        rmse=data.root_mean("error_sq"),
        bias=data.mean("error"),
        sharpness=data.root_mean("sigma_sq"),
        ece_z=float(expected_calibration_error(data.pit_shares)),
        mce_z=float(maximum_calibration_error(data.pit_shares)),
        ece_q=float(expected_calibration_error(data.q_shares)),
        mce_q=float(maximum_calibration_error(data.q_shares)),
        kld_z=_divergence(reverse_kl, z_mean, z_var, None),
        wdist_z=_divergence(wasserstein_printed, z_mean, z_var, None),
        kld_q=_divergence(reverse_kl, q_mean, q_var, grid.df),
        wdist_q=_divergence(wasserstein_printed, q_mean, q_var, grid.df),
        ence=None if sigma is None else sigma.ence(),
        ause=None if sigma is None else sigma.ause(),
        coverage={f"{level:g}": share for level, share in zip(LEVELS, data.coverage, strict=True)},
        scale=interval_of_scale(evidence, limit),
        shift=interval_of_shift(evidence, limit),
        shape=evidence.shape,
        verdict=verdict.word,
        reason=verdict.reason,
        conclusive=verdict.conclusive,
        p_value=min(smooth_p_value(evidence) * family_size, 1.0),
        ece_z_floor=ece_z_floor,
        mce_z_floor=mce_z_floor,
        ece_q_floor=q_floor.ece,
        mce_q_floor=q_floor.mce,
        ence_floor=None if sigma is None else sigma.floor(),
        clusters=data.cluster_count,
        assumption=_assumption(data, family_size),
        fitted_on=data.fingerprint in options.fitted_on,
        warnings=_warnings(data, options),
        nll_split=split_of_nll(data),
        crps_split=split_of_crps(data),
        curves=curves_of(data, sigma, effective[0], np.array(q_floor.spread)),
        groups=groups,
    )


def _moments_of_q(data: Summary) -> tuple[float, float]:
    """Mean and variance of a sum of K squares, drawn with replacement."""
    m1, m2 = data.means["z_sq"], data.means["z_qu"]
    return data.grid.df * m1, data.grid.df * max(m2 - m1**2, 0.0)


def _divergence(between: Callable[..., float], mean: float, variance: float, df: int | None) -> float:
    try:
        return float(between(mean, variance, df))
    except (ValueError, ZeroDivisionError, OverflowError):  # all residuals alike, or beyond float64
        return math.inf


def _assumption(data: Summary, family_size: int) -> str:
    rows = "assumes independent rows" if data.clusters is None else f"{data.cluster_count} independent clusters"
    return rows if family_size == 1 else f"{rows}; corrected for {family_size} groups"


def _warnings(data: Summary, options: Options) -> tuple[str, ...]:
    found = []
    if data.cluster_count is not None and data.cluster_count < _FEW_CLUSTERS:
        found.append(f"only {data.cluster_count} clusters: intervals and tests need {_FEW_CLUSTERS} to be trusted")
    if data.fingerprint in options.fitted_on:
        found.append("measured on the rows the recalibrator was fitted on: expect new data to look worse")
    if _MANY_ALIKE < data.most_alike() < 1:
        share = f"{data.most_alike():.0%} of residuals are nearly the same number"
        found.append(f"{share}: are the targets rounded? Their law is then no smooth one")
    if data.out_of_reach() > MANY_OUT_OF_REACH:
        share = f"{data.out_of_reach():.0%} of residuals are beyond {data.grid.reach:g} sd"
        found.append(f"{share}: is the spread in the right unit (sd, not variance)?")
    return tuple(found)
