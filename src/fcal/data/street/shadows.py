"""Shadows on the ground.

The shadow of a box on the ground is a hexagon: its ground plan, extended along the light. A point lies inside if it
satisfies six linear inequalities, which are linear in the coordinates of rays as well (see ``casting``).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fcal.data.street.casting import Camera, Floats, ThingFrames, outer_sums, rectangles_of
from fcal.data.street.solids import SolidTable, Vector

_SOFTNESS = 0.12  # metres from the edge of a shadow to its full darkness
_BLUR = 0.08  # the same, additionally for each metre of height
_CONTACT = 0.35  # metres over which the ground darkens below a vehicle


@dataclass(frozen=True, kw_only=True)
class Light:
    """How much light reaches the ground, between 0 and 1.

    Args:
        sun: Share of the sunlight. Shape ``(R, C)``.
        sky: Share of the light from the sky. Shape ``(R, C)``.
        things: Share of the sunlight at things, which stand in the shadow of others. Shape ``(T,)``.
    """

    sun: NDArray[np.float32]
    sky: NDArray[np.float32]
    things: NDArray[np.float32]


def ground_light(
    table: SolidTable,
    frames: ThingFrames,
    poses: Floats,
    camera: Camera,
    sun: Vector,
    *,
    is_sunny: bool,
    is_ground: NDArray[np.bool_],
) -> Light:
    """Light that reaches things, and the ground where it is seen.

    Args:
        table: The solids.
        frames: The things as the camera sees them.
        poses: The x, z, sine and cosine of things. Shape ``(T, 4)``.
        camera: The camera.
        sun: Unit vector towards the sun.
        is_sunny: Whether there are shadows of the sun.
        is_ground: Whether rays meet the ground; light elsewhere is not computed. Shape ``(R, C)``.
    """
    shape = len(camera.rows), len(camera.columns)
    light = Light(
        sun=np.ones(shape, np.float32), sky=np.ones(shape, np.float32), things=np.ones(len(poses), np.float32)
    )
    boxes = [(number, *cast) for number, thing in enumerate(table.things) for cast in thing.casts]
    if is_sunny:
        hexagons = _Hexagons(boxes, poses, sun)
        hexagons.draw(light.sun, is_ground, frames, camera, _SOFTNESS + _BLUR * hexagons.low_height)
        tall = np.array([not table.things[number].kind for number in hexagons.thing])
        light.things[hexagons.covers(poses, tall)] = 0.0
    below = [cast for cast in boxes if table.things[cast[0]].kind]
    contact = _Hexagons(below, poses, (0.0, 1.0, 0.0))
    contact.draw(light.sky, is_ground, frames, camera, np.full(len(contact.thing), _CONTACT))
    return light


class _Hexagons:
    """Shadows of boxes as inequalities ``normal . (x, z) <= offset`` in the frame of the box's thing."""

    def __init__(self, boxes: list[tuple[int, Vector, Vector]], poses: Floats, sun: Vector) -> None:
        self.thing = np.array([number for number, *_ in boxes], np.intp)
        low = np.array([low for _, low, _ in boxes], np.float64).reshape(-1, 3)
        high = np.array([high for *_, high in boxes], np.float64).reshape(-1, 3)
        self.low_height = low[:, 1]
        sine, cosine = poses[self.thing, 2], poses[self.thing, 3]
        along = np.stack([cosine * sun[0] - sine * sun[2], sine * sun[0] + cosine * sun[2]], axis=1) / sun[1]
        shifts = np.stack([low[:, 1:2] * along, high[:, 1:2] * along])  # of the bottom and the top, (2, N, 2)
        self.corners = self._corners(low, high, shifts)
        length = np.sqrt(along[:, 0] ** 2 + along[:, 1] ** 2)
        across = np.stack([along[:, 1], -along[:, 0]], axis=1) / np.maximum(length, 1e-9)[:, None]
        across[length < 1e-9] = (1.0, 0.0)  # light from above: repeats another inequality
        one, none = np.ones(len(low)), np.zeros(len(low))
        sides = [np.stack([one, none], axis=1), np.stack([none, one], axis=1), across]
        self.normal = np.stack([sign * side for side in sides for sign in (1.0, -1.0)], axis=1)  # (N, 6, 2)
        reach = self.normal[:, :, None, 0] * self.corners[:, None, :, 0]
        self.offset = (reach + self.normal[:, :, None, 1] * self.corners[:, None, :, 1]).max(axis=2)

    @staticmethod
    def _corners(low: Floats, high: Floats, shifts: Floats) -> Floats:
        """Points whose hull is the shadow. Shape ``(N, 8, 2)``."""
        plan = [np.stack([x, z], axis=1) for x in (low[:, 0], high[:, 0]) for z in (low[:, 2], high[:, 2])]
        return np.stack([corner - shift for corner in plan for shift in shifts], axis=1)

    def draw(
        self,
        light: NDArray[np.float32],
        is_ground: NDArray[np.bool_],
        frames: ThingFrames,
        camera: Camera,
        soft: Floats,
    ) -> None:
        """Darken ``light`` where rays meet the ground."""
        origin, axes = frames.origin[self.thing], frames.axes[self.thing]
        relative = self.corners - origin[:, None, ::2]
        points = relative[..., :1] * axes[:, None, 0] + relative[..., 1:] * axes[:, None, 2]
        points = points - (origin[:, None, 1:2] * axes[:, None, 1])
        rectangles = rectangles_of(points, camera)
        planes = self._planes(origin, axes, camera)
        ground = camera.ground_inverse()
        horizon = int(np.searchsorted(ground, 0.0, side="right"))
        for number in np.flatnonzero(rectangles[:, 1] > horizon).tolist():
            top, bottom, left, right = rectangles[number].tolist()
            top = max(top, horizon)
            if not is_ground[top:bottom, left:right].any():
                continue
            inside = outer_sums(planes[number], camera.rows[top:bottom], camera.columns[left:right]).min(axis=0)
            inside *= (1.0 / (soft[number] * ground[top:bottom])).astype(np.float32)[:, None]
            region = light[top:bottom, left:right]
            np.minimum(np.maximum(inside, 0.0, out=inside), 1.0, out=inside)  # faster than np.clip for few rays
            np.minimum(region, np.subtract(1.0, inside, out=inside), out=region)

    def _planes(self, origin: Floats, axes: Floats, camera: Camera) -> Floats:
        """The inequalities, times the inverse depth of the ground, as linear functions of rays. Shape ``(N, 6, 3)``."""
        at_camera = self.normal[..., 0] * origin[:, None, 0] + self.normal[..., 1] * origin[:, None, 2]
        room = (self.offset - at_camera) / camera.position[1]
        directions = self.normal[..., :1] * axes[:, None, 0] + self.normal[..., 1:] * axes[:, None, 2]
        level = np.sqrt(1.0 - camera.pitch * camera.pitch)
        ground = np.stack([np.zeros_like(room), level * room, camera.pitch * room], axis=-1)
        return ground - directions

    def covers(self, poses: Floats, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether the place of a thing lies in one of the chosen shadows of other things. Shape ``(T,)``."""
        x, z, sine, cosine = poses[self.thing[chosen]].T[:, :, None]
        away_x, away_z = poses[None, :, 0] - x, poses[None, :, 1] - z
        local = np.stack([cosine * away_x - sine * away_z, sine * away_x + cosine * away_z], axis=-1)  # (N, T, 2)
        normal, offset = self.normal[chosen][:, :, None], self.offset[chosen][:, :, None]
        inside = (normal[..., 0] * local[:, None, :, 0] + normal[..., 1] * local[:, None, :, 1] <= offset).all(axis=1)
        inside[np.arange(len(inside)), self.thing[chosen]] = False
        covered: NDArray[np.bool_] = inside.any(axis=0)
        return covered
