"""KITTI's object data as downloaded: labels, what its evaluation ignores, difficulties, drives and splits."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fcal._config import config_from
from fcal._registry import Registry
from fcal.data.depth_frames import read_text
from fcal.data.detection.annotations import ALL_CLASSES, Label, LabelFaults, annotated
from fcal.data.detection.detection_frames import DetectionFrames
from fcal.data.detection.detection_splits import (
    DetectionSplits,
    FilesConfig,
    counted_split,
    grouped_split,
    listed_split,
)
from fcal.data.detection.label_files import finite, inclusive_edges, known_class
from fcal.data.kitti_mini import DRIVES, drives_of_frames

CLASSES = ("Car", "Pedestrian", "Cyclist")
NEIGHBOURS = {"Van": "Car", "Person_sitting": "Pedestrian"}  # not to be told apart from a class: ignored
_UNUSED = ("Truck", "Tram", "Misc")
_REGION = "DontCare"
_FIELDS = 15  # of a line
_LONGEST = 10  # digits of a number of a frame
PAPER = (4500, 500, 2481)  # images to train, validate and test on
# Least height in pixels, most occlusion and most truncation of easy, moderate and hard objects.
_LEVELS = ((40, 0, 0.15), (25, 1, 0.30), (25, 2, 0.50))
DIFFICULTIES: Registry[int] = Registry("hardest")
for _number, _name in enumerate(("easy", "moderate", "hard", "all")):
    DIFFICULTIES.add(_name, _number)
_WIDTHS = (1224, 1242)  # of KITTI's images
EXTRAS = {
    "truncation": torch.float32,
    "occlusion": torch.float32,
    "distance": torch.float32,
    "difficulty": torch.int64,
}


def kitti_object(
    root: str | os.PathLike[str],
    *,
    hardest: str = "hard",
    mapping: str | os.PathLike[str] | None = None,
    size: tuple[int, int] | None = None,
    cache: bool = False,
) -> DetectionFrames:
    """Images and objects of KITTI's object data, as KITTI evaluates them.

    Cars, pedestrians and cyclists count. Ignored are vans near cars, sitting persons near pedestrians, objects that
    are harder than ``hardest``, and regions without labels (``DontCare``), which are a ``crowd`` for each class;
    trucks, trams and misc belong to the background. A label's box names its first and last pixels: its edges are one
    pixel farther to the right and to the bottom.

    Items have ``truncation`` from 0 to 1, ``occlusion`` (KITTI's level 0 to 3), ``distance`` (of the 3-D location from
    the camera, in metres) and ``difficulty`` (0 easy, 1 moderate, 2 hard, 3 harder); NaN and 3 for regions.

    Args:
        root: Contains ``training/image_2``, ``training/label_2`` (or both directly). Images may be PNG or JPEG.
        hardest: ``"easy"``, ``"moderate"`` or ``"hard"``: objects beyond it are ignored; ``"all"`` for none.
        mapping: Folder of ``train_mapping.txt`` and ``train_rand.txt`` of KITTI's development kit, from which the group
            of an image, its drive, is taken; by default ``devkit/mapping`` or ``mapping`` of ``root``, or its table
            ``raw_drive_of_frame.csv``. Without any of them each image is a group of its own.
        size: Height and width of items; None for those of each image.
        cache: Keep images in memory.

    Raises:
        ValueError: A folder or file does not exist or is malformed; the message names it.
    """
    limit, folder = DIFFICULTIES[hardest], _training(Path(root))
    drives = _drives(Path(root), None if mapping is None else Path(mapping))
    paths = sorted((folder / "label_2").glob("*.txt"))
    if not paths:
        raise ValueError(f"expected {folder / 'label_2'} with labels *.txt, got none")
    pictures = {path.stem: path for path in sorted((folder / "image_2").iterdir()) if path.suffix in (".jpg", ".png")}
    faults, images = LabelFaults(folder), []
    for number, path in enumerate(paths):
        image = pictures.pop(path.stem, folder / "image_2" / f"{path.stem}.png")
        image_size = faults.size_of(image)
        if image_size is None:
            continue
        labels = read_labels(path, width=image_size[1], hardest=limit)
        group = path.stem if drives is None else _drive_of(path, drives)
        options: dict[str, Any] = {"path": path, "size": image_size, "faults": faults, "kinds": EXTRAS}
        images.append(annotated(image, labels, classes=len(CLASSES), group=group, number=number, **options))
    faults.add("unlabelled", next(iter(pictures.values()), None), len(pictures))
    faults.report()
    return DetectionFrames(images, CLASSES, size=size, cache=cache)


def _training(root: Path) -> Path:
    """The folder of images and labels."""
    for folder in (root / "training", root):
        if (folder / "label_2").is_dir() and (folder / "image_2").is_dir():
            return folder
    raise ValueError(f"expected `root` a folder with training/image_2 and training/label_2, got {root} without")


def read_labels(path: Path, *, width: int, hardest: int = DIFFICULTIES["hard"]) -> list[Label]:
    """Objects and ignored regions of a label file of KITTI.

    Args:
        path: The file.
        width: Width of the image.
        hardest: Number of the hardest difficulty that counts.

    Raises:
        ValueError: A line is malformed; the message names its number.
    """
    lines = read_text(path, "labels of KITTI").splitlines()
    numbered = [(f"line {number} of {path}", line.split()) for number, line in enumerate(lines, start=1)]
    labels = [_label(fields, where, width, hardest) for where, fields in numbered if fields]
    return [label for label in labels if label is not None]


def _label(fields: list[str], where: str, width: int, hardest: int) -> Label | None:
    if len(fields) != _FIELDS:
        raise ValueError(f"expected {where} with {_FIELDS} fields of KITTI's labels, got {len(fields)}")
    kind = known_class(fields[0], (*CLASSES, *NEIGHBOURS, *_UNUSED, _REGION), where)
    truncated, occluded, _, *box = (finite(text, "numbers after the class", where) for text in fields[1:8])
    location = [finite(text, "numbers after the class", where) for text in fields[11:14]]
    edges = inclusive_edges(box)
    if kind in _UNUSED:
        return None
    if kind == _REGION:
        extras = {"truncation": math.nan, "occlusion": math.nan, "distance": math.nan, "difficulty": len(_LEVELS)}
        return Label(edges, ALL_CLASSES, ignored=True, crowd=True, extras=extras)
    level = difficulty(box[3] - box[1], occluded, truncated, width=width)
    extras = {"truncation": truncated, "occlusion": occluded, "distance": math.hypot(*location), "difficulty": level}
    label = CLASSES.index(NEIGHBOURS.get(kind, kind)) + 1
    return Label(edges, label, ignored=level > hardest or kind in NEIGHBOURS, extras=extras)


def difficulty(height: float, occlusion: float, truncation: float, *, width: int) -> int:
    """KITTI's difficulty of an object: 0 easy, 1 moderate, 2 hard, 3 harder than that.

    Args:
        height: Height of its box in pixels. Limits refer to images of KITTI; they are scaled to those of other widths.
        occlusion: Level from 0 to 3.
        truncation: Share from 0 to 1.
        width: Width of the image.

    Example:
        >>> difficulty(40, 0, 0.15, width=1242), difficulty(39.9, 0, 0.0, width=1242), difficulty(24, 0, 0, width=1242)
        (0, 1, 3)
        >>> difficulty(20, 0, 0.0, width=621)
        0
    """
    scale = 1.0 if _WIDTHS[0] <= width <= _WIDTHS[1] else width / _WIDTHS[1]
    for level, (least, most_occluded, most_truncated) in enumerate(_LEVELS):
        if height >= scale * least and occlusion <= most_occluded and truncation <= most_truncated:
            return level
    return len(_LEVELS)


def _drives(root: Path, mapping: Path | None) -> dict[str, str] | None:
    """Drive of each image by its name; None if it is not known."""
    if mapping is not None:
        return read_mapping(mapping)
    for folder in (root / "devkit" / "mapping", root / "mapping"):
        if folder.is_dir():
            return read_mapping(folder)
    if (root / DRIVES).is_file():
        return {row["frame"]: row["drive"] for row in drives_of_frames(root / DRIVES)}
    return None


def _drive_of(path: Path, drives: dict[str, str]) -> str:
    if path.stem not in drives:
        raise ValueError(f"expected a drive of every frame, got none of {path} among {len(drives)}")
    return drives[path.stem]


def read_mapping(folder: Path) -> dict[str, str]:
    """Drive of each training image, from the development kit.

    Frame k is the one that entry k of ``train_rand.txt``, counted from 1, names in the lines of ``train_mapping.txt``.

    Args:
        folder: Contains both files.

    Raises:
        ValueError: A file cannot be read, or is malformed.
    """
    mapping, order = folder / "train_mapping.txt", folder / "train_rand.txt"
    lines = [line.split() for line in read_text(mapping, "KITTI's list of drives").splitlines() if line.strip()]
    odd = next((number for number, fields in enumerate(lines, start=1) if len(fields) != 3), None)
    if odd is not None:
        raise ValueError(f"expected line {odd} of {mapping} with DATE DRIVE FRAME, got {len(lines[odd - 1])} fields")
    entries = read_text(order, "KITTI's order of frames").replace(",", " ").split()
    if not all(entry.isdecimal() and len(entry) < _LONGEST and 1 <= int(entry) <= len(lines) for entry in entries):
        raise ValueError(f"expected {order} with numbers from 1 to {len(lines)}, the lines of {mapping}, got others")
    return {f"{frame:06d}": lines[int(entry) - 1][1] for frame, entry in enumerate(entries)}


def _paper(frames: DetectionFrames, config: "KittiObjectConfig") -> Sequence[Sequence[int]]:
    return counted_split(len(frames), PAPER, seed=config.seed)


def _by_drive(frames: DetectionFrames, config: "KittiObjectConfig") -> Sequence[Sequence[int]]:
    if frames.group_names == frames.names:
        raise ValueError(f"expected `mapping`, a folder of the frames' drives, to split by, got none for {config.root}")
    return grouped_split(frames.groups, PAPER, seed=config.seed)


def _by_list(frames: DetectionFrames, config: "KittiObjectConfig") -> Sequence[Sequence[int]]:
    folder = Path(config.root) / "ImageSets"
    labelled = [path.stem for path in (_training(Path(config.root)) / "label_2").glob("*.txt")]
    lists = [folder / f"{name}.txt" for name in ("train", "val", "test")]
    return listed_split(frames.names, lists, left_out=labelled)


SPLITS: Registry[Any] = Registry("split")
SPLITS.add("paper", _paper)
SPLITS.add("drives", _by_drive)
SPLITS.add("lists", _by_list)


@dataclass(frozen=True, kw_only=True)
class KittiObjectConfig(FilesConfig):
    """Options of the format ``"kitti"``; see :class:`FilesConfig` for those that all formats have.

    Args:
        root: See :func:`kitti_object`.
        split: ``"paper"`` for 4500, 500 and 2481 images drawn by ``seed``, or other numbers in these proportions;
            ``"drives"`` for the same without a drive in common; ``"lists"`` for ``train.txt``, ``val.txt`` and
            ``test.txt`` in ``ImageSets``, as in street worlds.
        hardest: Objects that are harder are ignored.
        mapping: Folder of the drives of frames, if not within ``root``.
    """

    split: str = "paper"
    hardest: str = "hard"
    mapping: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        SPLITS[self.split]
        DIFFICULTIES[self.hardest]


def kitti_object_splits(**options: Any) -> DetectionSplits:
    """Data for training by name, from the options of :class:`KittiObjectConfig`."""
    config = config_from(options, KittiObjectConfig, source="data.options")
    frames = kitti_object(
        config.root,
        hardest=config.hardest,
        mapping=config.mapping or None,
        size=config.item_size,
        cache=config.cache,
    )
    return config.splits(frames, SPLITS[config.split](frames, config))
