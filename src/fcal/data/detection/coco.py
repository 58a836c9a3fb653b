"""Annotations of COCO's JSON format."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fcal._checks import check_number
from fcal._config import config_from
from fcal.data.detection.annotations import Label, LabelFaults, annotated
from fcal.data.detection.detection_frames import DetectionFrames
from fcal.data.detection.detection_splits import DetectionSplits, FilesConfig, counted_split
from fcal.data.detection.label_files import finite, known_class, of_type, read_json, shown

_SCHEMA = "annotations of COCO"
_HELD_OUT = 0.1  # share of the training images to validate on, unless there are others for it


def coco(
    annotations: str | os.PathLike[str],
    images: str | os.PathLike[str],
    *,
    classes: Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
    cache: bool = False,
) -> DetectionFrames:
    """Images and objects of a file of COCO's format.

    Labels number the categories from 1 in the order of their ids; a crowd is ignored. ``image_id`` is the id of the
    file, so that results can be compared with it. Every image is a group of its own.

    Args:
        annotations: JSON with ``images``, ``annotations`` and ``categories``.
        images: Folder of the images.
        classes: Names of the categories to read, in the order of their labels; objects of others belong to the
            background. None for all.
        size: Height and width of items; None for those of each image.
        cache: Keep images in memory.

    Raises:
        ValueError: A file does not exist or has another schema; the message names it.
    """
    path, folder = Path(annotations), Path(images)
    if not folder.is_dir():
        raise ValueError(f"expected `images` a folder of images, got {folder}, no folder")
    document = read_json(path, _SCHEMA, ("images", "annotations", "categories"))
    names = _categories(document, path)
    chosen = tuple(names.values()) if classes is None else tuple(classes)
    for name in chosen:
        known_class(name, names.values(), f"`classes` for {path}")
    numbers = {key: chosen.index(name) + 1 if name in chosen else None for key, name in names.items()}
    objects = _objects(document, path, numbers)
    faults, found = LabelFaults(path), []
    seen: set[int] = set()
    for number, entry in enumerate(of_type(document["images"], list, "a list `images`", str(path))):
        where = f"image {number} of {path}"
        key, file, stated = _image(entry, where, folder)
        if key in seen:
            raise ValueError(f"expected {where} with an id of its own, got {key}")
        seen.add(key)
        image_size, labels = faults.size_of(file, stated), objects.pop(key, [])
        if image_size is not None:
            options: dict[str, Any] = {"path": f"{path}, image {file.name}", "size": image_size, "faults": faults}
            found.append(annotated(file, labels, classes=len(chosen), group=file.stem, number=key, **options))
    if objects:
        first = next(iter(objects))
        raise ValueError(f"expected {path} with images of all annotations, got none of image_id {shown(first)}")
    faults.report()
    return DetectionFrames(found, chosen, size=size, cache=cache)


def _categories(document: Mapping[str, Any], path: Path) -> dict[int, str]:
    """Names of categories by their ids, in the order of the ids."""
    names: dict[int, str] = {}
    for number, entry in enumerate(of_type(document["categories"], list, "a list `categories`", str(path))):
        where = f"category {number} of {path}"
        category = of_type(entry, dict, "an id and a name", where)
        key = of_type(category.get("id"), int, "an integer `id`", where)
        name = of_type(category.get("name"), str, "a string `name`", where)
        if key in names or name in names.values():
            raise ValueError(f"expected {where} with an id and a name of its own, got {shown(category)}")
        names[key] = name
    if not names:
        raise ValueError(f"expected {path} with at least 1 category, got none")
    return dict(sorted(names.items()))


def _objects(document: Mapping[str, Any], path: Path, numbers: Mapping[int, int | None]) -> dict[int, list[Label]]:
    """Labels by the id of their image."""
    objects: dict[int, list[Label]] = {}
    for number, entry in enumerate(of_type(document["annotations"], list, "a list `annotations`", str(path))):
        where = f"annotation {number} of {path}"
        each = of_type(entry, dict, "a box and a category", where)
        image = of_type(each.get("image_id"), int, "an integer `image_id`", where)
        category = of_type(each.get("category_id"), int, "an integer `category_id`", where)
        if category not in numbers:
            known = ", ".join(map(str, numbers))
            raise ValueError(f"expected {where} with a category_id among {known}, got {shown(category)}")
        label = numbers[category]
        if label is not None:
            objects.setdefault(image, []).append(_label(each, label, where))
    return objects


def _label(each: Mapping[str, Any], label: int, where: str) -> Label:
    box = of_type(each.get("bbox"), list, "a `bbox` of x, y, width and height", where)
    if len(box) != 4:
        raise ValueError(f"expected {where} with a `bbox` of x, y, width and height, got {shown(box)}")
    left, top, width, height = (finite(value, "numbers in its `bbox`", where) for value in box)
    is_crowd = each.get("iscrowd", 0)
    if is_crowd not in (0, 1):
        raise ValueError(f"expected {where} with `iscrowd` 0 or 1, got {shown(is_crowd)}")
    edges = left, top, left + width, top + height
    return Label(edges, label, ignored=bool(is_crowd), crowd=bool(is_crowd), is_empty=width <= 0 or height <= 0)


def _image(entry: Any, where: str, folder: Path) -> tuple[int, Path, tuple[int, int]]:
    """Id, file, and height and width of an image."""
    image = of_type(entry, dict, "an id, a file_name, a height and a width", where)
    key, height, width = (
        of_type(image.get(name), int, f"an integer `{name}`", where) for name in ("id", "height", "width")
    )
    name = of_type(image.get("file_name"), str, "a string `file_name`", where)
    if not name.isprintable() or Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"expected {where} with a file_name within {folder}, got {shown(name)}")
    return key, folder / name, (height, width)


@dataclass(frozen=True, kw_only=True)
class CocoConfig(FilesConfig):
    """Options of the format ``"coco"``; see :class:`FilesConfig` for those that all formats have.

    Args:
        root: Folder to which all others are relative.
        train: Annotations to train on.
        train_images: Folder of their images.
        test: Annotations to test on.
        test_images: Folder of their images.
        validation: Annotations to validate on; if empty, a tenth of the training images, drawn by ``seed``.
        validation_images: Folder of their images.
        classes: Categories to read; empty for all of the training annotations.
    """

    train: str = "annotations/instances_train2017.json"
    train_images: str = "train2017"
    test: str = "annotations/instances_val2017.json"
    test_images: str = "val2017"
    validation: str = ""
    validation_images: str = ""
    classes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.validation) != bool(self.validation_images):
            raise ValueError("expected both `validation` and `validation_images`, or neither, got one of them")


def coco_splits(**options: Any) -> DetectionSplits:
    """Data for training by name, from the options of :class:`CocoConfig`."""
    config = config_from(options, CocoConfig, source="data.options")

    def frames(annotations: str, images: str, classes: Sequence[str] | None) -> DetectionFrames:
        root = Path(config.root)
        return coco(root / annotations, root / images, classes=classes, size=config.item_size, cache=config.cache)

    train = frames(config.train, config.train_images, config.classes or None)
    test = frames(config.test, config.test_images, train.classes)
    if config.validation:
        validation, used = frames(config.validation, config.validation_images, train.classes), list(range(len(train)))
    else:
        used, held_out = counted_split(len(train), held_out_counts(len(train)), seed=config.seed)
        validation = train.subset(held_out)
    return DetectionSplits(train=train.subset(used, flip=config.flip), validation=validation, test=test)


def held_out_counts(rows: int, share: float = _HELD_OUT) -> tuple[int, int]:
    """Numbers of images to train on and to validate on, at least one of each.

    Example:
        >>> held_out_counts(205)
        (185, 20)
    """
    check_number("share", share, low=0.0, high=1.0)
    if rows < 2:
        raise ValueError(f"expected at least 2 images to train and to validate on, got {rows}")
    held_out = min(max(round(share * rows), 1), rows - 1)
    return rows - held_out, held_out
