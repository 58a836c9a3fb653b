"""What every format of prediction files offers: named columns, in batches of rows."""

import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fcal.tables.arrow import pa
from fcal.tables.errors import TableError, duplicate_of, file_error, missing_column, shown


class TableFile(ABC):
    """A file of named columns; nothing stays open between calls.

    Attributes:
        path: Where it is.
        names: Its columns, in order.
        rows: How many rows it has; None where that is not known without reading it.
        decimal: The decimal point of numbers that are text.
    """

    path: Path
    names: tuple[str, ...]
    rows: int | None = None
    decimal: str = "."

    @abstractmethod
    def batches(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Some columns: ``numbers`` in any type that holds numbers, ``labels`` in any type that names things.

        Args:
            numbers: Columns of numbers.
            labels: Columns of labels.
            rows: Most rows of a batch.
        """

    @abstractmethod
    def all_batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Every column as it is stored (as text where the format has no types), to be written again."""

    def check_names(self) -> None:
        """A file has columns, no two of one name."""
        twice = duplicate_of(self.names)
        if twice is not None:
            raise file_error(self.path, "with one column of each name", f"{shown(twice)} twice")

    def require(self, name: str) -> str:
        """The name of a column that must be there."""
        if name not in self.names:
            raise missing_column(self.path, name, self.names)
        return name

    def rows_of(self, names: Sequence[str]) -> int | None:  # noqa: ARG002 - columns of a table have one length
        """How many rows some columns have, if known."""
        return self.rows

    def no_rows(self) -> TableError:
        """The error of a file without data."""
        return file_error(self.path, "with at least one row", "none")


def check_not_empty(path: Path) -> None:
    """Refuse what is no file, cannot be read or has no bytes."""
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
    """Batches of at most ``rows`` rows; small neighbours are joined, because a batch has its price too."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            piece = batch.slice(start, rows)
            if count + piece.num_rows > rows:
                yield from _joined(held)
                held, count = [], 0
            held.append(piece)
            count += piece.num_rows
            if 2 * count >= rows:
                yield from _joined(held)
                held, count = [], 0
    yield from _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) < 2:
        yield from batches
    else:
        yield from pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()
