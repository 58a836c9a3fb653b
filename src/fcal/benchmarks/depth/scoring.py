"""Numbers of predicted depth: accuracy, likelihood and calibration, by frame, distance and place in the image."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import smooth_l1_loss

import fcal
from fcal.benchmarks.depth.frames import Labels
from fcal.benchmarks.scoring import central_interval, curves_of, floors_of, rounded
from fcal.metrics import ClusterReport, cluster_calibration, depth_errors, depth_groups

ACCURACY = ("silog", "rmse", "abs_rel", "d1")
ERRORS = ("ece_z", "mce_z", "ece_q", "mce_q", "ence")
COLUMNS = (
    *ACCURACY,
    "l1_gt",
    "l1",
    *ERRORS,
    "ece_q_within",
    "nll",
    "crps",
    "ause",
    "coverage",
    "width",
    "sigma_corr",
    "train_s",
    "predict_ms",
)
LEVEL = 0.9  # of intervals
_THIRDS = ("upper third", "middle third", "lower third")
_LEAST_DEPTH = 1e-3
_MOST_BINS = 100  # of calibration within images
_FEWEST = 200  # pixels of a part


def scored(pred: Distribution | Tensor, test: Labels, *, bins: int, df: int) -> dict[str, Any]:
    """Accuracy, likelihood and calibration of measured pixels; shapes ``(n,)``."""
    point = pred.mean if isinstance(pred, Distribution) else pred
    row: dict[str, float | None] = dict.fromkeys(COLUMNS)
    row |= accuracy(point, test)
    row["l1"] = smooth_l1_loss(point.double(), test.target.double()).item()
    if test.truth is not None:
        row["l1_gt"] = smooth_l1_loss(point.double(), test.truth.double()).item()
    if not isinstance(pred, Distribution):
        return {"columns": rounded(row)}
    report = fcal.evaluate(pred, test.target, df=df, bins=bins, cluster=test.image)
    row |= {name: getattr(report, name) for name in (*ERRORS, "nll", "crps", "ause")}
    low, high = central_interval(pred, LEVEL)
    row["coverage"] = ((low <= test.target) & (test.target <= high)).double().mean().item()
    row["width"] = (high - low).double().mean().item()
    if test.sigma is not None:
        row["sigma_corr"] = _correlation(pred.stddev, test.sigma)
    generator = torch.Generator().manual_seed(0)  # of the order of pixels in an image
    clusters = cluster_calibration(
        pred, test.target, cluster=test.image, df=df, bins=min(bins, _MOST_BINS), generator=generator
    )
    row["ece_q_within"] = None if clusters.ece_q_within is None else clusters.ece_q_within.value
    return {
        "columns": rounded(row),
        "floors": floors_of(report, ERRORS) | _bands(clusters),
        "clusters": clusters.as_dict(),
        "by_distance": by_distance(pred, test, bins=bins, df=df),
        "by_row": by_row(pred, test, bins=bins, df=df),
        "curves": curves_of(report),
        "verdict": report.word,
        "scale": rounded({"value": report.scale.value, "low": report.scale.low, "high": report.scale.high}),
    }


def _bands(clusters: ClusterReport) -> dict[str, Any]:
    """Scores of a calibrated model whose pixels depend on each other as those of this one do."""
    bands = {
        "ece_z": clusters.ece_z_band,
        "ece_q": clusters.ece_q_band,
        "ece_q_within": clusters.ece_q_within_floor,
    }
    return {name: None if band is None else rounded(asdict(band)) for name, band in bands.items()}


def by_distance(pred: Distribution, test: Labels, *, bins: int, df: int) -> dict[str, Any]:
    """Calibration by ranges of predicted depth; ranges of the measured one would select on its noise."""
    codes, names = depth_groups(pred.mean.clamp(min=_LEAST_DEPTH))
    return _by_part(pred, test, codes, names, bins=bins, df=df)


def by_row(pred: Distribution, test: Labels, *, bins: int, df: int) -> dict[str, Any]:
    """Calibration in the upper, middle and lower third of images."""
    third = (test.row * len(_THIRDS)).long().clamp(max=len(_THIRDS) - 1)
    return _by_part(pred, test, third, _THIRDS, bins=bins, df=df)


def _by_part(
    pred: Distribution, test: Labels, part: Tensor, names: Sequence[str], *, bins: int, df: int
) -> dict[str, Any]:
    report = fcal.evaluate(pred, test.target, bins=bins, df=df, cluster=test.image, group=part, group_names=list(names))
    return {
        name: {"n": group.n, **rounded({"ece_z": group.ece_z, "ece_q": group.ece_q, "scale": group.scale.value})}
        for name, group in report.groups.items()
        if group.n >= _FEWEST
    }


def accuracy(point: Tensor, test: Labels) -> dict[str, float]:
    """Errors of depth, pooled over all pixels."""
    pooled = depth_errors(point.clamp(min=_LEAST_DEPTH).unsqueeze(0), test.target.unsqueeze(0)).pooled
    return {name: pooled[name] for name in ACCURACY}


def _correlation(predicted: Tensor, true: Tensor) -> float:
    """Pearson's, of log sigmas."""
    return torch.corrcoef(torch.stack([predicted.double().log(), true.double().log()]))[0, 1].item()
