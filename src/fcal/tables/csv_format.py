"""CSV files as they occur: commas, semicolons or tabs, byte-order marks, quotes, CRLF, decimal commas."""

import codecs
import csv as python_csv
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, csv
from torch import Tensor

from fcal.tables.errors import TableError, file_error, message_of, shown, value_error
from fcal.tables.readers import Block, TableFile, first_failure, numbers_of_text, regrouped
from fcal.tables.writers import Writer, flat

_SAMPLE_BYTES = 1 << 18
_BLOCK_BYTES = 1 << 20  # Arrow reads dozens of blocks ahead
_DELIMITERS = (",", ";", "\t", "|")
_OTHER_ENCODINGS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*")
_DECIMAL_POINT = re.compile(r"\s*[+-]?\d*\.\d+([eE][+-]?\d+)?\s*")


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written.

    Attributes:
        delimiter: Separator of values.
        decimal: Decimal point of numbers.
        names: Columns, stripped.
        header_lines: Number of lines before the first row.
        has_rows: Whether anything follows the header.
    """

    delimiter: str
    decimal: str
    names: tuple[str, ...]
    header_lines: int
    has_rows: bool


class CsvFile(TableFile):
    """Reader of a CSV file in UTF-8; in a ``.tsv`` file tabs separate the values."""

    is_text = True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.dialect = _sniffed(path)
        self.names, self.decimal = self.dialect.names, self.dialect.decimal
        self.check_names()
        if not self.dialect.has_rows:
            raise file_error(path, "with at least one row", "only a header")

    def batches(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Numbers as float64 and labels as text."""
        types = {**dict.fromkeys(labels, pa.string()), **dict.fromkeys(numbers, pa.float64())}
        try:
            yield from regrouped(self._read(types), rows)
        except pa.ArrowInvalid as error:
            raise self._diagnosed(numbers, labels, error) from None

    def all_batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Every column as text, character by character."""
        try:
            yield from regrouped(self._read(dict.fromkeys(self.names, pa.string())), rows)
        except pa.ArrowInvalid as error:
            raise self._diagnosed((), self.names, error) from None

    def _read(self, types: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        dialect = self.dialect
        try:
            with csv.open_csv(
                self.path,
                read_options=csv.ReadOptions(
                    use_threads=False,
                    block_size=_BLOCK_BYTES,
                    column_names=dialect.names,
                    skip_rows=dialect.header_lines,
                ),
                parse_options=csv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True),
                convert_options=csv.ConvertOptions(
                    column_types=types, include_columns=list(types), decimal_point=dialect.decimal
                ),
            ) as reader:
                yield from reader
        except OSError as error:
            raise file_error(self.path, "a file to read", message_of(error)) from None

    def _diagnosed(self, numbers: Sequence[str], labels: Sequence[str], error: Exception) -> TableError:
        """The cause of an error of Arrow: a row of another length, or a value that is not a number or not UTF-8."""
        try:
            cause = self._ragged() or self._unreadable(numbers, labels)
        except (pa.ArrowInvalid, python_csv.Error):
            cause = None
        return cause or file_error(self.path, "a CSV file", message_of(error))

    def _ragged(self) -> TableError | None:
        width = len(self.names)
        with self.path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            lines = itertools.islice(file, self.dialect.header_lines, None)
            rows = (row for row in python_csv.reader(lines, delimiter=self.dialect.delimiter) if row)
            for number, row in enumerate(rows, 1):
                if len(row) != width:
                    text = shown(self.dialect.delimiter.join(row))
                    got = f"{len(row)} in data row {number}: {text}"
                    return file_error(self.path, f"with {width} values in every row", got)
        return None

    def _unreadable(self, numbers: Sequence[str], labels: Sequence[str]) -> TableError | None:
        first_row = 0
        for batch in self._read(dict.fromkeys([*numbers, *labels], pa.binary())):
            for name in [*labels, *numbers]:
                column = batch.column(name)
                index = first_failure(column, lambda values: values.cast(pa.string()))
                if index is not None:
                    return value_error(self.path, name, "in UTF-8", column[index].as_py(), first_row + index + 1)
            for name in numbers:
                text = batch.column(name).cast(pa.string())
                index = first_failure(text, lambda values: numbers_of_text(values, self.decimal))
                if index is not None:
                    return value_error(self.path, name, "of numbers", text[index].as_py(), first_row + index + 1)
            first_row += batch.num_rows
        return None


class CsvWriter(Writer):
    """Writer of a CSV file in UTF-8; the values of a CSV input keep their delimiter and are copied as text."""

    def __init__(self, temporary: Path, target: Path, tables: Sequence[TableFile], chunk_rows: int) -> None:
        super().__init__(temporary, target, tables, chunk_rows)
        self._delimiter, self._decimal = _dialect(target, tables)
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
        _, offsets, data = ended.buffers()  # the lines are contiguous in Arrow's memory
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


def _sniffed(path: Path) -> Dialect:
    with path.open("rb") as file:
        raw = file.read(_SAMPLE_BYTES)
        whole = not file.read(1)
    if raw.startswith(_OTHER_ENCODINGS):
        raise file_error(path, "in UTF-8", "UTF-16")
    header_lines, names, delimiter = _header(path, _decoded(path, raw, whole=whole))
    rest = io.StringIO(_tolerant(raw), newline=None).readlines()[header_lines:]
    has_rows = not whole or any(line.strip() for line in rest)
    return Dialect(delimiter, _decimal(rest, delimiter), names, header_lines, has_rows)


def _decoded(path: Path, raw: bytes, *, whole: bool) -> str:
    """The sample as text; invalid bytes after the header are left for the reader to report."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        return decoder.decode(raw, final=whole)
    except UnicodeDecodeError as error:
        if b"\n" in raw[: error.start]:
            return _tolerant(raw)
        raise file_error(path, "in UTF-8", f"{shown(raw[: error.end][-20:])} in its header") from None


