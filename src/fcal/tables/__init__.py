"""Prediction files in chunks: CSV, Parquet, NPZ and NPY to predictions and targets, and back with repaired columns.

Detections and their truths are JSON files, of RVC1 and of COCO.
"""

try:
    import pyarrow  # noqa: F401 - everything below needs it
except ImportError:
    raise ImportError("expected pyarrow for fcal.tables; pip install 'fcal[cli]'") from None

from fcal.metrics.state import MAX_GROUPS
from fcal.tables import families
from fcal.tables.coco_truths import CocoTruths, read_coco_truths
from fcal.tables.csv_format import CsvFile, write_csv
from fcal.tables.detection_files import (
    FORMATS,
    DetectionFile,
    read_coco_results,
    read_rvc1,
    write_coco_results,
    write_rvc1,
)
from fcal.tables.layout import Columns
from fcal.tables.numpy_format import ArrayFile, write_npz
from fcal.tables.parquet_format import ParquetFile, write_parquet
from fcal.tables.prediction_files import READERS, Chunk, Labels, Predictions, open_predictions, whole, whole_with_groups
from fcal.tables.readers import TableError
from fcal.tables.same_rows import side_by_side
from fcal.tables.usual_names import OtherColumnsError
from fcal.tables.writers import SUFFIX, WRITERS, read_origin, write_origin, write_repaired

__all__ = [
    "FORMATS",
    "MAX_GROUPS",
    "SUFFIX",
    "Chunk",
    "CocoTruths",
    "Columns",
    "DetectionFile",
    "Labels",
    "OtherColumnsError",
    "Predictions",
    "TableError",
    "families",
    "open_predictions",
    "read_coco_results",
    "read_coco_truths",
    "read_origin",
    "read_rvc1",
    "side_by_side",
    "whole",
    "whole_with_groups",
    "write_coco_results",
    "write_origin",
    "write_repaired",
    "write_rvc1",
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
