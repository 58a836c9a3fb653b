"""Small trees of images and depth maps in KITTI's layouts, for tests that need no data."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from fcal.data import DepthFrame

DATA = Path(os.environ.get("FCAL_DATA", Path(__file__).parents[1] / "../shared/data"))  # where real frames may be
CALIBRATION = "P_rect_02: {focal} 0 12 0 0 {focal} 8 0 0 0 1 0\nP_rect_03: {other} 0 12 0 0 {other} 8 0 0 0 1 0\n"


def write_image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def write_map(path, metres, unit=256):
    """A map of 16 bits."""
    return write_image(path, np.round(np.asarray(metres) * unit).astype(np.uint16))


def noise_image(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size=(*shape, 3), dtype=np.uint8)


def sparse_depth(shape, seed=0, share=0.2, nearest=1.0, farthest=90.0):
    """Depths in steps of 1/256 m at some pixels, 0 elsewhere."""
    rng = np.random.default_rng(seed)
    depth = np.round(rng.uniform(nearest, farthest, size=shape) * 256) / 256
    return np.where(rng.random(shape) < share, depth, 0.0)


def write_frame(folder, name="0", shape=(16, 24), *, focal=20.0, group="drive", depth=None, image=None, seed=0):
    """An image of noise and a sparse depth map."""
    image = noise_image(shape, seed) if image is None else image
    depth = sparse_depth(shape, seed, farthest=70.0) if depth is None else depth
    return DepthFrame(
        image=write_image(folder / "image" / f"{name}.png", image),
        depth=write_map(folder / "depth" / f"{name}.png", depth),
        group=group,
        focal=focal,
    )


def write_frames(folder, count, **options):
    return [write_frame(folder, f"{number:03d}", group=f"drive {number // 4}", seed=number, **options)
            for number in range(count)]  # fmt: skip


def bts_line(drive, number, focal=721.5377, depth=True):
    name = f"{number:010d}.png"
    depth_map = f"{drive}/proj_depth/groundtruth/image_02/{name}" if depth else "None"
    return f"{drive[:10]}/{drive}/image_02/data/{name} {depth_map} {focal}"


def write_kitti(folder, drives, frames=2, *, raw="", depth="", split="train", camera="image_02", shape=(16, 24),
                kinds=("groundtruth",), suffix=".png"):  # fmt: skip
    """KITTI's raw and depth trees of small frames; returns the lines of a list in the format of BTS."""
    lines = []
    for drive in drives:
        date = folder / raw / drive[:10]
        for number in range(frames):
            name = f"{number:010d}"
            write_image(date / drive / camera / "data" / (name + suffix), noise_image(shape, number))
            for kind in kinds:
                unit = 4096 if kind == "sigma" else 256
                path = folder / depth / split / drive / "proj_depth" / kind / camera / f"{name}.png"
                write_map(path, sparse_depth(shape, number, nearest=1.0, farthest=15.0), unit)
            lines.append(bts_line(drive, number))
        (date / "calib_cam_to_cam.txt").write_text(CALIBRATION.format(focal=721.5377, other=700.25))
    return lines


def write_list(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))
    return path
