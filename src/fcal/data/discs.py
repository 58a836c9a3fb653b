"""Flat discs drawn over one another, many images at a time.

A row of 64 pixels is one 64-bit word, so a disc covers a row by two shifts, and painting is two bitwise operations for
each bit of colour; colours therefore have few bits. Images are cut into tiles of 8 such rows, and a disc is drawn only
where it touches one. Discs of a tile are painted from the front to the back, all tiles side by side: first the front
disc of every tile, then the second one of those that have it, and so on.

Lengths are whole numbers of sixteenths of a pixel, and no step rounds: a byte never depends on the machine.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

GRID = 16  # lengths are in pixels divided by this
COLOUR_BITS = 3
_CHANNELS = 3
_ROWS, _COLUMNS = 8, 64  # of a tile
_PIXELS_AT_ONCE = 10**6  # they stay in the cache; a power of two would make strides that share cache lines
_LARGEST_IN_FLOAT32 = 2**11  # radius, see `_half_width`
_ALL, _ONE = np.uint64(2**64 - 1), np.uint64(1)


_Lengths = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]  # x, y and radius


@dataclass(frozen=True, kw_only=True)
class Discs:
    """Discs of many images, in the order in which they are painted. Lengths are in sixteenths of a pixel.

    Args:
        x: Centres from the left. Shape ``(N, D)``, with D at most 64.
        y: Centres from the top. Shape ``(N, D)``.
        radius: A negative one is no disc. Shape ``(N, D)``.
        colour: Levels 0 to 7 of red, green and blue. Shape ``(N, D, 3)``.
        background: The same of what lies behind. Shape ``(N, 3)``.
    """

    x: NDArray[np.int32]
    y: NDArray[np.int32]
    radius: NDArray[np.int32]
    colour: NDArray[np.uint8]
    background: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.x)


def painted(discs: Discs, size: int) -> NDArray[np.uint8]:
    """Images of discs: a pixel has the colour of the last disc that its centre lies in, or on the edge of.

    Args:
        discs: What to paint.
        size: Pixels of an edge.

    Returns:
        Shape ``(N, 3, size, size)``; level 7 is 252.

    Example:
        >>> dot = Discs(
        ...     x=np.array([[24]]), y=np.array([[8]]), radius=np.array([[16]]),
        ...     colour=np.array([[[7, 0, 0]]], np.uint8), background=np.array([[1, 1, 1]], np.uint8),
        ... )
        >>> painted(dot, 3)[0, 0]
        array([[252, 252, 252],
               [ 36, 252,  36],
               [ 36,  36,  36]], dtype=uint8)
    """
    rows, columns = -(-size // _ROWS), -(-size // _COLUMNS)  # of tiles
    images = np.empty((len(discs), _CHANNELS, rows * _ROWS, columns * _COLUMNS), np.uint8)
    parts = -(-images.size // (_CHANNELS * _PIXELS_AT_ONCE))
    step = -(-len(discs) // max(parts, 1))
    # The front disc first; images innermost, so that inner loops are long.
    x, y, radius = (np.ascontiguousarray(field.T[::-1]) for field in (discs.x, discs.y, discs.radius))
    colour, background = np.ascontiguousarray(_packed(discs.colour).T[::-1]), _packed(discs.background)
    for start in range(0, len(discs), max(step, 1)):
        part = slice(start, start + step)
        _paint((x[:, part], y[:, part], radius[:, part]), colour[:, part], background[part], images[part])
    return np.ascontiguousarray(images[..., :size, :size])


@contextmanager
def _ufuncs_in_place() -> Iterator[None]:
    """Let numpy work on slices where they are.

    It copies the operands of slices that are shorter than its buffer, which triples the time of bitwise operations.
    """
    before = np.setbufsize(64)
    try:
        yield
    finally:
        np.setbufsize(before)


@dataclass(frozen=True, kw_only=True)
class _Stack:
    """Which discs are painted on which tiles, layer by layer.

    Tiles are sorted by their number of discs, the fullest first, so that layer k lies on the first ``sizes[k]`` of
    them. Entries of ``tile`` and ``disc`` are those of the first layer, then of the second, and so on.
    """

    order: NDArray[np.intp]
    sizes: list[int]
    tile: NDArray[np.intp]
    disc: NDArray[np.intp]


def _paint(
    lengths: _Lengths, colour: NDArray[np.uint16], background: NDArray[np.uint16], images: NDArray[np.uint8]
) -> None:
    """Fill some images."""
    count, tiles = len(images), (images.shape[2] // _ROWS, images.shape[3] // _COLUMNS)
    stack = _stacked(_touching(lengths, tiles))
    image = stack.order % count
    chosen = stack.disc * count + image.take(stack.tile)
    x, y, radius = (field.take(chosen) for field in lengths)
    covered = _covered((x, y, radius), stack, count, tiles)
    place = _places(stack.order, count, tiles)
    with _ufuncs_in_place():
        planes = _planes(stack.sizes, covered, _masks(colour.take(chosen)), _masks(background.take(image)))
        for channel, bits in enumerate(planes.reshape(_CHANNELS, COLOUR_BITS, -1)):
            _write_levels(bits.take(place, axis=1), images[:, channel].reshape(count, -1).view(np.uint64))


def _touching(lengths: _Lengths, tiles: tuple[int, int]) -> NDArray[np.bool_]:
    """Whether the square around a disc holds pixel centres of a tile. Shape ``(D, tile rows * columns * images)``."""
    rows, columns = tiles
    first = GRID // 2 + GRID * _ROWS * np.arange(rows, dtype=np.int32)[:, None, None]
    left = GRID // 2 + GRID * _COLUMNS * np.arange(columns, dtype=np.int32)[:, None]
    x, y, radius = (field[:, None, None] for field in lengths)
    touch = (np.where(radius < 0, -1, y + radius) >= first) & (y - radius <= first + GRID * (_ROWS - 1))
    if columns > 1:
        touch = touch & (x + radius >= left) & (x - radius <= left + GRID * (_COLUMNS - 1))
    return touch.reshape(len(touch), rows * columns * x.shape[-1])


def _stacked(touch: NDArray[np.bool_]) -> _Stack:
    """The layers of every tile, from whether a disc touches it. Shape ``(D, tiles)``."""
    count = touch.sum(axis=0, dtype=np.uint8)
    order = np.argsort(~count, kind="stable")
    sizes = (len(count) - np.cumsum(np.bincount(count))[:-1]).tolist()
    waiting = np.bitwise_or.reduce(touch * (_ONE << np.arange(len(touch), dtype=np.uint64))[:, None]).take(order)
    disc = []
    for size in sizes:
        left = waiting[:size]
        before = left - _ONE
        disc.append(np.bitwise_count(before & ~left))  # place of the lowest bit: the front disc of those that wait
        left &= before
    tile = [np.arange(size) for size in sizes]
    return _Stack(order=order, sizes=sizes, tile=_joined(tile), disc=_joined(disc))


def _joined(parts: Sequence[NDArray[np.integer[Any]]]) -> NDArray[np.intp]:
    return np.concatenate([np.empty(0, np.intp), *parts]).astype(np.intp, copy=False)


def _covered(lengths: _Lengths, stack: _Stack, images: int, tiles: tuple[int, int]) -> NDArray[np.uint64]:
    """Pixels of every row of a tile that a disc covers, one bit each. Shape ``(8, entries)``."""
    x, y, radius = lengths
    row, column = np.divmod((stack.order // images).astype(np.int32), tiles[1])
    y = y - (GRID * _ROWS * row + GRID // 2).take(stack.tile)
    x = x - (GRID * _COLUMNS * column).take(stack.tile)
    down = GRID * np.arange(_ROWS, dtype=np.int32)[:, None] - y
    half = _half_width(down, radius)
    end = _pixels(half + (x + GRID // 2))
    first = _pixels(np.subtract(x + (GRID // 2 - 1), half, out=half))
    # Numpy shifts a bit by 64 or more to nothing, as is right here.
    covered: NDArray[np.uint64] = np.left_shift(_ONE, end)
    covered -= _ONE
    covered &= np.left_shift(_ALL, first)
    return covered


def _half_width(down: NDArray[np.int32], radius: NDArray[np.int32]) -> NDArray[np.int32]:
    """Largest whole h with h**2 + down**2 <= radius**2, and -1 where there is none.

    It is ceil(sqrt(r**2 - d**2 + 1)) - 1. Whole numbers and their squares are exact, a square root is correctly
    rounded, and its ceiling is right as long as sqrt(n**2 + 1) does not round to n: for n up to 2**11 in float32, and
    up to 2**25 in float64.
    """
    kind = np.float32 if radius.max(initial=0) <= _LARGEST_IN_FLOAT32 else np.float64
    room: NDArray[np.floating] = down.astype(kind)
    np.square(room, out=room)
    np.subtract(np.square(radius.astype(kind)) + 1, room, out=room)
    np.maximum(room, 0, out=room)
    np.sqrt(room, out=room)
    np.ceil(room, out=room)
    half = room.astype(np.int32)
    half -= 1
    return half


def _pixels(length: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Whole pixels in a length, 0 in a negative one; the length is overwritten."""
    length >>= 4
    np.maximum(length, 0, out=length)
    return length.astype(np.uint64)


