"""From distributions of candidates to final detections, and their numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal.benchmarks.detection.kitti_scores import KittiTruths
from fcal.benchmarks.detection.scoring import box_scores
from fcal.benchmarks.scoring import rounded, shortened
from fcal.distributions.functional import index_select
from fcal.metrics.detection import Detections, MatchingRule, Truths, detection_report, match
from fcal.residuals import standardize

OF_DETECTIONS = ("map", "ap50", "ap75", "mmap", "pdq", "pdq_spatial", "pdq_label")
_NMS = 0.5  # largest overlap of two detections of one class
_MOST = 100  # detections of an image
_LEAST_SIDE = 1e-2  # pixels


def final_scores(
    pred: Distribution | Tensor,
    features: Mapping[str, Tensor],
    truths: Sequence[Truths],
    *,
    bins: int,
    df: int,
    kitti: KittiTruths | None = None,
    residuals: bool = False,
) -> dict[str, Any]:
    """Numbers of the detections that suppression leaves.

    Args:
        pred: Boxes of the test candidates, or distributions of them. Shape ``(n, 4)``.
        features: Of the candidates: ``test.input``, ``test.label_probs``, ``test.image``.
        truths: Objects of every test image.
        bins: Number S of bins of calibration errors.
        df: Number K of squared residuals in a sum q.
        kitti: The same objects for KITTI's average precision, if they are of its classes.
        residuals: Keep the residuals of pairs, for numbers of several folds together.
    """
    mean, sigma = (pred.mean, pred.stddev) if isinstance(pred, Distribution) else (pred, torch.zeros_like(pred))
    kept = kept_rows(mean, features, truths)
    detections = [
        _detections(rows, clipped(mean[rows], there.image_size), sigma[rows], features)
        for rows, there in zip(kept, truths, strict=True)
    ]
    report = detection_report(detections, truths)
    pairs = [match(found, there, MatchingRule()) for found, there in zip(detections, truths, strict=True)]
    rows = torch.cat([own[each.detections] for own, each in zip(kept, pairs, strict=True)])
    target = torch.cat([there.boxes[each.truths] for there, each in zip(truths, pairs, strict=True)]).to(mean)
    law = index_select(pred, rows) if isinstance(pred, Distribution) else pred[rows]
    scores: dict[str, Any] = {"columns": {}, "n": target.numel()}
    if len(features["test.image"][rows].unique()) > 1:
        scores = box_scores(law, target, features["test.image"][rows], bins=bins, df=df)
    columns = {**{name: report[name] for name in OF_DETECTIONS}, **scores["columns"]}
    counts = {name: report[name] for name in ("true_positives", "false_positives", "false_negatives", "n_detections")}
    consistent = {"consistency": report["consistency"], "mmap_contours": report["mmap_contours"]}
    own: dict[str, Any] = {} if kitti is None else {"kitti": kitti.precision(detections)}
    if residuals and isinstance(law, Distribution):
        z = standardize(law, target)
        own["residuals"] = {
            "z": [[shortened(value) for value in box] for box in z.tolist()],
            "image": features["test.image"][rows].tolist(),
        }
    return {**scores, "columns": rounded(columns), **consistent, **own, "counts": counts, "pairs": len(rows)}


def kept_rows(mean: Tensor, features: Mapping[str, Tensor], truths: Sequence[Truths]) -> list[Tensor]:
    """Candidates of each image that suppression leaves, best first, as torchvision's detector does it."""
    from torchvision.ops import batched_nms  # heavy

    labels, image = features["test.input"][:, -1].long(), features["test.image"]
    scores = features["test.label_probs"].gather(1, labels.unsqueeze(1)).squeeze(1)
    kept = []
    for number, truth in enumerate(truths):
        rows = (image == number).nonzero().squeeze(1)
        boxes = clipped(mean[rows], truth.image_size)
        rows = rows[((boxes[:, 2:] - boxes[:, :2]) >= _LEAST_SIDE).all(1)]
        boxes = clipped(mean[rows], truth.image_size)
        kept.append(rows[batched_nms(boxes.float(), scores[rows], labels[rows], _NMS)[:_MOST]])
    return kept


def clipped(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes within an image: clipping acts on the mean alone."""
    height, width = size
    return torch.minimum(boxes.clamp(min=0), boxes.new_tensor([width, height, width, height]))


def _detections(rows: Tensor, boxes: Tensor, sigmas: Tensor, features: Mapping[str, Tensor]) -> Detections:
    labels, probs = features["test.input"][rows, -1].long(), features["test.label_probs"][rows]
    scores = probs.gather(1, labels.unsqueeze(1)).squeeze(1)
    return Detections.of_sigmas(
        boxes.double(), sigmas.double(), scores=scores.double(), labels=labels, label_probs=probs.double()
    )
