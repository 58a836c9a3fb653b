"""Numbers of predicted boxes: likelihood and calibration of their corners, with bands by resampling images."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import smooth_l1_loss

import fcal
from fcal.benchmarks.scoring import clustered_scores, root_mean_square, rounded

CORNERS = ("x1", "y1", "x2", "y2")


def box_scores(pred: Distribution | Tensor, target: Tensor, image: Tensor, *, bins: int, df: int) -> dict[str, Any]:
    """Accuracy, likelihood and calibration of the corners of boxes.

    Args:
        pred: Predicted corners, or distributions of them, in pixels. Shape ``(n, 4)``.
        target: True corners. Shape ``(n, 4)``.
        image: Number of the image of each box. Shape ``(n,)``.
        bins: Number S of bins of calibration errors.
        df: Number K of squared residuals in a sum q.
    """
    point = pred.mean if isinstance(pred, Distribution) else pred
    row = {"rmse": root_mean_square(point - target), "l1": smooth_l1_loss(point.double(), target.double()).item()}
    if not isinstance(pred, Distribution):
        return {"columns": rounded(row), "n": target.numel()}
    each = image.unsqueeze(1).expand(target.shape).contiguous()
    scores = clustered_scores(pred, target, each, bins=bins, df=df)
    corner = torch.arange(len(CORNERS)).expand(target.shape)
    report = fcal.evaluate(pred, target, bins=bins, df=df, cluster=each, group=corner, group_names=list(CORNERS))
    by_corner = {
        name: rounded({"ece_z": group.ece_z, "ece_q": group.ece_q, "scale": group.scale.value})
        for name, group in report.groups.items()
    }
    return {**scores, "columns": rounded({**row, **scores["columns"]}), "by_corner": by_corner, "n": target.numel()}
