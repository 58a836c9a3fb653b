"""Average precision as the KITTI object benchmark computes it: three difficulties, 40 recall points."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from fcal._checks import check_number
from fcal.metrics.detection.image_streams import Attributes
from fcal.metrics.detection.matching import NO_CLASS
from fcal.metrics.detection.overlapping_pairs import OverlappingBoxes, assigned, heights, overlapping_boxes
from fcal.metrics.detection.records import Detections, Truths
from fcal.metrics.detection.scored_boxes import Array, Integers, ScoredBoxes, scored_boxes_of
from fcal.metrics.report import plain

KITTI_CLASSES = ("Car", "Pedestrian", "Cyclist")
KITTI_OVERLAPS: Mapping[str, float] = MappingProxyType({"Car": 0.7, "Pedestrian": 0.5, "Cyclist": 0.5})
_NEIGHBOURS = {"car": "van", "pedestrian": "person_sitting"}  # so alike that finding one for the other is no mistake
_REGION = "dontcare"
_POINTS = 41  # thresholds of scores at recall 0, 1/40, ..., 1; the first does not count
_COUNTED, _SKIPPED, _OTHER = 0, 1, -1  # boxes that count, that neither count nor are a mistake, that do not matter


@dataclass(frozen=True, kw_only=True)
class _Difficulty:
    height: float
    occlusion: int
    truncation: float


DIFFICULTIES: Mapping[str, _Difficulty] = MappingProxyType(
    {
        "easy": _Difficulty(height=40, occlusion=0, truncation=0.15),
        "moderate": _Difficulty(height=25, occlusion=1, truncation=0.3),
        "hard": _Difficulty(height=25, occlusion=2, truncation=0.5),
    }
)


@dataclass(frozen=True, kw_only=True)
class KittiReport:
    """Average precision of KITTI, as shares, not per cent.

    Attributes:
        images: Number of images, empty ones included.
        ap: By class, then difficulty (``"easy"``, ``"moderate"``, ``"hard"``); None without an object that counts.
        truths: Number of objects that count, by the same keys.
        precision: Precision at recall 0, 1/40, ..., 1, the largest at or beyond each point, by the same keys.
    """

    images: int
    ap: Mapping[str, Mapping[str, float | None]]
    truths: Mapping[str, Mapping[str, int]]
    precision: Mapping[str, Mapping[str, tuple[float, ...]]] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dictionaries for JSON."""
        return {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}


def kitti_average_precision(
    detections: Iterable[Detections],
    truths: Iterable[Truths],
    *,
    attributes: Iterable[Attributes] | None = None,
    classes: Sequence[str] = KITTI_CLASSES,
    overlaps: Mapping[str, float] = KITTI_OVERLAPS,
) -> KittiReport:
    """Average precision of boxes in the image by the rules of the KITTI object benchmark.

    An object counts at a difficulty if it is at least 40 (easy) or 25 px high, its occlusion is at most 0, 1 or 2 and
    its truncation at most 0.15, 0.3 or 0.5. Other objects of the class, ignored ones, and those of a neighbouring class
    (Van for Car, Person_sitting for Pedestrian) neither count nor are a mistake to find. The same holds for detections
    that are too low, of any class, and for those with a share above the least overlap inside a DontCare region.

    Objects take detections in their order in the image: to choose thresholds, that with the highest score above the
    least overlap; to count at a threshold, that with the largest overlap. Thresholds are scores at which the recall is
    nearest to 0, 1/40, ..., 1; AP is the mean over the last 40 of the largest precision at or beyond each.

    Args:
        detections: Detections of each image, from a list or a stream.
        truths: Objects of each image. Label 0 is a DontCare region.
        attributes: Of each image, a mapping that may have ``"truncation"`` and ``"occlusion"`` of each object; where
            they are unknown (NaN or -1) an object is neither truncated nor occluded.
        classes: Names of classes 1, 2, ...
        overlaps: Least intersection over union of the classes to evaluate, by name; upper and lower case are the same.

    Returns:
        AP of each class and difficulty: 0 without detections, None without objects.

    Raises:
        TypeError: Not one record per image.
        ValueError: Different numbers of images, or none of the classes to evaluate.

    Note:
        As in the benchmark, every object that is found gives at most one threshold. Where fewer than 41 objects count,
        AP stays below 1 even for perfect detections: of 10 objects, all found, it is 9 / 40.

    Example:
        >>> boxes = torch.tensor([[10.0, 10.0, 60.0, 60.0]])
        >>> there = [Truths(boxes=boxes, labels=torch.tensor([1]), image_size=(100, 200))] * 41
        >>> found = [
        ...     Detections.of_sigmas(boxes, torch.ones(1, 4), scores=torch.tensor([score]), labels=torch.tensor([1]))
        ...     for score in torch.linspace(0.1, 0.9, 41).tolist()
        ... ]
        >>> kitti_average_precision(found, there).ap["Car"]
        {'easy': 1.0, 'moderate': 1.0, 'hard': 1.0}

    Reference:
        Geiger et al. (2012), "Are we ready for autonomous driving? The KITTI vision benchmark suite"; 40 recall points
        since 2019, after Simonelli et al. (2019), "Disentangling Monocular 3D Object Detection".
    """
    check_overlaps(overlaps, classes)
    return kitti_report(scored_boxes_of(detections, truths, attributes), classes=classes, overlaps=overlaps)


def check_overlaps(overlaps: Mapping[str, float], classes: Sequence[str]) -> None:
    """Refuse overlaps out of range, and those of no class."""
    for name, overlap in overlaps.items():
        check_number(f"overlaps[{name!r}]", overlap, low=0.0, high=1.0)
    if not {name.lower() for name in overlaps} & {name.strip().lower() for name in classes}:
        raise ValueError(f"expected `classes` with one of {', '.join(overlaps)}, got {', '.join(classes) or 'none'}")


