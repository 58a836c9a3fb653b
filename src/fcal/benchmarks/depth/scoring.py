"""Numbers of predicted depth: accuracy, likelihood and calibration, by frame, distance and place in the image."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import smooth_l1_loss

import fcal
from fcal.benchmarks.depth.frames import Labels
from fcal.benchmarks.scoring import ERRORS, clustered_scores, rounded
from fcal.metrics import depth_errors, depth_groups

ACCURACY = ("silog", "rmse", "abs_rel", "d1")
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
_THIRDS = ("upper third", "middle third", "lower third")
_LEAST_DEPTH = 1e-3
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
    scores = clustered_scores(pred, test.target, test.image, bins=bins, df=df)
    row |= scores["columns"]
    if test.sigma is not None:
        row["sigma_corr"] = _correlation(pred.stddev, test.sigma)
    return {
        **scores,
        "columns": rounded(row),
        "by_distance": by_distance(pred, test, bins=bins, df=df),
        "by_row": by_row(pred, test, bins=bins, df=df),
        **({} if test.truth is not None else {"by_drive": by_drive(pred, test, bins=bins, df=df)}),
    }


def by_distance(pred: Distribution, test: Labels, *, bins: int, df: int) -> dict[str, Any]:
    """Calibration by ranges of predicted depth; ranges of the measured one would select on its noise."""
    codes, names = depth_groups(pred.mean.clamp(min=_LEAST_DEPTH))
    return _by_part(pred, test, codes, names, bins=bins, df=df)


def by_row(pred: Distribution, test: Labels, *, bins: int, df: int) -> dict[str, Any]:
    """Calibration in the upper, middle and lower third of images."""
    third = (test.row * len(_THIRDS)).long().clamp(max=len(_THIRDS) - 1)
    return _by_part(pred, test, third, _THIRDS, bins=bins, df=df)


def by_drive(pred: Distribution, test: Labels, *, bins: int, df: int) -> dict[str, Any]:
    """Calibration and accuracy of real frames, drive by drive."""
    names = sorted(set(test.groups))
    codes = torch.tensor([names.index(group) for group in test.groups])[test.image]
    found = _by_part(pred, test, codes, names, bins=bins, df=df)
    point = pred.mean
    for name, entry in found.items():
        own = codes == names.index(name)
        part = test._replace(target=test.target[own])
        entry |= {"frames": len(test.image[own].unique()), **rounded(accuracy(point[own], part))}
    return found


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
