"""Reading tables: errors, the base class of all formats, and batches of rows with checked numbers.

Each format has a module, ``csv_format``, ``parquet_format`` and ``numpy_format``, with its reader and its writer; the
table of suffixes is in ``fcal.tables``. An error is one line with the file, the column, the value and the row.
"""

import difflib
import stat
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from pyarrow import compute, csv
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from fcal._files import is_utf8

_MISSING_WORDS = sorted(csv.ConvertOptions().null_values)  # "", "NA", "NaN", "null", ...
_LONGEST = 60  # characters of a value
_LONGEST_REASON = 200
_MOST_NAMES = 12
_USUAL = ("mean", "std", "target")  # names of columns that are looked for unless others are given
_MODERATE = "of numbers up to 1e100"
LARGEST = 1e100  # of numbers in files: sums of their squares, and of fourth powers of their ratios, are finite


class TableError(ValueError):
    """A prediction file that cannot be used.

    Data rows count from 1 in each file; the header and empty lines do not count.
    """


class OtherColumnsError(TableError):
    """A file that can be read with other names of columns.

    Attributes:
        options: Names of columns by role that read it; None for a role that has to go.
    """

    options: Mapping[str, str | None]

    def __init__(self, message: str, options: Mapping[str, str | None]) -> None:
        super().__init__(message)
        self.options = dict(options)


def shown(value: Any) -> str:
    """A value from a file on one line, truncated."""
    if isinstance(value, list):
        return f"[{', '.join(shown(item) for item in value)}]"
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    cut = text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
    return repr(cut) if isinstance(value, str) else cut


def file_error(path: Path, requirement: str, got: str) -> TableError:
    """An error about a whole file."""
    return TableError(f"expected `{_printable(str(path))}` {requirement}, got {got}")


def value_error(path: Path, column: str, requirement: str, value: Any, row: int, *, count: str = "") -> TableError:
    """An error about a value; ``row`` counts from 1."""
    where = f"{shown(value)} in data row {row}" + (f" ({count})" if count else "")
    return file_error(path, f"column {shown(column)} {requirement}", where)


