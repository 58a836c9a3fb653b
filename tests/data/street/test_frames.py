"""Frames: the same everywhere, drives share a street, objects agree with the maps and with their 3-D boxes."""

import hashlib
import os
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import torch
from numpy._core import _multiarray_umath

from fcal.data.street import StreetConfig, StreetFrame, street_frame

STREETS = StreetConfig(frames=40, frames_per_drive=4, seed=5)
LARGE = StreetConfig(frames=12, frames_per_drive=1, seed=8, height=188, width=621, antialiasing=False)
ARRAYS = ("image", "depth", "measured", "sigma", "instances", "labels")
DIGEST = """
import hashlib, sys
from fcal.data.street import StreetConfig, street_frame
import numpy
frames = [street_frame(StreetConfig(frames=40, frames_per_drive=4, seed=5), k) for k in map(int, sys.argv[1:])]
for frame in frames:
    arrays = [getattr(frame, name).tobytes() for name in ("image", "depth", "measured", "sigma", "instances", "labels")]
    print(hashlib.sha256(b"".join(arrays)).hexdigest())
values = numpy.linspace(1, 9, 1001)
print(hashlib.sha256(numpy.exp(values).tobytes() + numpy.sin(values.astype("f4")).tobytes()).hexdigest())
"""


@cache
def frames(config: StreetConfig) -> list[StreetFrame]:
    return [street_frame(config, index) for index in range(config.frames)]


def digest(frame: StreetFrame) -> str:
    return hashlib.sha256(b"".join(getattr(frame, name).tobytes() for name in ARRAYS)).hexdigest()


def digests(*indices: int, **environment: str) -> list[str]:
    command = [sys.executable, "-W", "error", "-c", DIGEST, *map(str, indices)]
    run = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return run.stdout.split()


def test_frame_of_another_process_without_vector_instructions_has_the_same_bytes():
    features = _multiarray_umath.__cpu_features__
    extra = [name for name in _multiarray_umath.__cpu_dispatch__ if features.get(name)]
    if not extra or torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this processor has no vector instructions that could be switched off")
    plain = digests(0, 9, 22, ATEN_CPU_CAPABILITY="default", NPY_DISABLE_CPU_FEATURES=" ".join(extra))
    usual = digests(0, 9, 22)
    assert usual[-1] != plain[-1]  # else the switch had no effect
    assert usual[:-1] == plain[:-1] == [digest(street_frame(STREETS, index)) for index in (0, 9, 22)]


def test_frame_does_not_depend_on_frames_rendered_before():
    before = digest(street_frame(STREETS, 13))
    for index in (0, 5, 30, 35, 39):
        street_frame(STREETS, index)
    assert digest(street_frame(STREETS, 13)) == before


def test_frame_does_not_depend_on_the_number_of_frames():
    assert digest(street_frame(StreetConfig(frames=14, frames_per_drive=4, seed=5), 13)) == digest(frames(STREETS)[13])


def test_frames_and_seeds_differ():
    images = [frame.image.tobytes() for frame in frames(STREETS)] + [
        street_frame(StreetConfig(seed=6), 0).image.tobytes()
    ]
    assert len(set(images)) == len(images)


def test_frames_of_a_drive_show_the_same_street():
    """Images correlate within a drive, and hardly across drives."""
    pixels = np.stack([frame.image.mean(axis=2).ravel() for frame in frames(STREETS)])
    correlation = np.corrcoef(pixels - pixels.mean(axis=0))
    drive = np.arange(40) // 4
    within = correlation[(drive[:, None] == drive) & ~np.eye(40, dtype=bool)].mean()
    across = correlation[drive[:, None] != drive].mean()
    assert within > across + 0.3
    assert len({frame.drive for frame in frames(STREETS)}) == 10