def _tolerant(raw: bytes) -> str:
    return raw.decode("utf-8-sig", errors="replace")


def _header(path: Path, text: str) -> tuple[int, tuple[str, ...], str]:
    lines = io.StringIO(text, newline=None).readlines()
    blank = next((i for i, line in enumerate(lines) if line.strip()), None)
    if blank is None:
        raise file_error(path, "with at least one row", "only empty lines")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(lines[blank])
    reader = python_csv.reader(lines[blank:], delimiter=delimiter)
    try:
        names = tuple(name.strip().strip('"').strip() for name in next(reader))
    except python_csv.Error as error:
        raise file_error(path, "a CSV file", message_of(error)) from None
    return blank + reader.line_num, names, delimiter


def _delimiter(line: str) -> str:
    unquoted = re.sub(r'"[^"]*"', "", line)
    return max(_DELIMITERS, key=unquoted.count)  # the first of them where none occurs


def _decimal(lines: Sequence[str], delimiter: str) -> str:
    """A comma where the first rows have decimal commas, no decimal points, and another delimiter."""
    if delimiter == ",":
        return "."
    fields = [field.strip('"') for line in lines for field in line.rstrip("\n").split(delimiter)]
    if any(_DECIMAL_POINT.fullmatch(field) for field in fields):
        return "."
    return "," if any(_DECIMAL_COMMA.fullmatch(field) for field in fields) else "."


def _dialect(target: Path, tables: Sequence[TableFile]) -> tuple[str, str]:
    """Delimiter and decimal point of a CSV file to write."""
    first = tables[0]
    for table in tables:
        if table.decimal != first.decimal:
            requirement = f"with the decimal point {first.decimal!r} of {first.path.name}"
            raise file_error(table.path, requirement, repr(table.decimal))
    if target.suffix.lower() == ".tsv":
        return "\t", first.decimal
    if isinstance(first, CsvFile) and first.dialect.delimiter != "\t":
        return first.dialect.delimiter, first.decimal
    return (";" if first.decimal == "," else ","), first.decimal
