"""Records of many images, one after the other, from lists or streams."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fcal._arrays import as_numbers
from fcal._checks import check_values
from fcal.metrics.detection.records import Detections, Truths

Attributes = Mapping[str, Any]
ATTRIBUTES = {"truncation": (0.0, 1.0), "occlusion": (0.0, 3.0), "distance": (0.0, math.inf)}  # and their ranges
_DECIMALS = 6
_END = object()  # of a stream


def images_of(
    detections: Iterable[Detections], truths: Iterable[Truths], attributes: Iterable[Attributes] | None = None
) -> Iterator[tuple[Detections, Truths, Attributes]]:
    """Detections, objects and attributes of objects, image by image; any of them may be a stream.

    Raises:
        TypeError: Not one record per image.
        ValueError: Different numbers of images.
    """
    for name, images in (("detections", detections), ("truths", truths)):
        if isinstance(images, Detections | Truths) or not isinstance(images, Iterable):
            raise TypeError(f"expected `{name}` a sequence with one record per image, got {type(images).__name__}")
    columns: dict[str, Iterable[Any]] = {"detections": detections, "truths": truths}
    if attributes is not None:
        columns["attributes"] = attributes
    for number, image in enumerate(itertools.zip_longest(*columns.values(), fillvalue=_END)):
        if any(record is _END for record in image):
            ended = next(name for name, record in zip(columns, image, strict=True) if record is _END)
            raise ValueError(f"expected `{ended}` of as many images as the others, got {number}")
        yield _checked_image(number, *image)


def _checked_image(
    number: int, detections: Any, truths: Any, attributes: Any = None
) -> tuple[Detections, Truths, Attributes]:
    attributes = {} if attributes is None else attributes
    for name, record, kind in (
        ("detections", detections, Detections),
        ("truths", truths, Truths),
        ("attributes", attributes, Mapping),
    ):
        if not isinstance(record, kind):
            got = type(record).__name__
            raise TypeError(f"expected `{name}` of image {number} a {kind.__name__}, got {got}")
    return detections, truths, attributes


def attribute_of(attributes: Attributes, name: str, truths: Truths) -> Tensor:
    """One number per object, in float64; NaN where the attribute is unknown, which KITTI writes as -1. Shape ``(m,)``.

    Raises:
        TypeError: These are no numbers.
        ValueError: As many numbers as objects are expected, or one is out of range.
    """
    if name not in attributes:
        return torch.full((len(truths),), torch.nan, dtype=torch.float64)
    given = as_numbers(name, attributes[name]).cpu()
    if given.is_complex():
        raise TypeError(f"expected `{name}` of real numbers, got {given.dtype}")
    values = given.double()
    if given.dtype == torch.float32:  # 0.15 in float32 is above 0.15, a limit of KITTI
        values = values.round(decimals=_DECIMALS)
    if values.shape != (len(truths),):
        shape = tuple(values.shape)
        raise ValueError(f"expected attribute {name!r} of shape {(len(truths),)}, one per object, got {shape}")
    values = torch.where(values == -1, torch.nan, values)
    low, high = ATTRIBUTES[name]
    check_values(name, f"within [{low:g}, {high:g}]", values, values.isnan() | ((values >= low) & (values <= high)))
    return values
