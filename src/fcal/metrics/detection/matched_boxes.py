"""Detections beside the objects they found: rows that add up over images, batches and ranks."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcal._registry import Registry
from fcal.metrics.detection.image_streams import Attributes, attribute_of, images_of
from fcal.metrics.detection.matching import MatchingRule, box_area, match
from fcal.metrics.detection.records import Detections, Truths
from fcal.metrics.evaluation import depth_groups
from fcal.metrics.state import folded_bits, hash_integers

CORNERS = ("x1", "y1", "x2", "y2")
EDGES = ("inside", "at an edge", "beside a corner at an edge")
COUNTS = ("images", "empty_images", "detections", "truths", "ignored")
_BORDER = 1.0  # pixels from the border at which a corner still touches it
_AREAS = (32.0**2, 96.0**2)  # of COCO's sizes
_HEIGHTS = (25.0, 40.0)  # least heights of KITTI's difficulties
_TRUNCATIONS = (0.15, 0.3, 0.5)  # largest truncations of KITTI's difficulties


class MatchedBoxes(NamedTuple):
    """Pairs of all images, and all detections that count; rows in any order of images.

    Attributes:
        boxes: Detected corners. Shape ``(n, 4)``, float64 as all floats.
        covariances: Their covariances. Shape ``(n, 4, 4)``.
        targets: Corners of the objects. Shape ``(n, 4)``.
        labels: Classes of the objects. Shape ``(n,)``, int64.
        touching: Whether corners of the object touch the border of the image. Shape ``(n, 4)``, bool.
        distance: Distance of the object in metres, NaN where unknown. Shape ``(n,)``.
        truncation: Share of the object outside the image, NaN where unknown. Shape ``(n,)``.
        image: Number that equal pairs of an image share. Shape ``(n,)``, int64.
        scores: Scores of detections that are found or a mistake. Shape ``(d,)``.
        right: Whether such a detection found an object of its class. Shape ``(d,)``, bool.
        image_of_score: Number of its image. Shape ``(d,)``, int64.
        counts: Of every batch, ``COUNTS``. Shape ``(batches, 5)``, int64.
    """

    boxes: Tensor
    covariances: Tensor
    targets: Tensor
    labels: Tensor
    touching: Tensor
    distance: Tensor
    truncation: Tensor
    image: Tensor
    scores: Tensor
    right: Tensor
    image_of_score: Tensor
    counts: Tensor

    def count(self, name: str) -> int:
        """Total of one of ``COUNTS``."""
        return int(self.counts[:, COUNTS.index(name)].sum())

    def in_order(self) -> "MatchedBoxes":
        """Rows sorted by image, so that the order of batches does not matter, on the CPU."""
        of_pairs, of_scores = (torch.argsort(image, stable=True) for image in (self.image, self.image_of_score))
        split = self._fields.index("scores")
        pairs, scores = (
            [value[order].cpu() for value in values]
            for values, order in ((self[:split], of_pairs), (self[split:-1], of_scores))
        )
        return MatchedBoxes(*[*pairs, *scores, self.counts.cpu()])


def empty_matched_boxes() -> MatchedBoxes:
    """State before any data."""

    def rows(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.zeros(0, *shape, dtype=dtype)

    return MatchedBoxes(
        boxes=rows(4),
        covariances=rows(4, 4),
        targets=rows(4),
        labels=rows(dtype=torch.int64),
        touching=rows(4, dtype=torch.bool),
        distance=rows(),
        truncation=rows(),
        image=rows(dtype=torch.int64),
        scores=rows(),
        right=rows(dtype=torch.bool),
        image_of_score=rows(dtype=torch.int64),
        counts=rows(len(COUNTS), dtype=torch.int64),
    )


def match_images(
    detections: Iterable[Detections],
    truths: Iterable[Truths],
    *,
    rule: MatchingRule,
    attributes: Iterable[Attributes] | None = None,
) -> MatchedBoxes:
    """State of a batch of images; arguments as for :func:`fcal.metrics.detection.box_calibration`."""
    rows = [_rows_of_image(*image, rule) for image in images_of(detections, truths, attributes)]
    return merged([empty_matched_boxes(), *rows])


def merged(states: Sequence[MatchedBoxes]) -> MatchedBoxes:
    """One state with the rows of all; numbers of batches are added."""
    joined = MatchedBoxes(*(torch.cat(fields) for fields in zip(*states, strict=True)))
    return joined._replace(counts=joined.counts.sum(0, keepdim=True))


def _rows_of_image(detections: Detections, truths: Truths, attributes: Attributes, rule: MatchingRule) -> MatchedBoxes:
    matches = match(detections, truths, rule)
    found, objects = matches.detections.cpu(), matches.truths.cpu()
    boxes, there = detections.boxes.detach().double().cpu(), truths.boxes.detach().double().cpu()
    labels = truths.labels.cpu()[objects]
    image = _image_number(boxes, there)
    counted = torch.cat([found, matches.unmatched_detections.cpu()])
    right = torch.zeros(len(counted), dtype=torch.bool)
    right[: len(found)] = detections.labels.cpu()[found] == labels
    objects_that_count = len(truths) - int(truths.is_ignored.sum())
    passed = len(matches.ignored_detections)
    counts = [1, int(len(truths) == 0), len(counted), objects_that_count, passed]
    return MatchedBoxes(
        boxes=boxes[found],
        covariances=detections.covariances.detach().double().cpu()[found],
        targets=there[objects],
        labels=labels.to(torch.int64),
        touching=_touching(there[objects], truths.image_size),
        distance=attribute_of(attributes, "distance", truths)[objects],
        truncation=attribute_of(attributes, "truncation", truths)[objects],
        image=image.expand(len(found)),
        scores=detections.scores.detach().double().cpu()[counted],
        right=right,
        image_of_score=image.expand(len(counted)),
        counts=torch.tensor([counts]),
    )


def _image_number(boxes: Tensor, targets: Tensor) -> Tensor:
    """Number of an image from its boxes: the same on any rank and in any order of images. Shape ``()``.

    Equal images have one number; they count as one cluster, as copies should.
    """
    return hash_integers(folded_bits(boxes.reshape(-1)).sum() + hash_integers(folded_bits(targets.reshape(-1)).sum()))


def _touching(boxes: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Whether each corner is within a pixel of its side of the image. Shape ``(n, 4)``."""
    height, width = image_size
    return torch.cat([boxes[:, :2] <= _BORDER, boxes[:, 2:] >= torch.tensor([width, height]) - _BORDER], 1)


