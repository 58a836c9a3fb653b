"""Parquet files, column by column and page by page."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fcal.tables.arrow import pa, parquet
from fcal.tables.errors import TableError, file_error, in_words
from fcal.tables.files import TableFile, check_not_empty, regrouped

# With a buffer Arrow reads a column page by page; without one it holds all of a row group, which may be all of a file.
_BUFFER_BYTES = 1 << 20
_BROKEN = (pa.ArrowException, OSError, UnicodeDecodeError)  # the last of names of columns


class ParquetFile(TableFile):
    """A Parquet file.

    Args:
        path: The file.

    Raises:
        TableError: It is empty, cut short or not Parquet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        check_not_empty(path)
        try:
            metadata = parquet.read_metadata(path)
            self.schema = metadata.schema.to_arrow_schema()
        except _BROKEN as error:
            raise self._broken(error) from None
        self.names = tuple(self.schema.names)
        self.rows = metadata.num_rows
        self.check_names()

    def batches(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """The columns in the types that they are stored in; labels that are text come as a dictionary."""
        texts = [name for name in labels if _is_text(self.schema.field(name).type)]
        names = list(dict.fromkeys([*numbers, *labels]))
        for batch in regrouped(self._read(names, rows, texts), rows):
            yield batch.select(names)

    def all_batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Every column in the type that it is stored in."""
        return regrouped(self._read(None, rows, []), rows)

    def _read(self, names: list[str] | None, rows: int, dictionaries: list[str]) -> Iterator[pa.RecordBatch]:
        try:
            with parquet.ParquetFile(
                self.path, read_dictionary=dictionaries, pre_buffer=False, buffer_size=_BUFFER_BYTES
            ) as file:
                yield from file.iter_batches(batch_size=rows, columns=names, use_threads=False)
        except _BROKEN as error:
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> TableError:
        return file_error(self.path, "a whole Parquet file", in_words(error))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
