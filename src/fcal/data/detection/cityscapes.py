"""Cityscapes as downloaded: boxes from maps of instances or from polygons, groups as ignored regions, and splits."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fcal._checks import check_flag
from fcal._config import config_from
from fcal._registry import Registry
from fcal.data.depth_frames import read_map
from fcal.data.detection.annotations import ALL_CLASSES, Label, LabelFaults, annotated
from fcal.data.detection.detection_frames import DetectionFrames
from fcal.data.detection.detection_splits import DetectionSplits, FilesConfig, counted_split, grouped_split
from fcal.data.detection.label_files import finite, inclusive_edges, known_class, of_type, read_json, shown

CLASSES = ("person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle")
PAPER = (2500, 475)  # images of the folder train to train and to validate on; those of val are to test on
_NUMBERS = {24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle"}
_VOID = {29: "caravan", 30: "trailer"}  # objects that Cityscapes' evaluation ignores
_GROUP = "group"
_OTHERS = (
    *("unlabeled", "ego vehicle", "rectification border", "out of roi", "static", "dynamic", "ground", "road"),
    *("sidewalk", "parking", "rail track", "building", "wall", "fence", "guard rail", "bridge", "tunnel", "pole"),
    *("polegroup", "traffic light", "traffic sign", "vegetation", "terrain", "sky", "license plate"),
)
_PER_CLASS = 1000  # numbers of instances in a map
_IMAGE, _LABELS = "leftImg8bit", "gtFine"


def cityscapes(
    root: str | os.PathLike[str],
    folders: Sequence[str] = ("train", "val"),
    *,
    source: str = "instances",
    masks: bool = False,
    size: tuple[int, int] | None = None,
    cache: bool = False,
) -> DetectionFrames:
    """Images and objects of Cityscapes: persons, riders, cars, trucks, buses, trains, motorcycles and bicycles.

    Groups, such as ``persongroup``, are ignored and a ``crowd`` of their class; caravans and trailers, which
    Cityscapes' evaluation does not count, are one for each class. The group of an image is its city.

    Args:
        root: Contains ``leftImg8bit/FOLDER/CITY/*_leftImg8bit.png`` and ``gtFine/FOLDER/CITY/*_gtFine_*``.
        folders: ``"train"``, ``"val"`` or ``"test"`` (whose labels Cityscapes does not publish).
        source: ``"instances"`` for boxes around the visible pixels of ``instanceIds.png``, in which parts of a group
            that are separated by an empty column are regions of their own; or ``"polygons"`` for boxes around the
            outlines in ``polygons.json``, which include parts that others hide. Street worlds need the first: their
            polygons are pieces of objects.
        masks: Add pixels of objects to items; for ``"instances"`` only.
        size: Height and width of items; None for those of each image.
        cache: Keep images in memory.

    Raises:
        ValueError: A folder or file does not exist or is malformed; the message names it.
    """
    suffix, read, kinds = SOURCES[source]
    if check_flag("masks", masks) and source != "instances":
        raise ValueError(f"expected `source` 'instances' with `masks`, got {source!r}")
    faults, images = LabelFaults(root), []
    for number, (image, path) in enumerate(_files(Path(root), folders, suffix)):
        labels, stated = read(path)
        image_size = faults.size_of(image, stated)
        if image_size is not None:
            options: dict[str, Any] = {"path": path, "size": image_size, "faults": faults, "kinds": kinds}
            instances = path if source == "instances" else None
            options |= {"group": image.parent.name, "number": number, "instances": instances}
            images.append(annotated(image, labels, classes=len(CLASSES), **options))
    _count_unlabelled(Path(root), folders, suffix, faults)
    faults.report()
    return DetectionFrames(images, CLASSES, masks=masks, size=size, cache=cache)


def _files(root: Path, folders: Sequence[str], suffix: str) -> list[tuple[Path, Path]]:
    """Images and their labels, in the order of folders, cities and names."""
    pairs = []
    for folder in folders:
        labels = root / _LABELS / folder
        found = sorted(labels.glob(f"*/*_{_LABELS}_{suffix}"))
        if not found:
            raise ValueError(f"expected {labels} with files CITY/*_{_LABELS}_{suffix}, got none")
        for path in found:
            stem = path.name.removesuffix(f"_{_LABELS}_{suffix}")
            pairs.append((root / _IMAGE / folder / path.parent.name / f"{stem}_{_IMAGE}.png", path))
    return pairs