def test_camera_moves_forward_through_a_drive():
    """What stands still comes nearer."""
    first, second = frames(STREETS)[0], frames(STREETS)[1]
    ahead = {each.number: each.location[2] for each in first.objects}
    nearer = [ahead[each.number] - each.location[2] for each in second.objects if each.number in ahead]
    assert np.median(nearer) > 0.5


def test_antialiasing_leaves_depth_and_labels_as_they_are():
    smooth, sharp = (
        street_frame(STREETS, 3),
        street_frame(StreetConfig(frames=40, frames_per_drive=4, seed=5, antialiasing=False), 3),
    )
    for name in ("instances", "labels"):
        assert (getattr(smooth, name) == getattr(sharp, name)).mean() > 0.999
    np.testing.assert_allclose(smooth.depth, sharp.depth, rtol=1e-4)
    assert (smooth.image != sharp.image).mean() > 0.1


def test_boxes_of_objects_are_the_extent_of_the_instance_map():
    count = 0
    for frame in frames(STREETS):
        assert {each.number for each in frame.objects} == set(np.unique(frame.instances)) - {0}
        for each in frame.objects:
            rows, columns = np.nonzero(frame.instances == each.number)
            assert each.box == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            assert each.pixels == len(rows)
            left, top, right, bottom = each.full_box
            assert left <= each.box[0] < each.box[2] <= right
            assert top <= each.box[1] < each.box[3] <= bottom
            assert 0 <= each.occluded < 1
            assert (each.occluded > 0) or each.full_box == each.box
            count += 1
    assert count > 200


def corners_of(each, config: StreetConfig) -> np.ndarray:
    """Corners of the 3-D box in pixels, by KITTI's definition of a label. Shape ``(8, 2)``."""
    height, width, length = each.size
    x = np.array([1, 1, -1, -1] * 2) * length / 2
    y = np.array([0] * 4 + [-1] * 4) * height
    z = np.array([1, -1, -1, 1] * 2) * width / 2
    c, s = np.cos(each.yaw), np.sin(each.yaw)
    points = np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]]) @ np.stack([x, y, z]) + np.array(each.location)[:, None]
    if points[2].min() < 0.5:
        return np.full((8, 2), np.nan)
    across, down = config.principal_point
    return (
        np.stack([config.focal * points[0] / points[2] + across, config.focal * points[1] / points[2] + down], 1) + 0.5
    )


def test_projected_3d_boxes_enclose_the_boxes_of_objects():
    kinds = set()
    for frame in frames(LARGE):
        for each in frame.objects:
            corners = corners_of(each, LARGE)
            left, top, right, bottom = each.full_box
            if np.isnan(corners).any() or each.truncated > 0 or bottom - top < 15:
                continue
            low, high = corners.min(axis=0), corners.max(axis=0)
            slack = 2 + 0.03 * (bottom - top)  # the camera is pitched, the box is not; hair, mirrors and lids
            assert (np.array([left, top]) >= low - slack).all()
            assert (np.array([right, bottom]) <= high + slack).all()
            overlap = (right - left) * (bottom - top) / np.prod(high - low)
            assert overlap > 0.45
            kinds.add(each.kind)
    assert {"Car", "Pedestrian"} <= kinds


def test_truncated_objects_are_those_whose_projection_leaves_the_image():
    shares = []
    for frame in frames(LARGE):
        for each in frame.objects:
            corners = corners_of(each, LARGE)
            if np.isnan(corners).any():
                continue
            low, high = corners.min(axis=0), corners.max(axis=0)
            kept = np.clip(np.minimum(high, [621, 188]) - np.maximum(low, 0), 0, None)
            assert abs(each.truncated - (1 - np.prod(kept) / np.prod(high - low))) < 0.05
            shares.append(each.truncated)
    assert min(shares) == 0
    assert max(shares) > 0.3