def message_of(error: BaseException) -> str:
    """First line of another library's error message, truncated and printable: it may quote bytes of the file."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"an error: {_printable(lines[0][:_LONGEST_REASON])}"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


class TableFile(ABC):
    """Base class of readers: a file of named columns, which stays closed between calls.

    Args:
        path: The file.

    Attributes:
        names: Columns, in order.
        decimal: Decimal point of numbers in text.
        is_text: Whether the format has no types, so that ``all_batches`` yields text.

    Raises:
        TableError: It cannot be read, or is empty or damaged.
    """

    names: tuple[str, ...]
    decimal: str = "."
    is_text: bool = False

    def __init__(self, path: Path) -> None:
        self.path = path
        if not is_utf8(path):
            raise file_error(path, "a file whose name is UTF-8", "other bytes in it; rename the file")
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise file_error(path, "a regular file", "a pipe or device")
            with path.open("rb") as file:
                empty = not file.read(1)
        except OSError as error:
            raise file_error(path, "a file to read", error.strerror or str(error)) from None
        if empty:
            raise file_error(path, "with at least one row", "an empty file (0 bytes)")

    @abstractmethod
    def batches(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Some columns, in whatever types the file has.

        Args:
            numbers: Columns of numbers.
            labels: Columns of labels.
            rows: Largest number of rows of a batch.
        """

    def all_batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Every column as it is stored, as text where the format has no types."""
        return self.batches((), self.names, rows) if self.is_text else self.batches(self.names, (), rows)

    def count_rows(self, names: Sequence[str]) -> int | None:  # noqa: ARG002 - for formats whose columns differ
        """Number of rows of some columns; None where only reading the file would tell."""
        return None

    def check_names(self) -> None:
        """Reject two columns of the same name."""
        for name, count in Counter(self.names).items():
            if count > 1:
                raise file_error(self.path, "with one column of each name", f"{shown(name)} twice")

    def require(self, name: str) -> str:
        """The name of a column that must exist."""
        if name not in self.names:
            raise self.missing(name)
        return name

    def missing(self, column: str) -> TableError:
        """The error about a missing column, with the known names and the nearest one."""
        listed = ", ".join(map(shown, self.names[:_MOST_NAMES])) or "no columns"
        if len(self.names) > _MOST_NAMES:
            listed += f" and {len(self.names) - _MOST_NAMES} more"
        by_lower = {name.lower(): name for name in reversed(self.names)}
        near = difflib.get_close_matches(column.lower(), by_lower, n=1)
        hint = f" (did you mean {shown(by_lower[near[0]])}?)" if near else ""
        if self.names and all(map(_is_number, self.names)):
            hint = "; the first line must name the columns"
        elif not near and column in _USUAL:
            hint = "; name yours: --mean COL --std COL --target COL"
        return file_error(self.path, f"with a column {shown(column)}", f"{listed}{hint}")

    def no_rows(self) -> TableError:
        """The error about a file without rows."""
        return file_error(self.path, "with at least one row", "none")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def regrouped(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Batches of at most ``rows`` rows; small consecutive batches are merged, as every batch has a fixed cost."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            piece = batch.slice(start, rows)
            if count + piece.num_rows > rows:
                yield from _merged(held)
                held, count = [], 0
            held.append(piece)
            count += piece.num_rows
            if 2 * count >= rows:
                yield from _merged(held)
                held, count = [], 0
    if held:
        yield from _merged(held)


def _merged(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()


@dataclass(frozen=True, eq=False)
class Block:
    """A batch of rows of one file.

    Attributes:
        file: The file.
        batch: Its columns.
        first_row: Number of rows of the file before it.
    """

    file: TableFile
    batch: pa.RecordBatch
    first_row: int

    def numbers(self, name: str) -> Tensor:
        """A column as a tensor: float32 stays float32, half precision becomes float32, everything else float64.

        A float32 or float64 column without nulls is not copied, so the tensor must not be written to.

        Returns:
            Shape ``(N,)``; NaN where the column is null.

        Raises:
            TableError: The type holds no numbers, or a text is not a number.
        """
        column = self.batch.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        dtype = column.type
        if is_text(dtype):
            column = self._parsed(name, column.cast(pa.large_string()))
        elif pa.types.is_float16(dtype):
            column = column.cast(pa.float32())
        elif pa.types.is_integer(dtype) or pa.types.is_decimal(dtype) or pa.types.is_null(dtype):
            column = column.cast(pa.float64(), safe=False)  # integers beyond 2^53 are rounded
        elif not pa.types.is_floating(dtype):
            raise file_error(self.file.path, f"column {shown(name)} of numbers", f"{dtype}")
        if column.null_count:
            column = column.fill_null(float("nan"))
        tensor: Tensor = from_dlpack(column)
        return tensor

    def _parsed(self, name: str, text: pa.Array) -> pa.Array:
        try:
            return numbers_of_text(text, self.file.decimal)
        except pa.ArrowInvalid:
            index = first_failure(text, lambda values: numbers_of_text(values, self.file.decimal))
        value = text.slice(index, 1).cast(pa.large_binary())[0].as_py()
        with suppress(UnicodeDecodeError):  # other bytes are shown as they are
            value = value.decode()
        raise value_error(self.file.path, name, "of numbers", value, self.first_row + index + 1)

    def finite(self, name: str) -> Tensor:
        """A column that must have a finite number in every row, of at most 1e100."""
        value = self.numbers(name)
        if not _are_moderate(value):
            self.check((name,), "finite", lambda v: ~torch.isfinite(v))
            self.check((name,), _MODERATE, lambda v: v.abs() > LARGEST)
        return value

    def positive(self, name: str) -> Tensor:
        """A column that must have a positive, finite number in every row."""
        value = self.finite(name)
        if value.numel() and not value.amin().item() > 0:
            self.check((name,), "> 0", lambda v: ~(v > 0))
        return value

    def target(self, name: str) -> Tensor:
        """A column of targets: finite and at most 1e100, or NaN where missing."""
        value = self.numbers(name)
        if not _are_moderate(value):
            self.check((name,), "finite (NaN where missing)", torch.isinf)
            self.check((name,), _MODERATE, lambda v: v.abs() > LARGEST)
        return value

    def check(self, names: Sequence[str], requirement: str, bad: Callable[..., Tensor]) -> None:
        """Reject the file where some columns together have bad rows.

        Args:
            names: The columns; the error names the first and the last.
            requirement: What they must be, for the error.
            bad: Function of their values that is True where they are bad.

        Raises:
            TableError: With the first bad row and the number of bad rows in the file.
        """
        columns = [self.numbers(name) for name in names]
        is_bad = bad(*columns)
        if not bool(is_bad.any()):
            return
        first = int(is_bad.nonzero()[0].item())
        values = [column[first].item() for column in columns]
        value = values[0] if len(names) == 1 else values
        column = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        count = self._count(names, bad) or f"{int(is_bad.sum().item())} rows so far"
        raise value_error(self.file.path, column, requirement, value, self.first_row + first + 1, count=count)

    def _count(self, names: Sequence[str], bad: Callable[..., Tensor]) -> str | None:
        """Number of bad rows in the whole file; None where a later row cannot be read."""
        bad_rows = rows = 0
        try:
            for batch in self.file.batches(names, (), self.batch.num_rows):
                block = Block(self.file, batch, rows)
                bad_rows += int(bad(*(block.numbers(name) for name in names)).sum().item())
                rows += batch.num_rows
        except TableError:
            return None
        return f"{bad_rows} of {rows} rows"


def _are_moderate(value: Tensor) -> bool:
    """Whether all numbers are finite and at most 1e100, in one pass; False as well if one is NaN."""
    if not value.numel():
        return True
    low, high = torch.aminmax(value)
    return low.item() >= -LARGEST and high.item() <= LARGEST


def is_text(dtype: pa.DataType) -> bool:
    """Whether a column of this type is text."""
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype))


def numbers_of_text(text: pa.Array, decimal: str = ".", dtype: pa.DataType = None) -> pa.Array:
    """Text as numbers, null for words such as NA; Arrow raises an error for any other text."""
    trimmed = compute.utf8_trim_whitespace(text)
    missing = compute.is_in(trimmed, value_set=pa.array(_MISSING_WORDS, trimmed.type))
    if decimal != ".":
        trimmed = compute.replace_substring(trimmed, decimal, ".")
    return compute.if_else(missing, None, trimmed).cast(dtype or pa.float64())


def first_failure(column: pa.Array, convert: Callable[[pa.Array], object]) -> int:
    """Index of the first element that a conversion fails on, by bisection, where it fails on the whole column."""
    start, stop = 0, len(column)
    while stop - start > 1:
        middle = (start + stop) // 2
        if fails(column.slice(start, middle - start), convert):
            stop = middle
        else:
            start = middle
    return start


def fails(column: pa.Array, convert: Callable[[pa.Array], object]) -> bool:
    """Whether Arrow cannot convert a column."""
    try:
        convert(column)
    except pa.ArrowInvalid:
        return True
    return False