def _count_unlabelled(root: Path, folders: Sequence[str], suffix: str, faults: LabelFaults) -> None:
    for folder in folders:
        named = {path.name.removesuffix(f"_{_LABELS}_{suffix}") for path in (root / _LABELS / folder).glob("*/*")}
        found = sorted((root / _IMAGE / folder).glob(f"*/*_{_IMAGE}.png"))
        without = [path for path in found if path.name.removesuffix(f"_{_IMAGE}.png") not in named]
        faults.add("unlabelled", without[0] if without else None, len(without))


def read_instances(path: Path) -> tuple[list[Label], tuple[int, int]]:
    """Objects of a map of instances, and its height and width.

    Raises:
        ValueError: The file cannot be read, or has a number of no class.
    """
    ids = read_map(path, None)
    labels = []
    objects = np.where(ids >= _PER_CLASS, ids, 0)
    for number, edges in zip(*_boxes(objects), strict=True):
        kind = _kind(number // _PER_CLASS, path)
        extras = {"instance": number}
        is_void = kind not in CLASSES
        label = ALL_CLASSES if is_void else CLASSES.index(kind) + 1
        labels.append(Label(edges, label, ignored=is_void, crowd=is_void, extras=extras))
    groups = ids * ((ids < _PER_CLASS) & np.isin(ids, list(_NUMBERS)))
    for number in np.unique(groups[groups > 0]).tolist():
        label, extras = CLASSES.index(_NUMBERS[number]) + 1, {"instance": number}
        labels += [Label(edges, label, ignored=True, crowd=True, extras=extras) for edges in _parts(groups == number)]
    return labels, (ids.shape[0], ids.shape[1])


def _kind(number: int, path: Path) -> str:
    kinds = _NUMBERS | _VOID
    if number not in kinds:
        known = ", ".join(f"{key} {kind}" for key, kind in sorted(kinds.items()))
        raise ValueError(f"expected {path} with instances of the classes {known}, got class {number}")
    return kinds[number]


_Edges = tuple[float, float, float, float]


def _boxes(numbers: NDArray[np.int32]) -> tuple[list[int], list[_Edges]]:
    """Numbers in a map, 0 aside, in increasing order, and the edges around the pixels of each."""
    rows, columns = np.nonzero(numbers)
    found, index = np.unique(numbers[rows, columns], return_inverse=True)
    where, edges = torch.from_numpy(index.astype(np.int64)), torch.zeros(len(found), 4, dtype=torch.long)
    for axis, values in enumerate((columns, rows)):
        positions = torch.from_numpy(values.astype(np.int64))
        edges[:, axis].scatter_reduce_(0, where, positions, "amin", include_self=False)
        edges[:, axis + 2].scatter_reduce_(0, where, positions + 1, "amax", include_self=False)
    return found.tolist(), [tuple(row) for row in edges.tolist()]


def _parts(pixels: NDArray[np.bool_]) -> list[_Edges]:
    """Edges around the parts of a region that empty columns separate."""
    boxes: list[_Edges] = []
    changes = np.diff(np.pad(pixels.any(0), 1).astype(np.int8))
    for left, right in zip(np.flatnonzero(changes > 0).tolist(), np.flatnonzero(changes < 0).tolist(), strict=True):
        rows = np.flatnonzero(pixels[:, left:right].any(1))
        boxes.append((left, int(rows[0]), right, int(rows[-1]) + 1))
    return boxes


def read_polygons(path: Path) -> tuple[list[Label], tuple[int, int]]:
    """Objects of a file of polygons, and height and width of its image.

    Vertices are numbers of pixels: the edges of a box are one pixel farther to the right and to the bottom.

    Raises:
        ValueError: The file cannot be read, has another schema, or a label that Cityscapes does not have.
    """
    document = read_json(path, "polygons of Cityscapes", ("imgHeight", "imgWidth", "objects"))
    height, width = (
        of_type(document[name], int, f"an integer `{name}`", str(path)) for name in ("imgHeight", "imgWidth")
    )
    objects = of_type(document["objects"], list, "a list `objects`", str(path))
    labels = [_polygon(each, f"object {number} of {path}") for number, each in enumerate(objects)]
    return [label for label in labels if label is not None], (height, width)


def _polygon(each: Any, where: str) -> Label | None:
    found = of_type(each, dict, "a label and a polygon", where)
    name = str(found.get("label"))
    kind = name.removesuffix(_GROUP) if name not in _OTHERS else name
    known_class(kind, (*CLASSES, *_VOID.values(), *_OTHERS), where)
    if kind in _OTHERS or found.get("deleted") in (1, True):
        return None
    points = of_type(found.get("polygon"), list, "a list of vertices", where)
    pairs = [point for point in points if isinstance(point, list) and len(point) == 2]
    if not points or len(pairs) < len(points):
        raise ValueError(f"expected {where} with a polygon of points [x, y], got {shown(points)}")
    across, down = ([finite(point[axis], "numbers as vertices", where) for point in pairs] for axis in (0, 1))
    edges = inclusive_edges((min(across), min(down), max(across), max(down)))
    is_region = kind != name or kind not in CLASSES
    label = CLASSES.index(kind) + 1 if kind in CLASSES else ALL_CLASSES
    return Label(edges, label, ignored=is_region, crowd=is_region)


_Reader = Callable[[Path], tuple[list[Label], tuple[int, int]]]
SOURCES: Registry[tuple[str, _Reader, dict[str, torch.dtype]]] = Registry("source")  # with types of extras
SOURCES.add("instances", ("instanceIds.png", read_instances, {"instance": torch.int64}))
SOURCES.add("polygons", ("polygons.json", read_polygons, {}))


@dataclass(frozen=True, kw_only=True)
class CityscapesConfig(FilesConfig):
    """Options of the format ``"cityscapes"``; see :class:`FilesConfig` for those that all formats have.

    Args:
        root: See :func:`cityscapes`.
        split: ``"paper"``: of the folder ``train``, 2500 images to train on and 475 to validate on, drawn by ``seed``
            (or other numbers in these proportions), and the folder ``val`` to test on; ``"cities"`` for the same
            without a city in common; ``"folders"`` for ``train``, ``val`` and ``test``, as in street worlds.
        source: ``"instances"`` or ``"polygons"``.
        masks: Whether items have pixels of objects.
    """

    split: str = "paper"
    source: str = "instances"
    masks: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        SPLITS[self.split]
        SOURCES[self.source]


def _paper(train: DetectionFrames, seed: int) -> list[list[int]]:
    return counted_split(len(train), PAPER, seed=seed)


def _by_city(train: DetectionFrames, seed: int) -> list[list[int]]:
    return grouped_split(train.groups, PAPER, seed=seed)


SPLITS: Registry[Any] = Registry("split")
SPLITS.add("paper", _paper)
SPLITS.add("cities", _by_city)
SPLITS.add("folders", None)


def cityscapes_splits(**options: Any) -> DetectionSplits:
    """Data for training by name, from the options of :class:`CityscapesConfig`."""
    config = config_from(options, CityscapesConfig, source="data.options")
    split = SPLITS[config.split]
    folders = ("train", "val") if split else ("train", "val", "test")
    view: dict[str, Any] = {"source": config.source, "masks": config.masks, "size": config.item_size}
    frames = cityscapes(config.root, folders, cache=config.cache, **view)
    of_folder = [image.image.parent.parent.name for image in frames.images]
    parts = [[number for number, name in enumerate(of_folder) if name == folder] for folder in folders]
    if split:
        train = parts[0]
        parts[:1] = [[train[number] for number in part] for part in split(frames.subset(train), config.seed)]
    return config.splits(frames, parts)
