"""Average precision by confidence contours (mMAP), and the share of truths within each contour (consistency)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fcal._checks import check_number
from fcal.metrics.detection.box_distances import check_images, overlap
from fcal.metrics.detection.candidate_pairs import (
    Array,
    first_of_groups,
    gathered,
    greedy_hits,
    greedy_pairs,
    levels_of,
    pairs_within,
    pass_over,
    ragged_pairs,
)
from fcal.metrics.detection.records import Detections, Truths
from fcal.metrics.report import plain

CONTOURS = (0.999, 0.995, 0.99, 0.95, 0.9, 0.85, 0.8, 0.7)
_RECALLS = np.linspace(0, 1, 101)


@dataclass(frozen=True, kw_only=True)
class MMAPReport:
    """Average precision by contours; None where no truth counts.

    Attributes:
        mmap: Mean over contours and classes.
        contours: Mean over classes, by contour.
        classes: Mean over contours, by label; classes without a truth are absent.
        truths: Number of truths that count.
        detections: Number of detections, at most 100 of each image and class.
        images: Number of images.
    """

    mmap: float | None
    contours: Mapping[str, float | None]
    classes: Mapping[int, float] = field(repr=False)
    truths: int
    detections: int
    images: int

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and dictionaries for JSON."""
        return {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}


class MMAPState(NamedTuple):
    """What average precision is made of: rows for detections and truths, which images append to.

    Attributes:
        scores: Scores of detections. Shape ``(n,)``, float64.
        labels: Their classes. Shape ``(n,)``, int64.
        hits: Whether a detection finds a truth, by contour. Shape ``(n, contours)``, bool.
        passed_over: Detections on an ignored truth, which are no mistake. Shape ``(n,)``, bool.
        truth_labels: Classes of truths that count. Shape ``(m,)``, int64.
        images: Number of images. Shape ``(1,)`` or one number for each batch, int64.
    """

    scores: Tensor
    labels: Tensor
    hits: Tensor
    passed_over: Tensor
    truth_labels: Tensor
    images: Tensor

    def __add__(self, other: "MMAPState") -> "MMAPState":  # type: ignore[override]
        return MMAPState(*(torch.cat(pair) for pair in zip(self, other, strict=True)))


