"""The whole benchmark: settings and a folder of tables in, tables of results out."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fcal.benchmarks.uci.bars import bars
from fcal.benchmarks.uci.cells import compute, row_cell
from fcal.benchmarks.uci.methods import METHODS
from fcal.benchmarks.uci.settings import Settings
from fcal.benchmarks.uci.tables import table
from fcal.data.uci import uci_folder
from fcal.sweeps import Cell, Outcome, Store, run


def rows_of(network: str, methods: Sequence[str] | None = None) -> list[str]:
    """Rows of a network's table.

    Raises:
        ValueError: A method is unknown; the known ones are listed.

    Example:
        >>> rows_of("1x50", ["temperature", "isotonic", "oof_nll"])
        ['temperature', 'oof_nll']
    """
    names = METHODS.names() if methods is None else list(dict.fromkeys(methods))
    return [name for name in names if network in METHODS[name].networks]


def cells_of(settings: Settings, data: str | os.PathLike[str], methods: Sequence[str] | None = None) -> list[Cell]:
    """Every cell of the tables, in their order.

    Raises:
        ValueError: A method is unknown, or a table is missing or malformed.
    """
    return [cell for by_row in _tables(settings, data, methods).values() for cell in by_row.values()]


def _tables(
    settings: Settings, data: str | os.PathLike[str], methods: Sequence[str] | None
) -> dict[tuple[str, str], dict[str, Cell]]:
    """Cells by table and network, by row."""
    folder = str(uci_folder(data))
    names = {network: rows_of(network, methods) for network in settings.networks}
    return {
        (dataset, network): {row: row_cell(settings, folder, dataset, network, row) for row in names[network]}
        for network in settings.networks
        for dataset in settings.datasets
        if names[network]
    }


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What came out.

    Attributes:
        document: What ``fcal benchmark uci --json`` prints.
        crashed: Cells that could not be computed, with the reason; a method that fails to train is not among them.
    """

    document: dict[str, Any]
    crashed: dict[str, str]


def benchmark(
    settings: Settings,
    data: str | os.PathLike[str],
    *,
    store: Store,
    methods: Sequence[str] | None = None,
    workers: int = 2,
    progress: bool = True,
) -> Benchmark:
    """Compute what is missing, and make the tables.

    Args:
        settings: Tables, splits and budget.
        data: Folder of the tables.
        store: Where finished cells are.
        methods: Names of methods; all where None.
        workers: Processes.
        progress: Whether a bar is shown.
    """
    start = time.perf_counter()
    tables = _tables(settings, data, methods)
    cells = [cell for by_row in tables.values() for cell in by_row.values()]
    function = partial(compute, data=str(uci_folder(data)))
    outcomes = run(cells, function, store=store, workers=workers, progress=progress)
    made = [
        table(settings, dataset, network, {row: _result(outcomes[cell]) for row, cell in by_row.items()})
        for (dataset, network), by_row in tables.items()
    ]
    document = {"task": "uci", "tables": made, "bars": bars(made), "wall_s": round(time.perf_counter() - start, 3)}
    crashed = {cell.name: str(one.reason) for cell, one in outcomes.items() if one.status == "failed"}
    return Benchmark(document=document, crashed=crashed)


def _result(outcome: Outcome) -> Mapping[str, Any]:
    if outcome.status == "failed":
        return {"status": "crashed", "reason": outcome.reason}
    found: Mapping[str, Any] = outcome.result
    return found


def committed_cells() -> list[Path]:
    """Cells that came with this checkout; none where the package is installed elsewhere."""
    folder = Path(__file__).resolve().parents[4] / "docs" / "results" / "uci" / "cells"
    return [folder] if folder.is_dir() else []
