"""CSV as people have it: commas, semicolons or tabs, a byte-order mark, quotes, Windows line ends, decimal commas."""

import codecs
import csv as python_csv
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fcal.tables.arrow import compute, csv, pa
from fcal.tables.errors import TableError, file_error, in_words, shown, value_error
from fcal.tables.files import TableFile, check_not_empty, regrouped
from fcal.tables.numbers import first_failure, numbers_of_text

_SAMPLE_BYTES = 1 << 18
_BLOCK_BYTES = 1 << 20  # Arrow reads dozens of blocks ahead
_DELIMITERS = (",", ";", "\t", "|")
_OTHER_ENCODINGS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_NAME_OF_DIGITS = r"^\s*[+-]?0\d"  # a leading zero
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*")
_DECIMAL_POINT = re.compile(r"\s*[+-]?\d*\.\d+([eE][+-]?\d+)?\s*")


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written.

    Attributes:
        delimiter: Between values.
        decimal: Decimal point of its numbers.
        names: Columns, without spaces around them.
        header_lines: Lines before the first row.
        has_rows: Whether anything follows the header.
    """

    delimiter: str
    decimal: str
    names: tuple[str, ...]
    header_lines: int
    has_rows: bool


class CsvFile(TableFile):
    """A CSV file.

    Args:
        path: The file; a suffix ``.tsv`` says that tabs separate its values.

    Raises:
        TableError: It is empty, has only a header, or is not UTF-8.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        check_not_empty(path)
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
        """Every column as text, letter by letter."""
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
            raise file_error(self.path, "a file to read", in_words(error)) from None

    def _diagnosed(self, numbers: Sequence[str], labels: Sequence[str], error: Exception) -> TableError:
        """Look for what Arrow stumbled over: a row of another length, or a value that is no number or no text."""
        try:
            found = self._ragged() or self._unreadable(numbers, labels)
        except (pa.ArrowInvalid, python_csv.Error):
            found = None
        return found or file_error(self.path, "a CSV file", in_words(error))

    def _ragged(self) -> TableError | None:
        wanted = len(self.names)
        with self.path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            lines = itertools.islice(file, self.dialect.header_lines, None)
            rows = (row for row in python_csv.reader(lines, delimiter=self.dialect.delimiter) if row)
            for number, row in enumerate(rows, 1):
                if len(row) != wanted:
                    text = shown(self.dialect.delimiter.join(row))
                    got = f"{len(row)} in data row {number}: {text}"
                    return file_error(self.path, f"with {wanted} values in every row", got)
        return None

    def _unreadable(self, numbers: Sequence[str], labels: Sequence[str]) -> TableError | None:
        before = 0
        for batch in self._read(dict.fromkeys([*numbers, *labels], pa.binary())):
            for name in [*labels, *numbers]:
                column = batch.column(name)
                index = first_failure(column, lambda part: part.cast(pa.string()))
                if index is not None:
                    return value_error(self.path, name, "in UTF-8", column[index].as_py(), before + index + 1)
            for name in numbers:
                text = batch.column(name).cast(pa.string())
                index = first_failure(text, lambda part: numbers_of_text(part, self.decimal))
                if index is not None:
                    return value_error(self.path, name, "of numbers", text[index].as_py(), before + index + 1)
            before += batch.num_rows
        return None


def inferred_types(files: Sequence[CsvFile], rows: int) -> dict[str, Any]:
    """The narrowest of int64, float64 and text that all values of a column fit, for formats that have types.

    Numbers with leading zeros are names, not numbers, and stay text.
    """
    types = dict.fromkeys(files[0].names, pa.int64())
    for file in files:
        for batch in file.all_batches(rows):
            for name, kind in types.items():
                types[name] = _narrowest(batch.column(name), kind, file.decimal)
    return types


def _narrowest(text: pa.Array, kind: pa.DataType, decimal: str) -> pa.DataType:
    if kind == pa.string() or compute.any(compute.match_substring_regex(text, _NAME_OF_DIGITS)).as_py():
        return pa.string()
    for candidate in (pa.int64(), pa.float64()) if kind == pa.int64() else (pa.float64(),):
        if first_failure(text, partial(numbers_of_text, decimal=decimal, kind=candidate)) is None:
            return candidate
    return pa.string()


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
    """The lines of the header and after; an unreadable letter of a later line is for the reader to find."""
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
        raise file_error(path, "a CSV file", in_words(error)) from None
    return blank + reader.line_num, names, delimiter


def _delimiter(line: str) -> str:
    unquoted = re.sub(r'"[^"]*"', "", line)
    return max(_DELIMITERS, key=unquoted.count)  # the first of them where there is none


def _decimal(lines: Sequence[str], delimiter: str) -> str:
    """A comma where the first rows have decimal commas and no decimal points, and the comma separates nothing."""
    if delimiter == ",":
        return "."
    fields = [field.strip('"') for line in lines for field in line.rstrip("\n").split(delimiter)]
    if any(_DECIMAL_POINT.fullmatch(field) for field in fields):
        return "."
    return "," if any(_DECIMAL_COMMA.fullmatch(field) for field in fields) else "."