@dataclass(frozen=True, kw_only=True)
class ConsistencyReport:
    """Share of matched truths within each contour; calibrated error bars have ``share[c] = c``, consistent ones more.

    Attributes:
        n: Number of matched pairs.
        share: Share of their truths within the contour, by contour; None without pairs.
        iou: Least overlap of a pair.
    """

    n: int
    share: Mapping[str, float | None]
    iou: float

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and dictionaries for JSON."""
        return {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}


class ConsistencyState(NamedTuple):
    """Counts that add up over images and ranks: matched pairs, and those inside by contour. Shapes ``()``, ``(c,)``."""

    n: Tensor
    inside: Tensor


def mahalanobis_average_precision(
    detections: Sequence[Detections], truths: Sequence[Truths], *, contours: Sequence[float] = CONTOURS
) -> MMAPReport:
    """Average precision in which a detection finds a truth that lies inside its confidence contour (mMAP).

    As COCO's mean average precision, but for the test of overlap: a truth is inside the contour of level c if the
    squared Mahalanobis distance of its box is at most the c-quantile of chi-squared with 4 degrees of freedom. In each
    image and class, detections in falling order of score, the first 100 of them, take the truth with the least distance
    that is inside and not taken; each contour has its own pairs. Precision is read at 101 recalls and averaged over
    contours and classes that have truths. Large error bars can only help: read it beside calibration.

    A detection that finds nothing is left out if at least half of its box lies within the box of an ignored truth of
    its label or of label 0; ignored truths are never missed.

    Args:
        detections: Detections of each image.
        truths: Objects of each image.
        contours: Levels of the contours.

    Returns:
        Average precision from 0 to 1, overall, by contour and by class.

    Raises:
        TypeError: An item is no record of an image.
        ValueError: Lengths differ, or levels are not within (0, 1).

    Example:
        >>> boxes, labels = torch.tensor([[20.0, 20.0, 60.0, 80.0]]), torch.tensor([1])
        >>> truths = [Truths(boxes=boxes, labels=labels, image_size=(100, 100))]
        >>> off = Detections.of_sigmas(  # by 1.5 standard deviations in each coordinate: inside at 0.95, not at 0.9
        ...     boxes + 3, torch.full((1, 4), 2.0), scores=torch.tensor([0.9]), labels=labels
        ... )
        >>> report = mahalanobis_average_precision([off], truths)
        >>> report.mmap, report.contours["0.95"], report.contours["0.9"]
        (0.5, 1.0, 0.0)
    """
    check_images(detections, truths)
    return mmap_report(mmap_state(detections, truths, contours=contours), contours=contours)


def consistency(
    detections: Sequence[Detections],
    truths: Sequence[Truths],
    *,
    contours: Sequence[float] = CONTOURS,
    iou: float = 0.5,
) -> ConsistencyReport:
    """Share of matched truths inside each confidence contour.

    In each image and class, detections in falling order of score take the truth with the largest overlap that is at
    least ``iou`` and not taken; ignored truths take no part. So pairs do not depend on the error bars.

    Args:
        detections: Detections of each image.
        truths: Objects of each image.
        contours: Levels of the contours.
        iou: Least overlap of a pair.

    Returns:
        Shares by contour.

    Raises:
        TypeError: An item is no record of an image.
        ValueError: Lengths differ, or levels are not within (0, 1).

    Example:
        >>> boxes, labels = torch.tensor([[20.0, 20.0, 60.0, 80.0]]), torch.tensor([1])
        >>> off = Detections.of_sigmas(boxes + 3, torch.full((1, 4), 2.0), scores=torch.tensor([0.9]), labels=labels)
        >>> report = consistency([off], [Truths(boxes=boxes, labels=labels, image_size=(100, 100))])
        >>> report.n, report.share["0.95"], report.share["0.9"]
        (1, 1.0, 0.0)
    """
    check_images(detections, truths)
    return consistency_report(consistency_state(detections, truths, contours=contours, iou=iou), contours, iou)


def mmap_state(
    detections: Sequence[Detections], truths: Sequence[Truths], *, contours: Sequence[float] = CONTOURS
) -> MMAPState:
    """State of some images; arguments as for :func:`mahalanobis_average_precision`."""
    levels = checked_contours(contours)
    found, objects = gathered(detections), gathered(truths)
    ignored = objects.ignored
    counted, rest = objects.at(~ignored), objects.at(ignored)
    found = found.at(first_of_groups(found))
    first, second, distances = pairs_within(found, counted, float(levels.max()))
    hits = greedy_hits(first, second, distances, levels, found.group, len(counted.group))
    one, other = ragged_pairs(found.image, rest.image)
    on_ignored = np.zeros(len(found.group), dtype=bool)
    on_ignored[one[pass_over(found, rest, one, other)]] = True
    return MMAPState(
        scores=torch.from_numpy(found.scores),
        labels=torch.from_numpy(found.labels),
        hits=torch.from_numpy(hits),
        passed_over=torch.from_numpy(on_ignored),
        truth_labels=torch.from_numpy(counted.labels),
        images=torch.tensor([len(truths)]),
    )


def empty_mmap_state(contours: Sequence[float] = CONTOURS) -> MMAPState:
    """State before any image."""
    return mmap_state([], [], contours=contours)


def mmap_report(state: MMAPState, *, contours: Sequence[float] = CONTOURS) -> MMAPReport:
    """Report of a state."""
    levels = checked_contours(contours)
    labels, truth_labels = state.labels.cpu().numpy(), state.truth_labels.cpu().numpy()
    scores, hits, passed = (x.cpu().numpy() for x in (state.scores, state.hits, state.passed_over))
    order = np.lexsort((-scores, labels))
    classes, counts = np.unique(truth_labels, return_counts=True)
    starts, ends = (np.searchsorted(labels[order], classes, side=side) for side in ("left", "right"))
    values = [
        average_precision(hits[order[start:end]], passed[order[start:end]], int(count))
        for start, end, count in zip(starts, ends, counts, strict=True)
    ]
    table = np.array(values).reshape(len(classes), len(levels))
    known = len(classes) > 0
    return MMAPReport(
        mmap=float(table.mean()) if known else None,
        contours={f"{c:g}": float(table[:, k].mean()) if known else None for k, c in enumerate(levels)},
        classes={int(label): float(row.mean()) for label, row in zip(classes, table, strict=True)},
        truths=len(truth_labels),
        detections=len(labels),
        images=int(state.images.sum()),
    )


def average_precision(hits: Array, passed_over: Array, truths: int) -> Array:
    """Mean precision at COCO's 101 recalls, for each column.

    Args:
        hits: Whether each detection, in falling order of score, finds a truth. Shape ``(n, c)``, bool.
        passed_over: Detections that are no mistake if they find nothing. Shape ``(n,)``, bool.
        truths: Number of truths, at least 1.

    Returns:
        Shape ``(c,)``. Precision at a recall is the best at that recall or a larger one, 0 beyond the largest.
    """
    if not len(hits):
        return np.zeros(hits.shape[1])
    true = hits.cumsum(0)
    false = (~hits & ~passed_over[:, None]).cumsum(0)
    precision = true / np.maximum(true + false, 1)
    envelope = np.vstack([np.maximum.accumulate(precision[::-1], 0)[::-1], np.zeros(hits.shape[1])])
    recall = true / truths
    places = np.stack([np.searchsorted(column, _RECALLS, side="left") for column in recall.T], 1)
    return np.take_along_axis(envelope, places, 0).mean(0)


def consistency_state(
    detections: Sequence[Detections],
    truths: Sequence[Truths],
    *,
    contours: Sequence[float] = CONTOURS,
    iou: float = 0.5,
) -> ConsistencyState:
    """State of some images; arguments as for :func:`consistency`."""
    levels, least = checked_contours(contours), check_number("iou", iou, low=1e-6, high=1.0)
    found, objects = gathered(detections), gathered(truths)
    counted = objects.at(~objects.ignored)
    found = found.at(first_of_groups(found))
    first, second = ragged_pairs(found.group, counted.group)
    shared = overlap(found.boxes[first], counted.boxes[second]).numpy()
    near = shared >= least
    first, second, gaps = first[near], second[near], 1 - shared[near]
    pairs = greedy_pairs(first, second, gaps, np.ones(1), found.group, len(counted.group))
    matched = levels_of(found, counted, first[pairs], second[pairs])
    inside = (matched[:, None] <= levels).sum(0)
    return ConsistencyState(torch.tensor(len(matched)), torch.from_numpy(inside))


def empty_consistency_state(contours: Sequence[float] = CONTOURS) -> ConsistencyState:
    """State before any image."""
    return ConsistencyState(torch.tensor(0), torch.zeros(len(contours), dtype=torch.int64))


def consistency_report(
    state: ConsistencyState, contours: Sequence[float] = CONTOURS, iou: float = 0.5
) -> ConsistencyReport:
    """Report of a state."""
    n = int(state.n)
    shares = [count / n if n else None for count in state.inside.tolist()]
    return ConsistencyReport(n=n, share={f"{c:g}": x for c, x in zip(contours, shares, strict=True)}, iou=iou)


def checked_contours(contours: Sequence[float]) -> Array:
    """Levels within (0, 1), at least one.

    Raises:
        ValueError: There is none, or one is outside.
    """
    levels = np.array(list(contours), dtype=np.float64)
    if levels.ndim != 1 or not len(levels) or not bool(((levels > 0) & (levels < 1)).all()):
        raise ValueError(f"expected `contours` levels within (0, 1), got {list(contours)!r}")
    return levels
