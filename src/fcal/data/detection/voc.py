"""Annotations of Pascal VOC's XML format."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fcal._config import config_from
from fcal.data.depth_frames import read_text
from fcal.data.detection.annotations import Label, LabelFaults, annotated
from fcal.data.detection.coco import held_out_counts
from fcal.data.detection.detection_frames import DetectionFrames
from fcal.data.detection.detection_splits import DetectionSplits, FilesConfig, counted_split, listed_split, read_names
from fcal.data.detection.label_files import finite, inclusive_edges, known_class, shown

_LABELS, _IMAGES, _LISTS = "Annotations", "JPEGImages", Path("ImageSets", "Main")
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_FORBIDDEN = ("<!DOCTYPE", "<!ENTITY")  # could name other files, or expand without end
_LARGEST = 1 << 22  # characters of a file
_SUFFIXES = (".jpg", ".jpeg", ".png")


def voc(
    root: str | os.PathLike[str],
    names: Sequence[str] | None = None,
    *,
    classes: Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
    cache: bool = False,
) -> DetectionFrames:
    """Images and objects of a folder of Pascal VOC's format.

    Difficult objects are ignored. Pixels of a box are counted from 1, its last ones included. Every image is a group of
    its own.

    Args:
        root: Contains ``Annotations/*.xml`` and ``JPEGImages``, or has one folder that does.
        names: Names of the images to read; None for all that have annotations.
        classes: Names of classes in the order of their labels, among which all objects must be; None for those of the
            files, in alphabetical order.
        size: Height and width of items; None for those of each image.
        cache: Keep images in memory.

    Raises:
        ValueError: A folder or file does not exist or is malformed; the message names it.
    """
    folder = _folder(Path(root))
    pictures = {path.stem: path for path in sorted((folder / _IMAGES).iterdir()) if path.suffix.lower() in _SUFFIXES}
    paths = sorted((folder / _LABELS).glob("*.xml"))
    if names is not None:
        paths = [folder / _LABELS / f"{name}.xml" for name in names]
    if not paths:
        raise ValueError(f"expected {folder / _LABELS} with annotations *.xml, got none")
    documents = [(path, _parsed(path)) for path in paths]
    known = sorted({_text(each, "name", path) for path, document in documents for each in document.findall("object")})
    chosen = tuple(known) if classes is None else tuple(classes)
    faults, images = LabelFaults(folder), []
    for number, (path, document) in enumerate(documents):
        image = pictures.get(path.stem, folder / _IMAGES / f"{path.stem}.jpg")
        labels = [_label(each, chosen, path) for each in document.findall("object")]
        image_size = faults.size_of(image, _stated(document, path))
        if image_size is not None:
            options: dict[str, Any] = {"path": path, "size": image_size, "faults": faults}
            images.append(annotated(image, labels, classes=len(chosen), group=path.stem, number=number, **options))
    faults.report()
    return DetectionFrames(images, chosen, size=size, cache=cache)


def _folder(root: Path) -> Path:
    """The folder of annotations and images: the root, or the only such folder in it or in its ``VOCdevkit``."""
    if not root.is_dir():
        raise ValueError(f"expected `root` a folder of Pascal VOC, got {root}, no folder")
    candidates = [root, *sorted(root.iterdir()), *sorted((root / "VOCdevkit").glob("*"))]
    found = [path for path in candidates if (path / _LABELS).is_dir() and (path / _IMAGES).is_dir()]
    if len(found) != 1 and root not in found:
        actual = f"{len(found)} folders in it with both" if found else "none"
        raise ValueError(f"expected `root` a folder with {_LABELS} and {_IMAGES}, got {root}: {actual}")
    return found[0]


def _parsed(path: Path) -> ElementTree.Element:
    text = read_text(path, "annotations of Pascal VOC")
    if len(text) > _LARGEST:
        raise ValueError(f"expected {path} an annotation of at most {_LARGEST} characters, got {len(text)}")
    forbidden = next((word for word in _FORBIDDEN if word in text), None)
    if forbidden is not None:
        raise ValueError(f"expected {path} without {forbidden}, which no annotation needs, got one")
    try:
        document = ElementTree.fromstring(text)  # noqa: S314  no document type, hence no entities to expand
    except (ElementTree.ParseError, ValueError) as error:
        raise ValueError(f"expected {path} annotations of Pascal VOC, got no XML: {error}") from None
    if document.tag != "annotation":
        raise ValueError(f"expected {path} with the element <annotation>, got <{document.tag[:60]}>")
    return document


def _text(element: ElementTree.Element, name: str, path: Path) -> str:
    text = (element.findtext(name) or "").strip()
    if not text:
        raise ValueError(f"expected {path} with <{name}> in every <{element.tag[:60]}>, got none")
    return text


def _stated(document: ElementTree.Element, path: Path) -> tuple[int, int] | None:
    """Height and width of the image; None if the file does not state them, or states 0 as some tools do."""
    element = document.find("size")
    if element is None:
        return None
    height, width = (
        finite(_text(element, name, path), f"a number as <{name}>", str(path)) for name in ("height", "width")
    )
    return (int(height), int(width)) if height and width else None


def _label(each: ElementTree.Element, classes: Sequence[str], path: Path) -> Label:
    name = known_class(_text(each, "name", path), classes, str(path))
    box = each.find("bndbox")
    if box is None:
        raise ValueError(f"expected {path} with <bndbox> in every <object>, got none")
    left, top, right, bottom = (finite(_text(box, key, path), f"a number as <{key}>", str(path)) for key in _CORNERS)
    difficult = (each.findtext("difficult") or "0").strip()
    if difficult not in ("0", "1"):
        raise ValueError(f"expected {path} with <difficult> 0 or 1, got {shown(difficult)}")
    return Label(
        inclusive_edges((left, top, right, bottom), origin=1),
        list(classes).index(name) + 1,
        ignored=difficult == "1",
        is_empty=right <= left or bottom <= top,
    )


@dataclass(frozen=True, kw_only=True)
class VocConfig(FilesConfig):
    """Options of the format ``"voc"``; see :class:`FilesConfig` for those that all formats have.

    Args:
        root: See :func:`voc`.
        train: List of images to train on in ``ImageSets/Main``, without ``.txt``.
        validation: Likewise to validate on; if empty, a tenth of the training images, drawn by ``seed``.
        test: Likewise to test on.
        classes: Names of classes; empty for those of the files.
    """

    train: str = "train"
    validation: str = "val"
    test: str = "test"
    classes: list[str] = field(default_factory=list)


def voc_splits(**options: Any) -> DetectionSplits:
    """Data for training by name, from the options of :class:`VocConfig`."""
    config = config_from(options, VocConfig, source="data.options")
    folder = _folder(Path(config.root)) / _LISTS
    lists = [folder / f"{name}.txt" for name in (config.train, config.validation, config.test) if name]
    names = list(dict.fromkeys(name for path in lists for name in read_names(path)))
    frames = voc(config.root, names, classes=config.classes or None, size=config.item_size, cache=config.cache)
    parts = listed_split(frames.names, lists, left_out=names)
    if not config.validation:
        used, held_out = counted_split(len(parts[0]), held_out_counts(len(parts[0])), seed=config.seed)
        parts[:1] = [[parts[0][number] for number in part] for part in (used, held_out)]
    return config.splits(frames, parts)
