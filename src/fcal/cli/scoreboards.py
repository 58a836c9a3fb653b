"""Tables of benchmarks, for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fcal.benchmarks.columns import scaled_number, scaled_title
from fcal.benchmarks.titles import COLUMN_STYLES, ROW_STYLES
from fcal.plots.styles import footnotes
from fcal.reports.results_table import ONE_SEED

_SHOWN = ("l1_gt", "l1", "ece_z", "ece_q", "nll", "crps", "ence", "sigma_corr", "train_s", "predict_ms")
_OF_PAPER = ("l1_gt", "ece_z", "ece_q", "nll")
_MISSING = "-"
_ROOM_FOR_SPREAD = 140  # columns of a terminal
_WIDEST = 400


def print_tables(tables: Sequence[Mapping[str, Any]], *, page: str) -> None:
    """Every table, what its columns mean, and where the page is."""
    console = Console(soft_wrap=True)
    for entry in tables:
        _show(console, _table(entry, spread=entry["seeds"] > 1 and console.width >= _ROOM_FOR_SPREAD))
        for name, row in entry["rows"].items():
            if "status" in row:
                console.print(Text(f"{name} {row['status']}: {row['reason']}", style="yellow"))
        if set(entry["paper"]) & set(entry["rows"]):
            _show(console, _beside_paper(entry))
    for note in _notes(tables):
        console.print(Text(note, "dim"))
    console.print(Text(f"page: {page}"))


def _notes(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the names of columns and rows do not say, and what one seed cannot."""
    rows = [name for entry in tables for name in entry["rows"]]
    alone = any(entry["seeds"] == 1 for entry in tables)
    return [*footnotes(COLUMN_STYLES, _SHOWN), *footnotes(ROW_STYLES, rows), *([ONE_SEED] if alone else [])]


def _show(console: Console, table: Table) -> None:
    """Print a table whole: a narrow terminal may fold its lines, but never drops digits."""
    needed = console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    Console(width=max(needed, 1)).print(table)


def _new_table(*headings: str, title: str | None = None, caption: str) -> Table:
    table = Table(
        *headings,
        title=title,
        caption=caption,
        box=SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _table(entry: Mapping[str, Any], *, spread: bool) -> Table:
    images = entry["images"]
    title = (
        f"{entry['noise']} noise, {entry['regime']} regime, {entry['seeds']} seed{'s' if entry['seeds'] > 1 else ''}"
    )
    caption = (
        f"S = {entry['bins']}, K = {entry['df']}, n = {entry['n_test']:,}: {images['train']:,} images to train on, "
        f"{images['validation']:,} to choose by, {images['test']:,} to test"
    )
    table = _new_table("", *(_heading(name) for name in _SHOWN), title=title, caption=caption)
    for name, row in entry["rows"].items():
        style = "yellow" if "status" in row else ""
        table.add_row(name, *(_value(row[column], column, spread) for column in _SHOWN), style=style)
    table.add_section()
    floors = {**entry["floors"], "ence": None}  # that of ENCE depends on the predicted sigmas: every row has its own
    for what, label in (("expected", "calibrated model"), ("q95", "95 % below")):
        table.add_row(label, *(_floor(floors.get(column), column, what) for column in _SHOWN), style="dim")
    return table


def _beside_paper(entry: Mapping[str, Any]) -> Table:
    grid = entry["paper_grid"]
    table = _new_table(
        "",
        *(f"{_heading(name)}\n{who}" for name in _OF_PAPER for who in ("ours", "paper")),
        caption=f"the paper's S is not stated, probably {grid['bins']}, its K {grid['df']}",
    )
    for name, paper in entry["paper"].items():
        if name in entry["rows"]:
            row = entry["rows"][name]
            table.add_row(
                name, *(_value(of.get(column, {}), column, False) for column in _OF_PAPER for of in (row, paper))
            )
    return table


def _heading(column: str) -> str:
    """Name above factor or unit."""
    return scaled_title(column).replace(" x", "\nx").replace(", ", "\n").replace("(sigma)", "\nsigma")


def _value(spread_of: Mapping[str, float | None], column: str, spread: bool) -> str:
    mean, sd = spread_of.get("mean"), spread_of.get("sd")
    if mean is None:
        return _MISSING
    text = scaled_number(column, mean)
    return f"{text} ± {scaled_number(column, sd, 2)}" if spread and sd is not None else text


def _floor(floor: Mapping[str, float] | None, column: str, what: str) -> str:
    return "" if floor is None else scaled_number(column, floor[what])
