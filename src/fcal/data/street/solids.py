"""The bodies that a street is built of: convex polyhedra and quadrics in the frame of the thing they belong to.

The frame of a thing has x to its right, y up and z to its front; the origin lies on the ground. Lengths are in metres.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Colour = tuple[float, float, float]  # linear reflectance of red, green and blue
Vector = tuple[float, float, float]

BLACK: Colour = (0.0, 0.0, 0.0)


class Material(IntEnum):
    """What a surface is made of, which chooses its texture."""

    PLAIN = 0
    FACADE = 1
    ROOF = 2
    LEAVES = 3
    CAR_SIDE = 4
    CAR_FRONT = 5
    CAR_REAR = 6
    CAR_GLASS = 7
    WHEEL = 8


@dataclass(frozen=True)
class Look:
    """How a surface looks, and what it is.

    Args:
        label: Name of its class in Cityscapes, such as ``"car"``.
        colour: Main colour.
        material: Texture.
        accent: Second colour of the texture.
    """

    label: str
    colour: Colour
    material: Material = Material.PLAIN
    accent: Colour = BLACK


@dataclass(frozen=True)
class Face:
    """A face of a polyhedron: the solid lies where ``normal . point <= offset``."""

    normal: Vector
    offset: float
    look: Look


@dataclass(frozen=True)
class Polyhedron:
    """A convex polyhedron.

    Args:
        faces: Its faces.
        low: Least coordinates of its points.
        high: Largest coordinates of its points.
    """

    faces: tuple[Face, ...]
    low: Vector
    high: Vector


@dataclass(frozen=True)
class Quadric:
    """An ellipsoid, or an upright elliptic cylinder without lids.

    Args:
        centre: Its centre.
        radii: Half of its extent along x, y and z.
        look: How it looks.
        is_cylinder: Whether it is a cylinder along y.
    """

    centre: Vector
    radii: Vector
    look: Look
    is_cylinder: bool = False

    @property
    def low(self) -> Vector:
        """Least coordinates of its points."""
        x, y, z = (c - r for c, r in zip(self.centre, self.radii, strict=True))
        return x, y, z

    @property
    def high(self) -> Vector:
        """Largest coordinates of its points."""
        x, y, z = (c + r for c, r in zip(self.centre, self.radii, strict=True))
        return x, y, z


Solid = Polyhedron | Quadric


@dataclass(frozen=True)
class Thing:
    """Solids that belong together, such as a car.

    Args:
        solids: What it is built of.
        kind: KITTI's name of its type if it is an object to detect, such as ``"Car"``, else empty.
        size: Height, width and length of the box around it.
        casts: Boxes ``(low, high)`` that cast its shadow.
    """

    solids: tuple[Solid, ...]
    kind: str = ""
    size: Vector = (0.0, 0.0, 0.0)
    casts: tuple[tuple[Vector, Vector], ...] = ()


def box(low: Vector, high: Vector, look: Look, *, front: Look | None = None, back: Look | None = None) -> Polyhedron:
    """A box with axis-aligned faces; front (z high) and back (z low) may look different.

    Example:
        >>> len(box((-1, 0, -2), (1, 3, 2), Look("building", (0.5, 0.4, 0.3))).faces)
        6
    """
    looks = {(2, 1): front or look, (2, -1): back or look}
    faces = []
    for axis in range(3):
        for sign in (1, -1):
            normal = [0.0, 0.0, 0.0]
            normal[axis] = float(sign)
            offset = high[axis] if sign > 0 else -low[axis]
            faces.append(Face((normal[0], normal[1], normal[2]), offset, looks.get((axis, sign), look)))
    return Polyhedron(tuple(faces), low, high)


def cut(solid: Polyhedron, point: Vector, normal: Vector, look: Look) -> Polyhedron:
    """A polyhedron with everything removed that lies beyond a plane.

    Args:
        solid: The polyhedron.
        point: A point of the plane.
        normal: Direction that points away from what remains; its length does not matter.
        look: How the new face looks.

    Example:
        >>> cube = box((0, 0, 0), (1, 1, 1), Look("building", (0.5, 0.5, 0.5)))
        >>> cut(cube, (0, 1, 0), (0, 3, 4), cube.faces[0].look).faces[-1].normal
        (0.0, 0.6, 0.8)
    """
    unit = np.array(normal) / np.sqrt(normal[0] ** 2 + normal[1] ** 2 + normal[2] ** 2)
    offset = float(unit[0] * point[0] + unit[1] * point[1] + unit[2] * point[2])
    face = Face((float(unit[0]), float(unit[1]), float(unit[2])), offset, look)
    return Polyhedron((*solid.faces, face), solid.low, solid.high)


@dataclass(frozen=True, kw_only=True)
class SolidTable:
    """All solids of a world as arrays, so that a frame transforms them at once.

    Surfaces are numbered: 0 is the sky, 1 the ground, then come the faces of polyhedra, then quadrics.

    Args:
        things: The things, in the order of their numbers.
        normal: Normals of faces in their thing's frame. Shape ``(F, 3)``.
        offset: Offsets of faces. Shape ``(F,)``.
        first_face: Number of the first face of a polyhedron, and after the last one F. Shape ``(P + 1,)``.
        low: Least coordinates of solids, polyhedra first. Shape ``(P + Q, 3)``.
        high: Largest coordinates. Shape ``(P + Q, 3)``.
        owner: Number of the thing of a solid. Shape ``(P + Q,)``.
        is_cylinder: Whether a quadric is a cylinder. Shape ``(Q,)``.
        thing: Number of the thing of a surface; -1 for sky and ground. Shape ``(S,)``.
        material: Material of a surface. Shape ``(S,)``.
        colour: Main colour of a surface. Shape ``(S, 3)``.
        accent: Second colour of a surface. Shape ``(S, 3)``.
        label: Number of the class of a surface in ``labels``. Shape ``(S,)``.
        labels: Names of the classes; ``"sky"`` and ``"road"`` first.
    """

    things: tuple[Thing, ...]
    normal: NDArray[np.float64]
    offset: NDArray[np.float64]
    first_face: NDArray[np.intp]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    owner: NDArray[np.intp]
    is_cylinder: NDArray[np.bool_]
    thing: NDArray[np.intp]
    material: NDArray[np.int8]
    colour: NDArray[np.float32]
    accent: NDArray[np.float32]
    label: NDArray[np.int16]
    labels: tuple[str, ...]

    @property
    def polyhedra(self) -> int:
        """Number of polyhedra."""
        return len(self.first_face) - 1

    @cached_property
    def colours(self) -> NDArray[np.float32]:
        """Main colours of surfaces, channel by channel. Shape ``(3, S)``."""
        return np.ascontiguousarray(self.colour.T)

    @cached_property
    def accents(self) -> NDArray[np.float32]:
        """Second colours of surfaces, channel by channel. Shape ``(3, S)``."""
        return np.ascontiguousarray(self.accent.T)

    @cached_property
    def sizes(self) -> NDArray[np.float32]:
        """Height, width and length of things. Shape ``(3, T)``."""
        return np.ascontiguousarray(np.array([each.size for each in self.things], np.float32).reshape(-1, 3).T)

    @cached_property
    def face_normals(self) -> NDArray[np.float32]:
        """Normals of surfaces in their thing's frame, zero where they are not faces. Shape ``(3, S)``."""
        normals = np.zeros((3, len(self.thing)), np.float32)
        normals[:, FIRST_FACE : FIRST_FACE + len(self.normal)] = self.normal.T
        return normals

    @cached_property
    def quadrics(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Centres of quadrics and inverse squares of their radii, 0 along a cylinder. Shapes ``(3, Q)``."""
        low, high = self.low[self.polyhedra :], self.high[self.polyhedra :]
        weight = 4.0 / (high - low) ** 2
        weight[:, 1] = np.where(self.is_cylinder, 0.0, weight[:, 1])
        centre = 0.5 * (low + high)
        return np.ascontiguousarray(centre.T, np.float32), np.ascontiguousarray(weight.T, np.float32)


FIRST_FACE = 2  # surface number of face 0


def solid_table(things: tuple[Thing, ...]) -> SolidTable:
    """The solids of things as arrays."""
    pairs = [(number, solid) for number, thing in enumerate(things) for solid in thing.solids]
    polyhedra = [(number, solid) for number, solid in pairs if isinstance(solid, Polyhedron)]
    quadrics = [(number, solid) for number, solid in pairs if isinstance(solid, Quadric)]
    faces = [(number, face) for number, solid in polyhedra for face in solid.faces]
    looks = [Look("sky", BLACK), Look("road", BLACK), *(f.look for _, f in faces), *(q.look for _, q in quadrics)]
    labels = tuple(dict.fromkeys(look.label for look in looks))
    solids: list[tuple[int, Solid]] = [*polyhedra, *quadrics]
    return SolidTable(
        things=things,
        normal=np.array([face.normal for _, face in faces], np.float64).reshape(-1, 3),
        offset=np.array([face.offset for _, face in faces], np.float64),
        first_face=np.cumsum([0, *(len(solid.faces) for _, solid in polyhedra)], dtype=np.intp),
        low=np.array([solid.low for _, solid in solids], np.float64).reshape(-1, 3),
        high=np.array([solid.high for _, solid in solids], np.float64).reshape(-1, 3),
        owner=np.array([number for number, _ in solids], np.intp),
        is_cylinder=np.array([solid.is_cylinder for _, solid in quadrics], np.bool_),
        thing=np.array([-1, -1, *(number for number, _ in faces), *(number for number, _ in quadrics)], np.intp),
        material=np.array([look.material for look in looks], np.int8),
        colour=np.array([look.colour for look in looks], np.float32),
        accent=np.array([look.accent for look in looks], np.float32),
        label=np.array([labels.index(look.label) for look in looks], np.int16),
        labels=labels,
    )
