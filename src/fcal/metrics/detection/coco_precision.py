"""Average precision as COCO computes it, by COCO's own code."""

import contextlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcal._checks import check_integer
from fcal.metrics.detection.matched_boxes import class_name
from fcal.metrics.detection.matching import NO_CLASS
from fcal.metrics.detection.records import Detections, Truths
from fcal.metrics.detection.scored_boxes import Array, ScoredBoxes, image_numbers, scored_boxes_of
from fcal.metrics.report import plain

_WHOLE_RANGE = [0.0, 1e10]  # of areas
_SINGLE = {"ap50": 0.5, "ap75": 0.75}


@dataclass(frozen=True, kw_only=True)
class PrecisionReport:
    """Average precision of COCO, as shares, not per cent.

    Attributes:
        images: Number of images, empty ones included.
        detections: Number of detections.
        truths: Number of objects that are not ignored.
        map: Mean over classes and over overlaps 0.5, 0.55, ..., 0.95; None without any object, as are the next two.
        ap50: Mean over classes at an overlap of 0.5.
        ap75: Mean over classes at an overlap of 0.75.
        per_class: The same three for each class that has an object, by name.
    """

    images: int
    detections: int
    truths: int
    map: float | None
    ap50: float | None
    ap75: float | None
    per_class: Mapping[str, Mapping[str, float]]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and dictionaries for JSON."""
        return {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}


def average_precision(
    detections: Iterable[Detections],
    truths: Iterable[Truths],
    *,
    classes: Sequence[str] | None = None,
    max_detections: int = 100,
) -> PrecisionReport:
    """Average precision of COCO: overlaps 0.5 to 0.95, 101 recall points, by pycocotools.

    Ignored objects are crowds of COCO: they need not be found, and any number of detections may fall on one, measured
    by the share of the detection inside. One of label 0 takes detections of all classes.

    Args:
        detections: Detections of each image, from a list or a stream.
        truths: Objects of each image. An image without objects counts: all its detections are mistakes.
        classes: Names of classes 1, 2, ...; their numbers by default.
        max_detections: Number of detections of a class in an image that count, those with the highest scores.

    Returns:
        Means over classes that have an object, and each class: 0 without detections, None without objects.

    Raises:
        ImportError: pycocotools is not installed.
        TypeError: Not one record per image.
        ValueError: Different numbers of images.

    Note:
        Where detections of several images have the same score, the order of images matters a little, as in COCO.

    Example:
        >>> boxes, labels = torch.tensor([[10.0, 10.0, 50.0, 40.0], [60.0, 10.0, 90.0, 40.0]]), torch.tensor([1, 2])
        >>> truths = [Truths(boxes=boxes, labels=labels, image_size=(50, 100))]
        >>> scores, shift = torch.tensor([0.9, 0.8]), torch.tensor([[0.0], [6.0]])  # the second overlaps by 0.47
        >>> found = [Detections.of_sigmas(boxes + shift, torch.ones(2, 4), scores=scores, labels=labels)]
        >>> report = average_precision(found, truths, classes=("car", "cyclist"))
        >>> round(report.map, 6), round(report.per_class["car"]["map"], 6), report.per_class["cyclist"]["ap50"]
        (0.5, 1.0, 0.0)

    Reference:
        Lin et al. (2014), "Microsoft COCO: Common Objects in Context".
    """
    check_integer("max_detections", max_detections, at_least=1)
    return precision_report(scored_boxes_of(detections, truths), classes=classes, max_detections=max_detections)


def precision_report(state: ScoredBoxes, *, classes: Sequence[str] | None, max_detections: int) -> PrecisionReport:
    """Report of a state."""
    found, there = state.detections.cpu().numpy(), state.truths.cpu().numpy()
    counted = there[:, 5] == 0
    labels = np.unique(there[counted, 4]).astype(int).tolist()
    per_class: dict[str, dict[str, float]] = {}
    if labels:
        precision, thresholds = _precision(state, labels, max_detections)
        for index, label in enumerate(labels):
            by_overlap = precision[:, :, index].mean(1)
            single = {name: float(by_overlap[np.isclose(thresholds, at)][0]) for name, at in _SINGLE.items()}
            per_class[class_name(label, classes)] = {"map": float(by_overlap.mean()), **single}
    means = {name: _mean([scores[name] for scores in per_class.values()]) for name in ("map", *_SINGLE)}
    return PrecisionReport(
        images=len(state.sizes), detections=len(found), truths=int(counted.sum()), per_class=per_class, **means
    )


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _precision(state: ScoredBoxes, labels: list[int], max_detections: int) -> tuple[Array, Array]:
    """Precision by overlap, recall and class, and the overlaps. Shape ``(10, 101, classes)``, ``(10,)``."""
    coco, cocoeval = _pycocotools()
    annotations = _annotations(state, labels)
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        found, there = (_indexed(coco.COCO(), state, labels, rows) for rows in annotations)
        evaluation = cocoeval.COCOeval(there, found, "bbox")
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [_WHOLE_RANGE], ["all"]
        evaluation.params.maxDets = [max_detections]
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation.eval["precision"][:, :, :, 0, 0], evaluation.params.iouThrs


def _pycocotools() -> tuple[Any, Any]:
    try:
        from pycocotools import coco, cocoeval  # only average precision needs it
    except ModuleNotFoundError as error:
        raise ImportError("expected pycocotools for average precision; pip install 'fcal[vision]'") from error
    return coco, cocoeval


def _indexed(dataset: Any, state: ScoredBoxes, labels: list[int], annotations: list[dict[str, Any]]) -> Any:
    """A data set of pycocotools, filled."""
    dataset.dataset = {
        "images": [{"id": number} for number in range(len(state.sizes))],
        "categories": [{"id": label} for label in labels],
        "annotations": annotations,
    }
    dataset.createIndex()
    return dataset


def _annotations(state: ScoredBoxes, labels: list[int]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Detections and objects as COCO writes them; a region of no class becomes one of each class."""
    of_detection, of_object = image_numbers(state)
    *found, scores, found_labels = state.detections.cpu().numpy().T
    there = state.truths.cpu().numpy()
    regions = np.flatnonzero((there[:, 4] == NO_CLASS) & (there[:, 5] == 1))
    rows = np.concatenate([np.setdiff1d(np.arange(len(there)), regions), np.repeat(regions, len(labels))])
    there, of_object = there[rows].copy(), of_object[rows]
    there[len(rows) - len(regions) * len(labels) :, 4] = np.tile(labels, len(regions))
    detected = _rows(np.stack(found, 1), of_detection, found_labels, iscrowd=np.zeros(len(scores)), score=scores)
    return detected, _rows(there[:, :4], of_object, there[:, 4], iscrowd=there[:, 5])


def _rows(boxes: Array, image: Any, labels: Array, **columns: Array) -> list[dict[str, Any]]:
    """Annotations with numbers from 1 on, as 0 means no match in pycocotools."""
    sides = boxes[:, 2:] - boxes[:, :2]
    table = {
        "id": range(1, len(boxes) + 1),
        "image_id": image.tolist(),
        "category_id": labels.astype(int).tolist(),
        "bbox": np.concatenate([boxes[:, :2], sides], 1).tolist(),
        "area": sides.prod(1).tolist(),
        **{name: column.tolist() for name, column in columns.items()},
    }
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
