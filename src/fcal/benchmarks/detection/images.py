"""Images of the detection benchmark: rendered streets, KITTI, Cityscapes, COCO, Pascal VOC and small sets of these."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fcal.benchmarks.detection.kitti_scores import KittiTruths
from fcal.benchmarks.detection.settings import BCCD, CITYSCAPES, COCO, KITTI, MINI, STREET, VOC
from fcal.data.detection import Splits, by_name, fold_splits, kitti_object
from fcal.metrics.detection import Truths
from fcal.metrics.detection.kitti_precision import KITTI_CLASSES

_FORMATS = {KITTI: "kitti", CITYSCAPES: "cityscapes", COCO: "coco", VOC: "voc", BCCD: "voc"}
_FOLDERS = {BCCD: "bccd", MINI: "kitti_object_101"}  # of sets that lie beside others


@dataclass(frozen=True)
class ImageSource:
    """Where images come from.

    Args:
        root: Folder of the data; None for rendered streets.
    """

    root: str | None = None

    def splits(self, data: Mapping[str, Any]) -> Splits:
        """Images to train on, to choose by and to test on, the same whenever it is called."""
        return _splits(self, json.dumps(data, sort_keys=True))

    def truths(self, data: Mapping[str, Any]) -> list[Truths]:
        """Objects of the test images."""
        return _truths(self, json.dumps(data, sort_keys=True))

    def kitti_truths(self, data: Mapping[str, Any]) -> KittiTruths | None:
        """Objects of the test images as KITTI's average precision takes them; None if they are of other classes."""
        return _kitti_truths(self, json.dumps(data, sort_keys=True))

    def folder(self, name: str) -> str:
        """The folder of a set: the one that was given, or one of the usual name below it."""
        if self.root is None:
            raise ValueError(f"expected `--data` for the set {name!r}, got none")
        if not Path(self.root).is_dir():
            raise ValueError(f"expected `--data` a folder, got {self.root}, no folder")
        below = Path(self.root) / _FOLDERS.get(name, "")
        return str(below if below.is_dir() else self.root)


@lru_cache(maxsize=2)
def _splits(source: ImageSource, data: str) -> Splits:
    options = json.loads(data)
    name, size = options["set"], [options["height"], options["width"]]
    if name == STREET:
        counts = {part: options[part] for part in ("train", "validation", "test")}
        named = {"height": size[0], "width": size[1], "frames_per_drive": options["images_per_drive"]}
        return by_name("street")(**counts, **named, seed=0)
    folder = source.folder(name)
    if name == MINI:
        frames = kitti_object(folder, size=(size[0], size[1]), cache=True)
        return fold_splits(frames, options["fold"], folds=options["folds"], flip=True)
    return by_name(_FORMATS[name])(root=folder, size=size, cache=name == BCCD)


@lru_cache(maxsize=2)
def _kitti_truths(source: ImageSource, data: str) -> KittiTruths | None:
    test = source.splits(json.loads(data)).test
    return KittiTruths.of(test) if test.classes == KITTI_CLASSES else None


@lru_cache(maxsize=2)
def _truths(source: ImageSource, data: str) -> list[Truths]:
    test = source.splits(json.loads(data)).test
    return [test.truths(index) for index in range(len(test))]
