"""Rendering of flat, overlapping discs, many images at a time.

A row of 64 pixels is one 64-bit word: two shifts give the pixels that a disc covers, and two bitwise operations per
bit of colour draw them (colours therefore have few bits). Images are divided into tiles of 8 such rows, and a disc is
drawn only on the tiles that it touches, front to back and all tiles in parallel: first the front disc of every tile,
then the second disc of the tiles that have one, and so on.

Lengths are integers in sixteenths of a pixel and nothing is rounded, so that images are the same on every machine.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

GRID = 16  # units of length per pixel
COLOUR_BITS = 3
_CHANNELS = 3
_ROWS, _COLUMNS = 8, 64  # of a tile
_PIXELS_AT_ONCE = 10**6  # fits the cache; with a power of two, strides would share cache lines
_LARGEST_IN_FLOAT32 = 2**11  # radius, see `_half_width`
_ALL, _ONE = np.uint64(2**64 - 1), np.uint64(1)


_Lengths = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]  # x, y and radius


@dataclass(frozen=True, kw_only=True)
class Discs:
    """Discs of many images, back to front. Lengths are in sixteenths of a pixel.

    Args:
        x: Centres, from the left. Shape ``(N, D)``, with D at most 64.
        y: Centres, from the top. Shape ``(N, D)``.
        radius: Radii; negative where there is no disc. Shape ``(N, D)``.
        colour: Levels 0 to 7 of red, green and blue. Shape ``(N, D, 3)``.
        background: Levels of the background. Shape ``(N, 3)``.
    """

    x: NDArray[np.int32]
    y: NDArray[np.int32]
    radius: NDArray[np.int32]
    colour: NDArray[np.uint8]
    background: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.x)


def render(discs: Discs, size: int) -> NDArray[np.uint8]:
    """Images of discs: a pixel has the colour of the last disc whose interior or edge contains its centre.

    Args:
        discs: Discs to draw.
        size: Width and height in pixels.

    Returns:
        Shape ``(N, 3, size, size)``; level 7 is 252.

    Example:
        >>> dot = Discs(
        ...     x=np.array([[24]]), y=np.array([[8]]), radius=np.array([[16]]),
        ...     colour=np.array([[[7, 0, 0]]], np.uint8), background=np.array([[1, 1, 1]], np.uint8),
        ... )
        >>> render(dot, 3)[0, 0]
        array([[252, 252, 252],
               [ 36, 252,  36],
               [ 36,  36,  36]], dtype=uint8)
    """
    rows, columns = -(-size // _ROWS), -(-size // _COLUMNS)  # of tiles
    images = np.empty((len(discs), _CHANNELS, rows * _ROWS, columns * _COLUMNS), np.uint8)
    chunks = -(-images.size // (_CHANNELS * _PIXELS_AT_ONCE))
    step = -(-len(discs) // max(chunks, 1))
    # Front disc first; images are the last dimension, so that inner loops are long.
    x, y, radius = (np.ascontiguousarray(field.T[::-1]) for field in (discs.x, discs.y, discs.radius))
    colour, background = np.ascontiguousarray(_packed(discs.colour).T[::-1]), _packed(discs.background)
    for start in range(0, len(discs), max(step, 1)):
        chunk = slice(start, start + step)
        _draw((x[:, chunk], y[:, chunk], radius[:, chunk]), colour[:, chunk], background[chunk], images[chunk])
    return np.ascontiguousarray(images[..., :size, :size])


@contextmanager
def _ufuncs_in_place() -> Iterator[None]:
    """Keep numpy from copying operands that are slices shorter than its buffer.

    The copies would triple the time of bitwise operations.
    """
    before = np.setbufsize(64)
    try:
        yield
    finally:
        np.setbufsize(before)


@dataclass(frozen=True, kw_only=True)
class _Stack:
    """Discs of every tile, layer by layer.

    Tiles are sorted by their number of discs, descending, so that layer k covers the first ``sizes[k]`` tiles. Entries
    of ``tile`` and ``disc`` are those of the first layer, then of the second, and so on.
    """

    order: NDArray[np.intp]
    sizes: list[int]
    tile: NDArray[np.intp]
    disc: NDArray[np.intp]


def _draw(
    lengths: _Lengths, colour: NDArray[np.uint16], background: NDArray[np.uint16], images: NDArray[np.uint8]
) -> None:
    """Draw into ``images``."""
    count, tiles = len(images), (images.shape[2] // _ROWS, images.shape[3] // _COLUMNS)
    stack = _stacked(_touching(lengths, tiles))
    image = stack.order % count
    chosen = stack.disc * count + image.take(stack.tile)
    x, y, radius = (field.take(chosen) for field in lengths)
    covered = _covered((x, y, radius), stack, count, tiles)
    positions = _positions(stack.order, count, tiles)
    with _ufuncs_in_place():
        planes = _planes(stack.sizes, covered, _masks(colour.take(chosen)), _masks(background.take(image)))
        for channel, bits in enumerate(planes.reshape(_CHANNELS, COLOUR_BITS, -1)):
            _write_levels(bits.take(positions, axis=1), images[:, channel].reshape(count, -1).view(np.uint64))


def _touching(lengths: _Lengths, tiles: tuple[int, int]) -> NDArray[np.bool_]:
    """Whether the bounding square of a disc contains pixel centres of a tile. Shape ``(D, tiles * images)``."""
    rows, columns = tiles
    first = GRID // 2 + GRID * _ROWS * np.arange(rows, dtype=np.int32)[:, None, None]
    left = GRID // 2 + GRID * _COLUMNS * np.arange(columns, dtype=np.int32)[:, None]
    x, y, radius = (field[:, None, None] for field in lengths)
    touch = (np.where(radius < 0, -1, y + radius) >= first) & (y - radius <= first + GRID * (_ROWS - 1))
    if columns > 1:
        touch = touch & (x + radius >= left) & (x - radius <= left + GRID * (_COLUMNS - 1))
    return touch.reshape(len(touch), rows * columns * x.shape[-1])


def _stacked(touch: NDArray[np.bool_]) -> _Stack:
    """Layers of every tile, given which discs touch it. Shape ``(D, tiles)``."""
    count = touch.sum(axis=0, dtype=np.uint8)
    order = np.argsort(~count, kind="stable")
    sizes = (len(count) - np.cumsum(np.bincount(count))[:-1]).tolist()
    waiting = np.bitwise_or.reduce(touch * (_ONE << np.arange(len(touch), dtype=np.uint64))[:, None]).take(order)
    disc = []
    for size in sizes:
        left = waiting[:size]
        before = left - _ONE
        disc.append(np.bitwise_count(before & ~left))  # position of the lowest bit: the front disc of those left
        left &= before
    tile = [np.arange(size) for size in sizes]
    return _Stack(order=order, sizes=sizes, tile=_concatenated(tile), disc=_concatenated(disc))


def _concatenated(layers: Sequence[NDArray[np.integer[Any]]]) -> NDArray[np.intp]:
    return np.concatenate([np.empty(0, np.intp), *layers]).astype(np.intp, copy=False)


def _covered(lengths: _Lengths, stack: _Stack, images: int, tiles: tuple[int, int]) -> NDArray[np.uint64]:
    """Pixels that a disc covers in every row of a tile, one bit each. Shape ``(8, entries)``."""
    x, y, radius = lengths
    row, column = np.divmod((stack.order // images).astype(np.int32), tiles[1])
    y = y - (GRID * _ROWS * row + GRID // 2).take(stack.tile)
    x = x - (GRID * _COLUMNS * column).take(stack.tile)
    down = GRID * np.arange(_ROWS, dtype=np.int32)[:, None] - y
    half = _half_width(down, radius)
    end = _pixels(half + (x + GRID // 2))
    first = _pixels(np.subtract(x + (GRID // 2 - 1), half, out=half))
    # A shift by 64 bits or more gives 0 in numpy, as required here.
    covered: NDArray[np.uint64] = np.left_shift(_ONE, end)
    covered -= _ONE
    covered &= np.left_shift(_ALL, first)
    return covered


def _half_width(down: NDArray[np.int32], radius: NDArray[np.int32]) -> NDArray[np.int32]:
    """Largest integer h with h**2 + down**2 <= radius**2, or -1 if there is none.

    It is ceil(sqrt(r**2 - d**2 + 1)) - 1. Integers and their squares are exact, square roots are correctly rounded, and
    the ceiling is right as long as sqrt(n**2 + 1) does not round to n: for n up to 2**11 in float32 and up to 2**25 in
    float64.
    """
    dtype = np.float32 if radius.max(initial=0) <= _LARGEST_IN_FLOAT32 else np.float64
    room: NDArray[np.floating] = down.astype(dtype)
    np.square(room, out=room)
    np.subtract(np.square(radius.astype(dtype)) + 1, room, out=room)
    np.maximum(room, 0, out=room)
    np.sqrt(room, out=room)
    np.ceil(room, out=room)
    half = room.astype(np.int32)
    half -= 1
    return half


def _pixels(length: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Whole pixels in a length, 0 if it is negative; modifies its argument."""
    length >>= 4
    np.maximum(length, 0, out=length)
    return length.astype(np.uint64)


