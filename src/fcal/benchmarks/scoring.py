"""Scores of predictions on test rows."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

import fcal
from fcal.benchmarks.problem import Prediction
from fcal.benchmarks.table import Column
from fcal.distributions import quantile
from fcal.metrics import ClusterReport, cluster_calibration
from fcal.metrics.report import Histogram, Reliability, Report

DIGITS = 6  # significant digits that cells keep

RMSE = Column(name="rmse", title="RMSE", description="in the target's unit", digits=4)
NLL = Column(name="nll", title="NLL", description="mean negative log-likelihood")
CRPS = Column(name="crps", title="CRPS", description="in the target's unit")
ECE_Z = Column(name="ece_z", title="ECE(z)", description="expected calibration error of the residuals", factor=100)
ECE_Q = Column(
    name="ece_q", title="ECE(q)", description="expected calibration error of sums of K squared residuals", factor=100
)
MCE_Z = Column(name="mce_z", printed=False, title="MCE(z)", description="the worst bin of the residuals", factor=100)
MCE_Q = Column(name="mce_q", printed=False, title="MCE(q)", description="the worst bin of these sums", factor=100)
CALIBRATION = (ECE_Z, MCE_Z, ECE_Q, MCE_Q)
AUSE = Column(name="ause", printed=False, title="AUSE", description="area between sparsification curves")
ENCE = Column(name="ence", title="ENCE", description="errors against predicted sigma, by bins of sigma")
SIGMA_CORR = Column(
    name="sigma_corr",
    title="corr(sigma)",
    description="correlation of log predicted and log true sigma; 1 is best",
    lower_is_better=False,
)
COVERAGE = Column(
    name="coverage",
    title="in 90 %",
    description="share of targets in the central interval of 90 %",
    factor=100,
    percent=True,
    ranked=False,
)
WIDTH = Column(
    name="width", title="width", description="of the central interval of 90 %, in the target's unit", ranked=False
)
TRAIN_S = Column(name="train_s", title="train, s", description="seconds of training", ranked=False)
PREDICT_MS = Column(name="predict_ms", title="predict, ms", description="milliseconds of a prediction", ranked=False)
ERRORS = ("ece_z", "mce_z", "ece_q", "mce_q", "ence")  # of calibration
DISTANCES = ("wdist_z", "kld_z", "wdist_q", "kld_q")  # of fitted laws from those of calibrated models
_LEVEL = 0.9  # of intervals
_MOST_BINS = 100  # of calibration within clusters
COLUMNS = (RMSE, NLL, CRPS, ECE_Z, ECE_Q, COVERAGE, WIDTH, TRAIN_S)  # of :func:`score`


def score(
    prediction: Prediction,
    targets: Sequence[Tensor],
    *,
    bins: int = 20,
    df: int = 75,
    levels: Mapping[str, float] | None = None,
    digits: int = DIGITS,
) -> dict[str, Any]:
    """Columns that any task can use, for each part, and the scores of a calibrated model.

    Args:
        prediction: Prediction of a method.
        targets: Targets of the test rows of every part.
        bins: Number S of bins of calibration errors.
        df: Number K of squared residuals in a sum q.
        levels: Column of the coverage of each level; ``{"coverage": 0.9}`` if None. ``width`` is that of the
            column ``"coverage"``.
        digits: Significant digits that are kept.

    Returns:
        ``columns``: by name a list with a value per part, None where undefined; ``floors`` of the last part; ``n``, the
        number of scalar targets of a part.
    """
    rows: list[dict[str, float | None]] = []
    floors: dict[str, Any] = {}
    for part, target in enumerate(targets):
        row: dict[str, float | None] = {"train_s": prediction.seconds}
        if prediction.dists:
            report = fcal.evaluate(prediction.dists[part], target, bins=bins, df=df)
            row |= distribution_columns(prediction.dists[part], target, report, levels)
            floors = floors_of(report, ("ece_z", "ece_q"))
        if prediction.means:
            row["rmse"] = root_mean_square(prediction.means[part] - target)
        if prediction.intervals:
            row |= interval_columns(prediction.intervals[part], target, levels)
        rows.append(rounded(row, digits))
    names = dict.fromkeys(name for row in rows for name in row)
    count = targets[0].numel()
    return {"columns": {name: [row.get(name) for row in rows] for name in names}, "floors": floors, "n": count}


def clustered_scores(pred: Distribution, target: Tensor, cluster: Tensor, *, bins: int, df: int) -> dict[str, Any]:
    """Likelihood, intervals and calibration of targets that depend on each other within clusters, such as images.

    Args:
        pred: Predictions. Shape ``(n,)`` or ``(n, outputs)``.
        target: Their targets.
        cluster: Number of the cluster of each target, shaped like them or like their rows.
        bins: Number S of bins of calibration errors.
        df: Number K of squared residuals in a sum q.

    Returns:
        ``columns`` by name; ``floors``, the scores of a calibrated model whose targets depend on each other as these
        do; ``clusters``, ``curves``, ``verdict`` and ``scale``, for pictures and further tables.
    """
    report = fcal.evaluate(pred, target, df=df, bins=bins, cluster=cluster)
    row: dict[str, float | None] = {
        name: getattr(report, name) for name in (*ERRORS, *DISTANCES, "nll", "crps", "ause")
    }
    low, high = central_interval(pred, _LEVEL)
    row["coverage"] = ((low <= target) & (target <= high)).double().mean().item()
    row["width"] = (high - low).double().mean().item()
    generator = torch.Generator().manual_seed(0)  # of the order of targets in a cluster
    clusters = cluster_calibration(
        pred, target, cluster=cluster, df=df, bins=min(bins, _MOST_BINS), generator=generator
    )
    row["ece_q_within"] = None if clusters.ece_q_within is None else clusters.ece_q_within.value
    return {
        "columns": rounded(row),
        "floors": floors_of(report, ERRORS) | _bands(clusters),
        "clusters": clusters.as_dict(),
        "curves": curves_of(report),
        "verdict": report.word,
        "scale": rounded({"value": report.scale.value, "low": report.scale.low, "high": report.scale.high}),
    }


def _bands(clusters: ClusterReport) -> dict[str, Any]:
    """Scores of a calibrated model whose targets depend on each other as those of this one do."""
    bands = {
        "ece_z": clusters.ece_z_band,
        "ece_q": clusters.ece_q_band,
        "ece_q_within": clusters.ece_q_within_floor,
    }
    return {name: None if band is None else rounded(asdict(band)) for name, band in bands.items()}


def distribution_columns(
    dist: Distribution, target: Tensor, report: Report, levels: Mapping[str, float] | None = None
) -> dict[str, float | None]:
    """Accuracy, likelihood, calibration and intervals of one part."""
    z = fcal.standardize(dist, target).double()
    log_likelihood = -fcal.nll(dist, target).mean().item()
    row: dict[str, float | None] = {
        "rmse": root_mean_square(dist.mean - target),
        "nll": -log_likelihood,
        "ll": log_likelihood,
        "crps": fcal.crps(dist, target).mean().item(),
        "ece_z": report.ece_z,
        "ece_q": report.ece_q,
        "z2": z.square().mean().item(),
    }
    levels = levels or {"coverage": 0.9}
    for name, level in levels.items():
        edge = math.sqrt(2) * torch.erfinv(torch.tensor(level).double())
        row[name] = (z.abs() <= edge).double().mean().item()
    low, high = central_interval(dist, levels["coverage"])
    row["width"] = (high - low).mean().item()
    return row


def interval_columns(
    intervals: Mapping[float, tuple[Tensor, Tensor]], target: Tensor, levels: Mapping[str, float] | None = None
) -> dict[str, float | None]:
    """Coverage by level, and the width of the intervals of the column ``"coverage"``."""
    row: dict[str, float | None] = {}
    for name, level in (levels or {"coverage": 0.9}).items():
        low, high = intervals[level]
        row[name] = ((low <= target) & (target <= high)).double().mean().item()
        if name == "coverage":
            row["width"] = (high - low).double().mean().item()
    return row


def central_interval(dist: Distribution, level: float) -> tuple[Tensor, Tensor]:
    """Bounds of the central interval of a level."""
    tail = (1 - level) / 2
    return quantile(dist, tail, 1 - tail), quantile(dist, 1 - tail, tail)


def standard_report(z: Tensor, *, bins: int, df: int) -> Report:
    """The report of residuals, whose distribution should be N(0, 1)."""
    return fcal.evaluate(Normal(torch.zeros_like(z), torch.ones_like(z)), z, bins=bins, df=df)


def floors_of(report: Report, names: Sequence[str], digits: int = DIGITS) -> dict[str, Any]:
    """Scores of a calibrated model on the same number of rows, by calibration error."""
    floors = {name: getattr(report, f"{name}_floor") for name in names}
    return {
        name: None if floor is None else rounded({"expected": floor.expected, "q95": floor.q95}, digits)
        for name, floor in floors.items()
    }


def curves_of(report: Report) -> dict[str, Any]:
    """Reliability and histograms of z and q, with four digits, for pictures."""
    curves = report.curves
    return {
        **{name: _reliability(curve) for name, curve in (("z", curves.z), ("q", curves.q))},
        **{
            name: _histogram(histogram)
            for name, histogram in (("z_histogram", curves.z_histogram), ("q_histogram", curves.q_histogram))
        },
    }


def _reliability(curve: Reliability) -> dict[str, list[float]]:
    return {name: [float(f"{v:.4g}") for v in getattr(curve, name)] for name in ("nominal", "empirical", "low", "high")}


def _histogram(histogram: Histogram) -> dict[str, Any]:
    return {name: [float(f"{v:.4g}") for v in getattr(histogram, name)] for name in ("edges", "density")}


def milliseconds(predict: Callable[[], object], rows: int, repeats: int = 3) -> float:
    """Processor time of predicting one row, the minimum over several repetitions."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        predict()
        times.append(time.process_time() - start)
    return round(1000 * min(times) / rows, 6)


def root_mean_square(error: Tensor) -> float:
    """Square root of the mean square."""
    return error.double().square().mean().sqrt().item()


def rounded(numbers: Mapping[str, float | None], digits: int = DIGITS) -> dict[str, float | None]:
    """Numbers rounded to significant digits; None for those that JSON cannot represent.

    Example:
        >>> rounded({"nll": -1.23456789, "crps": float("nan")})
        {'nll': -1.23457, 'crps': None}
    """
    return {name: shortened(value, digits) for name, value in numbers.items()}


def shortened(value: float | None, digits: int = DIGITS) -> float | None:
    """A number rounded to significant digits; None for one that JSON cannot represent."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")
