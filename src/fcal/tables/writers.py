"""Writers of tables in chunks: CSV, Parquet and NPZ."""

import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from fcal._registry import Registry
from fcal.tables.array_file import ArrayFile
from fcal.tables.arrow import compute, pa, parquet
from fcal.tables.block import Block
from fcal.tables.csv_file import CsvFile, inferred_types
from fcal.tables.errors import TableError, file_error, shown
from fcal.tables.numbers import numbers_of_text
from fcal.tables.source import Predictions

Values = np.ndarray[Any, Any]


def flat(columns: dict[str, Tensor]) -> dict[str, Tensor]:
    """One column for each output of shape ``(N, D)``, and for each entry of the lower triangle of ``(N, D, D)``.

    Example:
        >>> list(flat({"mean": torch.zeros(5, 2), "cov": torch.zeros(5, 2, 2)}))
        ['mean_0', 'mean_1', 'cov_0_0', 'cov_1_0', 'cov_1_1']
    """
    result: dict[str, Tensor] = {}
    for name, value in columns.items():
        if value.dim() == 1:
            result[name] = value
        elif value.dim() == 2:
            result.update({f"{name}_{i}": value[:, i] for i in range(value.shape[1])})
        else:
            lower = torch.tril_indices(value.shape[1], value.shape[2]).T.tolist()
            result.update({f"{name}_{i}_{j}": value[:, i, j] for i, j in lower})
    return result


class Writer(ABC):
    """Writes blocks of a source and new columns beside them.

    Args:
        temporary: Where to write.
        target: What the file will be called; for errors.
        source: Where the blocks come from.
    """

    def __init__(self, temporary: Path, target: Path, source: Predictions) -> None:
        self._temporary, self._target, self._source = temporary, target, source
        self._names = list(source.tables[0].names)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if kind is None:
                self.finish()

    @abstractmethod
    def write(self, block: Block, columns: dict[str, Tensor]) -> None:
        """Append rows and their new columns."""

    def finish(self) -> None:  # noqa: B027 - most have nothing left to do
        """Write what must wait for the last row."""

    def _cannot_hold(self, name: str, kind: object) -> TableError:
        return file_error(self._target, f"of a format that holds column {shown(name)}", f"{kind}")


class CsvWriter(Writer):
    """UTF-8 lines, separated like those of a CSV file that they come from; its values stay letter by letter."""

    def __init__(self, temporary: Path, target: Path, source: Predictions) -> None:
        super().__init__(temporary, target, source)
        self._delimiter, self._decimal = _dialect(target, source)
        self._file: IO[bytes] = self._stack.enter_context(temporary.open("wb"))
        self._has_header = False

    def write(self, block: Block, columns: dict[str, Tensor]) -> None:
        """Append lines."""
        new = flat(columns)
        if not self._has_header:
            header = [pa.array([name], pa.large_string()) for name in (*self._names, *new)]
            self._write_lines(header)
            self._has_header = True
        old = [self._text(name, block.batch.column(name)) for name in self._names]
        self._write_lines([*old, *(self._number_text(value) for value in new.values())])

    def _write_lines(self, columns: Sequence[pa.Array]) -> None:
        quoted = [self._quoted(column) for column in columns]
        lines = compute.binary_join_element_wise(*quoted, pa.scalar(self._delimiter, pa.large_string()))
        ended = compute.binary_join_element_wise(lines, pa.scalar("\n", lines.type), pa.scalar("", lines.type))
        _, offsets, data = ended.buffers()  # the lines stand one after the other in Arrow's own memory
        bounds = np.frombuffer(offsets, np.int64)[ended.offset : ended.offset + len(ended) + 1]
        self._file.write(memoryview(data)[bounds[0] : bounds[-1]])

    def _text(self, name: str, column: pa.Array) -> pa.Array:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        try:
            return column.cast(pa.large_string()).fill_null("")
        except pa.ArrowException:
            raise self._cannot_hold(name, column.type) from None

    def _number_text(self, value: Tensor) -> pa.Array:
        text = pa.array(value.detach().contiguous().numpy()).cast(pa.large_string())
        return text if self._decimal == "." else compute.replace_substring(text, ".", self._decimal)

    def _quoted(self, text: pa.Array) -> pa.Array:
        special = compute.match_substring_regex(text, rf'["\r\n\{self._delimiter}]|^\s|\s$')
        if not compute.any(special).as_py():
            return text
        mark = pa.scalar('"', text.type)
        doubled = compute.replace_substring(text, '"', '""')
        marked = compute.binary_join_element_wise(mark, doubled, mark, pa.scalar("", text.type))
        return compute.if_else(special, marked, text)


class _TypedWriter(Writer):
    """A format with types: text of CSV files becomes numbers in the columns where all of it is."""

    def __init__(self, temporary: Path, target: Path, source: Predictions) -> None:
        super().__init__(temporary, target, source)
        texts = [table for table in source.tables if isinstance(table, CsvFile)]
        self._types = inferred_types(texts, source.chunk_rows) if texts else {}

    def _typed(self, block: Block) -> pa.RecordBatch:
        batch = block.batch.select(self._names)
        if not isinstance(block.file, CsvFile):
            return batch
        columns = [self._converted(batch.column(n), self._types[n], block.file.decimal) for n in self._names]
        return pa.RecordBatch.from_arrays(columns, names=self._names)

    @staticmethod
    def _converted(text: pa.Array, kind: pa.DataType, decimal: str) -> pa.Array:
        return text if kind == pa.string() else numbers_of_text(text, decimal, kind)