def _packed(colour: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Levels of three channels packed into one number."""
    red, green, blue = (colour[..., channel].astype(np.uint16) for channel in range(_CHANNELS))
    return red | green << np.uint16(COLOUR_BITS) | blue << np.uint16(2 * COLOUR_BITS)


def _masks(packed: NDArray[np.uint16]) -> NDArray[np.uint64]:
    """Bits of colours, each as a word of ones or zeros. Shape ``(9, colours)``."""
    bits = packed.astype(np.uint64) >> np.arange(_CHANNELS * COLOUR_BITS, dtype=np.uint64)[:, None]
    bits &= _ONE
    return np.negative(bits, out=bits)


def _planes(
    sizes: list[int], covered: NDArray[np.uint64], colours: NDArray[np.uint64], background: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Colour bits of all tiles. Shape ``(9, 8, tiles)``."""
    planes = np.zeros((len(background), _ROWS, background.shape[1]), np.uint64)
    share = np.empty_like(planes)
    free = np.full(planes.shape[1:], _ALL)
    start = 0
    for size in sizes:
        visible, still = covered[:, start : start + size], free[:, :size]
        visible &= still
        still ^= visible
        drawn = np.bitwise_and(visible, colours[:, None, start : start + size], out=share[..., :size])
        planes[..., :size] |= drawn
        start += size
    planes |= np.bitwise_and(free, background[:, None], out=share)
    return planes


def _positions(order: NDArray[np.intp], images: int, tiles: tuple[int, int]) -> NDArray[np.intp]:
    """Positions of the words of each image, row by row, among the sorted tiles."""
    tile = np.empty_like(order)
    tile[order] = np.arange(len(order))
    by_image = tile.reshape(*tiles, images).transpose(2, 0, 1)[:, :, None]
    positions: NDArray[np.intp] = by_image + len(order) * np.arange(_ROWS)[:, None]
    return positions.reshape(-1)


def _write_levels(bits: NDArray[np.uint64], images: NDArray[np.uint64]) -> None:
    """Convert the bits of one channel, shape ``(3, words)``, to bytes, eight in a word."""
    flat = np.ascontiguousarray(bits, "<u8").reshape(-1).view(np.uint8)
    # One bit in each of the eight bytes of a word: no shift below leaves its byte.
    level, middle, high = np.unpackbits(flat, bitorder="little").view(np.uint64).reshape(COLOUR_BITS, -1)
    level |= np.left_shift(middle, np.uint64(1), out=middle)
    level |= np.left_shift(high, np.uint64(2), out=high)
    np.multiply(level.reshape(images.shape), np.uint64(255 // (2**COLOUR_BITS - 1)), out=images)
