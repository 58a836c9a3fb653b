"""NPZ and NPY files, read in chunks; nothing is ever unpickled."""

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
import pyarrow as pa
from numpy.lib import format as npy

from fcal._files import temporary_folder
from fcal.tables.readers import TableError, TableFile, file_error, message_of, shown
from fcal.tables.writers import Repair, column_types, flat, typed

Values = np.ndarray[Any, Any]

NPY_COLUMNS = {"mean": 0, "std": 1, "target": 2}
_NUMBERS, _LABELS = "fiu", "bUSM"
_MAX_HEADER = 1 << 16
_DTYPE = re.compile(r"[<>|=]?[biufcmMOSUV]\d{0,9}(\[\w+\])?")
_BROKEN_HEADER = (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError, EOFError)
_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OSError, ValueError)
_MAX_COLUMNS = 1000  # of one array
_MAX_LABEL = 4096  # bytes of a text in an array, which takes as many for every row: 1024 characters
_CHUNK_BYTES = 64 << 20  # of all columns that are read together


@dataclass(frozen=True)
class Member:
    """An array in a file.

    Attributes:
        name: Its name.
        shape: Its shape, rows first.
        dtype: As stored.
        fortran: Whether the order is column-major.
        offset: Number of bytes before the first value.
        problem: Why it cannot be read as columns; None where it can.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int
    problem: str | None = None

    def columns(self) -> dict[str, int]:
        """Position of each column by name: ``name_0``, ``name_1``, ... of shape (N, D), ``name_0_0``, ... of (N, D, D).

        A single column has the name of the array. Positions follow the order in which the values are stored.
        """
        trailing = self.shape[1:]
        if self.problem is not None or math.prod(trailing) == 1:
            return {self.name: 0}
        positions = np.arange(math.prod(trailing)).reshape(trailing, order="F" if self.fortran else "C")
        return {"_".join([self.name, *map(str, index)]): int(positions[index]) for index in np.ndindex(*trailing)}


class ArrayFile(TableFile):
    """Reader of an NPZ file of named arrays, or an NPY file of the columns mean, std and target."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._zipped = path.suffix.lower() == ".npz"
        self.members = self._npz_members() if self._zipped else [self._npy_member()]
        columns = [
            (name, (member, position))
            for member in self.members
            for name, position in (member.columns() if self._zipped else NPY_COLUMNS).items()
        ]
        self.names = tuple(name for name, _ in columns)
        self.check_names()
        self._columns = dict(columns)

    def batches(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """The columns as they are stored."""
        names = list(dict.fromkeys([*numbers, *labels]))
        total = self.count_rows(names)
        rows = min(rows, max(_CHUNK_BYTES // self._bytes_per_row(names), 1))
        with ExitStack() as stack:
            try:
                readers = self._readers(names, stack)
                for start in range(0, total, rows):
                    count = min(rows, total - start)
                    values = {k: v for reader in readers for k, v in reader.read(count).items()}
                    yield pa.RecordBatch.from_arrays([self._arrow(n, values[n]) for n in names], names=names)
            except _BROKEN_ZIP as error:
                raise self._broken(error) from None

    def require(self, name: str) -> str:
        """The name of a column that must exist and be readable."""
        member, _ = self._columns[super().require(name)]
        if member.problem is not None:
            raise file_error(self.path, f"with an array {shown(name)} of one value per row", member.problem)
        return name

    def count_rows(self, names: Sequence[str]) -> int:
        """Number of rows of some columns."""
        members = list(dict.fromkeys(self._columns[self.require(name)][0] for name in names))
        lengths = {member.name: member.shape[0] for member in members}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{length} in {shown(name)}" for name, length in lengths.items())
            raise file_error(self.path, "with arrays of one length", listed)
        return members[0].shape[0] if members else 0

    def _bytes_per_row(self, names: Sequence[str]) -> int:
        """Bytes that a row of some columns takes in memory, of which a small compressed file may have many."""
        members = dict.fromkeys(self._columns[name][0] for name in names)
        return max(sum(math.prod(member.shape[1:]) * member.dtype.itemsize for member in members), 1)

    def _readers(self, names: Sequence[str], stack: ExitStack) -> "list[_Reader]":
        archive = stack.enter_context(zipfile.ZipFile(self.path)) if self._zipped else None
        by_member: dict[Member, dict[str, int]] = {}
        for name in names:
            member, position = self._columns[name]
            by_member.setdefault(member, {})[name] = position
        readers: list[_Reader] = []
        for member, columns in by_member.items():
            # Each column of a column-major array is contiguous, so it has its own stream.
            groups = [{name: position} for name, position in columns.items()] if member.fortran else [columns]
            for group in groups:
                stream = archive.open(f"{member.name}.npy") if archive else self.path.open("rb")
                readers.append(_Reader(member, group, stack.enter_context(stream)))
        return readers

    def _npz_members(self) -> list[Member]:
        members = []
        try:
            with zipfile.ZipFile(self.path) as archive:
                for info in archive.infolist():
                    if info.filename.endswith(".npy"):
                        with archive.open(info) as stream:
                            members.append(self._member(info.filename.removesuffix(".npy"), stream, info.file_size))
        except _BROKEN_ZIP as error:
            raise self._broken(error) from None
        if not members:
            raise file_error(self.path, "an NPZ archive of arrays", "none in it")
        return members

    def _npy_member(self) -> Member:
        with self.path.open("rb") as stream:
            member = self._member(self.path.stem, stream, self.path.stat().st_size)
        problem = member.problem or (f"dtype {member.dtype}" if member.dtype.kind not in _NUMBERS else None)
        if problem is not None:
            raise file_error(self.path, "an array of numbers of shape (N, 3)", problem)
        if len(member.shape) != 2 or member.shape[1] != len(NPY_COLUMNS):
            shape = f"shape {member.shape}"
            raise file_error(
                self.path, "of shape (N, 3): mean, std and target (np.savez holds more, as samples)", shape
            )
        return member

    def _member(self, name: str, stream: IO[bytes], size: int) -> Member:
        try:
            shape, fortran, dtype = _npy_header(stream)
        except _BROKEN_HEADER as error:
            requirement = f"a whole array {shown(name)}" if self._zipped else "a whole NPY file"
            raise file_error(self.path, requirement, message_of(error)) from None
        member = Member(name, shape, dtype, fortran, stream.tell(), problem_of(shape, dtype))
        missing = member.offset + math.prod(shape) * dtype.itemsize - size
        if missing > 0 and member.problem is None:
            raise file_error(self.path, f"a whole array {shown(name)} of shape {shape}", f"{missing} bytes less")
        return member

    def _arrow(self, name: str, values: Values) -> pa.Array:
        try:
            column = pa.array(values)
            return column.cast(pa.string()) if values.dtype.kind == "S" else column
        except (pa.ArrowException, ValueError) as error:
            raise file_error(self.path, f"a column {shown(name)} of numbers or labels", message_of(error)) from None

    def _broken(self, error: Exception) -> TableError:
        requirement = "an NPZ archive" if self._zipped else "a whole NPY file"
        return error if isinstance(error, TableError) else file_error(self.path, requirement, message_of(error))


class _Reader:
    """Columns of one array, from a stream that is only read forwards, as it may be compressed."""

    def __init__(self, member: Member, columns: dict[str, int], stream: IO[bytes]) -> None:
        self._member, self._stream = member, stream
        self._width, self._columns, start = math.prod(member.shape[1:]), columns, member.offset
        if member.fortran:
            ((name, position),) = columns.items()
            self._width, self._columns = 1, {name: 0}
            start += position * member.shape[0] * member.dtype.itemsize
        stream.seek(start)

    def read(self, rows: int) -> dict[str, Values]:
        """The next rows of each column, in native byte order."""
        size = rows * self._width * self._member.dtype.itemsize
        raw = self._stream.read(size)
        if len(raw) < size:
            raise EOFError(f"the array {self._member.name!r} ends early")
        values = np.frombuffer(raw, self._member.dtype).reshape(rows, self._width)
        return {name: _native(values[:, position]) for name, position in self._columns.items()}


def write_npz(temporary: Path, repair: Repair) -> None:
    """Write an NPZ file, with a temporary file per array: an archive takes one array after the other."""
    types, shapes = column_types(repair.source), _array_shapes(repair.source.tables)
    arrays: dict[str, _SpooledArray] = {}
    with temporary_folder(repair.out) as folder:
        for block, columns in repair.chunks:
            old = typed(block, types)
            values = {name: _numpy(repair, name, old.column(name)) for name in types}
            if shapes is not None:
                values = {
                    name: np.stack([values[column] for column in names], -1).reshape(old.num_rows, *shape)
                    for name, (names, shape) in shapes.items()
                }
            new = flat(columns) if shapes is None else columns
            values.update({name: value.detach().numpy() for name, value in new.items()})
            for name, array in values.items():
                if name not in arrays:
                    arrays[name] = _SpooledArray(folder / str(len(arrays)))
                arrays[name].append(array)
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, spooled in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                    spooled.copy_to(stream)


def _numpy(repair: Repair, name: str, column: pa.Array) -> Values:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    values = column.to_numpy(zero_copy_only=False)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        values = np.array(column.fill_null("").to_pylist(), dtype=np.str_)
    if values.dtype.hasobject:
        raise repair.cannot_hold(name, f"{column.type}{' with nulls' if column.null_count else ''}")
    return values


class _SpooledArray:
    """An array that grows on disk; its dtype is known after the last row, by the widths of text and nulls."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._chunks: list[tuple[np.dtype[Any], tuple[int, ...]]] = []

    def append(self, values: Values) -> None:
        with self._path.open("ab") as file:
            np.save(file, values, allow_pickle=False)
        self._chunks.append((values.dtype, values.shape))

    def copy_to(self, stream: IO[bytes]) -> None:
        dtype = np.result_type(*(chunk_dtype for chunk_dtype, _ in self._chunks))
        shape = (sum(chunk[0] for _, chunk in self._chunks), *self._chunks[0][1][1:])
        header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(stream, header)
        with self._path.open("rb") as file:
            for _ in self._chunks:
                stream.write(np.load(file).astype(dtype).tobytes())


def _array_shapes(tables: Sequence[TableFile]) -> dict[str, tuple[list[str], tuple[int, ...]]] | None:
    """Columns of each array of an NPZ input, and its shape without rows; None for other inputs."""
    first = tables[0]
    if not isinstance(first, ArrayFile) or len(tables) > 1 or first.path.suffix.lower() != ".npz":
        return None
    return {member.name: (list(member.columns()), member.shape[1:]) for member in first.members}


def problem_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str | None:
    """Why an array cannot be read as columns; None where it can."""
    if dtype.hasobject:
        return "pickled objects, which are never loaded"
    if dtype.kind not in _NUMBERS + _LABELS:
        return f"dtype {dtype}"
    if not shape:
        return "a single value"
    if math.prod(shape[1:]) > _MAX_COLUMNS:
        return f"shape {shape}; flatten images to one row per pixel"
    if dtype.kind in "US" and dtype.itemsize > _MAX_LABEL:
        return f"text of {dtype.itemsize} bytes in every row, more than {_MAX_LABEL}; use numbers or shorter labels"
    return None


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype, parsed as literals: NumPy's reader warns, and raises any error of Python's parser."""
    version = npy.read_magic(stream)
    length = int.from_bytes(stream.read(2 if version[0] == 1 else 4), "little")
    if version[0] > 3 or length > _MAX_HEADER:
        raise ValueError(f"a header of version {version[0]} and {length} bytes")
    header = ast.literal_eval(stream.read(length).decode("utf-8" if version[0] == 3 else "latin-1").strip())
    shape, fortran, dtype = header["shape"], header["fortran_order"], header["descr"]
    is_shape = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
    if not is_shape or not isinstance(fortran, bool):
        raise ValueError(f"the shape {shown(str(shape))}")
    if not isinstance(dtype, str):
        return shape, fortran, np.dtype(np.void)  # a structured array
    if not _DTYPE.fullmatch(dtype):
        raise ValueError(f"the dtype {shown(dtype)}")
    return shape, fortran, np.dtype(dtype)


def _native(values: Values) -> Values:
    dtype = values.dtype.newbyteorder("=")
    if dtype.kind == "f" and dtype.itemsize > 8:
        dtype = np.dtype(np.float64)
    return np.ascontiguousarray(values, dtype)
