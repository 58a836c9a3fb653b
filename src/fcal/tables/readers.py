"""Reading tables: the base class of all formats, batches of rows with checked numbers, and files by name.

Each format has a module, ``csv_format``, ``parquet_format`` and ``numpy_format``, with its reader and its writer; the
table of suffixes is in ``fcal.tables``.
"""

import glob
import math
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import torch
from pyarrow import compute, csv
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from fcal._registry import Registry
from fcal.tables.errors import TableError, duplicate_of, file_error, missing_column, shown, value_error

_MISSING_WORDS = frozenset(csv.ConvertOptions().null_values)  # "", "NA", "NaN", "null", ...


class TableFile(ABC):
    """Base class of readers: a file of named columns, which stays closed between calls.

    Args:
        path: The file.

    Attributes:
        names: Columns, in order.
        rows: Number of rows; None where only reading the file would tell.
        decimal: Decimal point of numbers in text.
        is_text: Whether the format has no types, so that ``all_batches`` yields text.

    Raises:
        TableError: It cannot be read, or is empty or damaged.
    """

    names: tuple[str, ...]
    rows: int | None = None
    decimal: str = "."
    is_text: bool = False

    def __init__(self, path: Path) -> None:
        self.path = path
        _check_not_empty(path)

    @abstractmethod
    def batches(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Some columns, in whatever types the file has.

        Args:
            numbers: Columns of numbers.
            labels: Columns of labels.
            rows: Largest number of rows of a batch.
        """

    @abstractmethod
    def all_batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Every column as it is stored, as text where the format has no types."""

    def check_names(self) -> None:
        """Reject two columns of the same name."""
        twice = duplicate_of(self.names)
        if twice is not None:
            raise file_error(self.path, "with one column of each name", f"{shown(twice)} twice")

    def require(self, name: str) -> str:
        """The name of a column that must exist."""
        if name not in self.names:
            raise missing_column(self.path, name, self.names)
        return name

    def rows_of(self, names: Sequence[str]) -> int | None:  # noqa: ARG002 - all columns of a table have the same length
        """Number of rows of some columns, if known."""
        return self.rows

    def no_rows(self) -> TableError:
        """The error about a file without rows."""
        return file_error(self.path, "with at least one row", "none")


READERS: Registry[type[TableFile]] = Registry("suffix")


def _check_not_empty(path: Path) -> None:
    """Reject what is not a regular file, cannot be read or has no bytes."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise file_error(path, "a regular file", "a pipe or device")
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise file_error(path, "a file to read", error.strerror or str(error)) from None
    if empty:
        raise file_error(path, "with at least one row", "an empty file (0 bytes)")


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
    yield from _merged(held)


def _merged(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) < 2:
        yield from batches
    else:
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
        """A column of numbers, NaN where null. Shape ``(N,)``."""
        column = self.batch.column(name)
        return tensor_of(column, path=self.file.path, name=name, first_row=self.first_row, decimal=self.file.decimal)

    def finite(self, name: str) -> Tensor:
        """A column that must have a finite number in every row."""
        value = self.numbers(name)
        # A finite sum proves that all are finite; otherwise (it may have overflowed) each value is checked.
        if not math.isfinite(value.sum().item()):
            self.check((name,), "finite", lambda v: ~torch.isfinite(v))
        return value

    def positive(self, name: str) -> Tensor:
        """A column that must have a positive, finite number in every row."""
        value = self.finite(name)
        if value.numel() and not value.amin().item() > 0:
            self.check((name,), "> 0", lambda v: ~(v > 0))
        return value

    def target(self, name: str) -> Tensor:
        """A column of targets: finite, or NaN where missing."""
        value = self.numbers(name)
        if not math.isfinite(value.sum().item()):
            self.check((name,), "finite (NaN where missing)", torch.isinf)
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
        values = [self.numbers(name) for name in names]
        is_bad = bad(*values)
        if bool(is_bad.any()):
            self._reject(names, requirement, bad, int(is_bad.nonzero()[0].item()), int(is_bad.sum().item()))

    def _reject(
        self, names: Sequence[str], requirement: str, bad: Callable[..., Tensor], first: int, so_far: int
    ) -> NoReturn:
        values = [float(self.numbers(name)[first].item()) for name in names]
        value = values[0] if len(names) == 1 else values
        column = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        count = self._count(names, bad) or f"{so_far} rows so far"
        raise value_error(self.file.path, column, requirement, value, self.first_row + first + 1, count=count) from None

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


def tensor_of(column: pa.Array, *, path: Path, name: str, first_row: int, decimal: str = ".") -> Tensor:
    """A column as a tensor: float32 stays float32, half precision becomes float32, everything else float64.

    A float32 or float64 column without nulls is not copied, so the tensor must not be written to.

    Args:
        column: Numbers of any width, decimals, a dictionary of them, or text that spells them. Length N.
        path: The file, for errors.
        name: The column, for errors.
        first_row: Number of rows of the file before these.
        decimal: Decimal point of numbers in text.

    Returns:
        Shape ``(N,)``; NaN where the column is null.

    Raises:
        TableError: The type holds no numbers, or a text is not a number.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    dtype = column.type
    if _is_text(dtype):
        column = _parsed(column, path=path, name=name, first_row=first_row, decimal=decimal)
    elif pa.types.is_float16(dtype):
        column = column.cast(pa.float32())
    elif pa.types.is_integer(dtype) or pa.types.is_decimal(dtype) or pa.types.is_null(dtype):
        column = column.cast(pa.float64(), safe=False)  # integers beyond 2^53 are rounded
    elif not pa.types.is_floating(dtype):
        raise file_error(path, f"column {shown(name)} of numbers", f"{dtype}")
    if column.null_count:
        column = column.fill_null(float("nan"))
    tensor: Tensor = from_dlpack(column)
    return tensor


def numbers_of_text(text: pa.Array, decimal: str = ".", dtype: pa.DataType = None) -> pa.Array:
    """Text as numbers, null for words such as NA; Arrow raises an error for any other text."""
    trimmed = compute.utf8_trim_whitespace(text)
    missing = compute.is_in(trimmed, value_set=pa.array(sorted(_MISSING_WORDS), trimmed.type))
    if decimal != ".":
        trimmed = compute.replace_substring(trimmed, decimal, ".")
    return compute.if_else(missing, None, trimmed).cast(dtype or pa.float64())


def first_failure(column: pa.Array, convert: Callable[[pa.Array], object]) -> int | None:
    """Index of the first element that a conversion fails on, by bisection; None where it succeeds."""
    if not _fails(convert, column):
        return None
    start, stop = 0, len(column)
    while stop - start > 1:
        middle = (start + stop) // 2
        if _fails(convert, column.slice(start, middle - start)):
            stop = middle
        else:
            start = middle
    return start


def _parsed(column: pa.Array, *, path: Path, name: str, first_row: int, decimal: str) -> pa.Array:
    text = column.cast(pa.large_string())
    try:
        return numbers_of_text(text, decimal)
    except pa.ArrowInvalid:
        index = first_failure(text, lambda values: numbers_of_text(values, decimal))
        assert index is not None  # the whole column has just failed
        value = _readable(text.slice(index, 1))
        raise value_error(path, name, "of numbers", value, first_row + index + 1) from None


def _readable(text: pa.Array) -> str | bytes:
    value: bytes = text.cast(pa.large_binary())[0].as_py()
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _fails(convert: Callable[[pa.Array], object], column: pa.Array) -> bool:
    try:
        convert(column)
    except pa.ArrowInvalid:
        return True
    return False


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype))


