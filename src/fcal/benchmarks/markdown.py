"""Tables as Markdown, for terminals and the docs."""

from collections.abc import Mapping, Sequence
from typing import Any

from fcal.benchmarks.table import DONE, Column, Spread, Table


def lines_of(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, with numbers aligned to the right.

    Example:
        >>> print(lines_of(["", "NLL"], [["oracle", "-1.8"]]), end="")
        |  | NLL |
        | --- | ---: |
        | oracle | -1.8 |
    """
    dashes = ["---", *["---:"] * (len(headings) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headings, dashes, *rows))


def results_markdown(
    columns: Sequence[Column], table: Table, *, error: str = "sd", beside: Sequence[Sequence[str]] = ()
) -> str:
    """Every row of a table: mean and spread over repetitions, and the scores of calibrated and of repaired models.

    Args:
        columns: Columns of the task; those of the table are shown.
        table: Table to show.
        error: ``"sd"`` or ``"se"``, shown after the mean.
        beside: Further lines below the floors.
    """
    columns = [column for column in columns if column.name in table.columns]
    rows = [
        [row_label(name, table), *(spread_text(column, row.columns[column.name], error) for column in columns)]
        for name, row in table.rows.items()
    ]
    floors = floor_lines(columns, table, "*calibrated model*", "*95 % of them below*")
    repaired = table.details.get("repaired_floors")
    if repaired:
        floors += _two_lines(columns, repaired, "*one factor fitted to held-out rows*", "*95 % of them below*")
    return lines_of(["", *(column.heading for column in columns)], [*rows, *floors, *beside])


def floor_lines(columns: Sequence[Column], table: Table, expected: str, q95: str) -> list[list[str]]:
    """Mean and 95 % quantile of calibrated models, except for columns in which every row has its own floor."""
    own = {column.name for column in columns for row in table.rows.values() if f"{column.name}_floor" in row.details}
    floors = {name: floor for name, floor in table.floors.items() if name not in own}
    return _two_lines(columns, floors, expected, q95) if floors else []


def _two_lines(columns: Sequence[Column], floors: Mapping[str, Any], expected: str, q95: str) -> list[list[str]]:
    return [
        [label, *(_floor(column, floors.get(column.name), statistic) for column in columns)]
        for statistic, label in (("expected", expected), ("q95", q95))
    ]


def spread_text(column: Column, spread: Spread | Mapping[str, Any], error: str = "sd") -> str:
    """Mean of a column, and its spread if ``error`` is ``"sd"`` or ``"se"``.

    Example:
        >>> spread_text(Column(name="nll", title="NLL"), Spread.of([1.0, 3.0]))
        '2 ± 1.4'
    """
    known = spread if isinstance(spread, Spread) else Spread(**spread)
    if known.mean is None:
        return column.text(None)
    width = getattr(known, error) if error else None
    return column.text(known.mean) + ("" if width is None else f" ± {column.text(width, 2)}")


def failures(table: Table) -> list[str]:
    """A sentence for every method that failed to train or could not be computed."""
    return [f"{name} {row.status}: {row.reason}" for name, row in table.rows.items() if row.status != DONE]


def row_label(name: str, table: Table) -> str:
    """Name of a row, with a mark if it failed or if repetitions are missing."""
    row = table.rows[name]
    marks = [] if row.status == DONE else [row.status]
    if row.finished < table.seeds and row.status == DONE:
        marks.append(f"{row.finished} of {table.seeds} seeds")
    return f"{name} ({', '.join(marks)})" if marks else name


def _floor(column: Column, floor: Mapping[str, float] | None, statistic: str) -> str:
    return "" if floor is None else column.text(floor[statistic])
