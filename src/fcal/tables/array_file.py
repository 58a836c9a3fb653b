"""NPZ and NPY files, read piece by piece; nothing in them is ever unpickled."""

import ast
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from fcal.tables.arrow import pa
from fcal.tables.errors import TableError, file_error, in_words, shown
from fcal.tables.files import TableFile, check_not_empty

_NPY_COLUMNS = ("mean", "std", "target")
_NUMBERS, _LABELS = "fiu", "bUSM"
_LONGEST_HEADER = 1 << 16
_KIND = re.compile(r"[<>|=]?[biufcmMOSUV]\d{0,9}(\[\w+\])?")
_BROKEN_HEADER = (
    ValueError,
    TypeError,
    KeyError,
    SyntaxError,
    RecursionError,
    MemoryError,
    EOFError,
)
_BROKEN_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    OSError,
    ValueError,
)


_MOST_COLUMNS = 1000  # of one array


@dataclass(frozen=True)
class Member:
    """An array in a file.

    Attributes:
        name: Its name.
        shape: Its shape; the first dimension counts rows.
        dtype: As stored.
        fortran: Whether the first index runs fastest.
        offset: Bytes before its first value.
        problem: Why it cannot be read as columns, if so.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int
    problem: str | None = None

    def columns(self) -> dict[str, tuple[int, ...]]:
        """Names of its columns and where they are: of shape (N, D) ``name_0``, ``name_1``; of (N, D, D) ``name_0_0``.

        An array of one column has the name of the member.
        """
        trailing = self.shape[1:]
        if self.problem is not None or all(size == 1 for size in trailing):
            return {self.name: (0,) * len(trailing)}
        return {"_".join([self.name, *map(str, index)]): index for index in np.ndindex(*trailing)}


class ArrayFile(TableFile):
    """An NPZ file of named arrays, or an NPY file of the columns mean, std and target.

    Args:
        path: The file.

    Raises:
        TableError: It is broken, or an NPY file of another shape.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        check_not_empty(path)
        self._zipped = path.suffix.lower() == ".npz"
        self.members = self._npz_members() if self._zipped else [self._npy_member()]
        self._places: dict[str, tuple[Member, tuple[int, ...]]] = {}
        for member in self.members:
            columns = member.columns() if self._zipped else {n: (i,) for i, n in enumerate(_NPY_COLUMNS)}
            twice = next((name for name in columns if name in self._places), None)
            if twice is not None:
                raise file_error(path, "with one column of each name", f"{shown(twice)} twice")
            self._places.update({name: (member, index) for name, index in columns.items()})
        self.names = tuple(self._places)

    def batches(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """The columns in the types that they are stored in."""
        names = list(dict.fromkeys([*numbers, *labels]))
        total = self.rows_of(names)
        with ExitStack() as stack:
            try:
                readers = self._readers(names, stack)
                for start in range(0, total, rows):
                    count = min(rows, total - start)
                    found = {k: v for reader in readers for k, v in reader.read(count).items()}
                    yield pa.RecordBatch.from_arrays([self._arrow(n, found[n]) for n in names], names=names)
            except _BROKEN_ZIP as error:
                raise self._broken(error) from None

    def all_batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Every column of every array."""
        return self.batches(self.names, (), rows)

    def require(self, name: str) -> str:
        """The name of a column that must be there and readable."""
        member, _ = self._places[super().require(name)]
        if member.problem is not None:
            raise file_error(self.path, f"with an array {shown(name)} of one value per row", member.problem)
        return name

    def rows_of(self, names: Sequence[str]) -> int:
        """The one length of some columns."""
        members = list(dict.fromkeys(self._places[self.require(name)][0] for name in names))
        lengths = {member.name: member.shape[0] for member in members}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{length} in {shown(name)}" for name, length in lengths.items())
            raise file_error(self.path, "with arrays of one length", listed)
        return members[0].shape[0] if members else 0

    def _readers(self, names: Sequence[str], stack: ExitStack) -> "list[_Reader]":
        archive = stack.enter_context(zipfile.ZipFile(self.path)) if self._zipped else None
        wanted: dict[Member, dict[str, tuple[int, ...]]] = {}
        for name in names:
            member, index = self._places[name]
            wanted.setdefault(member, {})[name] = index
        readers: list[_Reader] = []
        for member, columns in wanted.items():
            # Of an array whose first index runs fastest every column has its own place, so its own stream.
            groups = [{n: i} for n, i in columns.items()] if member.fortran else [columns]
            for group in groups:
                stream = archive.open(f"{member.name}.npy") if archive else self.path.open("rb")
                readers.append(_Reader(member, group, stack.enter_context(stream)))
        return readers

    def _npz_members(self) -> list[Member]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                names = [info for info in archive.infolist() if info.filename.endswith(".npy")]
                if not names:
                    raise file_error(self.path, "an NPZ archive of arrays", "none in it")
                return [self._zipped_member(archive, info) for info in names]
        except _BROKEN_ZIP as error:
            raise self._broken(error) from None

    def _zipped_member(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
        with archive.open(info) as stream:
            return self._member(info.filename.removesuffix(".npy"), stream, info.file_size)

    def _npy_member(self) -> Member:
        with self.path.open("rb") as stream:
            member = self._member(self.path.stem, stream, self.path.stat().st_size)
        if member.problem is None and member.dtype.kind not in _NUMBERS:
            member = _with_problem(member, f"dtype {member.dtype}")
        if member.problem is not None:
            raise file_error(self.path, "an array of numbers of shape (N, 3)", member.problem)
        if len(member.shape) != 2 or member.shape[1] != len(_NPY_COLUMNS):
            shape = f"shape {member.shape}"
            raise file_error(self.path, "of shape (N, 3): mean, std and target (an NPZ file may have more)", shape)
        return member

    def _member(self, name: str, stream: IO[bytes], size: int) -> Member:
        try:
            shape, fortran, dtype = _npy_header(stream)
        except _BROKEN_HEADER as error:
            what = f"a whole array {shown(name)}" if self._zipped else "a whole NPY file"
            raise file_error(self.path, what, in_words(error)) from None
        member = Member(name, shape, dtype, fortran, stream.tell())
        if dtype.hasobject:
            return _with_problem(member, "pickled objects, which are never loaded")
        if dtype.kind not in _NUMBERS + _LABELS:
            return _with_problem(member, f"dtype {dtype}")
        if not shape:
            return _with_problem(member, "a single value")
        if math.prod(shape[1:]) > _MOST_COLUMNS:
            return _with_problem(member, f"shape {shape}; flatten images to one row per pixel")
        missing = member.offset + int(np.prod(shape, dtype=object)) * dtype.itemsize - size
        if missing > 0:
            raise file_error(self.path, f"a whole array {shown(name)} of shape {shape}", f"{missing} bytes less")
        return member

    def _arrow(self, name: str, values: np.ndarray[Any, Any]) -> pa.Array:
        try:
            column = pa.array(values)
            return column.cast(pa.string()) if values.dtype.kind == "S" else column
        except (pa.ArrowException, ValueError) as error:
            raise file_error(self.path, f"a column {shown(name)} of numbers or labels", in_words(error)) from None

    def _broken(self, error: Exception) -> TableError:
        what = "an NPZ archive" if self._zipped else "a whole NPY file"
        return error if isinstance(error, TableError) else file_error(self.path, what, in_words(error))


class _Reader:
    """Columns of one array, from a stream that is read forwards only (so that it may be compressed)."""

    def __init__(self, member: Member, columns: dict[str, tuple[int, ...]], stream: IO[bytes]) -> None:
        self._member, self._columns, self._stream = member, columns, stream
        start = member.offset
        trailing = member.shape[1:]
        self._width = 1 if member.fortran else int(np.prod(trailing, dtype=np.int64))
        if member.fortran and trailing:
            (index,) = columns.values()
            place = int(np.ravel_multi_index(index, trailing, order="F"))
            start += place * member.shape[0] * member.dtype.itemsize
        stream.seek(start)

    def read(self, rows: int) -> dict[str, np.ndarray[Any, Any]]:
        """The next rows of each column, in native byte order."""
        wanted = rows * self._width * self._member.dtype.itemsize
        raw = self._stream.read(wanted)
        if len(raw) < wanted:
            raise EOFError(f"the array {self._member.name!r} ends early")
        values = np.frombuffer(raw, self._member.dtype)
        if self._member.fortran:
            return {name: _native(values) for name in self._columns}
        block = values.reshape(rows, self._width)
        trailing = self._member.shape[1:]
        places = {
            name: int(np.ravel_multi_index(index, trailing)) if trailing else 0 for name, index in self._columns.items()
        }
        return {name: _native(block[:, place]) for name, place in places.items()}


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype, read as literals: numpy's own reader warns, and raises whatever Python's parser does."""
    version = npy.read_magic(stream)
    length = int.from_bytes(stream.read(2 if version[0] == 1 else 4), "little")
    if version[0] > 3 or length > _LONGEST_HEADER:
        raise ValueError(f"a header of version {version[0]} and {length} bytes")
    header = ast.literal_eval(stream.read(length).decode("utf-8" if version[0] == 3 else "latin-1").strip())
    shape, fortran, kind = header["shape"], header["fortran_order"], header["descr"]
    whole = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
    if not whole or not isinstance(fortran, bool):
        raise ValueError(f"the shape {shown(str(shape))}")
    if not isinstance(kind, str):
        return shape, fortran, np.dtype(np.void)  # a structured array
    if not _KIND.fullmatch(kind):
        raise ValueError(f"the dtype {shown(kind)}")
    return shape, fortran, np.dtype(kind)


def _with_problem(member: Member, problem: str) -> Member:
    return Member(member.name, member.shape, member.dtype, member.fortran, member.offset, problem)


def _native(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    dtype = values.dtype.newbyteorder("=")
    if dtype.kind == "f" and dtype.itemsize > 8:
        dtype = np.dtype(np.float64)
    return np.ascontiguousarray(values, dtype)
