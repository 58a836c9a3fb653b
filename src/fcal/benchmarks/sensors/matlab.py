"""Matrices of MATLAB files of level 5: numbers only, nothing that is run, and no byte is trusted.

SciPy reads more kinds of values, but a damaged file may end its process. The format is that of MathWorks' "MAT-File
Format", chapter 1.
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_HEADER = 128  # bytes
_VERSION = 0x0100
_MATRIX, _COMPRESSED = 14, 15
_NAME_TYPE, _FLAGS_TYPE, _SIZES_TYPE = 1, 6, 5
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = range(6, 16)  # arrays of numbers: double, single and whole ones
_COMPLEX = 0x0800  # a flag
_LARGEST = 500_000_000  # bytes of a compressed element, when it is unpacked


class _DamagedError(Exception):
    """Something is not as the format says."""


def matlab_matrices(path: Path) -> dict[str, NDArray[Any]]:
    """Real numeric matrices of a MATLAB file, by name; other variables are passed over.

    Args:
        path: A file as MATLAB's ``save`` wrote it, of version 5 to 7.

    Raises:
        ValueError: It is none, or is damaged.
    """
    content = path.read_bytes()
    order = {b"IM": "<", b"MI": ">"}.get(content[126:_HEADER])
    if order is None or struct.unpack_from(f"{order}H", content, 124)[0] != _VERSION:
        raise ValueError(f"expected {path} a MATLAB file of version 5 to 7, got one with another beginning")
    try:
        found = [_matrix(body, order) for kind, body in _unpacked(content[_HEADER:], order) if kind == _MATRIX]
    except (_DamagedError, zlib.error) as error:
        raise ValueError(f"expected {path} a MATLAB file that is whole, got one that is damaged: {error}") from None
    return dict(pair for pair in found if pair is not None)


def _unpacked(content: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """Elements of a file; of a compressed one, what is in it."""
    for kind, body in _elements(content, order, padded=False):
        if kind != _COMPRESSED:
            yield kind, body
            continue
        unpacking = zlib.decompressobj()
        inner = unpacking.decompress(body, _LARGEST)
        if not unpacking.eof:
            raise _DamagedError("a compressed variable has no end")
        yield from _elements(inner, order, padded=True)


def _elements(content: bytes, order: str, *, padded: bool) -> Iterator[tuple[int, bytes]]:
    """Type and bytes of every element.

    Args:
        content: One after the other.
        order: Of bytes: ``"<"`` or ``">"``.
        padded: Whether every element begins at a multiple of 8 bytes; outermost ones do unless they are compressed.
    """
    at = 0
    while at < len(content):
        if at + 8 > len(content):
            raise _DamagedError("it ends in the middle of a tag")
        kind, size = struct.unpack_from(f"{order}II", content, at)
        start = at + 8
        if kind >> 16:  # a small element: up to 4 bytes within the tag
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
            if size > 4:
                raise _DamagedError(f"a small element claims {size} bytes")
        if start + size > len(content):
            raise _DamagedError(f"an element claims {size} bytes, {len(content) - start} are there")
        yield kind, content[start : start + size]
        end = max(start + size, at + 8)
        at = end if kind == _COMPRESSED and not padded else -(-end // 8) * 8


def _matrix(body: bytes, order: str) -> tuple[str, NDArray[Any]] | None:
    """Name and values; None for what is not a matrix of real numbers."""
    parts = list(_elements(body, order, padded=True))
    if len(parts) < 3 or [kind for kind, _ in parts[:3]] != [_FLAGS_TYPE, _SIZES_TYPE, _NAME_TYPE]:
        return None  # an object or a function: not for us
    if len(parts[0][1]) < 4 or len(parts[1][1]) % 4:
        raise _DamagedError("flags or sizes of a variable are cut off")
    flags = struct.unpack_from(f"{order}I", parts[0][1])[0]
    if flags & 0xFF not in _CLASSES or flags & _COMPLEX or len(parts) != 4:
        return None
    sizes = [int(size) for size in np.frombuffer(parts[1][1], f"{order}i4")]
    kind, values = parts[3]
    if kind not in _NUMBERS or len(values) % np.dtype(_NUMBERS[kind]).itemsize:
        raise _DamagedError(f"a variable has values of type {kind}, {len(values)} bytes of them")
    flat = np.frombuffer(values, np.dtype(f"{order}{_NUMBERS[kind]}"))
    if any(size < 0 for size in sizes) or _product(sizes) != len(flat):
        raise _DamagedError(f"a variable of shape {tuple(sizes)} has {len(flat)} values")
    return parts[2][1].decode("latin-1"), flat.reshape(sizes, order="F")


def _product(sizes: list[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