class ParquetWriter(_TypedWriter):
    """Parquet, with a row group for each chunk; types as in the first file."""

    def __init__(self, temporary: Path, target: Path, source: Predictions) -> None:
        super().__init__(temporary, target, source)
        self._writer: Any = None

    def write(self, block: Block, columns: dict[str, Tensor]) -> None:
        """Append a row group."""
        old, new = self._typed(block), flat(columns)
        arrays = [*old.columns, *(pa.array(value.detach().contiguous().numpy()) for value in new.values())]
        if self._writer is None:
            added = [pa.field(name, arrays[len(self._names) + i].type) for i, name in enumerate(new)]
            schema = pa.schema([*old.schema, *added], metadata=old.schema.metadata if self._is_alone() else None)
            self._writer = self._stack.enter_context(parquet.ParquetWriter(self._temporary, schema))
        self._writer.write_batch(self._like_first(arrays))

    def _is_alone(self) -> bool:
        # What one file says of itself (such as the range of a pandas index) is wrong of several joined.
        return len(self._source.tables) == 1

    def _like_first(self, arrays: Sequence[pa.Array]) -> pa.RecordBatch:
        schema = self._writer.schema
        fitting = []
        for array, field in zip(arrays, schema, strict=True):
            try:
                fitting.append(array if array.type == field.type else array.cast(field.type))
            except pa.ArrowException:
                raise self._cannot_hold(field.name, f"{field.type} and {array.type} in different files") from None
        return pa.RecordBatch.from_arrays(fitting, schema=schema)


class NpzWriter(_TypedWriter):
    """NPZ, by way of one file for each array: an archive takes them one after the other."""

    def __init__(self, temporary: Path, target: Path, source: Predictions) -> None:
        super().__init__(temporary, target, source)
        folder = tempfile.TemporaryDirectory(prefix=f".{target.stem}-", dir=temporary.parent)
        self._folder = Path(self._stack.enter_context(folder))
        self._arrays: dict[str, _SpooledArray] = {}
        self._blocks = _arrays_of(source)

    def write(self, block: Block, columns: dict[str, Tensor]) -> None:
        """Append rows to every array."""
        old = self._typed(block)
        if self._blocks is None:
            values = {name: self._numpy(name, old.column(name)) for name in self._names}
            columns = flat(columns)
        else:
            values = {}
            for name, (parts, shape) in self._blocks.items():
                stacked = np.stack([self._numpy(part, old.column(part)) for part in parts], -1)
                values[name] = stacked.reshape(old.num_rows, *shape)
        values.update({name: value.detach().numpy() for name, value in columns.items()})
        for name, array in values.items():
            if name not in self._arrays:
                self._arrays[name] = _SpooledArray(self._folder / str(len(self._arrays)))
            self._arrays[name].append(array)

    def finish(self) -> None:
        """Put the arrays into the archive."""
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
    """An array that grows on disk; widths of text and nulls of later rows decide on the dtype of all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pieces: list[tuple[np.dtype[Any], tuple[int, ...]]] = []

    def append(self, values: Values) -> None:
        with self._path.open("ab") as file:
            file.write(np.ascontiguousarray(values).tobytes())
        self._pieces.append((values.dtype, values.shape))

    def copy_to(self, stream: IO[bytes]) -> None:
        dtype = np.result_type(*(kind for kind, _ in self._pieces))
        shape = (sum(piece[0] for _, piece in self._pieces), *self._pieces[0][1][1:])
        header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(stream, header)
        with self._path.open("rb") as file:
            for kind, piece in self._pieces:
                raw = file.read(int(np.prod(piece)) * kind.itemsize)
                stream.write(np.frombuffer(raw, kind).astype(dtype).tobytes())


def _arrays_of(source: Predictions) -> dict[str, tuple[list[str], tuple[int, ...]]] | None:
    """Arrays of an NPZ source, the columns that each was read as and its shape without rows; None of other sources."""
    first = source.tables[0]
    if not isinstance(first, ArrayFile) or len(source.tables) > 1 or first.path.suffix.lower() != ".npz":
        return None
    return {member.name: (list(member.columns()), member.shape[1:]) for member in first.members}


def _dialect(target: Path, source: Predictions) -> tuple[str, str]:
    """Delimiter and decimal point of a CSV file to write."""
    first = source.tables[0]
    for table in source.tables:
        if table.decimal != first.decimal:
            requirement = f"with the decimal point {first.decimal!r} of {first.path.name}"
            raise file_error(table.path, requirement, repr(table.decimal))
    if target.suffix.lower() == ".tsv":
        return "\t", first.decimal
    if isinstance(first, CsvFile) and first.dialect.delimiter != "\t":
        return first.dialect.delimiter, first.decimal
    return (";" if first.decimal == "," else ","), first.decimal


WRITERS: Registry[type[Writer]] = Registry("suffix")
for _suffix, _writer in (
    (".csv", CsvWriter),
    (".tsv", CsvWriter),
    (".parquet", ParquetWriter),
    (".pq", ParquetWriter),
    (".npz", NpzWriter),
):
    WRITERS.add(_suffix, _writer)
