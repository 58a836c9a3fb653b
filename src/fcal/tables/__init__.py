"""Prediction files in chunks: CSV, Parquet, NPZ and NPY to predictions and targets, and back with repaired columns."""

try:
    import pyarrow  # noqa: F401 - everything below needs it
except ImportError:
    raise ImportError("expected pyarrow for fcal.tables; pip install 'fcal[cli]'") from None

from fcal.metrics.state import MAX_GROUPS
from fcal.tables import families
from fcal.tables.csv_format import CsvFile, write_csv
from fcal.tables.layout import Columns
from fcal.tables.numpy_format import ArrayFile, write_npz
from fcal.tables.parquet_format import ParquetFile, write_parquet
from fcal.tables.prediction_files import READERS, Chunk, Labels, Predictions, open_predictions, whole
from fcal.tables.readers import TableError
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

# A new format is a module with a reader and a writer, and a line in both tables.
READERS |= {
    ".csv": CsvFile,
    ".tsv": CsvFile,
    ".parquet": ParquetFile,
    ".pq": ParquetFile,
    ".npz": ArrayFile,
    ".npy": ArrayFile,
}
WRITERS |= {
    ".csv": write_csv,
    ".tsv": write_csv,
    ".parquet": write_parquet,
    ".pq": write_parquet,
    ".npz": write_npz,  # NPY has no column names to write
}
