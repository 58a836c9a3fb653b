"""KITTI's layouts: raw drives with projected depth, and frames for object detection."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fcal.data.street.frames import StreetConfig, StreetFrame, StreetObject, drive_name
from fcal.data.street.layouts import Layout, indices_of, png, split_of
from fcal.data.street.lidar import SIGMA_STEP

DEPTH_SCALE = 256  # of a depth image, per metre; 0 means none
SIGMA_SCALE = round(1 / SIGMA_STEP)  # 4096 per metre
_DATE = "2011_09_26"
_FIRST = 5  # KITTI has no depth for the first frames of a drive
_ROOTS = {"train": "train", "validation": "val", "test": "val"}
_LISTS = {"train": "eigen_train", "validation": "eigen_val", "test": "eigen_test"}
_LARGEST = 2**16 - 1
_SMALLEST = 4  # pixels of height below which an object is DontCare
_HIDDEN = 0.9  # share of an object above which it is DontCare

_DEPTH_README = """A world of rendered streets, made by `fcal data street`. No frame of it was taken with a camera.

2011_09_26/                                  images and calibration, as in KITTI's raw data
train/, val/                                 depth, as in KITTI's depth data; val holds validation and test drives
  DRIVE/proj_depth/groundtruth/image_02/     measured depth: 16 bits, metres * 256, 0 for none
  DRIVE/proj_depth/velodyne_raw/image_02/    a quarter of the same measurements
  DRIVE/proj_depth/truth/image_02/           true depth of every pixel: 16 bits, metres * 256, 0 for the sky
  DRIVE/proj_depth/sigma/image_02/           true standard deviation of the measured depth: 16 bits, metres * 4096
eigen_{train,val,test}_files_with_gt.txt     image, depth and focal length of every frame
street.toml                                  what was rendered

Measured depth is normal around the true depth with this sigma; which pixels are measured does not depend on the noise.
"""
_OBJECT_README = """A world of rendered streets, made by `fcal data street`. No frame of it was taken with a camera.

