"""Prediction files in chunks: CSV, Parquet, NPZ and NPY to predictions and targets, and back with repaired columns."""

from fcal.metrics.state import MAX_GROUPS
from fcal.tables import families
from fcal.tables.errors import TableError
from fcal.tables.joining import whole
from fcal.tables.labels import Labels
from fcal.tables.layout import Columns
from fcal.tables.origin import read_origin, write_origin
from fcal.tables.repaired import SUFFIX, write_repaired
from fcal.tables.source import Chunk, Predictions, open_predictions

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