def facet_groups(boxes: MatchedBoxes, facet: str, classes: Sequence[str] | None = None) -> tuple[Tensor, list[str]]:
    """Group of every corner by one of ``FACETS``, and the names of all groups; -1 where it is unknown.

    Args:
        boxes: Pairs.
        facet: What to group by.
        classes: Names of classes 1, 2, ...; their numbers by default.

    Returns:
        Codes of shape ``(n, 4)``, and names.
    """
    return FACETS[facet](boxes, classes)


def _by_class(boxes: MatchedBoxes, classes: Sequence[str] | None) -> tuple[Tensor, list[str]]:
    labels, codes = torch.unique(boxes.labels, return_inverse=True)
    return _per_box(codes), [class_name(label, classes) for label in labels.tolist()]


def class_name(label: int, classes: Sequence[str] | None) -> str:
    """Name of a class by its number, from 1 on."""
    return classes[label - 1] if classes is not None and 1 <= label <= len(classes) else f"class {label}"


def _by_corner(boxes: MatchedBoxes, _classes: Any) -> tuple[Tensor, list[str]]:
    return torch.arange(4).expand(len(boxes.boxes), 4), list(CORNERS)


def _by_size(boxes: MatchedBoxes, _classes: Any) -> tuple[Tensor, list[str]]:
    codes = torch.bucketize(box_area(boxes.targets), torch.tensor(_AREAS, dtype=torch.float64), right=True)
    return _per_box(codes), ["small", "medium", "large"]


def _by_height(boxes: MatchedBoxes, _classes: Any) -> tuple[Tensor, list[str]]:
    height = boxes.targets[:, 3] - boxes.targets[:, 1]
    codes = torch.bucketize(height, torch.tensor(_HEIGHTS, dtype=torch.float64), right=True)
    low, high = _HEIGHTS
    return _per_box(codes), [f"height below {low:g} px", f"height {low:g} to {high:g} px", f"height from {high:g} px"]


def _by_edge(boxes: MatchedBoxes, _classes: Any) -> tuple[Tensor, list[str]]:
    beside = boxes.touching.any(1, keepdim=True) & ~boxes.touching
    return boxes.touching + 2 * beside, list(EDGES)


def _by_distance(boxes: MatchedBoxes, _classes: Any) -> tuple[Tensor, list[str]]:
    codes, names = depth_groups(boxes.distance, name="distance")
    return _per_box(codes.where(~boxes.distance.isnan(), -1)), names


def _by_truncation(boxes: MatchedBoxes, _classes: Any) -> tuple[Tensor, list[str]]:
    codes = torch.bucketize(boxes.truncation, torch.tensor(_TRUNCATIONS, dtype=torch.float64))
    names = [f"truncation up to {_TRUNCATIONS[0]:g}"]
    names += [f"truncation {low:g} to {high:g}" for low, high in pairwise(_TRUNCATIONS)]
    names += [f"truncation above {_TRUNCATIONS[-1]:g}"]
    return _per_box(codes.where(~boxes.truncation.isnan(), -1)), names


def _per_box(codes: Tensor) -> Tensor:
    return codes[:, None].expand(-1, 4)


_Grouping = Callable[[MatchedBoxes, Sequence[str] | None], tuple[Tensor, list[str]]]
FACETS: Registry[_Grouping] = Registry("facet")
for _name, _grouping in {
    "class": _by_class,
    "corner": _by_corner,
    "size": _by_size,
    "height": _by_height,
    "edge": _by_edge,
    "distance": _by_distance,
    "truncation": _by_truncation,
}.items():
    FACETS.add(_name, _grouping)
