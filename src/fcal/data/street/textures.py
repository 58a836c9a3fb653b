"""Textures of things: reflectance as a function of the place on a surface.

Fine textures fade with the distance at which they become smaller than a pixel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from fcal.data.bokeh import uniforms
from fcal.data.street.solids import Colour, Material, SolidTable

Values = NDArray[np.float32]
Mask = NDArray[np.bool_]

_TILE = 256  # pixels of the noise texture along an edge
_TEXTURE_SEED = 20110926
_FRAME: Colour = (0.62, 0.62, 0.60)
_DARK: Colour = (0.02, 0.02, 0.02)
_PLATE: Colour = (0.65, 0.65, 0.62)


@dataclass(frozen=True, kw_only=True)
class Spots:
    """Points on things: N of them.

    Args:
        depth: Depths. Shape ``(N,)``.
        x: Position to the right, in the frame of the thing. Shape ``(N,)``.
        y: Height. Shape ``(N,)``.
        z: Position to the front. Shape ``(N,)``.
        normal: Normals in the frame of the thing. Shape ``(3, N)``.
        thing: Numbers of the things. Shape ``(N,)``.
        surface: Numbers of the surfaces. Shape ``(N,)``.
        table: The solids.
    """

    depth: Values
    x: Values
    y: Values
    z: Values
    normal: Values
    thing: NDArray[np.int32]
    surface: NDArray[np.int32]
    table: SolidTable

    @cached_property
    def colour(self) -> Values:
        """Main colours of the surfaces. Shape ``(3, N)``."""
        return self.table.colours.take(self.surface, axis=1)

    @cached_property
    def accent(self) -> Values:
        """Second colours of the surfaces. Shape ``(3, N)``."""
        return self.table.accents.take(self.surface, axis=1)

    @cached_property
    def size(self) -> Values:
        """Height, width and length of the things. Shape ``(3, N)``."""
        return self.table.sizes.take(self.thing, axis=1)


Texture = Callable[[Spots], tuple[Values, Values | float]]


def textured(material: Material, spots: Spots) -> tuple[Values, Values | float]:
    """Reflectance, of shape ``(3, N)``, and how much of the sky is mirrored, of shape ``(N,)`` or a number."""
    return _TEXTURES[material](spots)


@lru_cache(maxsize=1)
def _noise_tile() -> Values:
    """A periodic texture of several scales with values between -1 and 1. Shape ``(256, 256)``."""
    total = np.zeros((_TILE, _TILE))
    for octave, (size, weight) in enumerate(((1, 0.30), (4, 0.35), (16, 0.45), (64, 0.40))):
        coarse = uniforms(_TEXTURE_SEED, octave * _TILE, octave * _TILE + _TILE // size, width=_TILE // size)
        grid = np.repeat(np.repeat(2.0 * coarse - 1.0, size, axis=0), size, axis=1)
        step = size // 2
        while step:  # smooth between grid points
            for axis in (0, 1):
                grid = 0.25 * (np.roll(grid, step, axis) + np.roll(grid, -step, axis)) + 0.5 * grid
            step //= 2
        total += weight * grid
    return np.clip(total, -1.0, 1.0).astype(np.float32)


def noise(u: Values, v: Values, scale: float) -> Values:
    """Noise at positions; ``scale`` is texture pixels per metre."""
    columns = np.floor(u * np.float32(scale)).astype(np.int32) & (_TILE - 1)
    rows = np.floor(v * np.float32(scale)).astype(np.int32) & (_TILE - 1)
    return _noise_tile().ravel().take(rows * _TILE + columns)


def _hashed(one: NDArray[np.int32], two: NDArray[np.int32], three: NDArray[np.int32]) -> Values:
    """Random numbers in [0, 1) of triples of integers."""
    mixed = one.astype(np.uint32) * np.uint32(0x9E3779B1) + two.astype(np.uint32) * np.uint32(0x85EBCA77)
    mixed += three.astype(np.uint32) * np.uint32(0xC2B2AE3D)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0x2C1B3C6D)
    mixed ^= mixed >> np.uint32(13)
    return (mixed >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def paint(albedo: Values, where: Mask, colour: Colour | tuple[Values, Values, Values]) -> None:
    """Replace colours, of shape ``(3, N)``, where the mask is true."""
    for channel in range(3):
        np.copyto(albedo[channel], colour[channel], where=where, casting="same_kind")


def _plain(spots: Spots) -> tuple[Values, float]:
    return spots.colour * (1.0 + 0.12 * noise(spots.x + spots.z, spots.y, 12.0)), 0.0


def _facade(spots: Spots) -> tuple[Values, Values]:
    """Plaster with rows of windows, and doors or shops on the ground floor."""
    storey, period, style = spots.accent
    is_side = np.abs(spots.normal[0]) > 0.5
    across = np.where(is_side, spots.z, spots.x)
    column, level = across / period + np.where(is_side, np.float32(0.0), np.float32(0.5)), spots.y / storey
    i, j = np.floor(column).astype(np.int32), np.floor(level).astype(np.int32)
    u, v = np.abs(column - i - 0.5), level - j  # from the middle of a window, and from the floor
    luck = _hashed(i, j, spots.thing)
    wall = spots.colour * (1.0 + 0.10 * noise(across, spots.y, 3.0) + 0.07 * noise(across, spots.y, 25.0))
    wall *= np.where(spots.y < 0.5, np.float32(0.6), np.float32(1.0))
    wall *= np.where((v > 0.95) & (j > 0), np.float32(0.82), np.float32(1.0))
    is_shop = (j == 0) & (style > 0.65)
    is_door = (j == 0) & ~is_shop & (_hashed(i, spots.thing, spots.thing) < 0.25)
    wide = np.where(is_shop, np.float32(0.44), np.float32(0.27))
    low, high = (
        np.where(is_shop, np.float32(0.14), np.float32(0.30)),
        np.where(is_shop, np.float32(0.78), np.float32(0.80)),
    )
    framed = (u < wide + 0.035) & (v > low - 0.03) & (v < high + 0.03) & ~is_door
    pane = framed & (u < wide) & (v > low) & (v < high) & (u >= 0.02)
    curtain = pane & (luck > 0.7) & ~is_shop
    paint(wall, framed, _FRAME)
    paint(wall, pane, (0.045, 0.055, 0.07))
    paint(wall, curtain, (0.34, 0.33, 0.30))
    paint(wall, is_shop & (v >= 0.80) & (v < 0.95), (0.10 + 0.4 * style, 0.12 * style, 0.30 - 0.28 * style))
    paint(wall, is_door & (u < 0.24) & (v < 0.73), _FRAME)
    paint(wall, is_door & (u < 0.2) & (v < 0.7), (0.16, 0.09, 0.05))
    return wall, np.where(pane & ~curtain, 0.10 + 0.22 * luck, np.float32(0.0))


def _roof(spots: Spots) -> tuple[Values, float]:
    near = np.clip(25.0 / spots.depth, 0.0, 1.0)
    rows = spots.z * np.float32(3.0) - np.floor(spots.z * np.float32(3.0)) < 0.25
    return spots.colour * (1.0 + 0.2 * noise(spots.x, spots.z, 4.0) - 0.25 * (rows * near)), 0.0


def _leaves(spots: Spots) -> tuple[Values, float]:
    near = np.clip(25.0 / spots.depth, 0.0, 1.0)
    cells = [np.floor(values * np.float32(14.0)).astype(np.int32) for values in (spots.x, spots.y, spots.z)]
    clumps = noise(spots.x, spots.y, 5.0) + noise(spots.z, spots.y, 5.0)
    return spots.colour * np.maximum(0.9 + 0.5 * clumps + near * (_hashed(*cells) - 0.5), 0.15), 0.0


def _car_side(spots: Spots) -> tuple[Values, Values]:
    """Doors, sills and wheel arches."""
    half = 0.5 * spots.size[2]
    arch = (np.abs(spots.z) - 0.62 * half) ** 2 + (spots.y - 0.32) ** 2 < 0.40**2
    share = spots.z / half
    gap = (np.abs(share - 0.28) < 0.008) | (np.abs(share + 0.08) < 0.008) | (np.abs(share + 0.42) < 0.008)
    colour = spots.colour * np.where(gap, np.float32(0.35), np.float32(1.0))
    is_dark = (spots.y < 0.30) | arch
    paint(colour, is_dark, _DARK)
    return colour, np.where(is_dark, np.float32(0.0), np.float32(0.06))


def _car_front(spots: Spots) -> tuple[Values, float]:
    """Bumper, grille, number plate and headlights."""
    colour, share, y = spots.colour.copy(), np.abs(spots.x) / (0.5 * spots.size[1]), spots.y
    paint(colour, y < 0.32, _DARK)
    paint(colour, (share < 0.5) & (y > 0.36) & (y < 0.62), (0.03, 0.03, 0.03))
    paint(colour, (np.abs(spots.x) < 0.26) & (y > 0.40) & (y < 0.52), _PLATE)
    paint(colour, (share > 0.58) & (y > 0.54) & (y < 0.70), (0.80, 0.80, 0.76))
    return colour, 0.05


def _car_rear(spots: Spots) -> tuple[Values, float]:
    """Bumper, number plate and tail lights."""
    colour, share, y = spots.colour.copy(), np.abs(spots.x) / (0.5 * spots.size[1]), spots.y
    paint(colour, y < 0.34, _DARK)
    paint(colour, (np.abs(spots.x) < 0.26) & (y > 0.48) & (y < 0.60), _PLATE)
    paint(colour, (share > 0.66) & (y > 0.60) & (y < 0.84), (0.45, 0.02, 0.02))
    return colour, 0.05


def _car_glass(spots: Spots) -> tuple[Values, Values]:
    """Windows between pillars of the car's colour."""
    is_side = np.abs(spots.normal[0]) > 0.5
    share = spots.z / (0.5 * spots.size[2])
    pillar = is_side & ((np.abs(share + 0.08) < 0.025) | (np.abs(share + 0.62) < 0.03))
    pillar |= ~is_side & (np.abs(spots.x) > 0.43 * spots.size[1])
    gloss = 0.13 + 0.05 * noise(spots.x + spots.z, spots.y, 2.0)
    return np.where(pillar, spots.accent, spots.colour), np.where(pillar, np.float32(0.04), gloss)


def _wheel(spots: Spots) -> tuple[Values, float]:
    is_hub = np.abs(spots.normal[0]) > 0.93  # the flat side
    return np.where(is_hub, spots.accent, spots.colour), 0.0


_TEXTURES: dict[Material, Texture] = {
    Material.PLAIN: _plain,
    Material.FACADE: _facade,
    Material.ROOF: _roof,
    Material.LEAVES: _leaves,
    Material.CAR_SIDE: _car_side,
    Material.CAR_FRONT: _car_front,
    Material.CAR_REAR: _car_rear,
    Material.CAR_GLASS: _car_glass,
    Material.WHEEL: _wheel,
}
