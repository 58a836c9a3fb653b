"""Parquet files, read column by column and page by page."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from fcal.tables.parquet_pages import check_pages
from fcal.tables.readers import TableError, TableFile, file_error, is_text, message_of, regrouped
from fcal.tables.writers import Repair, column_types, flat, typed

# With a buffer Arrow reads a column page by page; without, it loads whole row groups, which may be the whole file.
_BUFFER_BYTES = 1 << 20
_BROKEN = (pa.ArrowException, OSError, UnicodeDecodeError)  # the last in column names


class ParquetFile(TableFile):
    """Reader of a Parquet file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self._metadata = parquet.read_metadata(path)
            self.schema = self._metadata.schema.to_arrow_schema()
        except _BROKEN as error:
            raise self._broken(error) from None
        self.names = tuple(self.schema.names)
        self._rows = int(self._metadata.num_rows)
        self._checked: set[str] = set()  # columns whose pages are of moderate size
        self.check_names()

    def batches(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """The columns as they are stored; text labels as a dictionary."""
        texts = [name for name in labels if is_text(self.schema.field(name).type)]
        names = list(dict.fromkeys([*numbers, *labels]))
        for batch in regrouped(self._read(names, texts, rows), rows):
            yield batch.select(names)

    def count_rows(self, names: Sequence[str]) -> int:  # noqa: ARG002 - all columns have the same length
        """Number of rows."""
        return self._rows

    def _read(self, names: list[str], dictionaries: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        if not self._checked.issuperset(names):
            check_pages(self.path, self._metadata, set(names) - self._checked)
            self._checked.update(names)
        try:
            with parquet.ParquetFile(
                self.path, read_dictionary=dictionaries, pre_buffer=False, buffer_size=_BUFFER_BYTES
            ) as file:
                yield from file.iter_batches(batch_size=rows, columns=names, use_threads=False)
        except _BROKEN as error:
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> TableError:
        return file_error(self.path, "a whole Parquet file", message_of(error))


def write_parquet(temporary: Path, repair: Repair) -> None:
    """Write a Parquet file, with a row group per chunk and the types of the first input."""
    types = column_types(repair.source)
    writer: Any = None
    with ExitStack() as stack:
        for block, columns in repair.chunks:
            old = typed(block, types)
            new = {name: pa.array(value.detach().contiguous().numpy()) for name, value in flat(columns).items()}
            if writer is None:
                # Metadata of one input (such as the range of a pandas index) does not hold for several.
                metadata = old.schema.metadata if len(repair.source.tables) == 1 else None
                added = [pa.field(name, array.type) for name, array in new.items()]
                schema = pa.schema([*old.schema, *added], metadata=metadata)
                writer = stack.enter_context(parquet.ParquetWriter(temporary, schema))
            arrays = [
                _cast(array, field, repair) for array, field in zip([*old.columns, *new.values()], schema, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _cast(array: pa.Array, field: pa.Field, repair: Repair) -> pa.Array:
    if array.type == field.type:
        return array
    try:
        return array.cast(field.type)
    except pa.ArrowException:
        raise repair.cannot_hold(field.name, f"{field.type} and {array.type} in different files") from None
