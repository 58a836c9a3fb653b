"""Rays meet what an independent computation, one ray at a time, says that they meet."""

import numpy as np
import pytest
from data.street.brute_force import meets, world_rays

from fcal.data.street.casting import Camera, ThingFrames, cast
from fcal.data.street.scene import FRAME_SECONDS, draw_drive
from fcal.data.street.solids import Look, Quadric, Thing, box, cut, solid_table
from fcal.data.street.things import Draws, car, cyclist, house, lamp, lorry, pedestrian, sign, tree, van

LOOK = Look("building", (0.5, 0.5, 0.5))


def camera(pitch: float = 0.05, angle: float = 0.3, size: tuple[int, int] = (24, 60), stride: int = 1) -> Camera:
    focal = 0.58 * size[1]
    rows = (np.arange(size[0]) - 0.45 * size[0]) / focal
    columns = (np.arange(size[1]) - 0.5 * size[1] + 0.3) / focal
    return Camera(
        position=(1.0, 1.65, -2.0),
        heading=(np.sin(angle), np.cos(angle)),
        pitch=pitch,
        rows=rows,
        columns=columns,
        stride=stride,
    )


def pose(x: float, z: float, angle: float) -> np.ndarray:
    return np.array([x, z, np.sin(angle), np.cos(angle)])


def sight_of(things: list[Thing], poses: list[np.ndarray], view: Camera):
    table, poses = solid_table(tuple(things)), np.array(poses).reshape(-1, 4)
    return cast(table, ThingFrames(table, poses, view), view)


def slow_depth(things: list[Thing], poses: list[np.ndarray], view: Camera) -> np.ndarray:
    rays, start = world_rays(view), np.array(view.position)
    ground = np.where(rays[..., 1] < 0, view.position[1] / np.maximum(-rays[..., 1], 1e-12), np.inf)
    things_depth = [
        [min((meets(t, p, start, ray) for t, p in zip(things, poses, strict=True)), default=np.inf) for ray in row]
        for row in rays
    ]
    return np.minimum(ground, np.array(things_depth))


@pytest.mark.parametrize("pitch", [-0.1, 0.0, 0.07])
def test_depth_of_the_ground_is_height_over_the_downward_slope_of_the_ray(pitch):
    view = camera(pitch)
    angle = np.arcsin(pitch)
    down = np.sin(np.arctan(view.rows) + angle) / np.cos(np.arctan(view.rows))  # of (0, v, 1) turned by the pitch
    inverse = sight_of([], [], view).inverse
    np.testing.assert_allclose(
        inverse, np.repeat(np.maximum(down, 0)[:, None] / 1.65, 60, axis=1), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("turn", [0.0, 0.4, -2.0])
def test_depth_of_a_box_is_that_of_slabs(turn):
    view, things = camera(), [Thing((box((-1.5, 0.2, -2.0), (1.0, 2.5, 2.0), LOOK),))]
    poses = [pose(3.0, 7.0, turn)]
    assert_same_depth(sight_of(things, poses, view), slow_depth(things, poses, view))


@pytest.mark.parametrize("is_cylinder", [False, True])
@pytest.mark.parametrize("away", [4.0, 40.0])
def test_depth_of_a_quadric_is_the_smaller_root(is_cylinder, away):
    things = [Thing((Quadric((0.3, 1.5, -0.2), (1.0, 1.2, 0.6), LOOK, is_cylinder=is_cylinder),))]
    view, poses = camera(size=(60, 150)), [pose(1.0 + 0.3 * away, -2.0 + away, 0.7)]
    assert_same_depth(sight_of(things, poses, view), slow_depth(things, poses, view))


def assert_same_depth(sight, slow):
    """Rays that graze an edge may differ: at most one of the few hundred that meet something."""
    with np.errstate(divide="ignore"):
        depth = 1 / sight.inverse.astype(np.float64)
    differs = ~np.isclose(depth, slow, rtol=2e-5)
    assert (sight.surface > 1).sum() > 5
    assert differs.sum() <= 1


@pytest.mark.parametrize("make", [car, van, lorry, pedestrian, cyclist, tree, lamp, sign])
def test_depth_of_every_kind_of_thing_is_that_of_single_rays(make):
    things = [make(Draws(5, 1))]
    view, poses = camera(size=(30, 90)), [pose(3.5, 5.0, 2.2)]
    assert_same_depth(sight_of(things, poses, view), slow_depth(things, poses, view))


def test_depth_of_a_house_with_a_ridge_is_that_of_single_rays():
    things = [house(Draws(5, 1), 10.0, 2, flat=False)]
    view, poses = camera(pitch=-0.1), [pose(8.0, 16.0, 2.8)]
    assert_same_depth(sight_of(things, poses, view), slow_depth(things, poses, view))


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_rays_of_whole_streets_meet_the_nearest_thing(number):
    drive = draw_drive(9, number, 10)
    poses, view = drive.poses(3 * FRAME_SECONDS), camera(pitch=0.01, angle=0.0, size=(64, 208))
    sight = cast(drive.table, ThingFrames(drive.table, poses, view), view)
    rays, start = world_rays(view), np.array(view.position)
    chosen = np.random.default_rng(number).integers(0, (64, 208), (60, 2))
    wrong = 0
    for row, column in chosen:
        ray = rays[row, column]
        depths = np.array([meets(t, p, start, ray) for t, p in zip(drive.table.things, poses, strict=True)])
        depths[depths > 98] = np.inf  # things farther than 100 m are left out
        ground = view.position[1] / -ray[1] if ray[1] < 0 else np.inf
        expected = min(ground, depths.min())
        thing = -1 if ground <= depths.min() else int(depths.argmin())
        inverse, surface = sight.inverse[row, column], sight.surface[row, column]
        same = np.isclose(inverse, 1 / expected, rtol=1e-4) and drive.table.thing[surface] == thing
        wrong += not (same or inverse < 1 / 95)
    assert wrong <= 1  # a ray along an edge


def test_extent_of_a_hidden_object_is_that_of_the_object_alone():
    things = [car(Draws(1, 0)), car(Draws(1, 1)), Thing((box((-3, 0, -0.2), (3, 1.0, 0.2), LOOK),))]
    poses = [pose(4.0, 12.0, 0.1), pose(7.0, 20.0, 0.2), pose(4.0, 8.0, 0.0)]
    view = camera(size=(64, 208))
    together = sight_of(things, poses, view)
    for number in (0, 1):
        alone = sight_of([things[number]], [poses[number]], view)
        rows, columns = np.nonzero(alone.surface > 1)
        assert together.extents[number].box == (rows.min(), rows.max() + 1, columns.min(), columns.max() + 1)
        assert together.extents[number].pixels >= len(rows)  # the ground hides nothing of the extent
        assert together.extents[number].pixels <= 1.02 * len(rows)
    visible = np.isin(solid_table(tuple(things)).thing[together.surface], [0]).sum()
    assert 0 < visible < 0.8 * together.extents[0].pixels


def test_cut_removes_what_lies_beyond_the_plane():
    whole = box((0, 0, 0), (1, 1, 1), LOOK)
    assert len(cut(whole, (0.5, 0.5, 0.5), (1, 1, 0), LOOK).faces) == 7
    corner = cut(whole, (0.5, 0.5, 0.5), (1, 1, 0), LOOK)
    inside = [
        all(np.dot(face.normal, point) <= face.offset for face in corner.faces)
        for point in ((0.4, 0.4, 0.5), (0.6, 0.6, 0.5))
    ]
    assert inside == [True, False]
