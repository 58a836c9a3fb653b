"""NPZ and NPY files, read in chunks; nothing is ever unpickled."""

import ast
import math
import re
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy
from torch import Tensor

from fcal.tables.errors import TableError, file_error, message_of, shown
from fcal.tables.readers import Block, TableFile
from fcal.tables.writers import TypedWriter, flat

Values = np.ndarray[Any, Any]

_NPY_COLUMNS = ("mean", "std", "target")
_NUMBERS, _LABELS = "fiu", "bUSM"
_MAX_HEADER = 1 << 16
_DTYPE = re.compile(r"[<>|=]?[biufcmMOSUV]\d{0,9}(\[\w+\])?")
_BROKEN_HEADER = (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError, EOFError)
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
_MAX_COLUMNS = 1000  # of one array


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

    def columns(self) -> dict[str, tuple[int, ...]]:
        """Index of each column by name: ``name_0``, ``name_1``, ... of shape (N, D), ``name_0_0``, ... of (N, D, D).

        A single column has the name of the array.
        """
        trailing = self.shape[1:]
        if self.problem is not None or all(size == 1 for size in trailing):
            return {self.name: (0,) * len(trailing)}
        return {"_".join([self.name, *map(str, index)]): index for index in np.ndindex(*trailing)}


class ArrayFile(TableFile):
    """Reader of an NPZ file of named arrays, or an NPY file of the columns mean, std and target."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._zipped = path.suffix.lower() == ".npz"
        self.members = self._npz_members() if self._zipped else [self._npy_member()]
        self._columns: dict[str, tuple[Member, tuple[int, ...]]] = {}
        for member in self.members:
            columns = member.columns() if self._zipped else {n: (i,) for i, n in enumerate(_NPY_COLUMNS)}
            duplicate = next((name for name in columns if name in self._columns), None)
            if duplicate is not None:
                raise file_error(path, "with one column of each name", f"{shown(duplicate)} twice")
            self._columns.update({name: (member, index) for name, index in columns.items()})
        self.names = tuple(self._columns)

    def batches(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """The columns as they are stored."""
        names = list(dict.fromkeys([*numbers, *labels]))
        total = self.rows_of(names)
        with ExitStack() as stack:
            try:
                readers = self._readers(names, stack)
                for start in range(0, total, rows):
                    count = min(rows, total - start)
                    values = {k: v for reader in readers for k, v in reader.read(count).items()}
                    yield pa.RecordBatch.from_arrays([self._arrow(n, values[n]) for n in names], names=names)
            except _BROKEN_ZIP as error:
                raise self._broken(error) from None

    def all_batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Every column of every array."""
        return self.batches(self.names, (), rows)

    def require(self, name: str) -> str:
        """The name of a column that must exist and be readable."""
        member, _ = self._columns[super().require(name)]
        if member.problem is not None:
            raise file_error(self.path, f"with an array {shown(name)} of one value per row", member.problem)
        return name

    def rows_of(self, names: Sequence[str]) -> int:
        """Number of rows of some columns."""
        members = list(dict.fromkeys(self._columns[self.require(name)][0] for name in names))
        lengths = {member.name: member.shape[0] for member in members}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{length} in {shown(name)}" for name, length in lengths.items())
            raise file_error(self.path, "with arrays of one length", listed)
        return members[0].shape[0] if members else 0

    def _readers(self, names: Sequence[str], stack: ExitStack) -> "list[_Reader]":
        archive = stack.enter_context(zipfile.ZipFile(self.path)) if self._zipped else None
        by_member: dict[Member, dict[str, tuple[int, ...]]] = {}
        for name in names:
            member, index = self._columns[name]
            by_member.setdefault(member, {})[name] = index
        readers: list[_Reader] = []
        for member, columns in by_member.items():
            # Each column of a column-major array is contiguous, so it has its own stream.
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
            member = replace(member, problem=f"dtype {member.dtype}")
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
            requirement = f"a whole array {shown(name)}" if self._zipped else "a whole NPY file"
            raise file_error(self.path, requirement, message_of(error)) from None
        member = Member(name, shape, dtype, fortran, stream.tell())
        if dtype.hasobject:
            return replace(member, problem="pickled objects, which are never loaded")
        if dtype.kind not in _NUMBERS + _LABELS:
            return replace(member, problem=f"dtype {dtype}")
        if not shape:
            return replace(member, problem="a single value")
        if math.prod(shape[1:]) > _MAX_COLUMNS:
            return replace(member, problem=f"shape {shape}; flatten images to one row per pixel")
        missing = member.offset + int(np.prod(shape, dtype=object)) * dtype.itemsize - size
        if missing > 0:
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

    def __init__(self, member: Member, columns: dict[str, tuple[int, ...]], stream: IO[bytes]) -> None:
        self._member, self._columns, self._stream = member, columns, stream
        start = member.offset
        trailing = member.shape[1:]
        self._width = 1 if member.fortran else int(np.prod(trailing, dtype=np.int64))
        if member.fortran and trailing:
            (index,) = columns.values()
            column = int(np.ravel_multi_index(index, trailing, order="F"))
            start += column * member.shape[0] * member.dtype.itemsize
        stream.seek(start)

    def read(self, rows: int) -> dict[str, Values]:
        """The next rows of each column, in native byte order."""
        size = rows * self._width * self._member.dtype.itemsize
        raw = self._stream.read(size)
        if len(raw) < size:
            raise EOFError(f"the array {self._member.name!r} ends early")
        values = np.frombuffer(raw, self._member.dtype)
        if self._member.fortran:
            return {name: _native(values) for name in self._columns}
        block = values.reshape(rows, self._width)
        trailing = self._member.shape[1:]
        flat_index = {
            name: int(np.ravel_multi_index(i, trailing)) if trailing else 0 for name, i in self._columns.items()
        }
        return {name: _native(block[:, index]) for name, index in flat_index.items()}


