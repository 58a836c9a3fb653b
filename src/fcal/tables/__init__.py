"""Prediction files in chunks: CSV, Parquet, NPZ and NPY to predictions and targets, and back with repaired columns."""

try:
    import pyarrow  # noqa: F401 - everything below needs it
except ImportError:
    raise ImportError("expected pyarrow for fcal.tables; pip install 'fcal[cli]'") from None

from fcal.metrics.state import MAX_GROUPS
from fcal.tables import families
from fcal.tables.csv_format import CsvFile, CsvWriter
from fcal.tables.errors import TableError
from fcal.tables.layout import Columns
from fcal.tables.numpy_format import ArrayFile, NpzWriter
from fcal.tables.parquet_format import ParquetFile, ParquetWriter
from fcal.tables.prediction_files import Chunk, Labels, Predictions, open_predictions, whole
from fcal.tables.readers import READERS
from fcal.tables.writers import SUFFIX, WRITERS, read_origin, write_origin, write_repaired

__all__ = [
    "MAX_GROUPS",
    "SUFFIX",
    "Chunk",
    "Columns",
    "Labels",
    "Predictions",
    "TableError",
    "families",
    "open_predictions",
    "read_origin",
    "whole",
    "write_origin",
    "write_repaired",
]

# A new format is a module with a reader and a writer, and a line here.
for _suffix, _reader, _writer in (
    (".csv", CsvFile, CsvWriter),
    (".tsv", CsvFile, CsvWriter),
    (".parquet", ParquetFile, ParquetWriter),
    (".pq", ParquetFile, ParquetWriter),
    (".npz", ArrayFile, NpzWriter),
    (".npy", ArrayFile, None),  # no column names to write
):
    READERS.add(_suffix, _reader)
    if _writer is not None:
        WRITERS.add(_suffix, _writer)