training/{image_2,label_2,calib}/   as in KITTI's object data; boxes are those of whole objects, whatever hides them
ImageSets/{train,val,test}.txt      frames of training, validation and test drives, all of them in training/
devkit/mapping/                     drive and number of every frame, as in KITTI's development kit
street.toml                         what was rendered
"""


def _stem(config: StreetConfig, index: int) -> tuple[str, str]:
    drive, within = divmod(index, config.frames_per_drive)
    return drive_name(drive), f"{within + _FIRST:010d}.png"


def _image_name(config: StreetConfig, index: int) -> str:
    drive, file = _stem(config, index)
    return f"{_DATE}/{drive}/image_02/data/{file}"


def _depth_name(config: StreetConfig, index: int, kind: str) -> str:
    drive, file = _stem(config, index)
    return f"{drive}/proj_depth/{kind}/image_02/{file}"


def _depth_names(config: StreetConfig, index: int) -> list[str]:
    root = _ROOTS[split_of(config, index)]
    kinds = ("groundtruth", "velodyne_raw", "truth", "sigma")
    return [_image_name(config, index), *(f"{root}/{_depth_name(config, index, kind)}" for kind in kinds)]


def _depth_contents(config: StreetConfig, index: int, frame: StreetFrame) -> list[bytes]:  # noqa: ARG001
    sigma = np.where(np.isfinite(frame.depth), frame.sigma, 0.0)
    return [
        png(frame.image),
        png(depth_pixels(frame.measured)),
        png(depth_pixels(np.where(_is_in_sweep(frame.measured), frame.measured, np.nan))),
        png(depth_pixels(frame.depth)),
        png(np.round(sigma.astype(np.float64) * SIGMA_SCALE).clip(0, _LARGEST).astype(np.uint16)),
    ]


def depth_pixels(depth: NDArray[np.floating]) -> NDArray[np.uint16]:
    """Depth as KITTI stores it: metres times 256, and 0 where there is none or more than 255 m.

    Example:
        >>> depth_pixels(np.array([1.0, np.nan, np.inf]))
        array([256,   0,   0], dtype=uint16)
    """
    is_known = depth < _LARGEST / DEPTH_SCALE  # neither NaN nor infinite
    return np.round(np.where(is_known, depth, 0.0).astype(np.float64) * DEPTH_SCALE).astype(np.uint16)


def _is_in_sweep(measured: NDArray[np.float32]) -> NDArray[np.bool_]:
    """A quarter of the pixels: every second one on every second scan line."""
    lines = np.cumsum(np.isfinite(measured).any(axis=1))[:, None]
    in_sweep: NDArray[np.bool_] = (lines % 2 == 0) & ((np.arange(measured.shape[1]) + lines // 2) % 2 == 0)
    return in_sweep


def _depth_before(config: StreetConfig) -> dict[str, str]:
    return {
        "README.txt": _DEPTH_README,
        f"{_DATE}/calib_cam_to_cam.txt": _camera_calibration(config),
        f"{_DATE}/calib_velo_to_cam.txt": "R: 0 -1 0 0 0 -1 1 0 0\nT: 0 0 0\n",
    }


def _depth_lists(config: StreetConfig) -> dict[str, str]:
    def line(index: int) -> str:
        return f"{_image_name(config, index)} {_depth_name(config, index, 'groundtruth')} {config.focal:.4f}\n"

    return {
        f"{name}_files_with_gt.txt": "".join(map(line, indices_of(config, split))) for split, name in _LISTS.items()
    }


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:.12e}" for value in values)


def _projection(config: StreetConfig) -> list[float]:
    (across, down), focal = config.principal_point, config.focal
    return [focal, 0.0, across, 0.0, 0.0, focal, down, 0.0, 0.0, 0.0, 1.0, 0.0]


def _camera_calibration(config: StreetConfig) -> str:
    """One camera in the place of all four: its images are rectified and free of distortion."""
    projection = _projection(config)
    matrix = [*projection[:3], *projection[4:7], *projection[8:11]]
    identity, size = (1, 0, 0, 0, 1, 0, 0, 0, 1), (config.width, config.height)
    lines = ["calib_time: 26-Sep-2011 00:00:00", f"corner_dist: {_numbers([0.0995])}"]
    for camera in range(4):
        entries = {"S": size, "K": matrix, "D": (0,) * 5, "R": identity, "T": (0,) * 3}
        rectified = {"S_rect": size, "R_rect": identity, "P_rect": projection}
        lines += [f"{name}_{camera:02d}: {_numbers(values)}" for name, values in (entries | rectified).items()]
    return "\n".join(lines) + "\n"


# Object detection


def _object_names(config: StreetConfig, index: int) -> list[str]:  # noqa: ARG001
    return [
        f"training/{folder}/{index:06d}.{kind}"
        for folder, kind in (("image_2", "png"), ("label_2", "txt"), ("calib", "txt"))
    ]


def _object_contents(config: StreetConfig, index: int, frame: StreetFrame) -> list[bytes]:  # noqa: ARG001
    labels = "".join(f"{label_line(each)}\n" for each in frame.objects)
    return [png(frame.image), labels.encode(), _object_calibration(config).encode()]


def label_line(found: StreetObject) -> str:
    """An object as a line of KITTI's labels; tiny and hidden ones are ``DontCare``.

    Pixels of a box are counted from 0 and belong to it, the last ones included.
    """
    left, top, right, bottom = found.full_box
    box = f"{left:.2f} {top:.2f} {right - 1:.2f} {bottom - 1:.2f}"
    if bottom - top < _SMALLEST or found.occluded > _HIDDEN:
        return f"DontCare -1 -1 -10 {box} -1 -1 -1 -1000 -1000 -1000 -10"
    x, y, z = found.location
    alpha = math.remainder(found.yaw - math.atan2(x, z), 2 * math.pi)
    metres = " ".join(f"{value:.2f}" for value in (*found.size, x, y, z, found.yaw))
    return f"{found.kind} {found.truncated:.2f} {found.occlusion} {alpha:.2f} {box} {metres}"


def _object_calibration(config: StreetConfig) -> str:
    lines = [f"P{camera}: {_numbers(_projection(config))}" for camera in range(4)]
    lines.append(f"R0_rect: {_numbers((1, 0, 0, 0, 1, 0, 0, 0, 1))}")
    lines.append(f"Tr_velo_to_cam: {_numbers((0, -1, 0, 0, 0, 0, -1, 0, 1, 0, 0, 0))}")
    lines.append(f"Tr_imu_to_velo: {_numbers((1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0))}")
    return "\n".join(lines) + "\n\n"


def _object_before(config: StreetConfig) -> dict[str, str]:  # noqa: ARG001
    return {"README.txt": _OBJECT_README}


def _object_lists(config: StreetConfig) -> dict[str, str]:
    names = {split: [f"{index:06d}\n" for index in indices_of(config, split)] for split in _LISTS}
    mapping = []
    for index in range(config.frames):
        drive, file = _stem(config, index)
        mapping.append(f"{_DATE} {drive} {file.removesuffix('.png')}\n")
    return {
        "devkit/mapping/train_mapping.txt": "".join(mapping),
        "devkit/mapping/train_rand.txt": ",".join(str(index + 1) for index in range(config.frames)) + "\n",
        "ImageSets/train.txt": "".join(names["train"]),
        "ImageSets/val.txt": "".join(names["validation"]),
        "ImageSets/trainval.txt": "".join(names["train"] + names["validation"]),
        "ImageSets/test.txt": "".join(names["test"]),
    }


KITTI_DEPTH = Layout(names=_depth_names, contents=_depth_contents, before=_depth_before, lists=_depth_lists)
KITTI_OBJECT = Layout(names=_object_names, contents=_object_contents, before=_object_before, lists=_object_lists)