class NpzWriter(TypedWriter):
    """Writer of an NPZ file, with a temporary file per array: an archive takes one array after the other."""

    def __init__(self, temporary: Path, target: Path, tables: Sequence[TableFile], chunk_rows: int) -> None:
        super().__init__(temporary, target, tables, chunk_rows)
        folder = tempfile.TemporaryDirectory(prefix=f".{target.stem}-", dir=temporary.parent)
        self._folder = Path(self._stack.enter_context(folder))
        self._arrays: dict[str, _SpooledArray] = {}
        self._shapes = _array_shapes(tables)

    def write(self, block: Block, columns: dict[str, Tensor]) -> None:
        """Append rows to every array."""
        old = self._typed(block)
        if self._shapes is None:
            values = {name: self._numpy(name, old.column(name)) for name in self._names}
            columns = flat(columns)
        else:
            values = {}
            for name, (names, shape) in self._shapes.items():
                stacked = np.stack([self._numpy(column, old.column(column)) for column in names], -1)
                values[name] = stacked.reshape(old.num_rows, *shape)
        values.update({name: value.detach().numpy() for name, value in columns.items()})
        for name, array in values.items():
            if name not in self._arrays:
                self._arrays[name] = _SpooledArray(self._folder / str(len(self._arrays)))
            self._arrays[name].append(array)

    def finish(self) -> None:
        """Copy the arrays into the archive."""
        with zipfile.ZipFile(self._temporary, "w") as archive:
            for name, array in self._arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                    array.copy_to(stream)

    def _numpy(self, name: str, column: pa.Array) -> Values:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        values = column.to_numpy(zero_copy_only=False)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            values = np.array(column.fill_null("").to_pylist(), dtype=np.str_)
        if values.dtype.hasobject:
            raise self._cannot_hold(name, f"{column.type}{' with nulls' if column.null_count else ''}")
        return values


class _SpooledArray:
    """An array that grows on disk; its dtype is known after the last row, by the widths of text and nulls."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._chunks: list[tuple[np.dtype[Any], tuple[int, ...]]] = []

    def append(self, values: Values) -> None:
        with self._path.open("ab") as file:
            file.write(np.ascontiguousarray(values).tobytes())
        self._chunks.append((values.dtype, values.shape))

    def copy_to(self, stream: IO[bytes]) -> None:
        dtype = np.result_type(*(chunk_dtype for chunk_dtype, _ in self._chunks))
        shape = (sum(chunk[0] for _, chunk in self._chunks), *self._chunks[0][1][1:])
        header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(stream, header)
        with self._path.open("rb") as file:
            for chunk_dtype, chunk in self._chunks:
                raw = file.read(int(np.prod(chunk)) * chunk_dtype.itemsize)
                stream.write(np.frombuffer(raw, chunk_dtype).astype(dtype).tobytes())


def _array_shapes(tables: Sequence[TableFile]) -> dict[str, tuple[list[str], tuple[int, ...]]] | None:
    """Columns of each array of an NPZ input, and its shape without rows; None for other inputs."""
    first = tables[0]
    if not isinstance(first, ArrayFile) or len(tables) > 1 or first.path.suffix.lower() != ".npz":
        return None
    return {member.name: (list(member.columns()), member.shape[1:]) for member in first.members}


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
