"""Which detection belongs to which object: pairs of boxes by overlap, as COCO and KITTI do it or otherwise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcal._checks import check_flag, check_number
from fcal._registry import Registry
from fcal.metrics.detection.records import Detections, Truths

Array = np.ndarray[Any, Any]
Pairs = tuple[Array, Array]

NO_CLASS = 0  # label of regions that belong to no class, such as KITTI's DontCare
_ALMOST_ONE = 1 - 1e-10  # COCO's limit for an overlap threshold of 1: equal boxes match although sums are rounded
_ASSIGNMENTS: Registry[Callable[[Array, Array], Pairs]] = Registry("assignment")


@dataclass(frozen=True, kw_only=True)
class MatchingRule:
    """When a detection and an object are a pair.

    Every number that is computed from pairs depends on the rule: a strict overlap leaves only boxes with small errors,
    whose error bars then look too wide. :func:`fcal.metrics.detection.matching_effect` shows by how much.

    Args:
        iou: Least intersection over union of a pair.
        score: Least score of a detection; others are left out.
        same_class: Whether a pair must have the same label.
        assignment: ``"greedy"``: detections in falling order of score take the object with the largest overlap that is
            left (COCO). ``"optimal"``: pairs with the largest total overlap. Both are one-to-one. ``"many"``: every
            detection takes the object with the largest overlap, so that an object may have many, for proposals.

    Raises:
        TypeError: Wrong types.
        ValueError: Values out of range, or an unknown assignment.

    Example:
        >>> MatchingRule(iou=0.7).assignment
        'greedy'
    """

    iou: float = 0.5
    score: float = 0.0
    same_class: bool = True
    assignment: str = "greedy"

    def __post_init__(self) -> None:
        check_number("iou", self.iou, low=0.0, high=1.0)
        if self.iou == 0:
            raise ValueError("expected `iou` > 0, got 0")
        check_number("score", self.score, low=0.0, high=1.0)
        check_flag("same_class", self.same_class)
        _ASSIGNMENTS[self.assignment]


@dataclass(frozen=True, kw_only=True, eq=False)
class Matches:
    """Pairs of detections and objects of one image, by index.

    Detections below the score of the rule are in none of the fields.

    Attributes:
        detections: Detections that have an object, rising. Shape ``(k,)``.
        truths: Their objects, none of them ignored. Shape ``(k,)``.
        iou: Their intersection over union. Shape ``(k,)``, float64.
        unmatched_detections: Detections that are a mistake, rising. Shape ``(f,)``.
        unmatched_truths: Objects that were missed, rising; ignored ones are not. Shape ``(g,)``.
        ignored_detections: Detections on ignored objects, rising: neither found nor a mistake. Shape ``(i,)``.
    """

    detections: Tensor
    truths: Tensor
    iou: Tensor
    unmatched_detections: Tensor
    unmatched_truths: Tensor
    ignored_detections: Tensor


def match(detections: Detections, truths: Truths, rule: MatchingRule | None = None) -> Matches:
    """Pairs of detections and objects of one image.

    Ignored objects count as in COCO (crowds) and KITTI (DontCare): a detection that finds no other object and has a
    share of at least ``rule.iou`` of its own area within an ignored one, any number of them, is neither found nor a
    mistake. An ignored object of label 0 takes detections of all classes, others those of their class if the rule asks
    for the same class.

    Args:
        detections: Detections of the image.
        truths: Its objects.
        rule: When a detection and an object are a pair; that of COCO at an overlap of 0.5 by default.

    Returns:
        Indices of pairs, of mistakes and of missed objects.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 9.0], [50.0, 0.0, 60.0, 10.0]])
        >>> ones = torch.ones(3, dtype=torch.int64)
        >>> detected = Detections.of_sigmas(
        ...     boxes, torch.ones(3, 4), scores=torch.tensor([0.8, 0.9, 0.7]), labels=ones
        ... )
        >>> there = Truths(boxes=boxes[:1], labels=ones[:1], image_size=(20, 80))
        >>> matches = match(detected, there)
        >>> matches.detections.tolist(), matches.truths.tolist(), matches.iou.tolist()
        ([1], [0], [0.9])
        >>> matches.unmatched_detections.tolist()
        [0, 2]
    """
    rule = rule or MatchingRule()
    least = min(rule.iou, _ALMOST_ONE)
    ignored, scores = _array(truths.is_ignored), _array(detections.scores)
    overlap = _array(pairwise_iou(detections.boxes, truths.boxes))
    left, alike = scores >= rule.score, _same_class(detections, truths, rule)
    allowed = (overlap >= least) & alike & left[:, None] & ~ignored
    found, objects = _ASSIGNMENTS[rule.assignment](np.where(allowed, overlap, 0.0), scores)
    missed = ~ignored
    left[found], missed[objects] = False, False
    on_ignored = np.zeros_like(left)
    if ignored.any():
        covered = _array(pairwise_covered_share(detections.boxes, truths.boxes))
        on_ignored = left & ((covered >= least) & alike & ignored).any(1)
    indices = found, objects, np.flatnonzero(left & ~on_ignored), np.flatnonzero(missed), np.flatnonzero(on_ignored)
    detected, there, mistakes, unseen, passed = (_tensor(index, detections.boxes.device) for index in indices)
    return Matches(
        detections=detected,
        truths=there,
        iou=_tensor(overlap[found, objects], detections.boxes.device),
        unmatched_detections=mistakes,
        unmatched_truths=unseen,
        ignored_detections=passed,
    )


def _array(values: Tensor) -> Array:
    return values.detach().cpu().numpy()


def _tensor(values: Array, device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device)


def _same_class(detections: Detections, truths: Truths, rule: MatchingRule) -> Array:
    """Whether labels allow a pair. Shape ``(n, m)``."""
    if not rule.same_class:
        return np.ones((len(detections), len(truths)), dtype=bool)
    labels = _array(truths.labels)
    alike: Array = _array(detections.labels)[:, None] == labels
    return alike | (_array(truths.is_ignored) & (labels == NO_CLASS))


@_ASSIGNMENTS.entry
def greedy(overlap: Array, scores: Array) -> Pairs:
    """Detections in falling order of score take the object with the largest overlap that is left.

    All choose at once; where several choose one object, the highest score keeps it and the others choose again. Objects
    prefer detections by score alone, so this ends where taking turns does, after a few rounds.

    Args:
        overlap: Overlap of pairs that are allowed, 0 for others. Shape ``(n, m)``.
        scores: Scores of detections; of equal ones the first comes first. Shape ``(n,)``.

    Returns:
        Detections, rising, and the object of each.
    """
    order = np.argsort(-scores, kind="stable")
    rows, left = np.arange(len(order)), overlap[order]
    while True:
        choice = _best(left)
        choosing = rows[left[rows, choice] > 0] if left.size else rows[:0]
        holder = np.full(left.shape[1], len(rows))
        np.minimum.at(holder, choice[choosing], choosing)
        rejected = choosing[holder[choice[choosing]] != choosing]
        if not len(rejected):
            return _rising(order[choosing], choice[choosing])
        left[rejected, choice[rejected]] = 0


@_ASSIGNMENTS.entry
def optimal(overlap: Array, _scores: Array) -> Pairs:
    """Pairs with the largest total overlap; arguments as for :func:`greedy`."""
    try:
        from scipy.optimize import linear_sum_assignment  # only this assignment needs it
    except ModuleNotFoundError as error:
        raise ImportError("expected scipy for `assignment` 'optimal'; pip install scipy") from error
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    paired = overlap[rows, columns] > 0
    return rows[paired], columns[paired]


@_ASSIGNMENTS.entry
def many(overlap: Array, _scores: Array) -> Pairs:
    """Every detection takes the object with the largest overlap; arguments as for :func:`greedy`."""
    choice = _best(overlap)
    found = np.flatnonzero(overlap.any(1))
    return found, choice[found]


def _best(overlap: Array) -> Array:
    """Object with the largest overlap for each detection, the last of equal ones, as in COCO. Shape ``(n,)``."""
    if not overlap.size:
        return np.zeros(len(overlap), dtype=np.int64)
    return overlap.shape[1] - 1 - overlap[:, ::-1].argmax(1)


def _rising(found: Array, objects: Array) -> Pairs:
    order = np.argsort(found)
    return found[order], objects[order]


def pairwise_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of all pairs of boxes; that of a box without area is 0.

    Args:
        boxes: Corners ``x1, y1, x2, y2``. Shape ``(n, 4)``.
        others: Corners of other boxes. Shape ``(m, 4)``.

    Returns:
        Shape ``(n, m)``, float64.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 1.0, 2.0]])
        >>> pairwise_iou(boxes, boxes)
        tensor([[1.0000, 0.5000],
                [0.5000, 1.0000]], dtype=torch.float64)
    """
    first, second = boxes.double()[:, None], others.double()
    shared = intersection(first, second)
    union = box_area(first) + box_area(second) - shared
    return torch.where(shared > 0, shared / union, 0.0)


