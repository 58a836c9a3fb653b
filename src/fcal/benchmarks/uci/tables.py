"""Tables of the UCI benchmark: its columns, published figures, paired differences and pooled residuals."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib import resources
from typing import Any

from fcal.benchmarks.markdown import lines_of, spread_text
from fcal.benchmarks.scoring import COVERAGE, CRPS, ECE_Q, ECE_Z, RMSE, TRAIN_S, WIDTH, rounded
from fcal.benchmarks.table import Column, Row, Spread, Table, row_of
from fcal.benchmarks.task import Result, Results
from fcal.benchmarks.uci.problem import COLUMNS, DIGITS, grid_of
from fcal.benchmarks.uci.settings import Settings
from fcal.metrics.calibration_errors import floors

BASELINE = "temperature"  # row that other methods are compared with
_ROW_DETAILS = ("pooled", "epochs", "candidates")
_POOLED = (ECE_Z, ECE_Q)

LOG_LIKELIHOOD = Column(
    name="ll",
    title="log-likelihood",
    description="mean over test rows, in the target's unit; more is better",
    lower_is_better=False,
    digits=4,
)
TABLE_COLUMNS = (
    RMSE,
    LOG_LIKELIHOOD,
    replace(CRPS, digits=4),
    ECE_Z,
    ECE_Q,
    replace(
        COVERAGE, name="coverage_68", title="in 68 %", description="share of targets in the central interval of 68 %"
    ),
    COVERAGE,
    replace(
        COVERAGE, name="coverage_95", title="in 95 %", description="share of targets in the central interval of 95 %"
    ),
    replace(WIDTH, digits=4, ranked=False),  # a narrow interval that does not cover is no better
    replace(TRAIN_S, digits=4, ranked=False),
)


def uci_table(settings: Settings, labels: Mapping[str, str], results: Results) -> Table:
    """The table of one UCI table and network.

    Args:
        settings: Settings of the benchmark.
        labels: Names of the UCI table and network.
        results: Results of the rows' cells; a cell holds all splits.
    """
    cells = {name: repetitions[0] for name, repetitions in results.items()}
    done = [cell for cell in cells.values() if "columns" in cell]
    splits = max((len(cell["columns"]["rmse"]) for cell in done), default=0)
    pooled: Mapping[str, Any] = next((cell["pooled"] for cell in done if "pooled" in cell), {})
    n_test = pooled["n"] // splits if pooled else 0
    bins, df = grid_of(n_test)
    return Table(
        labels=labels,
        seeds=splits,
        bins=bins,
        df=df,
        n_test=n_test,
        columns=COLUMNS,
        rows={name: _row(cell, splits) for name, cell in cells.items()},
        floors=_floors(n_test, bins, df) if n_test else {},
        details={
            "splits": splits,
            "folds": settings.folds,
            "pooled": _pooled_grid(pooled),
            "published": published_numbers(labels["dataset"]),
            "paired": _paired(cells),
        },
    )


def published_numbers(dataset: str) -> dict[str, dict[str, float | None]]:
    """Figures of MC dropout, by column.

    Example:
        >>> published_numbers("yacht")["ll"]
        {'mean': -1.25, 'se': 0.01}
    """
    text = resources.files("fcal.benchmarks.uci").joinpath("published.json").read_text(encoding="utf-8")
    return {
        column: dict(zip(("mean", "se"), pair, strict=True))
        for column, pair in json.loads(text)["tables"].get(dataset, {}).items()
    }


def _row(cell: Result, splits: int) -> Row:
    if "columns" not in cell:
        cell = {**cell, "columns": {name: [None] * splits for name in COLUMNS}}
    return row_of([cell], COLUMNS, se=True, **{name: cell[name] for name in _ROW_DETAILS if name in cell})


def _floors(count: int, bins: int, df: int) -> dict[str, dict[str, float | None]]:
    """Scores of calibrated models on the same number of independent rows."""
    of_ece = {"ece_z": floors(count, bins, 1).ece, "ece_q": floors(count, bins, df).ece}
    return {name: rounded({"expected": floor.expected, "q95": floor.q95}, DIGITS) for name, floor in of_ece.items()}


def _pooled_grid(pooled: Mapping[str, Any]) -> dict[str, Any]:
    """Number of residuals of all splits together, bins and sums, and the scores of calibrated models.

    Splits share rows, so residuals are not quite independent and the floors are a little too low.
    """
    if not pooled:
        return {}
    grid = {name: pooled[name] for name in ("n", "bins", "df")}
    return {**grid, "floors": _floors(grid["n"], grid["bins"], grid["df"])}


def _paired(cells: Mapping[str, Result]) -> dict[str, Any]:
    """Log-likelihood minus that of temperature scaling, split by split."""
    values = {name: cell["columns"]["ll"] for name, cell in cells.items() if "columns" in cell}
    known = {name: column for name, column in values.items() if None not in column}
    baseline = known.pop(BASELINE, None)
    if baseline is None:
        return {}
    pairs = {}
    for name, column in known.items():
        differences = [a - b for a, b in zip(column, baseline, strict=True)]
        above = sum(difference >= 0 for difference in differences)
        pairs[f"{name} - {BASELINE}"] = {**asdict(Spread.of(differences, se=True)), "above": above, "ll": differences}
    return pairs


def published_lines(table: Table) -> list[list[str]]:
    """The line of published figures below a table."""
    published = {name: _published_text(figure) for name, figure in table.details["published"].items()}
    return [["*published, MC dropout*", *(published.get(column.name, "") for column in TABLE_COLUMNS)]]


def _published_text(figure: Mapping[str, float | None]) -> str:
    return f"{figure['mean']:.2f}" + ("" if figure["se"] is None else f" ± {figure['se']:.2f}")


def sections(table: Table) -> list[tuple[str, str]]:
    """Paired differences and pooled residuals as Markdown, each with a sentence before it."""
    grid = table.details["pooled"]
    parts = []
    if table.details["paired"]:
        parts.append(("Log-likelihood against temperature scaling, split by split:", _paired_lines(table)))
    if grid:
        sentence = f"Residuals of all splits together, n = {grid['n']:,}, S = {grid['bins']}, K = {grid['df']}:"
        parts.append((sentence, _pooled_lines(table)))
    return parts


def _paired_lines(table: Table) -> str:
    lines = [
        [
            name,
            spread_text(replace(LOG_LIKELIHOOD, digits=3), _spread(pair), "se"),
            f"{pair['above']} of {len(pair['ll'])}",
        ]
        for name, pair in table.details["paired"].items()
    ]
    return lines_of(["", "difference, mean ± standard error", "splits where it is no worse"], lines)


def _spread(pair: Mapping[str, Any]) -> Spread:
    return Spread(mean=pair["mean"], sd=pair["sd"], se=pair["se"])


def _pooled_lines(table: Table) -> str:
    rows = {name: row.details["pooled"] for name, row in table.rows.items() if "pooled" in row.details}
    floors = {name: floor["expected"] for name, floor in table.details["pooled"]["floors"].items()}
    lines = [
        [name, *(column.text(numbers[column.name]) for column in _POOLED)]
        for name, numbers in {**rows, "*calibrated model*": floors}.items()
    ]
    return lines_of(["", *(column.heading for column in _POOLED)], lines)
