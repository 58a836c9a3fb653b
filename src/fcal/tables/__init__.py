"""Prediction files in chunks, to predictions and targets, and back with repaired columns.

CSV and JSON lines, also compressed, Parquet, NPZ, NPY and PT. Detections and their truths are JSON files, of RVC1 and
of COCO.
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
from fcal.tables.json_lines_format import JsonLinesFile, write_json_lines
from fcal.tables.layout import Columns
from fcal.tables.numpy_format import ArrayFile, write_npz
from fcal.tables.parquet_format import ParquetFile, write_parquet
from fcal.tables.prediction_files import READERS, Chunk, Labels, Predictions, open_predictions, whole, whole_with_groups
from fcal.tables.readers import OtherColumnsError, TableError, TableFile
from fcal.tables.same_rows import side_by_side
from fcal.tables.streams import CODECS
from fcal.tables.torch_format import TensorFile
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
_TEXT_READERS: dict[str, type[TableFile]] = {
    ".csv": CsvFile,
    ".tsv": CsvFile,
    ".jsonl": JsonLinesFile,
    ".ndjson": JsonLinesFile,
}
READERS |= {
    **_TEXT_READERS,
    **{suffix + ending: reader for suffix, reader in _TEXT_READERS.items() for ending in CODECS},
    ".parquet": ParquetFile,
    ".pq": ParquetFile,
    ".npz": ArrayFile,
    ".npy": ArrayFile,
    ".pt": TensorFile,
    ".pth": TensorFile,
}
_TEXT_WRITERS = {".csv": write_csv, ".tsv": write_csv, ".jsonl": write_json_lines, ".ndjson": write_json_lines}
WRITERS |= {
    **_TEXT_WRITERS,
    **{suffix + ending: writer for suffix, writer in _TEXT_WRITERS.items() for ending in CODECS},
    ".parquet": write_parquet,
    ".pq": write_parquet,
    ".npz": write_npz,  # NPY has no column names to write
}
