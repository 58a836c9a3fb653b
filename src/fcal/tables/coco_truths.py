"""Objects of images from an annotation file in COCO's format."""

import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from fcal.metrics.detection import Truths
from fcal.metrics.detection.image_streams import ATTRIBUTES
from fcal.tables.json_records import Array, Place, indices, numbers, read_json, records, reject
from fcal.tables.readers import file_error, shown
from fcal.tables.segmentations import Segmentation, draw, mask_library, read_segmentation

MOST_PIXELS = 1 << 28  # of an image; 16,384 x 16,384
MOST_ON_A_SIDE = 1 << 16
MOST_MASKS = 1 << 31  # pixels of all masks of an image, a byte each
FARTHEST = 1e7  # pixels of a corner from the origin, far beyond any image


@dataclass(frozen=True, kw_only=True, eq=False)
class CocoTruths(Sequence[Truths]):
    """Objects of each image of an annotation file, in rising order of the images' ids; made when asked for.

    Labels are 1, 2, ... for the categories in rising order of their ids. Crowds, and objects marked ``ignore``, are
    ignored truths. ``attributes(index)`` has what annotations may say of the objects of an image: ``truncation``, the
    share outside of the image, ``occlusion``, KITTI's level from 0 to 3, and ``distance`` in metres.

    Attributes:
        path: The file.
        classes: Names of the classes, index k - 1 for label k.
        category_ids: Their ids in the file.
        image_ids: Ids of the images.
        names: File names of the images, empty where there are none.
    """

    path: Path
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    image_ids: tuple[int, ...]
    names: tuple[str, ...]
    _sizes: Array
    _boxes: Array
    _labels: Array
    _ignored: Array
    _starts: Array
    _attributes: Mapping[str, Array]
    _segmentations: tuple[Segmentation, ...] | None

    def __len__(self) -> int:
        return len(self.image_ids)

    @overload
    def __getitem__(self, index: int) -> Truths: ...
    @overload
    def __getitem__(self, index: slice) -> list[Truths]: ...
    def __getitem__(self, index: int | slice) -> Truths | list[Truths]:
        """Objects of one image, or of some."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        part = slice(self._starts[index], self._starts[index + 1])
        height, width = self._sizes[index].tolist()
        return Truths(
            boxes=torch.from_numpy(self._boxes[part]),
            labels=torch.from_numpy(self._labels[part]),
            image_size=(height, width),
            masks=None if self._segmentations is None else self._masks(part, height, width),
            ignored=torch.from_numpy(self._ignored[part]),
        )

    def attributes(self, index: int) -> dict[str, Array]:
        """Attributes of the objects of one image by name, NaN where an annotation has none; shape ``(m,)`` each."""
        index = range(len(self))[index]
        part = slice(self._starts[index], self._starts[index + 1])
        return {name: values[part].copy() for name, values in self._attributes.items()}

    def _masks(self, part: slice, height: int, width: int) -> torch.Tensor:
        assert self._segmentations is not None
        masks = torch.zeros(part.stop - part.start, height, width, dtype=torch.bool)
        for mask, segmentation, box in zip(masks, self._segmentations[part], self._boxes[part], strict=True):
            mask.copy_(torch.from_numpy(draw(segmentation, height, width)))
            if not mask.any():  # none is given, or it is smaller than a pixel
                x1, y1 = np.floor(box[:2]).astype(int).clip(0)
                x2, y2 = np.ceil(box[2:]).astype(int)
                mask[y1:y2, x1:x2] = True
        return masks


def read_coco_truths(path: str | Path, *, masks: bool = False) -> CocoTruths:
    """Objects of images from an annotation file in COCO's format (``images``, ``annotations``, ``categories``).

    Objects that are empty or lie outside of their image are left out, with a warning that counts them.

    Args:
        path: The JSON file.
        masks: Whether to take the pixels of objects from their segmentations, which needs pycocotools; an object
            without one has the pixels of its box.

    Returns:
        A sequence of :class:`fcal.metrics.detection.Truths`.

    Raises:
        TableError: The file cannot be read or has another schema, an image has more than 2**28 pixels or 65,536 on a
            side, or the masks of an image more than 2**31; the message has the first wrong item.
        ImportError: Masks without pycocotools.

    Example:
        >>> import json, tempfile
        >>> path = tempfile.mkdtemp() + "/coco.json"
        >>> document = {
        ...     "images": [{"id": 7, "height": 40, "width": 60}],
        ...     "categories": [{"id": 3, "name": "car"}],
        ...     "annotations": [{"id": 1, "image_id": 7, "category_id": 3, "bbox": [5, 6, 20, 10]}],
        ... }
        >>> _ = Path(path).write_text(json.dumps(document))
        >>> truths = read_coco_truths(path)
        >>> truths.classes, truths[0].boxes.tolist()
        (('car',), [[5.0, 6.0, 25.0, 16.0]])
    """
    path = Path(path)
    if masks:
        mask_library()
    document = read_json(path, dict, "an object with `images`, `annotations` and `categories`")
    images, annotations, categories = (
        records(path, document, name, required)
        for name, required in (
            ("images", ("id", "height", "width")),
            ("annotations", ("image_id", "category_id", "bbox")),
            ("categories", ("id", "name")),
        )
    )
    images.sort(key=lambda image: int(image["id"]))
    categories.sort(key=lambda category: int(category["id"]))
    image_ids, category_ids = (_ids(path, name, rows) for name, rows in (("image", images), ("category", categories)))
    sizes = _image_sizes(path, images)
    place = _place("annotation")
    image_of = indices(path, "`image_id` of one of the images", [a["image_id"] for a in annotations], image_ids, place)
    label_of = indices(
        path, "`category_id` of one of the categories", [a["category_id"] for a in annotations], category_ids, place
    )
    boxes = numbers(path, "`bbox` of 4 numbers", [a["bbox"] for a in annotations], (4,), place)
    check_corners(path, boxes, place)
    boxes[:, 2:] += boxes[:, :2]
    good = _inside(path, boxes, sizes[image_of])
    order = good[np.argsort(image_of[good], kind="stable")]
    starts = np.searchsorted(image_of[order], np.arange(len(images) + 1))
    if masks:
        pixels = np.diff(starts) * sizes.prod(1)
        requirement = f"masks of at most {MOST_MASKS:,} pixels in an image; evaluate it without masks"
        reject(path, requirement, pixels > MOST_MASKS, pixels, _place("image"))
    return CocoTruths(
        path=path,
        classes=_class_names(path, categories),
        category_ids=category_ids,
        image_ids=image_ids,
        names=tuple(str(image.get("file_name", "")) for image in images),
        _sizes=sizes,
        _boxes=boxes[order],
        _labels=label_of[order] + 1,
        _ignored=(_flags(path, annotations, "iscrowd") | _flags(path, annotations, "ignore"))[order],
        _starts=starts,
        _attributes=_attributes(path, annotations, order),
        _segmentations=_segmentations(path, annotations, order, sizes[image_of]) if masks else None,
    )


def check_corners(path: Path, boxes: Array, place: Place) -> None:
    """Refuse coordinates that no image has; their squares would overflow."""
    far = (np.abs(boxes) > FARTHEST).any(1)
    reject(path, f"`bbox` within {FARTHEST:g} pixels of the origin", far, boxes, place)


def _image_sizes(path: Path, images: list[Any]) -> Array:
    """Heights and widths. Shape ``(n, 2)``, int64."""

    def place(index: int) -> str:
        return f"image {images[index]['id']}"

    sizes = numbers(path, "`height` and `width`", [[i["height"], i["width"]] for i in images], (2,), place)
    reject(path, "images of whole pixels, at least 1", ~((sizes >= 1) & (sizes % 1 == 0)).all(1), sizes, place)
    large = (sizes > MOST_ON_A_SIDE).any(1) | (sizes.prod(1) > MOST_PIXELS)
    reject(path, f"images of at most {MOST_PIXELS:,} pixels, {MOST_ON_A_SIDE:,} on a side", large, sizes, place)
    return sizes.astype(np.int64)


def _class_names(path: Path, categories: list[Any]) -> tuple[str, ...]:
    """Names of the categories, by which detections find them: no two may be the same but for case."""
    for category in categories:
        if not isinstance(category["name"], str) or not category["name"].strip():
            got = f"{shown(category['name'])} of the category {category['id']}"
            raise file_error(path, "with a `name` of every category, a text that is not empty", got)
    names = tuple(category["name"] for category in categories)
    folded = [name.strip().lower() for name in names]
    twice = next((name for name, key in zip(names, folded, strict=True) if folded.count(key) > 1), None)
    if twice is not None:
        raise file_error(path, "with one category of each name", f"{shown(twice)} twice")
    return names


def _flags(path: Path, annotations: list[Any], key: str) -> Array:
    values = [annotation.get(key, 0) for annotation in annotations]
    for index, value in enumerate(values):
        if not isinstance(value, int) or value not in (0, 1):
            raise file_error(path, f"`{key}` 0 or 1", f"{shown(value)} in annotation {index}")
    return np.array(values, dtype=bool)


def _attributes(path: Path, annotations: list[Any], order: Array) -> dict[str, Array]:
    """Attributes that some annotation has, by name."""
    values = {name: _attribute(path, annotations, name)[order] for name in ATTRIBUTES}
    return {name: column for name, column in values.items() if not np.isnan(column).all()}


def _attribute(path: Path, annotations: list[Any], name: str) -> Array:
    """An attribute of all annotations, NaN for those that have none, which KITTI writes as -1."""
    known = [index for index, annotation in enumerate(annotations) if annotation.get(name) is not None]
    values = np.full(len(annotations), np.nan)
    given = [annotations[index][name] for index in known]
    found = numbers(path, f"a number `{name}`", given, (), lambda row: f"annotation {known[row]}")
    found[found == -1] = np.nan
    low, high = ATTRIBUTES[name]
    requirement = f"`{name}` within [{low:g}, {high:g}], or -1 for unknown"
    reject(path, requirement, (found < low) | (found > high), found, lambda row: f"annotation {known[row]}")
    values[known] = found
    return values


def _inside(path: Path, boxes: Array, sizes: Array) -> Array:
    """Indices of objects with an area inside of their image; others are counted in a warning."""
    visible = np.minimum(boxes[:, 2:], sizes[:, ::-1]) - np.maximum(boxes[:, :2], 0)
    good: Array = np.asarray((boxes[:, 2:] > boxes[:, :2]).all(1) & (visible > 0).all(1))
    if not good.all():
        first = int(np.flatnonzero(~good)[0])
        warnings.warn(
            f"{path}: {(~good).sum()} of {len(good)} objects are empty or outside of their image and left out, "
            f"the first is annotation {first}",
            UserWarning,
            stacklevel=3,
        )
    return np.flatnonzero(good)


def _segmentations(path: Path, annotations: list[Any], order: Array, sizes: Array) -> tuple[Segmentation, ...]:
    def one(index: int) -> Segmentation:
        height, width = sizes[index].tolist()
        value = annotations[index].get("segmentation")
        return read_segmentation(path, value, height=height, width=width, place=f"annotation {index}")

    return tuple(map(one, order.tolist()))


def _ids(path: Path, name: str, rows: list[Any]) -> tuple[int, ...]:
    ids = tuple(int(row["id"]) for row in rows)
    if len(set(ids)) != len(ids):
        twice = next(one for one, other in itertools.pairwise(ids) if one == other)
        raise file_error(path, f"with one {name} of each id", f"{twice} twice")
    return ids


def _place(name: str) -> Place:
    return lambda index: f"{name} {index}"
