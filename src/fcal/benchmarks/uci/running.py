"""The whole benchmark: settings and a folder of tables in, tables of results out."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fcal.benchmarks.uci.bars import bars
from fcal.benchmarks.uci.cells import compute, digest_of, row_cell
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


def digests_of(settings: Settings, data: str | os.PathLike[str]) -> dict[str, str]:
    """Fingerprints of the tables, which are read and checked for it.

    Raises:
        ValueError: A table is missing or malformed.
    """
    folder = str(uci_folder(data))
    return {dataset: digest_of(folder, dataset) for dataset in settings.datasets}


def cells_of(
    settings: Settings, digests: Mapping[str, str], methods: Sequence[str] | None = None
) -> dict[tuple[str, str], dict[str, Cell]]:
    """Cells by table and network, by row.

    Args:
        settings: Tables, splits and budget.
        digests: Fingerprints of the tables.
        methods: Names of methods; all where None.

    Raises:
        ValueError: A method is unknown, or none of them is in the table of any network.
    """
    names = {network: rows_of(network, methods) for network in settings.networks}
    if not any(names.values()):
        known = " or ".join(settings.networks)
        raise ValueError(f"expected `methods` in the table of {known}, got {', '.join(methods or ())}")
    return {
        (dataset, network): {
            row: row_cell(settings, dataset, network, row, digest=digests[dataset]) for row in names[network]
        }
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
    tables = cells_of(settings, digests_of(settings, data), methods)
    cells = [cell for by_row in tables.values() for cell in by_row.values()]
    function = partial(compute, data=str(uci_folder(data)))
    outcomes = run(cells, function, store=store, workers=workers, progress=progress)
    found = {cell: _result(outcomes[cell]) for cell in cells}
    crashed = {cell.name: str(one.reason) for cell, one in outcomes.items() if one.status == "failed"}
    wall = {"wall_s": round(time.perf_counter() - start, 3)}
    return Benchmark(document={**document(settings, tables, found), **wall}, crashed=crashed)


def document(
    settings: Settings, cells: Mapping[tuple[str, str], Mapping[str, Cell]], results: Mapping[Cell, Mapping[str, Any]]
) -> dict[str, Any]:
    """What is printed and written, from finished cells.

    Args:
        settings: Of the benchmark.
        cells: From :func:`cells_of`.
        results: Of each of them.
    """
    tables = [
        table(settings, dataset, network, {row: results[cell] for row, cell in by_row.items()})
        for (dataset, network), by_row in cells.items()
    ]
    return {"task": "uci", "tables": tables, "bars": bars(tables)}


def _result(outcome: Outcome) -> Mapping[str, Any]:
    if outcome.status == "failed":
        return {"status": "crashed", "reason": outcome.reason}
    found: Mapping[str, Any] = outcome.result
    return found


def committed_cells() -> list[Path]:
    """Cells that came with this checkout; none where the package is installed elsewhere."""
    folder = Path(__file__).resolve().parents[4] / "docs" / "results" / "uci" / "cells"
    return [folder] if folder.is_dir() else []
