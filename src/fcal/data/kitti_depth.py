"""KITTI's raw and depth trees as downloaded, and the lists that name their frames."""

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fcal._checks import check_number
from fcal._config import config_from
from fcal._registry import Registry
from fcal.data.depth_frames import DepthFrame, DepthSplits, FrameSplits, read_text
from fcal.data.depth_views import DepthView

FOCAL = 721.5377  # of most KITTI cameras, and the largest, so that no frame needs padding after the crop
CALIBRATION = "calib_cam_to_cam.txt"
KINDS: Registry[str] = Registry("kind")
for _kind in ("groundtruth", "velodyne_raw"):
    KINDS.add(_kind, _kind)
_SIDES = {"l": "02", "r": "03", "2": "02", "3": "03"}
_IMAGES = (".png", ".jpg")
_NO_DEPTH = "None"
_DEEPEST = 3  # levels of folders above the trees
_SHOWN = 60  # characters of a line in a message
_DIGITS = 10  # of the number of a frame


class ListedFrame(NamedTuple):
    """A line of a list: files relative to the trees.

    Attributes:
        image: ``DATE/DRIVE/image_02/data/FRAME.png``, in the raw tree.
        depth: ``DRIVE/proj_depth/groundtruth/image_02/FRAME.png``, in the depth tree; None if there is none.
        focal: Focal length in pixels; None if it is in the calibration of the date.
    """

    image: Path
    depth: Path | None
    focal: float | None

    @property
    def drive(self) -> str:
        """Name of the drive."""
        return self.image.parts[1]


def kitti_depth(
    root: str | os.PathLike[str],
    frame_list: str | os.PathLike[str],
    *,
    kind: str = "groundtruth",
    depth_root: str | os.PathLike[str] | None = None,
) -> list[DepthFrame]:
    """Frames of a list, in KITTI's trees as downloaded.

    The raw tree (``2011_09_26/2011_09_26_drive_0002_sync/image_02/data/...``) and the depth tree
    (``train/2011_09_26_drive_0002_sync/proj_depth/groundtruth/image_02/...``, also ``val/...``) are looked for in
    ``root`` and up to three levels below it, such as in ``kitti_raw`` and ``data_depth_annotated``. Images may have
    been converted to JPEG. Lines without a depth map (45 of the 697 of Eigen's test list) are left out; files that do
    not exist are reported in one warning.

    Args:
        root: Folder of the trees.
        frame_list: Text file with a line per frame: ``IMAGE DEPTH FOCAL`` as in BTS, where ``DEPTH`` may be ``None``,
            or ``FOLDER FRAME SIDE`` as in monodepth2.
        kind: ``"groundtruth"`` for KITTI's accumulated depth or ``"velodyne_raw"`` for single sweeps.
        depth_root: Folder of the depth tree, if not ``root``.

    Returns:
        Frames whose group is the drive. If ``proj_depth/sigma`` and ``proj_depth/truth`` lie beside the ground truth,
        frames name these maps as well.

    Raises:
        ValueError: A folder, the list or a calibration does not exist or is malformed, or all frames are missing.
    """
    listed = [(line, line.depth) for line in read_list(frame_list) if line.depth is not None]
    folders = _folder("root", root), _folder("depth_root", depth_root or root)
    images = _Tree(folders[0], {line.image.parts[0] for line, _ in listed})
    maps = _Tree(folders[1], {line.drive for line, _ in listed})
    frames, missing = [], []
    for line, listed_map in listed:
        image, depth = images.find(line.image, _IMAGES), maps.find(_of_kind(listed_map, KINDS[kind]))
        if image is None or depth is None:
            missing.append(line.image if image is None else _of_kind(listed_map, kind))
            continue
        focal = line.focal or images.focal(line.image)
        known = {name: maps.find(_of_kind(listed_map, name)) for name in ("sigma", "truth") if kind == "groundtruth"}
        frames.append(DepthFrame(image=image, depth=depth, group=line.drive, focal=focal, **known))
    _report_missing(frame_list, folders, len(listed), missing)
    return frames


def _report_missing(frame_list: Any, folders: Sequence[Path], count: int, missing: Sequence[Path]) -> None:
    if not count:
        raise ValueError(f"expected `frame_list` with frames that have a depth map, got {frame_list}, which has none")
    where = " and ".join(dict.fromkeys(map(str, folders)))
    if len(missing) == count:
        raise ValueError(f"expected the {count} frames of {frame_list} in {where}, got none (first: {missing[0]})")
    if missing:
        are = "1 is" if len(missing) == 1 else f"{len(missing)} are"
        message = f"expected {count} frames of {frame_list} in {where}, {are} missing (first: {missing[0]})"
        warnings.warn(message, stacklevel=3)


