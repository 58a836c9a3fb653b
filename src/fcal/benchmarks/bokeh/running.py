"""The whole benchmark: settings in, tables out."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcal.benchmarks.bokeh.cells import compute, row_cell
from fcal.benchmarks.bokeh.methods import ALL_IMAGES, METHODS, Trained
from fcal.benchmarks.bokeh.settings import Settings
from fcal.benchmarks.bokeh.tables import table
from fcal.sweeps import Cell, Outcome, Store, run


def rows_of(methods: Sequence[str] | None = None) -> list[str]:
    """Rows of a table: every method, and once more with all images for those that train.

    Raises:
        ValueError: A method is unknown; the known ones are listed.

    Example:
        >>> rows_of(["oracle", "nll"])
        ['oracle', 'nll', 'nll_all']
    """
    names = METHODS.names() if methods is None else list(dict.fromkeys(methods))
    trained = [name for name in names if isinstance(METHODS[name], Trained)]
    return names + [name + ALL_IMAGES for name in trained]


def cells_of(settings: Settings, methods: Sequence[str] | None = None) -> list[Cell]:
    """Every cell of the tables, seed by seed, so that an unfinished run has whole tables of fewer seeds."""
    tables, rows = _tables(settings, methods), rows_of(methods)
    return [by_row[row][seed] for seed in range(settings.seeds) for by_row in tables.values() for row in rows]


def _tables(settings: Settings, methods: Sequence[str] | None) -> dict[tuple[str, str], dict[str, list[Cell]]]:
    """Cells by noise and regime, by row, by seed."""
    return {
        (noise, regime): {
            row: [row_cell(settings, settings.data(noise, regime, seed), row) for seed in range(settings.seeds)]
            for row in rows_of(methods)
        }
        for regime in settings.regimes
        for noise in settings.noises
    }


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What came out.

    Attributes:
        document: What ``fcal benchmark bokeh --json`` prints.
        results: Results of the first seed's cells, by noise and regime and then by row: curves, galleries, histories.
        crashed: Cells that could not be computed, with the reason; a method that fails to train is not among them.
    """

    document: dict[str, Any]
    results: dict[tuple[str, str], dict[str, Mapping[str, Any]]]
    crashed: dict[str, str]


def benchmark(
    settings: Settings,
    *,
    store: Store,
    methods: Sequence[str] | None = None,
    workers: int = 2,
    progress: bool = True,
) -> Benchmark:
    """Compute what is missing, and make the tables.

    Args:
        settings: Data, network and budget.
        store: Where finished cells are.
        methods: Names of methods; all where None.
        workers: Processes.
        progress: Whether a bar is shown.
    """
    start = time.perf_counter()
    outcomes = run(cells_of(settings, methods), compute, store=store, workers=workers, progress=progress)
    results = {
        name: {row: [_result(outcomes[cell]) for cell in by_seed] for row, by_seed in by_row.items()}
        for name, by_row in _tables(settings, methods).items()
    }
    tables = [table(settings, noise, regime, found) for (noise, regime), found in results.items()]
    document = {"task": "bokeh", "tables": tables, "wall_s": round(time.perf_counter() - start, 3)}
    return Benchmark(
        document=document,
        results={name: {row: by_seed[0] for row, by_seed in found.items()} for name, found in results.items()},
        crashed={cell.name: str(one.reason) for cell, one in outcomes.items() if one.status == "failed"},
    )


def _result(outcome: Outcome) -> Mapping[str, Any]:
    if outcome.status == "failed":
        return {"status": "crashed", "reason": outcome.reason}
    found: Mapping[str, Any] = outcome.result
    return found


def committed_cells() -> list[Path]:
    """Cells that came with this checkout; none where the package is installed elsewhere."""
    folder = Path(__file__).resolve().parents[4] / "docs" / "results" / "bokeh" / "cells"
    return [folder] if folder.is_dir() else []