def pairwise_covered_share(boxes: Tensor, regions: Tensor) -> Tensor:
    """Share of the area of each box within each region: COCO's overlap with crowds, KITTI's with DontCare.

    Args:
        boxes: Corners ``x1, y1, x2, y2``. Shape ``(n, 4)``.
        regions: Corners of regions. Shape ``(m, 4)``.

    Returns:
        Shape ``(n, m)``, float64.

    Example:
        >>> pairwise_covered_share(torch.tensor([[0.0, 0.0, 2.0, 2.0]]), torch.tensor([[1.0, 0.0, 9.0, 9.0]])).item()
        0.5
    """
    first, second = boxes.double()[:, None], regions.double()
    shared = intersection(first, second)
    return torch.where(shared > 0, shared / box_area(first), 0.0)


def intersection(boxes: Tensor, others: Tensor) -> Tensor:
    """Area that pairs of boxes share; shapes ``(..., 4)`` that broadcast."""
    sides = torch.minimum(boxes[..., 2:], others[..., 2:]) - torch.maximum(boxes[..., :2], others[..., :2])
    return sides.clamp(min=0).prod(-1)


def box_area(boxes: Tensor) -> Tensor:
    """Area of boxes of shape ``(..., 4)``; 0 where corners are in the wrong order."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)
