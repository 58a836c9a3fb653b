"""Ray casting: which surface every ray meets first, and how far away.

Rays have the direction (u, v, 1) in camera coordinates (x right, y down, z ahead), so that the parameter of a point on
a ray is its depth. The inverse depth at which rays meet a plane is linear in u and v. A convex polyhedron is met where
the least inverse depth of the planes that the camera is outside of exceeds the largest one of the others; the former is
then the inverse depth of its surface. No ray needs a division, and a plane over a rectangle of rays is the sum of a row
and a column.

Only operations that IEEE 754 rounds exactly are used, so that frames are the same on every machine.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fcal.data.street.solids import FIRST_FACE, SolidTable, Vector

GROUND = 1  # surface number
_NEAR, _FAR = 0.3, 100.0  # metres; no thing is drawn closer or farther
_TINY = 1e-9

Rectangle = tuple[int, int, int, int]  # first and last + 1 row, first and last + 1 column
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Camera:
    """A pinhole camera and its rays.

    Args:
        position: Where it is: x, height, z.
        heading: Sine and cosine of its direction, from z towards x.
        pitch: Sine of the angle by which it looks down.
        rows: The v of rays. Shape ``(R,)``, equally spaced.
        columns: The u of rays. Shape ``(C,)``, equally spaced.
        stride: Rays per pixel along an edge; the middle of a pixel is a ray.
    """

    position: Vector
    heading: tuple[float, float]
    pitch: float
    rows: Floats
    columns: Floats
    stride: int

    @property
    def middles(self) -> slice:
        """Rays through the middle of pixels, along either axis."""
        return slice(self.stride // 2, None, self.stride)

    def rotated(self, world: Floats) -> Floats:
        """Vectors (x, up, z) of the world in camera coordinates. Shape ``(..., 3)``."""
        sine, cosine = self.heading
        right, ahead = cosine * world[..., 0] - sine * world[..., 2], sine * world[..., 0] + cosine * world[..., 2]
        level = np.sqrt(1.0 - self.pitch * self.pitch)
        down = -level * world[..., 1] - self.pitch * ahead
        return np.stack([right, down, level * ahead - self.pitch * world[..., 1]], axis=-1)

    def directions(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """The x, upward and z components of rays in the world. Shapes ``(R, C)``, ``(R, 1)`` and ``(R, C)``."""
        sine, cosine = self.heading
        level = np.sqrt(1.0 - self.pitch * self.pitch)
        ahead, up = level - self.pitch * self.rows, -level * self.rows - self.pitch
        x = _outer_sum(sine * ahead, cosine * self.columns)
        return x, up.astype(np.float32)[:, None], _outer_sum(cosine * ahead, -sine * self.columns)

    def ground_inverse(self) -> Floats:
        """Inverse depth of the ground in every row; 0 above the horizon. Shape ``(R,)``."""
        level = np.sqrt(1.0 - self.pitch * self.pitch)
        return np.maximum((level * self.rows + self.pitch) / self.position[1], 0.0)


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Where a thing would be seen if nothing stood in front of it.

    Args:
        box: First and last + 1 row, first and last + 1 column, in pixels.
        pixels: Number of pixels.
    """

    box: Rectangle
    pixels: int


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What rays meet.

    Args:
        inverse: Inverse depth; 0 for the sky. Shape ``(R, C)``.
        surface: Number of the surface. Shape ``(R, C)``.
        extents: Extent of every object in view, by the number of its thing.
    """

    inverse: NDArray[np.float32]
    surface: NDArray[np.int32]
    extents: dict[int, Extent]


def cast(table: SolidTable, frames: "ThingFrames", camera: Camera) -> Sight:
    """Cast all rays of a camera.

    Args:
        table: The solids.
        frames: The things as the camera sees them.
        camera: The camera.
    """
    ground = camera.ground_inverse().astype(np.float32)
    shape = len(camera.rows), len(camera.columns)
    inverse = np.repeat(ground[:, None], shape[1], axis=1)
    surface = np.where(inverse > 0, np.int32(GROUND), np.int32(0))
    sight = Sight(inverse=inverse, surface=surface, extents={})
    caster = _Caster(table, frames, camera)
    for group in _front_to_back(table, frames):
        top, bottom, left, right = group.bounds
        if sight.inverse[top:bottom, left:right].min() >= group.nearest:
            continue  # everything drawn so far is nearer, wherever rays may meet it
        if table.things[group.thing].kind:
            _draw_object(caster, sight, group, camera)
        else:
            for solid in group.solids:
                caster.draw(solid, sight.inverse, sight.surface, (0, 0))
    return sight


class _Group(NamedTuple):
    """The solids of a thing that are in view.

    Args:
        thing: Number of the thing.
        solids: Their numbers.
        nearest: Upper bound of their inverse depth.
        bounds: A rectangle of all rays that may meet one of them.
    """

    thing: int
    solids: list[int]
    nearest: float
    bounds: Rectangle


def _front_to_back(table: SolidTable, frames: "ThingFrames") -> list[_Group]:
    """Things in view, the nearest one first, so that hidden ones are left out."""
    in_view = np.flatnonzero(frames.rectangles[:, 1] > 0)
    owner = table.owner[in_view]
    solids: dict[int, list[int]] = {}
    for solid, thing in zip(in_view.tolist(), owner.tolist(), strict=True):
        solids.setdefault(thing, []).append(solid)
    nearest = np.zeros(len(table.things))
    np.maximum.at(nearest, owner, frames.nearest[in_view])
    bounds = np.empty((len(table.things), 4), np.int64)
    for column, (extreme, start) in enumerate(2 * [(np.minimum, np.iinfo(np.int64).max), (np.maximum, 0)]):
        bounds[:, column] = start
        extreme.at(bounds[:, column], owner, frames.rectangles[in_view, column])
    groups = []
    for thing, own in solids.items():
        top, bottom, left, right = bounds[thing].tolist()
        groups.append(_Group(thing, own, float(nearest[thing]), (top, bottom, left, right)))
    return sorted(groups, key=lambda group: -group.nearest)


def _draw_object(caster: "_Caster", sight: Sight, group: _Group, camera: Camera) -> None:
    """Draw an object on its own, note its extent, and merge it into the scene."""
    top, bottom, left, right = group.bounds
    inverse = np.zeros((bottom - top, right - left), np.float32)
    surface = np.zeros(inverse.shape, np.int32)
    for solid in group.solids:
        caster.draw(solid, inverse, surface, (top, left))
    half, stride = camera.stride // 2, camera.stride
    covered = inverse[(half - top) % stride :: stride, (half - left) % stride :: stride] > 0
    rows, columns = np.flatnonzero(covered.any(axis=1)), np.flatnonzero(covered.any(axis=0))
    if len(rows):
        first_row, first_column = -(-(top - half) // stride), -(-(left - half) // stride)
        sight.extents[group.thing] = Extent(
            box=(
                first_row + int(rows[0]),
                first_row + int(rows[-1]) + 1,
                first_column + int(columns[0]),
                first_column + int(columns[-1]) + 1,
            ),
            pixels=int(np.count_nonzero(covered)),
        )
    region = np.s_[top:bottom, left:right]
    nearer = inverse > sight.inverse[region]
    np.copyto(sight.inverse[region], inverse, where=nearer)
    np.copyto(sight.surface[region], surface, where=nearer)


class ThingFrames:
    """Things in camera coordinates.

    Args:
        table: The solids.
        poses: The x, z, sine and cosine of things. Shape ``(T, 4)``.
        camera: The camera.

    Attributes:
        origin: The camera's place in the frame of every thing. Shape ``(T, 3)``.
        axes: Axes of things; row i of a matrix is axis i in camera coordinates. Shape ``(T, 3, 3)``.
        nearest: Upper bound of the inverse depth of solids. Shape ``(N,)``.
        rectangles: Rays that may meet a solid, as of :func:`rectangles_of`. Shape ``(N, 4)``.
    """

    def __init__(self, table: SolidTable, poses: Floats, camera: Camera) -> None:
        x, z, sine, cosine = poses.T
        away_x, away_z = camera.position[0] - x, camera.position[2] - z
        height = np.full_like(x, camera.position[1])
        self.origin = np.stack([cosine * away_x - sine * away_z, height, sine * away_x + cosine * away_z], axis=1)
        none, one = np.zeros_like(x), np.ones_like(x)
        axes = np.stack([cosine, none, -sine, none, one, none, sine, none, cosine], axis=1).reshape(-1, 3, 3)
        self.axes = camera.rotated(axes)
        self.rectangles = self._rectangles(table, camera)

    def _rectangles(self, table: SolidTable, camera: Camera) -> NDArray[np.int64]:
        chosen = np.array([[k & 1, k >> 1 & 1, k >> 2 & 1] for k in range(8)], np.bool_)
        corners = np.where(chosen, table.high[:, None], table.low[:, None]) - self.origin[table.owner][:, None]
        axes = self.axes[table.owner][:, None]
        points = corners[..., :1] * axes[..., 0, :] + corners[..., 1:2] * axes[..., 1, :]
        points = points + corners[..., 2:] * axes[..., 2, :]
        nearest = np.maximum(points[..., 2].min(axis=1), _NEAR)
        rectangles = rectangles_of(points, camera)
        rectangles[nearest > _FAR] = 0
        self.nearest = 1.0 / nearest
        return rectangles


class _Caster:
    """Draws single solids into buffers."""

    def __init__(self, table: SolidTable, frames: ThingFrames, camera: Camera) -> None:
        self.frames, self._table, self._camera = frames, table, camera
        owner = table.thing[FIRST_FACE : FIRST_FACE + len(table.normal)]
        origin, axes = frames.origin[owner], frames.axes[owner]
        distance = table.offset - _dot(table.normal, origin)
        distance = np.where(np.abs(distance) < _TINY, _TINY, distance)
        outside = distance < 0
        polyhedron = np.repeat(np.arange(table.polyhedra), np.diff(table.first_face))
        order = np.lexsort((~outside, polyhedron))  # faces through which rays enter come first in their polyhedron
        self._planes = (_combined(table.normal, axes) / distance[:, None])[order]
        self._faces = (order + FIRST_FACE).astype(np.int32)
        self._entered = np.bincount(polyhedron[outside], minlength=table.polyhedra).tolist()
        self._first_face = table.first_face.tolist()
        self._rectangles, self._nearest = frames.rectangles.tolist(), frames.nearest.tolist()
        self._prepare_quadrics()

    def _prepare_quadrics(self) -> None:
        """Coefficients of the quadratic equation c s^2 + 2 b s + a = 0 for the inverse depth s.

        With inverse squares of the radii w, the axes e and the camera's place o relative to the centre, a = d'Md for
        M = sum w e e', b = m'd for m = sum w o e, and c = sum w o^2 - 1. Its discriminant is d'(m m' - c M)d.
        """
        table, first = self._table, self._table.polyhedra
        owner, low, high = table.owner[first:], table.low[first:], table.high[first:]
        self._centre_up = 0.5 * (low[:, 1] + high[:, 1]) - self.frames.origin[owner][:, 1]
        self._half_up = 0.5 * (high[:, 1] - low[:, 1])
        place = self.frames.origin[owner] - 0.5 * (low + high)
        weight = 4.0 / (high - low) ** 2
        weight[:, 1] = np.where(table.is_cylinder, 0.0, weight[:, 1])
        axes = self.frames.axes[owner]
        matrix = sum(weight[:, i, None, None] * (axes[:, i, :, None] * axes[:, i, None, :]) for i in range(3))
        linear, constant = _combined(weight * place, axes), _dot(weight * place, place) - 1.0
        products = linear[:, :, None] * linear[:, None, :]
        form = products - constant[:, None, None] * matrix
        pairs = ((0, 0, 1.0), (0, 1, 2.0), (0, 2, 2.0), (1, 1, 1.0), (1, 2, 2.0), (2, 2, 1.0))
        self._discriminant = np.stack([factor * form[:, i, k] for i, k, factor in pairs], axis=1)
        self._constant, self._up = constant, axes[:, 1]
        self._prepare_rays(linear)

    def _prepare_rays(self, linear: Floats) -> None:
        """Parts of b and of the discriminant that depend on the row or on the column of a ray, of quadrics in view."""
        in_view = np.flatnonzero(self.frames.rectangles[self._table.polyhedra :, 1] > 0)
        self._position = dict(zip(in_view.tolist(), range(len(in_view)), strict=True))
        rows, columns = self._camera.rows, self._camera.columns
        uu, uv, u, vv, v, one = self._discriminant[in_view].T[:, :, None]
        across, down, ahead = linear[in_view].T[:, :, None]
        self._square_columns = (uu * columns + u) * columns + one
        self._square_rows, self._mixed_rows = (vv * rows + v) * rows, uv * rows
        self._toward_columns, self._toward_rows = across * columns + ahead, down * rows

    def draw(
        self, solid: int, inverse: NDArray[np.float32], surface: NDArray[np.int32], corner: tuple[int, int]
    ) -> None:
        """Draw a solid into buffers whose first ray is ``corner``."""
        top, bottom, left, right = self._rectangles[solid]
        region = np.s_[top - corner[0] : bottom - corner[0], left - corner[1] : right - corner[1]]
        before = inverse[region]
        if before.min() >= self._nearest[solid]:
            return  # hidden
        rows, columns = slice(top, bottom), slice(left, right)
        if solid < self._table.polyhedra:
            self._draw_polyhedron(solid, rows, columns, before, surface[region])
        else:
            self._draw_quadric(solid - self._table.polyhedra, rows, columns, before, surface[region])

    def _draw_polyhedron(
        self, number: int, rows: slice, columns: slice, inverse: NDArray[np.float32], surface: NDArray[np.int32]
    ) -> None:
        first, last = self._first_face[number : number + 2]
        entered = self._entered[number]
        if not entered:
            return
        planes = outer_sums(self._planes[first:last], self._camera.rows[rows], self._camera.columns[columns])
        enter, leave = planes[:entered], planes[entered:]
        nearest = enter.min(axis=0) if entered > 1 else enter[0]
        hit = nearest > np.maximum(leave.max(axis=0), inverse)
        np.copyto(inverse, nearest, where=hit)
        faces = self._faces[first : first + entered]
        np.copyto(surface, faces.take(enter.argmin(axis=0)) if entered > 1 else faces[0], where=hit)

    def _draw_quadric(
        self, number: int, rows: slice, columns: slice, inverse: NDArray[np.float32], surface: NDArray[np.int32]
    ) -> None:
        here, u, v = self._position[number], self._camera.columns[columns], self._camera.rows[rows, None]
        squares = self._square_columns[here, columns] + self._square_rows[here, rows, None]
        squares += self._mixed_rows[here, rows, None] * u
        toward = self._toward_columns[here, columns] + self._toward_rows[here, rows, None]
        depth_inverse = np.maximum(squares, 0.0)
        np.sqrt(depth_inverse, out=depth_inverse)
        depth_inverse -= toward
        depth_inverse /= self._constant[number]
        hit = (squares > 0) & (toward < 0) & (depth_inverse > inverse)
        if self._table.is_cylinder[number]:
            up = self._up[number].tolist()
            climb = (up[0] * u + up[2]) + up[1] * v
            hit &= np.abs(climb - self._centre_up[number] * depth_inverse) <= self._half_up[number] * depth_inverse
        np.copyto(inverse, depth_inverse, where=hit)
        np.copyto(surface, np.int32(FIRST_FACE + len(self._table.normal) + number), where=hit)


def rectangles_of(points: Floats, camera: Camera) -> NDArray[np.int64]:
    """Rays that may meet the convex hulls of points, as rows and columns; zeros where there are none.

    Args:
        points: Points in camera coordinates. Shape ``(N, K, 3)``.
        camera: The camera.

    Returns:
        First and last + 1 row, first and last + 1 column. Shape ``(N, 4)``.
    """
    depth = np.maximum(points[..., 2], _NEAR)
    # A hull that reaches behind the camera is cut at the near plane, somewhere between its points.
    nearest = np.where(points[..., 2].min(axis=1, keepdims=True) < _NEAR, _NEAR, depth)
    bounds = []
    for coordinate, rays in ((1, camera.rows), (0, camera.columns)):
        across = points[..., coordinate]
        both = np.concatenate([across / nearest, across / depth], axis=1)
        step = rays[1] - rays[0]
        first = np.floor((both.min(axis=1) - rays[0]) / step)
        last = np.ceil((both.max(axis=1) - rays[0]) / step) + 1
        bounds += [np.clip(first, 0, len(rays)), np.clip(last, 0, len(rays))]
    rectangles = np.stack(bounds, axis=1).astype(np.int64)
    is_empty = (rectangles[:, 1] <= rectangles[:, 0]) | (rectangles[:, 3] <= rectangles[:, 2])
    rectangles[is_empty | (points[..., 2].max(axis=1) <= _NEAR)] = 0
    return rectangles


def _dot(one: Floats, other: Floats) -> Floats:
    """Scalar products of rows, with a fixed order of additions."""
    return one[:, 0] * other[:, 0] + one[:, 1] * other[:, 1] + one[:, 2] * other[:, 2]


def _combined(weight: Floats, axes: Floats) -> Floats:
    """Sums of axes with weights. Shapes ``(N, 3)`` and ``(N, 3, 3)`` to ``(N, 3)``."""
    return weight[:, :1] * axes[:, 0] + weight[:, 1:2] * axes[:, 1] + weight[:, 2:] * axes[:, 2]


def _outer_sum(rows: Floats, columns: Floats) -> NDArray[np.float32]:
    return rows.astype(np.float32)[:, None] + columns.astype(np.float32)


def outer_sums(planes: Floats, rows: Floats, columns: Floats) -> NDArray[np.float32]:
    """Values of linear functions of (u, v, 1) at rays. Shape ``(K, 3)`` to ``(K, R, C)``."""
    down = planes[:, 1:2] * rows + planes[:, 2:]
    across = planes[:, :1] * columns
    return down.astype(np.float32)[:, :, None] + across.astype(np.float32)[:, None, :]
