"""Boxes of many images in a few tensors: what average precision needs, and nothing else."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fcal.metrics.detection.image_streams import Attributes, attribute_of, images_of
from fcal.metrics.detection.records import Detections, Truths

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Integers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class ScoredBoxes(NamedTuple):
    """Detections and objects of images, one image after the other.

    Attributes:
        detections: Corners ``x1, y1, x2, y2``, score and label. Shape ``(n, 6)``, float64.
        truths: Corners, label, whether the object is ignored, truncation and occlusion, NaN where unknown.
            Shape ``(m, 8)``, float64.
        sizes: Numbers of detections and of objects of each image. Shape ``(images, 2)``, int64.
    """

    detections: Tensor
    truths: Tensor
    sizes: Tensor


def empty_scored_boxes() -> ScoredBoxes:
    """State before any data."""
    return ScoredBoxes(
        detections=torch.zeros(0, 6, dtype=torch.float64),
        truths=torch.zeros(0, 8, dtype=torch.float64),
        sizes=torch.zeros(0, 2, dtype=torch.int64),
    )


def scored_boxes_of(
    detections: Iterable[Detections], truths: Iterable[Truths], attributes: Iterable[Attributes] | None = None
) -> ScoredBoxes:
    """State of a batch of images.

    Raises:
        TypeError: Not one record per image.
        ValueError: Different numbers of images.
    """
    return joined(
        [empty_scored_boxes(), *(_rows_of_image(*image) for image in images_of(detections, truths, attributes))]
    )


def joined(states: Sequence[ScoredBoxes]) -> ScoredBoxes:
    """One state with the rows of all."""
    return ScoredBoxes(*(torch.cat(fields) for fields in zip(*states, strict=True)))


def _rows_of_image(detections: Detections, truths: Truths, attributes: Attributes) -> ScoredBoxes:
    found = [detections.boxes, detections.scores[:, None], detections.labels[:, None]]
    there = [truths.boxes, truths.labels[:, None], truths.is_ignored[:, None]]
    known = [attribute_of(attributes, name, truths)[:, None] for name in ("truncation", "occlusion")]
    return ScoredBoxes(
        detections=_columns(found), truths=_columns(there + known), sizes=torch.tensor([[len(detections), len(truths)]])
    )


def _columns(values: Sequence[Tensor]) -> Tensor:
    return torch.cat([value.detach().to("cpu", torch.float64) for value in values], 1)


def image_numbers(state: ScoredBoxes) -> tuple[Integers, Integers]:
    """Number of the image of each detection and of each object."""
    numbers = torch.arange(len(state.sizes))
    found, there = (numbers.repeat_interleave(column).numpy() for column in state.sizes.cpu().T)
    return found, there
