"""Pairs of detections and truths of many images at once: all candidates, and greedy one-to-one pairs among them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcal.metrics.detection.box_distances import contour_level, is_passed_over, squared_mahalanobis
from fcal.metrics.detection.records import Detections, Truths

MOST_DETECTIONS = 100  # of an image and class, as in COCO
_CHUNK = 1 << 18  # pairs of boxes whose distances exist at once
_MOST_IMAGES = 1 << 20

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Boxes:
    """Boxes of all images in a row; ``group`` is a number for each image and class, sorted by it."""

    boxes: Tensor
    covariances: Tensor | None
    scores: Array
    labels: Array
    image: Array
    group: Array
    ignored: Array

    def at(self, index: Array) -> "Boxes":
        """Some of the boxes, by a mask or by indices."""
        rows = torch.from_numpy(np.flatnonzero(index) if index.dtype == bool else index)
        covariances = None if self.covariances is None else self.covariances[rows]
        rest = {name: getattr(self, name)[index] for name in ("scores", "labels", "image", "group", "ignored")}
        return Boxes(boxes=self.boxes[rows], covariances=covariances, **rest)


def gathered(images: Sequence[Detections] | Sequence[Truths]) -> Boxes:
    """All boxes, sorted by class and image and, within these, by falling score."""
    records: list[Detections | Truths] = list(images)
    if len(records) >= _MOST_IMAGES:
        raise ValueError(
            f"expected `truths` of less than {_MOST_IMAGES} images at once, got {len(records)}; add states"
        )
    detected = [record for record in records if isinstance(record, Detections)]
    objects = [record for record in records if isinstance(record, Truths)]
    labels = _joined([record.labels for record in records], (), torch.int64).numpy()
    image = np.arange(len(records)).repeat([len(record) for record in records])
    none = np.zeros(len(labels))
    scores = _joined([record.scores for record in detected], (), torch.float64).numpy() if detected else none
    ignored = _joined([record.is_ignored for record in objects], (), torch.bool).numpy() if objects else none > 0
    whole = Boxes(
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


def first_of_groups(boxes: Boxes) -> Array:
    """Whether a detection is among the first 100 of its image and class."""
    return np.arange(len(boxes.group)) - np.searchsorted(boxes.group, boxes.group, side="left") < MOST_DETECTIONS


def ragged_pairs(keys: Array, others: Array) -> tuple[Array, Array]:
    """Indices of all pairs with the same key."""
    order = np.argsort(others, kind="stable")
    starts, ends = (np.searchsorted(others[order], keys, side=side) for side in ("left", "right"))
    counts = ends - starts
    first = np.arange(len(keys)).repeat(counts)
    within = np.arange(len(first)) - (counts.cumsum() - counts).repeat(counts)
    return first, order[starts.repeat(counts) + within]


def pairs_within(found: Boxes, objects: Boxes, highest: float) -> tuple[Array, Array, Array]:
    """Pairs of one image and class whose truth is inside the largest contour, and its level."""
    first, second = ragged_pairs(found.group, objects.group)
    parts = []
    for start in range(0, len(first), _CHUNK):
        one, other = first[start : start + _CHUNK], second[start : start + _CHUNK]
        levels = levels_of(found, objects, one, other)
        near = levels <= highest
        parts.append((one[near], other[near], levels[near]))
    if not parts:
        return first, second, np.zeros(0)
    one, other, levels = (np.concatenate(each) for each in zip(*parts, strict=True))
    return one, other, levels


def levels_of(found: Boxes, objects: Boxes, first: Array, second: Array) -> Array:
    """Levels of the contours through the truths of pairs."""
    assert found.covariances is not None
    one, other = torch.from_numpy(first), torch.from_numpy(second)
    return contour_level(squared_mahalanobis(found.boxes[one], found.covariances[one], objects.boxes[other])).numpy()


def pass_over(found: Boxes, regions: Boxes, first: Array, second: Array) -> Array:
    """Whether the detection of a pair lies on its ignored truth."""
    labels, others = torch.from_numpy(found.labels[first]), torch.from_numpy(regions.labels[second])
    return is_passed_over(found.boxes[first], labels, regions.boxes[second], others).numpy()


def greedy_hits(first: Array, second: Array, gaps: Array, limits: Array, group: Array, truths: int) -> Array:
    """Whether each detection finds a truth, by limit. Shape ``(n, limits)``."""
    hits = np.zeros((len(group), len(limits)), dtype=bool)
    for detections, columns, _ in _rounds(first, second, gaps, limits, group, truths):
        hits[detections, columns] = True
    return hits


def greedy_pairs(first: Array, second: Array, gaps: Array, limits: Array, group: Array, truths: int) -> Array:
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
    for start, stop in itertools.pairwise(bounds):
        pairs = order[ends[start] : ends[stop]]
        usable = inside[pairs] & free[second[pairs]]
        place = np.where(usable, np.arange(len(pairs))[:, None], len(pairs))
        nearest = np.minimum.reduceat(place, ends[start:stop] - ends[start], axis=0)
        rows, columns = np.nonzero(nearest < len(pairs))
        taken = pairs[nearest[rows, columns]]
        free[second[taken], columns] = False
        made.append((first[taken], columns, taken))
    return made
