"""Parquet files, read column by column and page by page."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from torch import Tensor

from fcal.tables.errors import TableError, file_error, message_of
from fcal.tables.readers import Block, TableFile, regrouped
from fcal.tables.writers import TypedWriter, flat

# With a buffer Arrow reads a column page by page; without, it loads whole row groups, which may be the whole file.
_BUFFER_BYTES = 1 << 20
_BROKEN = (pa.ArrowException, OSError, UnicodeDecodeError)  # the last in column names


class ParquetFile(TableFile):
    """Reader of a Parquet file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            metadata = parquet.read_metadata(path)
            self.schema = metadata.schema.to_arrow_schema()
        except _BROKEN as error:
            raise self._broken(error) from None
        self.names = tuple(self.schema.names)
        self.rows = metadata.num_rows
        self.check_names()

    def batches(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """The columns as they are stored; text labels as a dictionary."""
        texts = [name for name in labels if _is_text(self.schema.field(name).type)]
        names = list(dict.fromkeys([*numbers, *labels]))
        for batch in regrouped(self._read(names, rows, texts), rows):
            yield batch.select(names)

    def all_batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Every column as it is stored."""
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
        return file_error(self.path, "a whole Parquet file", message_of(error))


class ParquetWriter(TypedWriter):
    """Writer of a Parquet file, with a row group per chunk and the types of the first input."""

    def __init__(self, temporary: Path, target: Path, tables: Sequence[TableFile], chunk_rows: int) -> None:
        super().__init__(temporary, target, tables, chunk_rows)
        self._writer: Any = None

    def write(self, block: Block, columns: dict[str, Tensor]) -> None:
        """Append a row group."""
        old, new = self._typed(block), flat(columns)
        arrays = [*old.columns, *(pa.array(value.detach().contiguous().numpy()) for value in new.values())]
        if self._writer is None:
            # Metadata of one input (such as the range of a pandas index) does not hold for several.
            alone = len(self._tables) == 1
            added = [pa.field(name, arrays[len(self._names) + i].type) for i, name in enumerate(new)]
            schema = pa.schema([*old.schema, *added], metadata=old.schema.metadata if alone else None)
            self._writer = self._stack.enter_context(parquet.ParquetWriter(self._temporary, schema))
        self._writer.write_batch(self._with_first_types(arrays))

    def _with_first_types(self, arrays: Sequence[pa.Array]) -> pa.RecordBatch:
        schema = self._writer.schema
        columns = []
        for array, field in zip(arrays, schema, strict=True):
            try:
                columns.append(array if array.type == field.type else array.cast(field.type))
            except pa.ArrowException:
                raise self._cannot_hold(field.name, f"{field.type} and {array.type} in different files") from None
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))
