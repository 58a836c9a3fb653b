"""Slow, independent definitions: one ray at a time against every solid of the world, in world coordinates."""

import numpy as np

from fcal.data.street.casting import Camera
from fcal.data.street.solids import Polyhedron, Thing


def world_rays(camera: Camera) -> np.ndarray:
    """Directions (x, up, z) of all rays by rotation matrices. Shape ``(R, C, 3)``."""
    v, u = np.meshgrid(camera.rows, camera.columns, indexing="ij")
    in_camera = np.stack([u, v, np.ones_like(u)], axis=-1)  # x right, y down, z ahead
    pitch = np.arcsin(camera.pitch)
    tilt = np.array([[1, 0, 0], [0, np.cos(pitch), np.sin(pitch)], [0, -np.sin(pitch), np.cos(pitch)]])
    yaw = np.arctan2(*camera.heading)
    turn = np.array([[np.cos(yaw), 0, np.sin(yaw)], [0, -1, 0], [-np.sin(yaw), 0, np.cos(yaw)]])  # y down to up
    return in_camera @ (turn @ tilt).T


def meets(thing: Thing, pose: np.ndarray, start: np.ndarray, ray: np.ndarray) -> float:
    """Depth at which a ray meets a thing, infinite if it does not."""
    x, z, sine, cosine = pose
    to_local = np.array([[cosine, 0, -sine], [0, 1, 0], [sine, 0, cosine]])
    origin, direction = to_local @ (start - np.array([x, 0, z])), to_local @ ray
    return min(_meets_solid(solid, origin, direction) for solid in thing.solids)


def _meets_solid(solid, origin, direction) -> float:
    if isinstance(solid, Polyhedron):
        return _meets_polyhedron(solid, origin, direction)
    centre, radii = np.array(solid.centre), np.array(solid.radii)
    keep = np.array([1.0, 0.0, 1.0]) if solid.is_cylinder else np.ones(3)
    o, d = keep * (origin - centre) / radii, keep * direction / radii
    roots = np.roots([d @ d, 2 * o @ d, o @ o - 1])
    if np.iscomplex(roots).any():
        return np.inf
    first = min(roots.real)
    height = origin[1] + first * direction[1] - centre[1]
    if first <= 0 or (solid.is_cylinder and abs(height) > radii[1]):
        return np.inf
    return float(first)


def _meets_polyhedron(solid: Polyhedron, origin, direction) -> float:
    """Cut the ray by one half space after another."""
    enter, leave = 0.0, np.inf
    for face in solid.faces:
        room, speed = face.offset - np.dot(face.normal, origin), np.dot(face.normal, direction)
        if speed == 0:
            if room < 0:
                return np.inf
        elif speed < 0:
            enter = max(enter, room / speed)
        else:
            leave = min(leave, room / speed)
    return enter if 0 < enter < leave else np.inf
