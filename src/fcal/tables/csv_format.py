"""CSV files as they occur: commas, semicolons or tabs, byte-order marks, quotes, CRLF, decimal commas."""

import codecs
import csv as python_csv
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, csv
from torch import Tensor

from fcal.tables.readers import (
    Block,
    TableError,
    TableFile,
    fails,
    file_error,
    first_failure,
    message_of,
    regrouped,
    shown,
    value_error,
)
from fcal.tables.streams import CODECS, open_bytes, open_to_write, suffix_of
from fcal.tables.writers import Repair, flat

_SAMPLE_BYTES = 1 << 18
_BLOCK_BYTES = 1 << 20  # Arrow reads dozens of blocks ahead
_DELIMITERS = (",", ";", "\t", "|")
_OTHER_ENCODINGS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*")
_DECIMAL_POINT = re.compile(r"\s*[+-]?\d*\.\d+([eE][+-]?\d+)?\s*")


class CsvFile(TableFile):
    """Reader of a CSV file in UTF-8, compressed or not; in a ``.tsv`` file tabs separate the values."""

    is_text = True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with open_bytes(path) as file:
            raw = file.read(_SAMPLE_BYTES)
            is_whole = not file.read(1)
        text = _decoded(path, raw)
        self._header_lines, self.names, self.delimiter = _header(path, text)
        self._is_compressed = path.suffix.lower() in CODECS
        self.check_names()
        rest = io.StringIO(text, newline=None).readlines()[self._header_lines :]
        if is_whole and not any(line.strip() for line in rest):
            raise file_error(path, "with at least one row", "only a header")
        self.decimal = _decimal(rest, self.delimiter)

    def batches(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Numbers as float64 and labels as text, character by character."""
        types = {**dict.fromkeys(labels, pa.string()), **dict.fromkeys(numbers, pa.float64())}
        try:
            yield from regrouped(self._read(types), rows)
        except pa.ArrowInvalid as error:
            raise self._diagnosed(numbers, labels, error) from None

    def _read(self, types: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        try:
            with (
                ExitStack() as stack,
                csv.open_csv(
                    stack.enter_context(open_bytes(self.path)) if self._is_compressed else self.path,
                    read_options=csv.ReadOptions(
                        use_threads=False,
                        block_size=_BLOCK_BYTES,
                        column_names=self.names,
                        skip_rows=self._header_lines,
                    ),
                    parse_options=csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                    convert_options=csv.ConvertOptions(
                        column_types=types, include_columns=list(types), decimal_point=self.decimal
                    ),
                ) as reader,
            ):
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
        with io.TextIOWrapper(open_bytes(self.path), encoding="utf-8-sig", errors="replace", newline="") as file:
            lines = itertools.islice(file, self._header_lines, None)
            rows = (row for row in python_csv.reader(lines, delimiter=self.delimiter) if row)
            for number, row in enumerate(rows, 1):
                if len(row) != width:
                    text = shown(self.delimiter.join(row))
                    got = f"{len(row)} in data row {number}: {text}"
                    return file_error(self.path, f"with {width} values in every row", got)
        return None

    def _unreadable(self, numbers: Sequence[str], labels: Sequence[str]) -> TableError | None:
        first_row = 0
        for batch in self._read(dict.fromkeys([*labels, *numbers], pa.binary())):
            texts = []
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if fails(column, _text):
                    index = first_failure(column, _text)
                    return value_error(self.path, name, "in UTF-8", column[index].as_py(), first_row + index + 1)
                texts.append(_text(column))
            block = Block(self, pa.RecordBatch.from_arrays(texts, names=batch.schema.names), first_row)
            try:
                for name in numbers:
                    block.numbers(name)
            except TableError as error:
                return error
            first_row += batch.num_rows
        return None


def _text(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def write_csv(temporary: Path, repair: Repair) -> None:
    """Write a CSV file in UTF-8; the values of a CSV input keep their delimiter and are copied as text."""
    delimiter, decimal = _dialect(repair)
    names = repair.source.tables[0].names
    with open_to_write(temporary, repair.out) as file:
        has_header = False
        for block, columns in repair.chunks:
            new = flat(columns)
            if not has_header:
                has_header = True
                _write_lines(file, [pa.array([name], pa.large_string()) for name in (*names, *new)], delimiter)
            old = [_old_text(repair, name, block.batch.column(name)) for name in names]
            _write_lines(file, [*old, *(_number_text(value, decimal) for value in new.values())], delimiter)


def _write_lines(file: IO[bytes], columns: Sequence[pa.Array], delimiter: str) -> None:
    quoted = [_quoted(column, delimiter) for column in columns]
    lines = compute.binary_join_element_wise(*quoted, pa.scalar(delimiter, pa.large_string()))
    ended = compute.binary_join_element_wise(lines, pa.scalar("\n", lines.type), pa.scalar("", lines.type))
    _, offsets, data = ended.buffers()  # the lines are contiguous in Arrow's memory
    bounds = np.frombuffer(offsets, np.int64)[ended.offset : ended.offset + len(ended) + 1]
    file.write(memoryview(data)[bounds[0] : bounds[-1]])


def _old_text(repair: Repair, name: str, column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        return column.cast(pa.large_string()).fill_null("")
    except pa.ArrowException:
        raise repair.cannot_hold(name, column.type) from None


def _number_text(value: Tensor, decimal: str) -> pa.Array:
    text = pa.array(value.detach().contiguous().numpy()).cast(pa.large_string())
    return text if decimal == "." else compute.replace_substring(text, ".", decimal)


def _quoted(text: pa.Array, delimiter: str) -> pa.Array:
    special = compute.match_substring_regex(text, rf'["\r\n\{delimiter}]|^\s|\s$')
    if not compute.any(special).as_py():
        return text
    mark = pa.scalar('"', text.type)
    doubled = compute.replace_substring(text, '"', '""')
    marked = compute.binary_join_element_wise(mark, doubled, mark, pa.scalar("", text.type))
    return compute.if_else(special, marked, text)


def _decoded(path: Path, raw: bytes) -> str:
    """The first bytes of a file as text; invalid ones after the header are left for the reader to report."""
    if raw.startswith(_OTHER_ENCODINGS):
        raise file_error(path, "in UTF-8", "UTF-16")
    header, end, _ = raw.replace(b"\r", b"\n").partition(b"\n")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(header, final=bool(end))  # a sample may end within a character
    except UnicodeDecodeError as error:
        raise file_error(path, "in UTF-8", f"{shown(raw[: error.end][-20:])} in its header") from None
    return raw.decode("utf-8-sig", errors="replace")


def _header(path: Path, text: str) -> tuple[int, tuple[str, ...], str]:
    lines = io.StringIO(text, newline=None).readlines()
    blank = next((i for i, line in enumerate(lines) if line.strip()), None)
    if blank is None:
        raise file_error(path, "with at least one row", "only empty lines")
    delimiter = "\t" if suffix_of(path).startswith(".tsv") else _delimiter(lines[blank])
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


def _dialect(repair: Repair) -> tuple[str, str]:
    """Delimiter and decimal point of a CSV file to write."""
    first = repair.source.tables[0]
    for table in repair.source.tables:
        if table.decimal != first.decimal:
            requirement = f"with the decimal point {first.decimal!r} of {first.path.name}"
            raise file_error(table.path, requirement, repr(table.decimal))
    if suffix_of(repair.out).startswith(".tsv"):
        return "\t", first.decimal
    if isinstance(first, CsvFile) and first.delimiter != "\t":
        return first.delimiter, first.decimal
    return (";" if first.decimal == "," else ","), first.decimal