def _folder(name: str, path: str | os.PathLike[str]) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"expected `{name}` a folder of KITTI's trees, got {folder}, no folder")
    return folder


def _of_kind(depth: Path, kind: str) -> Path:
    """The map of another kind: ``DRIVE/proj_depth/KIND/CAMERA/FRAME.png``."""
    drive, projected, _, *rest = depth.parts
    return Path(drive, projected, kind, *rest)


class _Tree:
    """Folders in which the first folder of a relative path may lie; each folder is listed once, also if it is remote.

    Args:
        root: Folder to search, down to three levels below it, and not below a folder that has some.
        wanted: First folders of the paths.
    """

    def __init__(self, root: Path, wanted: set[str]) -> None:
        self._names: dict[Path, frozenset[str]] = {}
        self._focals: dict[Path, float] = {}
        self._bases: list[Path] = []
        level = [root]
        for _ in range(_DEEPEST + 1):
            bases = [folder for folder in level if wanted & self._listing(folder)]
            self._bases += bases
            others = [folder for folder in level if folder not in bases]
            level = [folder / name for folder in others for name in sorted(self._listing(folder)) if name[0] != "."]

    def find(self, relative: Path, suffixes: Sequence[str] = ()) -> Path | None:
        """A file, perhaps with another suffix; None if it does not exist."""
        for base in self._bases:
            path = base / relative
            for suffix in (path.suffix, *suffixes):
                if path.stem + suffix in self._listing(path.parent):
                    return path.with_suffix(suffix)
        return None

    def focal(self, image: Path) -> float:
        """Focal length of an image, from the calibration of its date."""
        path = self.find(Path(image.parts[0], CALIBRATION))
        if path is None:
            raise ValueError(f"expected {Path(image.parts[0], CALIBRATION)} beside the drives of {image}, got no file")
        camera = path.parent / image.parts[2]
        if camera not in self._focals:
            self._focals[camera] = focal_length(path, f"P_rect_{image.parts[2][-2:]}")
        return self._focals[camera]

    def _listing(self, folder: Path) -> frozenset[str]:
        if folder not in self._names:
            try:
                self._names[folder] = frozenset(entry.name for entry in folder.iterdir())
            except OSError:  # no folder, or one that may not be read
                self._names[folder] = frozenset()
        return self._names[folder]


def read_list(path: str | os.PathLike[str]) -> list[ListedFrame]:
    """Read a list of frames in the format of BTS or monodepth2.

    Raises:
        ValueError: The file cannot be read, or a line is malformed; the message names its number.
    """
    lines = read_text(path, "a list of frames").splitlines()
    return [_listed(line, f"line {number} of {path}") for number, line in enumerate(lines, start=1) if line.strip()]


def _listed(line: str, where: str) -> ListedFrame:
    fields = line.split()
    if len(fields) != 3:
        expected = "3 fields (IMAGE DEPTH FOCAL or FOLDER FRAME SIDE)"
        raise ValueError(f"expected {where} with {expected}, got {len(fields)}: {line.strip()[:_SHOWN]!r}")
    if fields[2] in _SIDES and Path(fields[0]).suffix not in _IMAGES:
        return _from_folder(fields[0], fields[1], _SIDES[fields[2]], where)
    image, depth = (Path(name.lstrip("/")) for name in fields[:2])
    if len(image.parts) != 5 or (fields[1] != _NO_DEPTH and len(depth.parts) != 5):
        paths = "DATE/DRIVE/image_02/data/FRAME.png DRIVE/proj_depth/groundtruth/image_02/FRAME.png"
        raise ValueError(f"expected {where} with {paths}, got {line.strip()[: 4 * _SHOWN]!r}")
    return ListedFrame(image, None if fields[1] == _NO_DEPTH else depth, _number(fields[2], where))


def _from_folder(folder: str, frame: str, camera_number: str, where: str) -> ListedFrame:
    parts = Path(folder).parts
    if len(parts) != 2 or not frame.isdecimal() or len(frame) > _DIGITS:
        raise ValueError(f"expected {where} with DATE/DRIVE and a frame number, got {folder[:_SHOWN]} {frame[:_SHOWN]}")
    camera, name = f"image_{camera_number}", f"{int(frame):0{_DIGITS}d}.png"
    depth = Path(parts[1], "proj_depth", "groundtruth", camera, name)
    return ListedFrame(Path(folder, camera, "data", name), depth, None)


