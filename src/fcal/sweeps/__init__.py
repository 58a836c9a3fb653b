"""Sweeps: many cells, each computed once and stored under the hash of its config."""

from fcal._files import is_whole, load_tensors, read_artifact, save_tensors, seal, write_artifact
from fcal.sweeps.cells import Cell, Outcome, key
from fcal.sweeps.execution import run
from fcal.sweeps.store import Record, Store, read_cells, write_cells

__all__ = [
    "Cell",
    "Outcome",
    "Record",
    "Store",
    "is_whole",
    "key",
    "load_tensors",
    "read_artifact",
    "read_cells",
    "run",
    "save_tensors",
    "seal",
    "write_artifact",
    "write_cells",
]
