"""The whole benchmark: settings and data in, tables out."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fcal.benchmarks.sensors.files import GNSS, GNSS_TRUTH, LANDMARKS, LASER, data_file, digest
from fcal.benchmarks.sensors.folds import fold, fold_of
from fcal.benchmarks.sensors.readers import read_gnss, read_landmarks, read_laser
from fcal.benchmarks.sensors.readings import Readings
from fcal.benchmarks.sensors.settings import TASKS, Settings, Task
from fcal.benchmarks.sensors.tables import table
from fcal.sweeps import Cell, Store, load_tensors, run, save_tensors

KIND, FOLD_KIND = "sensors-table", "sensors-fold"
_VERSION = 1  # of what cells hold
_WEIGHTS = ".safetensors"
_FEWEST_STRETCHES = 12
_FILES = {"laser": (LASER,), "range": (LANDMARKS,), "bearing": (LANDMARKS,), "gnss": (GNSS, GNSS_TRUTH)}
_READERS: Mapping[str, Callable[[Path], Readings]] = {
    "laser": read_laser,
    "range": lambda folder: read_landmarks(folder)[0],
    "bearing": lambda folder: read_landmarks(folder)[1],
    "gnss": read_gnss,
}


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What came out.

    Attributes:
        document: What ``fcal benchmark sensors --json`` prints.
        crashed: Tables that could not be computed, with the reason.
    """

    document: dict[str, Any]
    crashed: dict[str, str]


def benchmark(
    data: str | Path,
    settings: Settings,
    *,
    store: Store,
    workers: int = 2,
    progress: bool = True,
) -> Benchmark:
    """Compute what is missing, and make the tables.

    Args:
        data: Folder with ``barfoot_ser`` and ``smartloc_gnss``, or with ``robot_known_noise`` that has them.
        settings: Folds, network and budget.
        store: Where finished cells are.
        workers: Processes.
        progress: Whether a bar is shown.

    Raises:
        ValueError: Files are missing or are not as they should be, or a table is unknown.
    """
    start = time.perf_counter()
    known = checksums(data, settings.tables)
    cells = cells_of(settings, known)
    for name, checksum in known.items():  # a mistake is told before the work
        _check_stretches(readings_of(str(data), TASKS[name].sensor, settings.rows, checksum))
    outcomes = run(
        cells.values(), functools.partial(compute, data=str(data)), store=store, workers=workers, progress=progress
    )
    failed = {name: str(outcomes[cell].reason) for name, cell in cells.items() if outcomes[cell].status == "failed"}
    tables = [outcomes[cell].result for name, cell in cells.items() if name not in failed]
    document = {"task": "sensors", "tables": tables, "wall_s": round(time.perf_counter() - start, 3)}
    return Benchmark(document=document, crashed=failed)


def _check_stretches(readings: Readings) -> None:
    """Refuse a drive too short to hold out parts of it, and parts of what remains."""
    there = len(np.unique(readings.stretch))
    if there < _FEWEST_STRETCHES:
        raise ValueError(
            f"expected {readings.sensor} readings in at least {_FEWEST_STRETCHES} stretches of time, got {there}"
        )


def checksums(data: str | Path, tables: Sequence[str]) -> dict[str, str]:
    """Checksum of the files of every table, by its name; these and no others make the same cells."""
    return {name: digest([data_file(Path(data), file) for file in _FILES[TASKS[name].sensor]]) for name in tables}


def cells_of(settings: Settings, checksum: Mapping[str, str]) -> dict[str, Cell]:
    """The cell of every table, by its name.

    Args:
        settings: Of the benchmark.
        checksum: Of the data of every table, by its name.
    """
    return {name: _table_cell(name, settings, data) for name, data in checksum.items()}


def _table_cell(name: str, settings: Settings, checksum: str) -> Cell:
    needs = tuple(_fold_cell(name, settings, checksum, number) for number in range(settings.folds))
    return Cell(KIND, _config(name, settings, checksum), needs=needs, affinity=name, label=name)


def _fold_cell(name: str, settings: Settings, checksum: str, number: int) -> Cell:
    config = {**_config(name, settings, checksum), "fold": number}
    return Cell(FOLD_KIND, config, artifacts=(_WEIGHTS,), affinity=name, label=f"{name}, fold {number}")


def _config(name: str, settings: Settings, checksum: str) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "name": name,
        "task": dataclasses.asdict(TASKS[name]),
        "settings": {key: value for key, value in dataclasses.asdict(settings).items() if key != "tables"},
        "data": checksum,
    }


def compute(kind: str, config: Mapping[str, Any], store: Store, *, data: str) -> dict[str, Any]:
    """The result of a cell of either kind."""
    settings, task = Settings(**config["settings"]), TASKS[config["name"]]
    readings = readings_of(data, task.sensor, settings.rows, config["data"])
    if kind == FOLD_KIND:
        found, tensors = fold(task, readings, settings, config["fold"])
        save_tensors(store.artifact(kind, config, _WEIGHTS), tensors)
        return found
    return _table(config, task, readings, settings, store)


def _table(
    config: Mapping[str, Any], task: Task, readings: Readings, settings: Settings, store: Store
) -> dict[str, Any]:
    folds = []
    for number in range(settings.folds):
        cell = _fold_cell(config["name"], settings, config["data"], number)
        tensors = load_tensors(store.artifact(cell.kind, cell.config, _WEIGHTS))
        found = store.get(cell.kind, cell.config)
        assert tensors is not None, "folds are computed first"
        assert found is not None, "folds are computed first"
        folds.append((found, tensors))
    return table(config["name"], task, readings, settings, folds, fold_of(readings, settings))


@functools.lru_cache(maxsize=4)
def readings_of(data: str, sensor: str, most: int, checksum: str) -> Readings:
    """Readings of a sensor, at most so many; kept in memory as long as the files are those of the checksum."""
    del checksum  # it is part of what is remembered
    return _READERS[sensor](Path(data)).thinned(most)


def committed_cells() -> list[Path]:
    """Cells that came with this checkout; none where the package is installed elsewhere."""
    folder = Path(__file__).resolve().parents[4] / "docs" / "results" / "sensors" / "cells"
    return [folder] if folder.is_dir() else []
