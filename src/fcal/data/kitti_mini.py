"""Few real frames in flat folders: 198 of KITTI raw at half size and 101 of KITTI object, with projected lidar."""

import csv
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fcal._config import config_from
from fcal.data.depth_frames import DepthFrame, DepthSplits, FrameSplits, read_text
from fcal.data.depth_views import DepthView
from fcal.data.kitti_depth import CALIBRATION, focal_length, views

RAW, OBJECT = "kitti_raw_half", "kitti_object_101"
TRAIN_DRIVE = "2011_09_26_drive_0005_sync"
TEST_DRIVES = ("2011_09_26_drive_0013_sync", "sfnd_2011_09_26_78frames")
VALIDATION_DRIVES = (
    "2011_09_26_drive_0015_sync",
    "2011_09_26_drive_0039_sync",
    "2011_09_26_drive_0061_sync",
    "2011_09_26_drive_0091_sync",
    "2011_09_29_drive_0026_sync",
)
FIRST_OF_VALIDATION = 132  # number of the first frame of drive 0005 to validate on: the last of seven time blocks
GAP = 10  # frames before it that are not used: one second
BLOCK = 22  # frames of a time block: 2.2 seconds
DRIVES = "raw_drive_of_frame.csv"
_COLUMNS, _SIDES = ("frame", "drive", "eigen"), ("train", "test", "none")


def kitti_mini(folder: str | os.PathLike[str]) -> FrameSplits:
    """Real frames, split by drives as in Eigen et al. (2014).

    - Training: drive 0005, cut into time blocks of 2.2 s which are its groups, and the object frames of Eigen's
      training drives, whose group is the drive.
    - Validation: the last time block of drive 0005 (from frame 132; the second before it, frames 122 to 131, is not
      used, so that neighbours are not on both sides) and the object frames of five whole drives:
      2011_09_26 drives 0015, 0039, 0061, 0091 and 2011_09_29 drive 0026.
    - Test: drive 0013, the 39 frames of ``sfnd_2011_09_26_78frames`` (their drive is not stated, probably 0052, an
      Eigen test drive), and the object frames of Eigen's test drives. The group is the drive.

    The six object frames of drives on neither side (of 2011_09_28) are not used.

    Args:
        folder: Contains ``kitti_raw_half`` and ``kitti_object_101``.

    Raises:
        ValueError: A folder, a calibration or the table of drives does not exist or is malformed.
    """
    root = Path(folder)
    for name in (RAW, OBJECT):
        if not (root / name).is_dir():
            raise ValueError(f"expected `root` a folder with {RAW} and {OBJECT}, got {root} without {name}")
    sequence = raw_drive(root / RAW, TRAIN_DRIVE)
    objects = object_frames(root / OBJECT)
    return FrameSplits(
        train=(
            *(_in_time_block(frame) for frame in sequence if _number(frame) < FIRST_OF_VALIDATION - GAP),
            *(frame for frame in objects["train"] if frame.group not in VALIDATION_DRIVES),
        ),
        validation=(
            *(_in_time_block(frame) for frame in sequence if _number(frame) >= FIRST_OF_VALIDATION),
            *(frame for frame in objects["train"] if frame.group in VALIDATION_DRIVES),
        ),
        test=(*(frame for drive in TEST_DRIVES for frame in raw_drive(root / RAW, drive)), *objects["test"]),
    )


def raw_drive(folder: Path, drive: str) -> list[DepthFrame]:
    """Frames of a drive of ``kitti_raw_half`` in order of time.

    Args:
        folder: Contains the drives and ``calib_cam_to_cam.txt`` of images of full size.
        drive: Its folder, with ``image_02/*.jpg`` and ``depth_02/*.png`` of half size.
    """
    focal = focal_length(folder / CALIBRATION, "P_rect_02") / 2
    images = sorted((folder / drive / "image_02").glob("*.jpg"))
    if not images:
        raise ValueError(f"expected {folder / drive / 'image_02'} with images *.jpg, got none")
    odd = [path for path in images if not path.stem.isdecimal()]
    if odd:
        raise ValueError(f"expected images whose names are numbers, got {odd[0]}")
    maps = folder / drive / "depth_02"
    return [DepthFrame(image=path, depth=maps / f"{path.stem}.png", group=drive, focal=focal) for path in images]


def _number(frame: DepthFrame) -> int:
    """Number of a frame in its drive, at 10 frames per second."""
    return int(frame.image.stem)


def _in_time_block(frame: DepthFrame) -> DepthFrame:
    return replace(frame, group=f"{frame.group}/{_number(frame) // BLOCK}")


def object_frames(folder: Path) -> dict[str, list[DepthFrame]]:
    """Frames of ``kitti_object_101`` by their side of Eigen's split: ``"train"``, ``"test"`` or ``"none"``.

    Args:
        folder: Contains ``image_2/*.jpg``, ``depth/*.png``, ``calib/*.txt`` and ``raw_drive_of_frame.csv``, a table of
            the drive of each frame.
    """
    frames: dict[str, list[DepthFrame]] = {side: [] for side in _SIDES}
    for row in drives_of_frames(folder / DRIVES):
        frames[row["eigen"]].append(_object_frame(folder, row["frame"], row["drive"]))
    return frames


def drives_of_frames(table: Path) -> list[dict[str, str]]:
    """Rows of the table of drives, with ``frame``, ``drive`` and ``eigen``, the side of Eigen's split.

    Raises:
        ValueError: The file cannot be read, or a line is malformed; the message names its number.
    """
    try:
        rows = list(csv.DictReader(read_text(table, "a table in CSV").splitlines()))
    except csv.Error as error:
        raise ValueError(f"expected {table} a table in CSV, got: {error}") from None
    for number, row in enumerate(rows, start=2):
        if not all(row.get(name) for name in _COLUMNS) or row["eigen"] not in _SIDES:
            expected = f"{', '.join(_COLUMNS)} ({', '.join(_SIDES)})"
            raise ValueError(f"expected line {number} of {table} with {expected}, got {list(row.values())}")
    return rows


def _object_frame(folder: Path, name: str, drive: str) -> DepthFrame:
    return DepthFrame(
        image=folder / "image_2" / f"{name}.jpg",
        depth=folder / "depth" / f"{name}.png",
        group=drive,
        focal=focal_length(folder / "calib" / f"{name}.txt", "P2"),
    )


@dataclass(frozen=True, kw_only=True)
class KittiMiniConfig:
    """Options of the data ``"kitti-mini"``.

    Args:
        root: Contains ``kitti_raw_half`` and ``kitti_object_101``.
        size: Height and width of items.
        focal: Focal length of all items in pixels; 0 resizes each frame whatever its own. With the default of both,
            items show nearly the whole image of every camera.
        garg: Whether frames to validate and to test on count in the region of Garg et al. only.
        cache: Keep frames in memory.
    """

    root: str
    size: list[int] = field(default_factory=lambda: [96, 320])
    focal: float = 186.0
    garg: bool = False
    cache: bool = True

    def __post_init__(self) -> None:
        self.views()

    def views(self) -> tuple[DepthView, DepthView]:
        """What items show of frames to train on, and of all others."""
        return views(self.size, self.focal, garg=self.garg)


def kitti_mini_splits(**options: Any) -> DepthSplits:
    """Data for training by name, from the options of :class:`KittiMiniConfig`."""
    config = config_from(options, KittiMiniConfig, source="data.options")
    return kitti_mini(config.root).datasets(*config.views(), cache=config.cache)
