"""Average precision by confidence contours (mMAP), and the share of truths within each contour (consistency)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcal._checks import check_number
from fcal.metrics.detection.box_distances import (
    check_images,
    contour_level,
    is_passed_over,
    overlap,
    squared_mahalanobis,
)
from fcal.metrics.detection.records import Detections, Truths
from fcal.metrics.report import plain

CONTOURS = (0.999, 0.995, 0.99, 0.95, 0.9, 0.85, 0.8, 0.7)
MOST_DETECTIONS = 100  # of an image and class, as in COCO
_RECALLS = np.linspace(0, 1, 101)
_CHUNK = 1 << 18  # pairs of boxes whose distances exist at once
_MOST_IMAGES = 1 << 20

Array = NDArray[Any]


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

    A detection that finds nothing is left out if at least half of its box lies within the box of an ignored truth of its
    label or of label 0; ignored truths are never missed.

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
    detections: Sequence[Detections], truths: Sequence[Truths], *, contours: Sequence[float] = CONTOURS, iou: float = 0.5
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
    found, objects = _gathered(detections), _gathered(truths)
    ignored = objects.ignored
    counted, rest = objects.at(~ignored), objects.at(ignored)
    found = found.at(_first_of_groups(found))
    first, second, distances = _pairs_within(found, counted, float(levels.max()))
    hits = _greedy(first, second, distances, levels, found.group, len(counted.group))
    one, other = _ragged_pairs(found.image, rest.image)
    on_ignored = np.zeros(len(found.group), dtype=bool)
    on_ignored[one[_pass_over(found, rest, one, other)]] = True
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
    starts, ends = (np.searchsorted(labels[order], classes, side=side) for side in ("left", "right"))  # type: ignore[call-overload]
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
    detections: Sequence[Detections], truths: Sequence[Truths], *, contours: Sequence[float] = CONTOURS, iou: float = 0.5
) -> ConsistencyState:
    """State of some images; arguments as for :func:`consistency`."""
    levels, least = checked_contours(contours), check_number("iou", iou, low=1e-6, high=1.0)
    found, objects = _gathered(detections), _gathered(truths)
    counted = objects.at(~objects.ignored)
    found = found.at(_first_of_groups(found))
    first, second = _ragged_pairs(found.group, counted.group)
    shared = overlap(found.boxes[first], counted.boxes[second]).numpy()
    near = shared >= least
    first, second, gaps = first[near], second[near], 1 - shared[near]
    pairs = _greedy_pairs(first, second, gaps, np.ones(1), found.group, len(counted.group))
    matched = _levels(found, counted, first[pairs], second[pairs])
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


@dataclass(frozen=True, kw_only=True, eq=False)
class _Boxes:
    """Boxes of all images in a row; ``group`` is a number for each image and class, sorted by it."""

    boxes: Tensor
    covariances: Tensor | None
    scores: Array
    labels: Array
    image: Array
    group: Array
    ignored: Array

    def at(self, index: Array) -> "_Boxes":
        rows = torch.from_numpy(np.flatnonzero(index) if index.dtype == bool else index)
        covariances = None if self.covariances is None else self.covariances[rows]
        rest = {name: getattr(self, name)[index] for name in ("scores", "labels", "image", "group", "ignored")}
        return _Boxes(boxes=self.boxes[rows], covariances=covariances, **rest)


def _gathered(images: Sequence[Detections] | Sequence[Truths]) -> _Boxes:
    """All boxes, sorted by class and image and, within these, by falling score."""
    records = list(images)
    if len(records) >= _MOST_IMAGES:
        raise ValueError(f"expected `truths` of less than {_MOST_IMAGES} images at once, got {len(records)}; add states")
    detected = [record for record in records if isinstance(record, Detections)]
    objects = [record for record in records if isinstance(record, Truths)]
    labels = _joined([record.labels for record in records], (), torch.int64).numpy()
    image = np.arange(len(records)).repeat([len(record) for record in records])
    none = np.zeros(len(labels))
    scores = _joined([record.scores for record in detected], (), torch.float64).numpy() if detected else none
    ignored = _joined([record.is_ignored for record in objects], (), torch.bool).numpy() if objects else none > 0
    whole = _Boxes(
        boxes=_joined([record.boxes for record in records], (4,), torch.float64),
        covariances=None if objects else _joined([record.covariances for record in detected], (4, 4), torch.float64),
        scores=scores,
        labels=labels,
        image=image,
        group=labels * _MOST_IMAGES + image,
        ignored=ignored,
    )
    return whole.at(np.lexsort((-scores, whole.group)))


def _joined(parts: list[Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    empty = torch.zeros(0, *shape, dtype=dtype)
    return torch.cat([empty, *(part.detach().cpu() for part in parts)]).to(dtype)


def _first_of_groups(boxes: _Boxes) -> Array:
    """Whether a detection is among the first 100 of its image and class."""
    return np.arange(len(boxes.group)) - np.searchsorted(boxes.group, boxes.group, side="left") < MOST_DETECTIONS


def _ragged_pairs(keys: Array, others: Array) -> tuple[Array, Array]:
    """Indices of all pairs with the same key."""
    order = np.argsort(others, kind="stable")
    starts, ends = (np.searchsorted(others[order], keys, side=side) for side in ("left", "right"))  # type: ignore[call-overload]
    counts = ends - starts
    first = np.arange(len(keys)).repeat(counts)
    within = np.arange(len(first)) - (counts.cumsum() - counts).repeat(counts)
    return first, order[starts.repeat(counts) + within]


def _pairs_within(found: _Boxes, objects: _Boxes, highest: float) -> tuple[Array, Array, Array]:
    """Pairs of one image and class whose truth is inside the largest contour, and its level."""
    first, second = _ragged_pairs(found.group, objects.group)
    parts = []
    for start in range(0, len(first), _CHUNK):
        one, other = first[start : start + _CHUNK], second[start : start + _CHUNK]
        levels = _levels(found, objects, one, other)
        near = levels <= highest
        parts.append((one[near], other[near], levels[near]))
    if not parts:
        return first, second, np.zeros(0)
    one, other, levels = (np.concatenate(each) for each in zip(*parts, strict=True))
    return one, other, levels


def _levels(found: _Boxes, objects: _Boxes, first: Array, second: Array) -> Array:
    assert found.covariances is not None
    one, other = torch.from_numpy(first), torch.from_numpy(second)
    return contour_level(squared_mahalanobis(found.boxes[one], found.covariances[one], objects.boxes[other])).numpy()


def _pass_over(found: _Boxes, regions: _Boxes, first: Array, second: Array) -> Array:
    labels, others = torch.from_numpy(found.labels[first]), torch.from_numpy(regions.labels[second])
    return is_passed_over(found.boxes[first], labels, regions.boxes[second], others).numpy()


def _greedy(first: Array, second: Array, gaps: Array, limits: Array, group: Array, truths: int) -> Array:
    """Whether each detection finds a truth, by limit. Shape ``(n, limits)``."""
    hits = np.zeros((len(group), len(limits)), dtype=bool)
    for detections, columns, _ in _rounds(first, second, gaps, limits, group, truths):
        hits[detections, columns] = True
    return hits


def _greedy_pairs(first: Array, second: Array, gaps: Array, limits: Array, group: Array, truths: int) -> Array:
    """Indices of the pairs that are made, for a single limit."""
    chosen = [pairs for *_, pairs in _rounds(first, second, gaps, limits, group, truths)]
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *chosen]))


def _rounds(
    first: Array, second: Array, gaps: Array, limits: Array, group: Array, truths: int
) -> list[tuple[Array, Array, Array]]:
    """Greedy pairs, in rounds: in each, the next detection of every image and class takes its nearest free truth.

    Args:
        first: Detection of each pair, rising; detections of a group are in falling order of score.
        second: Truth of each pair.
        gaps: Distance of each pair.
        limits: Largest distances; each limit has its own pairs.
        group: Group of each detection, rising.
        truths: Number of truths.

    Returns:
        Of each round the detections that take a truth, the index of the limit, and the pair.
    """
    candidates, starts = np.unique(first, return_index=True)
    groups = group[candidates]
    turn = np.arange(len(candidates)) - np.searchsorted(groups, groups, side="left")
    lengths = np.diff(np.append(starts, len(first)))
    order = np.lexsort((gaps, first, turn.repeat(lengths)))
    by_turn = np.argsort(turn, kind="stable")
    bounds = np.searchsorted(turn[by_turn], np.arange(turn.max() + 2 if len(turn) else 1))
    ends = np.append(0, lengths[by_turn].cumsum())
    free = np.ones((truths, len(limits)), dtype=bool)
    inside = gaps[:, None] <= limits
    made = []
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        pairs = order[ends[start] : ends[stop]]
        usable = inside[pairs] & free[second[pairs]]
        place = np.where(usable, np.arange(len(pairs))[:, None], len(pairs))
        nearest = np.minimum.reduceat(place, ends[start:stop] - ends[start], axis=0)
        rows, columns = np.nonzero(nearest < len(pairs))
        taken = pairs[nearest[rows, columns]]
        free[second[taken], columns] = False
        made.append((first[taken], columns, taken))
    return made
