"""Pairs of boxes that overlap, of all images at once, and objects that take turns to choose a detection."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from fcal.metrics.detection.matching import box_area, intersection
from fcal.metrics.detection.scored_boxes import Array, Integers, ScoredBoxes

_HEIGHT_DECIMALS = 4  # of a difference of float32 pixels
_PAIRS = 1 << 22  # whose overlaps exist at once


class OverlappingBoxes(NamedTuple):
    """Boxes of all images, and pairs that overlap by more than the least of all classes.

    Attributes:
        scores: Shape ``(n,)``.
        found_labels: Shape ``(n,)``.
        found_height: Shape ``(n,)``.
        covered: Largest share of each detection within a DontCare region. Shape ``(n,)``.
        there: Rows of :class:`ScoredBoxes`. Shape ``(m, 8)``.
        image: Image of each object. Shape ``(m,)``.
        pair_detection: Detection of each pair, rising within an object. Shape ``(p,)``.
        pair_object: Object of each pair, rising. Shape ``(p,)``.
        pair_overlap: Intersection over union. Shape ``(p,)``.
    """

    scores: Array
    found_labels: Array
    found_height: Array
    covered: Array
    there: Array
    image: Integers
    pair_detection: Integers
    pair_object: Integers
    pair_overlap: Array


def overlapping_boxes(state: ScoredBoxes, regions: list[int], least: float) -> OverlappingBoxes:
    """Boxes of a state and pairs with an overlap above ``least``; ``regions`` are labels of regions without labels."""
    found, there = state.detections.numpy(), state.truths.numpy()
    is_region = np.isin(there[:, 4], regions)
    covered = np.zeros(len(found))
    rows: list[tuple[Integers, Integers, Array]] = []
    for detection, object_ in _pairs(state.sizes.numpy()):
        a, b = state.detections[detection, :4], state.truths[object_, :4]
        shared, area = intersection(a, b), box_area(a)
        inside = torch.where(shared > 0, shared / area, 0.0).numpy()
        on_region = is_region[object_]
        np.maximum.at(covered, detection[on_region], inside[on_region])
        overlap = torch.where(shared > 0, shared / (area + box_area(b) - shared), 0.0).numpy()
        near = (overlap > least) & ~on_region
        rows.append((detection[near], object_[near], overlap[near]))
    pairs = [np.concatenate(column) for column in zip(*rows, strict=True)]
    return OverlappingBoxes(found[:, 4], found[:, 5], heights(found), covered, there, _image_of_object(state), *pairs)


def _pairs(sizes: Integers) -> Iterator[tuple[Integers, Integers]]:
    """Detections and objects of all pairs within images, objects first, in pieces of bounded size; at least one."""
    detections, objects = sizes.T
    first_detection, first_object = detections.cumsum() - detections, objects.cumsum() - objects
    products = detections * objects
    piece = (products.cumsum() - products) // _PAIRS
    for number in np.unique(piece) if len(piece) else [0]:
        images = np.flatnonzero(piece == number)
        count = products[images]
        image = np.repeat(images, count)
        position = np.arange(len(image)) - np.repeat(count.cumsum() - count, count)
        yield (
            first_detection[image] + position % np.maximum(detections[image], 1),
            first_object[image] + position // np.maximum(detections[image], 1),
        )


def _image_of_object(state: ScoredBoxes) -> Integers:
    objects = state.sizes[:, 1].numpy()
    return np.repeat(np.arange(len(objects)), objects)


def heights(boxes: Array) -> Array:
    """Heights of boxes in pixels; differences of float32 are rounded, so that limits of whole pixels apply."""
    return np.round(boxes[:, 3] - boxes[:, 1], _HEIGHT_DECIMALS)


def assigned(boxes: OverlappingBoxes, order: Integers, thresholds: Array) -> Integers:
    """Detection that each object takes at each threshold, -1 for none. Shape ``(thresholds, m)``.

    The objects of an image take turns, each the first in its order of preference that is left; the k-th objects of all
    images take their turn together.
    """
    taken = np.append(boxes.scores[None] < thresholds[:, None], np.ones((len(thresholds), 1), dtype=bool), 1)
    chosen = np.full((len(thresholds), len(boxes.there)), -1)
    rows, candidates = _preferences(boxes.pair_object[order], boxes.pair_detection[order])
    if not len(rows) or not len(thresholds):
        return chosen
    turn = _positions(boxes.image[rows])
    for number in range(int(turn.max()) + 1):
        now = turn == number
        available = ~taken[:, candidates[now]]
        choice = np.take_along_axis(candidates[now][None], available.argmax(2)[:, :, None], 2)[:, :, 0]
        which, which_row = np.nonzero(available.any(2))
        detection = choice[which, which_row]
        chosen[which, rows[now][which_row]] = detection
        taken[which, detection] = True
    return chosen


def _preferences(objects: Integers, detections: Integers) -> tuple[Integers, Integers]:
    """Objects with a candidate, rising, and their candidates in order of preference, -1 beyond the last."""
    rows, number = np.unique(objects, return_inverse=True)
    position = _positions(objects)
    table = np.full((len(rows), int(position.max(initial=-1)) + 1), -1)
    table[number, position] = detections
    return rows, table


def _positions(keys: Integers) -> Integers:
    """Position of each element within its run of equal keys."""
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    lengths = np.diff(np.append(starts, len(keys)))
    return np.arange(len(keys)) - np.repeat(starts, lengths)