def known_suffix(path: Path) -> str:
    """The suffix of a file, which must be that of a known format.

    Raises:
        TableError: The format is not known.
    """
    suffix = path.suffix.lower()
    if suffix not in READERS.names():
        raise file_error(path, f"with one of the suffixes {', '.join(READERS.names())}", repr(path.suffix))
    return suffix


def find_files(path: str | os.PathLike[str]) -> list[Path]:
    """The file, all files of known suffixes in a folder, or those that match a pattern; sorted by name.

    Files whose names begin with a dot or an underscore are left out, as are sub-folders (unless a pattern has ``**``).

    Raises:
        TableError: There are no such files.
    """
    location = Path(path)
    if location.is_dir():
        return _known_among(location, list(location.iterdir()), "a folder of prediction files")
    if location.exists():
        known_suffix(location)
        return [location]
    if glob.has_magic(str(location)):
        matches = glob.glob(str(location), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute patterns
        return _known_among(location, list(map(Path, matches)), "to match files")
    raise file_error(location, "a file, a folder or a pattern of files", "nothing of that name")


def open_file(path: Path) -> TableFile:
    """Open a file with the reader of its suffix."""
    return READERS[known_suffix(path)](path)


def _known_among(location: Path, candidates: list[Path], requirement: str) -> list[Path]:
    files = [p for p in candidates if p.is_file() and not p.name.startswith((".", "_"))]
    known = sorted(p for p in files if p.suffix.lower() in READERS.names())
    if not known:
        raise file_error(location, f"{requirement} ({', '.join(READERS.names())})", "none")
    return known