def _packed(colour: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Levels of three channels in one number."""
    red, green, blue = (colour[..., channel].astype(np.uint16) for channel in range(_CHANNELS))
    return red | green << np.uint16(COLOUR_BITS) | blue << np.uint16(2 * COLOUR_BITS)


def _masks(packed: NDArray[np.uint16]) -> NDArray[np.uint64]:
    """Bits of colours, each as a full or an empty word. Shape ``(9, colours)``."""
    bits = packed.astype(np.uint64) >> np.arange(_CHANNELS * COLOUR_BITS, dtype=np.uint64)[:, None]
    bits &= _ONE
    return np.negative(bits, out=bits)


def _planes(
    sizes: list[int], covered: NDArray[np.uint64], colours: NDArray[np.uint64], background: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """The bits of all tiles' colours. Shape ``(9, 8, tiles)``."""
    planes = np.zeros((len(background), _ROWS, background.shape[1]), np.uint64)
    share = np.empty_like(planes)
    free = np.full(planes.shape[1:], _ALL)
    start = 0
    for size in sizes:
        visible, still = covered[:, start : start + size], free[:, :size]
        visible &= still
        still ^= visible
        painted_now = np.bitwise_and(visible, colours[:, None, start : start + size], out=share[..., :size])
        planes[..., :size] |= painted_now
        start += size
    planes |= np.bitwise_and(free, background[:, None], out=share)
    return planes


def _places(order: NDArray[np.intp], images: int, tiles: tuple[int, int]) -> NDArray[np.intp]:
    """Where the words of an image, row by row, lie among those of the sorted tiles."""
    tile = np.empty_like(order)
    tile[order] = np.arange(len(order))
    by_image = tile.reshape(*tiles, images).transpose(2, 0, 1)[:, :, None]
    places: NDArray[np.intp] = by_image + len(order) * np.arange(_ROWS)[:, None]
    return places.reshape(-1)


def _write_levels(bits: NDArray[np.uint64], images: NDArray[np.uint64]) -> None:
    """Turn the bits of one channel, shape ``(3, words)``, into its bytes, eight in a word."""
    flat = np.ascontiguousarray(bits, "<u8").reshape(-1).view(np.uint8)
    # Eight pixels of one bit each in a word: nothing below leaves its byte.
    level, middle, high = np.unpackbits(flat, bitorder="little").view(np.uint64).reshape(COLOUR_BITS, -1)
    level |= np.left_shift(middle, np.uint64(1), out=middle)
    level |= np.left_shift(high, np.uint64(2), out=high)
    np.multiply(level.reshape(images.shape), np.uint64(255 // (2**COLOUR_BITS - 1)), out=images)