def kitti_report(state: ScoredBoxes, *, classes: Sequence[str], overlaps: Mapping[str, float]) -> KittiReport:
    """Report of a state."""
    state = ScoredBoxes(*(value.cpu() for value in state))
    names = {label: name.strip().lower() for label, name in enumerate(classes, 1)}
    evaluated = [name for name in overlaps if name.lower() in names.values()]
    regions = [NO_CLASS, *(label for label, name in names.items() if name == _REGION)]
    boxes = overlapping_boxes(state, regions, least=min(overlaps[name] for name in evaluated))
    curves = {
        name: {
            kind: _curve(boxes, names, name.lower(), overlaps[name], limits) for kind, limits in DIFFICULTIES.items()
        }
        for name in evaluated
    }
    return KittiReport(
        images=len(state.sizes),
        ap={
            name: {kind: float(curve[1:].mean()) if count else None for kind, (curve, count) in kinds.items()}
            for name, kinds in curves.items()
        },
        truths={name: {kind: count for kind, (_, count) in kinds.items()} for name, kinds in curves.items()},
        precision={
            name: {kind: tuple(curve.tolist()) for kind, (curve, _) in kinds.items()} for name, kinds in curves.items()
        },
    )


def _curve(
    boxes: OverlappingBoxes, names: Mapping[int, str], name: str, overlap: float, limits: _Difficulty
) -> tuple[Array, int]:
    """Precision at 41 points of recall, and the number of objects that count."""
    objects, found = _object_roles(boxes, names, name, limits), _detection_roles(boxes, names, name, limits)
    count = int((objects == _COUNTED).sum())
    near = (boxes.pair_overlap > overlap) & (objects[boxes.pair_object] >= 0) & (found[boxes.pair_detection] >= 0)
    pairs = boxes._replace(**{key: getattr(boxes, key)[near] for key in boxes._fields[-3:]})
    by_score = np.lexsort((pairs.pair_detection, -boxes.scores[pairs.pair_detection], pairs.pair_object))
    chosen = assigned(pairs, by_score, np.array([-np.inf]))[0]
    chosen = chosen[(objects == _COUNTED) & (chosen >= 0)]
    thresholds = _thresholds(boxes.scores[chosen[found[chosen] == _COUNTED]], count)
    roles = found[pairs.pair_detection]
    # Of detections that count the largest overlap comes first; of others, which come last, the first.
    preferred = np.where(roles == _COUNTED, -pairs.pair_overlap, 0.0)
    by_overlap = np.lexsort((pairs.pair_detection, preferred, roles, pairs.pair_object))
    chosen = assigned(pairs, by_overlap, thresholds)
    hits, mistakes = _outcomes(boxes, chosen, objects, found, thresholds, overlap)
    curve = np.zeros(_POINTS)
    curve[: len(thresholds)] = hits / np.maximum(hits + mistakes, 1)
    return np.maximum.accumulate(curve[::-1])[::-1], count


def _object_roles(boxes: OverlappingBoxes, names: Mapping[int, str], name: str, limits: _Difficulty) -> Integers:
    """Role of each object for a class and difficulty. Shape ``(m,)``."""
    label, ignored, truncation, occlusion = boxes.there[:, 4:].T
    own = np.isin(label, [key for key, value in names.items() if value == name])
    neighbour = np.isin(label, [key for key, value in names.items() if value == _NEIGHBOURS.get(name)])
    too_hard = (
        (heights(boxes.there) < limits.height) | (occlusion > limits.occlusion) | (truncation > limits.truncation)
    )
    counted = own & ~too_hard & (ignored == 0)
    return np.where(counted, _COUNTED, np.where(own | neighbour, _SKIPPED, _OTHER))


def _detection_roles(boxes: OverlappingBoxes, names: Mapping[int, str], name: str, limits: _Difficulty) -> Integers:
    """Role of each detection; low ones of all classes may be taken by an object, as in the benchmark."""
    own = np.isin(boxes.found_labels, [key for key, value in names.items() if value == name])
    return np.where(boxes.found_height < limits.height, _SKIPPED, np.where(own, _COUNTED, _OTHER))


def _thresholds(scores: Array, count: int) -> Array:
    """Scores of found objects at which the recall is nearest to 0, 1/40, ..., 1. Shape ``(at most 41,)``."""
    ordered = np.sort(scores)[::-1]
    left = np.arange(1, len(ordered) + 1) / max(count, 1)
    right = np.append(left[1:], left[-1:])
    chosen: list[int] = []
    recall = 0.0
    while (start := chosen[-1] + 1 if chosen else 0) < len(ordered):
        nearer_next = (right - recall < recall - left)[start:-1]
        chosen.append(start + int(np.append(~nearer_next, True).argmax()))
        recall += 1 / (_POINTS - 1)
    return ordered[chosen]


def _outcomes(
    boxes: OverlappingBoxes, chosen: Integers, objects: Integers, found: Integers, thresholds: Array, overlap: float
) -> tuple[Integers, Integers]:
    """Numbers of objects found and of mistakes at each threshold. Shape ``(thresholds,)`` each."""
    roles = np.where(chosen >= 0, found[chosen], _OTHER) if len(found) else np.full_like(chosen, _OTHER)
    hits = ((roles == _COUNTED) & (objects == _COUNTED)).sum(1)
    may_err = (found == _COUNTED) & ~(boxes.covered > overlap)
    ordered = np.sort(boxes.scores[may_err])
    above = len(ordered) - np.searchsorted(ordered, thresholds)
    taken = np.where(chosen >= 0, may_err[chosen], False) if len(found) else np.zeros_like(chosen, dtype=bool)
    return hits, above - taken.sum(1)
