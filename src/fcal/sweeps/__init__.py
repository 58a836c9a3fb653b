"""Finished cells addressed by the hash of their config, and many of them at a time: nothing is computed twice."""

import importlib
from typing import TYPE_CHECKING, Any

from fcal.sweeps.artifacts import is_whole, read_artifact, seal, write_artifact
from fcal.sweeps.cells import Cell, Outcome
from fcal.sweeps.keys import key
from fcal.sweeps.running import run
from fcal.sweeps.store import Record, Store

if TYPE_CHECKING:
    from fcal.sweeps.tensors import load_tensors, save_tensors

__all__ = [
    "Cell",
    "Outcome",
    "Record",
    "Store",
    "is_whole",
    "key",
    "load_tensors",
    "read_artifact",
    "run",
    "save_tensors",
    "seal",
    "write_artifact",
]


def __getattr__(name: str) -> Any:
    # Cells are listed and read without torch; only their tensors need it.
    if name not in ("load_tensors", "save_tensors"):
        raise AttributeError(f"module 'fcal.sweeps' has no attribute {name!r}")
    value = getattr(importlib.import_module("fcal.sweeps.tensors"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
