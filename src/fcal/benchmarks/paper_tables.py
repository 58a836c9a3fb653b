"""Numbers of the paper's appendix, and tables that show ours beside them."""

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from fcal.benchmarks.markdown import lines_of, spread_text
from fcal.benchmarks.table import Column, Table


def paper_details(task: str, table: str) -> dict[str, Any]:
    """What a table keeps of the paper's: ``paper``, its numbers, and ``paper_grid``, how they were probably made.

    Args:
        task: Name of the task, one with a file ``paper.json``.
        table: Name of the table in its file.
    """
    document = _document(task)
    return {
        "paper": paper_numbers(task, table),
        "paper_grid": {name: document[name] for name in ("bins", "df", "note")},
    }


def _document(task: str) -> dict[str, Any]:
    text = resources.files(f"fcal.benchmarks.{task}").joinpath("paper.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def paper_numbers(task: str, table: str) -> dict[str, Any]:
    """What the paper's appendix reports, by method and column; empty where it has no such table.

    Args:
        task: Name of the task.
        table: Name of the table in its file.

    Example:
        >>> paper_numbers("bokeh", "homoscedastic")["fcal_wass"]["ece_q"]["mean"]
        0.037
        >>> paper_numbers("detection", "kitti")["nll"]["pdq"]
        {'mean': 0.443}
    """
    return {
        method: {column: _spread(value) for column, value in columns.items()}
        for method, columns in _document(task)["tables"].get(table, {}).items()
    }


def _spread(value: float | Sequence[float]) -> dict[str, float]:
    """A number, or mean and sd of several seeds, as a table has it."""
    return dict(zip(("mean", "sd"), value if isinstance(value, list) else (value,), strict=False))


def beside_paper(columns: Sequence[Column], table: Table) -> str:
    """Numbers of a table with those of the paper, ``table.details["paper"]``, beside them; empty where it has none.

    Args:
        columns: Columns to show.
        table: The table.
    """
    rows = {name: row for name, row in table.details["paper"].items() if name in table.rows}
    lines = []
    for name, paper in rows.items():
        ours = table.rows[name].columns
        pairs = ((column, ours[column.name], paper.get(column.name, {})) for column in columns)
        lines.append([name, *(spread_text(column, numbers) for column, *both in pairs for numbers in both)])
    headings = ["", *(f"{column.heading}, {who}" for column in columns for who in ("ours", "paper"))]
    return lines_of(headings, lines) if lines else ""
