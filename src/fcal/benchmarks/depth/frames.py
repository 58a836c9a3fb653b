"""Frames of the depth benchmark: rendered streets, KITTI's tree, or the flat folders of real frames."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcal.benchmarks.depth.settings import MINI, STREET
from fcal.data import DepthView, FrameSplits, kitti_depth, kitti_mini
from fcal.data.kitti_depth import validation_drives
from fcal.data.street import LidarConfig, StreetConfig, StreetSplits

_BATCH = 64  # frames read at once
_TRIED = 5  # frames of a part that are read before any training


class Labels(NamedTuple):
    """Measured pixels of frames, one after another.

    Attributes:
        target: Measured depth in metres. Shape ``(n,)``.
        image: Number of the frame of each. Shape ``(n,)``.
        row: Its place from the top of the frame to the bottom, within [0, 1]. Shape ``(n,)``.
        truth: Depth without noise; None where it is not known. Shape ``(n,)``.
        sigma: Standard deviation of the noise, likewise.
        groups: Drive of every frame.
    """

    target: Tensor
    image: Tensor
    row: Tensor
    truth: Tensor | None
    sigma: Tensor | None
    groups: Sequence[str]


@dataclass(frozen=True)
class Source:
    """Where frames come from.

    Args:
        root: Folder of the data; None for rendered frames.
    """

    root: str | None = None

    def splits(self, data: Mapping[str, Any]) -> Any:
        """Frames to train on, to choose by and to test on, the same whenever it is called."""
        if data["world"] == STREET:
            lidar = LidarConfig(density=data["density"])
            names = ("frames", "frames_per_drive", "seed", "height", "width")
            return StreetSplits(StreetConfig(**{name: data[name] for name in names}, lidar=lidar))
        if self.root is None:
            raise ValueError(f"expected `--data` for the world {data['world']!r}, got none")
        if not Path(self.root).is_dir():
            raise ValueError(f"expected `--data` a folder, got {self.root}, no folder")
        view = DepthView(size=(data["height"], data["width"]), focal=data["focal"] or None, crop=data["crop"] or None)
        return _real_frames(self.root, data).datasets(view, cache=data["world"] == MINI)

    def check(self, data: Mapping[str, Any]) -> None:
        """Read a few frames of every part, so that files of a wrong kind are refused before any training.

        Raises:
            ValueError: The folder or its frames are missing, or none of these frames can be read.
        """
        splits = self.splits(data)
        if data["world"] == STREET:
            return
        for part in (splits.train, splits.validation, splits.test):
            tried = torch.linspace(0, len(part) - 1, _TRIED).round().long().unique().tolist()
            if part.__getitems__(tried)["target"].isnan().all():
                raise ValueError(part.skipped[0][1])


def _real_frames(root: str, data: Mapping[str, Any]) -> FrameSplits:
    if data["world"] == MINI:
        return kitti_mini(root)
    listed = [kitti_depth(root, _found(Path(root), data[name])) for name in ("train_list", "test_list")]
    held_out = set(validation_drives([frame.group for frame in listed[0]]))
    return FrameSplits(
        train=tuple(frame for frame in listed[0] if frame.group not in held_out),
        validation=tuple(frame for frame in listed[0] if frame.group in held_out),
        test=tuple(listed[1]),
    )


def _found(root: Path, name: str) -> Path:
    """A list of frames in the folder of the data, or one or two folders below it."""
    known = [path for pattern in (name, f"*/{name}", f"*/*/{name}") for path in sorted(root.glob(pattern))]
    if not known:
        raise ValueError(f"expected a list of frames {name} in {root} or below it, got none")
    return known[0]


@lru_cache(maxsize=2)
def labels_of_test(source: Source, data: str) -> Labels:
    """Measured pixels of the test frames of an address, as JSON."""
    return labels_of(source.splits(json.loads(data)).test)


def labels_of(frames: Any) -> Labels:
    """Measured pixels of a dataset, with their truths where these are known."""
    parts: list[tuple[Tensor, ...]] = []
    truths = []
    for indices in torch.arange(len(frames)).split(_BATCH):
        target = frames.__getitems__(indices.tolist())["target"]
        valid = ~target.isnan()
        image, row, _ = valid.nonzero(as_tuple=True)
        parts.append((target[valid], indices[image], row / target.shape[1]))
        truth = frames.truth(indices.tolist())
        truths.append(None if truth is None else tuple(values[valid] for values in truth))
    target, image, rows = (torch.cat(column) for column in zip(*parts, strict=True))
    known = [truth for truth in truths if truth is not None]
    depth, sigma = (torch.cat(column) for column in zip(*known, strict=True)) if known else (None, None)
    return Labels(target, image, rows, depth, sigma, frames.groups)