def test_depth_of_an_object_is_around_its_location():
    for frame in frames(LARGE)[:4]:
        for each in frame.objects:
            depth = frame.depth[frame.instances == each.number]
            reach = 0.6 * np.hypot(each.size[1], each.size[2]) + 0.1
            assert abs(depth - each.location[2]).max() < reach


def test_facing_agrees_with_normals_of_neighbouring_points():
    """The cross product of differences of back-projected pixels, inside of flat surfaces."""
    frame, (across, down), focal = frames(LARGE)[2], LARGE.principal_point, LARGE.focal
    v, u = np.mgrid[0:188, 0:621]
    rays = np.stack([(u - across) / focal, (v - down) / focal, np.ones(u.shape)], axis=-1)
    points = rays * np.where(np.isinf(frame.depth), 0, frame.depth)[..., None].astype(float)
    normal = np.cross(points[1:-1, 2:] - points[1:-1, :-2], points[2:, 1:-1] - points[:-2, 1:-1])
    length = np.linalg.norm(normal, axis=-1) * np.linalg.norm(rays[1:-1, 1:-1], axis=-1)
    cosine = np.abs((normal * rays[1:-1, 1:-1]).sum(-1)) / np.maximum(length, 1e-12)
    labels = frame.labels
    same = np.ones((186, 619), bool)
    for part in (labels[:-2, 1:-1], labels[2:, 1:-1], labels[1:-1, :-2], labels[1:-1, 2:]):
        same &= part == labels[1:-1, 1:-1]
    for label, least in ((7, 3000), (11, 1000)):  # road, building
        inside = same & (labels[1:-1, 1:-1] == label) & (frame.depth[1:-1, 1:-1] < 40)
        error = np.abs(cosine - frame.facing[1:-1, 1:-1])[inside]
        assert inside.sum() > least
        assert np.quantile(error, 0.9) < 0.01


def test_image_looks_like_its_labels():
    """Sky is brighter than the road, grass is greener than walls; a constant image would not do."""
    image = np.concatenate([frame.image.reshape(-1, 3) for frame in frames(STREETS)]).astype(float)
    labels = np.concatenate([frame.labels.ravel() for frame in frames(STREETS)])
    mean = {
        name: image[labels == number].mean(axis=0)
        for name, number in {"road": 7, "sky": 23, "grass": 22, "wall": 11}.items()
    }
    assert mean["sky"].mean() > mean["road"].mean() + 30
    green = {name: colour[1] - colour[[0, 2]].mean() for name, colour in mean.items()}
    assert green["grass"] > green["wall"] + 10


def test_camera_is_that_of_kitti_at_its_size():
    config = StreetConfig(height=375, width=1242)
    assert config.focal == 721.5377
    np.testing.assert_allclose(config.principal_point, (609.5593, 172.854))
    half = StreetConfig(height=188, width=621)  # the middle of pixel i is i + 0.5 from the left edge
    np.testing.assert_allclose(half.principal_point[0] + 0.5, (609.5593 + 0.5) / 2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"frames": 0}, ValueError, "expected `frames` >= 1, got 0"),
        ({"seed": -1}, ValueError, "expected `seed` >= 0"),
        ({"frames": 10_000, "frames_per_drive": 1}, ValueError, "expected `frames` of at most 9999 drives of 1 frames"),
        ({"width": 10.5}, TypeError, "expected `width` an int"),
        ({"antialiasing": 1}, TypeError, "expected `antialiasing` a bool"),
        ({"lidar": {"density": 1}}, TypeError, "expected `lidar` a LidarConfig, got dict"),
    ],
)
def test_config_refuses_what_cannot_be_rendered(options, error, message):
    with pytest.raises(error, match=message):
        StreetConfig(**options)


@pytest.mark.parametrize(("index", "error"), [(40, IndexError), (-1, IndexError), (True, TypeError), (1.0, TypeError)])
def test_frame_refuses_a_number_that_it_does_not_have(index, error):
    with pytest.raises(error, match="expected `index`"):
        street_frame(STREETS, index)