def _number(text: str, where: str) -> float:
    try:
        return check_number("focal", float(text), low=1.0, high=1e5)
    except ValueError:
        raise ValueError(f"expected {where} with a focal length in pixels, got {text[:_SHOWN]!r}") from None


def focal_length(path: str | os.PathLike[str], matrix: str) -> float:
    """Focal length in pixels from a projection matrix of a calibration file of KITTI.

    Args:
        path: Lines of a name, a colon and numbers.
        matrix: Name of the matrix, 3 x 4: ``"P_rect_02"`` of raw data, ``"P2"`` of object data.

    Raises:
        ValueError: The file cannot be read, or has no such matrix.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # the second for other bytes than UTF-8, and for an impossible name
        raise ValueError(f"expected {path} a calibration of KITTI, got: {error}") from None
    values = next((line.split()[1:] for line in text.splitlines() if line.startswith(f"{matrix}:")), [])
    if len(values) != 12:
        raise ValueError(f"expected {path} with 12 numbers after {matrix}:, got {len(values)}")
    return _number(values[0], f"{matrix} of {path}")


@dataclass(frozen=True, kw_only=True)
class KittiDepthConfig:
    """Options of the data ``"kitti-depth"``.

    Args:
        root: Folder of the trees; see :func:`kitti_depth`.
        train_list: List of frames to train on.
        test_list: List of frames to test on.
        validation_list: List of frames to validate on. If empty, every tenth drive of ``train_list`` in the order of
            their names is left out of training for it (the last of fewer than ten): of Eigen's list 2011_09_26 drives
            0028 and 0087 and 2011_09_30 drive 0033, 2723 of 23158 frames.
        depth_root: Folder of the depth tree, if not ``root``.
        kind: ``"groundtruth"`` or ``"velodyne_raw"``.
        size: Height and width of items.
        focal: Focal length of all items in pixels; 0 resizes each frame whatever its own.
        crop: ``"kb"``, or empty for the whole image.
        garg: Whether frames to validate and to test on count in the region of Garg et al. only.
        cache: Keep frames in memory.
    """

    root: str
    train_list: str
    test_list: str
    validation_list: str = ""
    depth_root: str = ""
    kind: str = "groundtruth"
    size: list[int] = field(default_factory=lambda: [352, 1216])
    focal: float = FOCAL
    crop: str = "kb"
    garg: bool = True
    cache: bool = False

    def __post_init__(self) -> None:
        KINDS[self.kind]
        self.views()

    def views(self) -> tuple[DepthView, DepthView]:
        """What items show of frames to train on, and of all others."""
        return views(self.size, self.focal, garg=self.garg, crop=self.crop or None)


def views(size: Sequence[int], focal: float, *, garg: bool, crop: str | None = None) -> tuple[DepthView, DepthView]:
    """Views of training and of evaluation; ``garg`` applies to the second."""
    both: dict[str, Any] = {"size": tuple(size), "focal": focal or None, "crop": crop}
    return DepthView(**both), DepthView(**both, garg=garg)


def kitti_depth_splits(**options: Any) -> DepthSplits:
    """Data for training by name, from the options of :class:`KittiDepthConfig`."""
    config = config_from(options, KittiDepthConfig, source="data.options")

    def frames(name: str) -> list[DepthFrame]:
        return kitti_depth(config.root, name, kind=config.kind, depth_root=config.depth_root or None)

    train, test = frames(config.train_list), frames(config.test_list)
    if config.validation_list:
        validation = frames(config.validation_list)
    else:
        drives = validation_drives(frame.group for frame in train)
        validation = [frame for frame in train if frame.group in drives]
        train = [frame for frame in train if frame.group not in drives]
    splits = FrameSplits(train=tuple(train), validation=tuple(validation), test=tuple(test))
    return splits.datasets(*config.views(), cache=config.cache)


def validation_drives(drives: Iterable[str]) -> list[str]:
    """Every tenth drive in the order of their names; the last of fewer than ten.

    Raises:
        ValueError: There is a single drive.

    Example:
        >>> validation_drives(["b", "a", "b", "c"])
        ['c']
    """
    names = sorted(set(drives))
    if len(names) < 2:
        raise ValueError(f"expected `validation_list`, or training frames of at least 2 drives, got {len(names)}")
    return names[9::10] or names[-1:]
