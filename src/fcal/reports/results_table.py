"""The table of a benchmark: the best row, rows not clearly different from it, floors, failures, the paper's numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, Literal

from fcal.plots.captions import MISSING, count, number, shortened
from fcal.plots.styles import Columns, ColumnStyle, Rows, RowStyle, column_style, footnotes, ordered, row_style
from fcal.reports.page import Cell, Column, escaped, table

Table = Mapping[str, Any]
Mark = Literal["best", "near"]

_STANDARD_ERRORS = 2.0
_LONGEST_TITLE = 60
_LONGEST_REASON = 300
_FLOOR_MARK, _NEAR_MARK = "○", "≈"
RANKING_RULE = (
    "Bold: the best mean of a column. ≈: its mean difference to the best is at most twice the standard error of that "
    "difference, paired over seeds where every seed's value is known, else from both standard deviations. "
    "The oracle, failed rows, times, coverage and widths are not ranked."
)
ONE_SEED = "Of one seed there is no standard deviation: differences may be noise, and no row is marked as the best."
FLOOR_RULE = (
    "Floor: what a perfectly calibrated model scores on as much data, on average; 95 % of such models stay below the "
    f"number under it. {_FLOOR_MARK}: not above that number either."
)
OWN_FLOOR_RULE = "The floor of ENCE depends on the predicted sigmas: hovering over a number shows that of its row."


@dataclass(frozen=True)
class Score:
    """A value of a table over seeds.

    Attributes:
        mean: Over seeds; None where undefined.
        sd: Over seeds; None where there is one seed.
        values: Of every seed, in the same order for all rows; empty where unknown.
    """

    mean: float | None
    sd: float | None = None
    values: tuple[float | None, ...] = ()


def score(entry: Any) -> Score:
    """Read a value of a document: a number, ``[mean, sd]``, or ``{"mean": .., "sd": ..}``.

    Example:
        >>> score([0.5, 0.1]), score(None).mean, score({"mean": 2, "sd": None}).mean
        (Score(mean=0.5, sd=0.1, values=()), None, 2.0)
    """
    if isinstance(entry, Mapping):
        return Score(_number(entry.get("mean")), _number(entry.get("sd")))
    if isinstance(entry, Sequence) and not isinstance(entry, str):
        mean, sd = (*entry, None, None)[:2]
        return Score(_number(mean), _number(sd))
    return Score(_number(entry))


def row_score(row: Mapping[str, Any], column: str) -> Score:
    """A value of a row, with that of every seed where ``row["seeds"]`` has them by column.

    Example:
        >>> row_score({"nll": {"mean": 1.5, "sd": 0.7}, "seeds": {"nll": [1.0, 2.0]}}, "nll").values
        (1.0, 2.0)
    """
    seeds = row.get("seeds")
    values = seeds.get(column) if isinstance(seeds, Mapping) else None
    return replace(score(row.get(column)), values=tuple(map(_number, values or ())))


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def marks(scores: Mapping[str, Score], *, column: ColumnStyle, seeds: int) -> dict[str, Mark]:
    """The best rows of a column, and those within the noise of the best.

    Args:
        scores: By row, without references and failed rows.
        column: Says whether lower is better, and whether it is ranked at all.
        seeds: How many were averaged.

    Returns:
        ``"best"`` or ``"near"`` for the rows that are; equal means are all best. With one seed no row is marked:
        nothing is known about its noise.

    Example:
        >>> rows = {"a": Score(1.0, 0.1), "b": Score(1.05, 0.1), "c": Score(2.0, 0.1)}
        >>> marks(rows, column=ColumnStyle("NLL"), seeds=5)
        {'a': 'best', 'b': 'near'}
    """
    ranked = {name: score for name, score in scores.items() if score.mean is not None}
    if not column.ranked or not ranked or seeds < 2:
        return {}
    sign = 1 if column.lower_is_better else -1
    best = min(ranked.values(), key=lambda score: sign * (score.mean or 0.0))
    marked: dict[str, Mark] = {}
    for name, candidate in ranked.items():
        if candidate.mean == best.mean:
            marked[name] = "best"
        elif within_noise(candidate, best, seeds):
            marked[name] = "near"
    return marked


def within_noise(candidate: Score, best: Score, seeds: int) -> bool:
    """Whether two means differ by at most twice the standard error of their difference, paired over seeds if possible.

    Example:
        >>> within_noise(Score(1.05, 0.1), Score(1.0, 0.1), seeds=5), within_noise(Score(2.0, 0.1), Score(1.0, 0.1), 5)
        (True, False)
    """
    pairs = [(a, b) for a, b in zip(candidate.values, best.values, strict=False) if a is not None and b is not None]
    if len(pairs) >= 2:
        differences = [a - b for a, b in pairs]
        error = stdev(differences) / math.sqrt(len(differences))
        return abs(fmean(differences)) <= _STANDARD_ERRORS * error
    if candidate.sd is None or best.sd is None or candidate.mean is None or best.mean is None:
        return False
    return abs(candidate.mean - best.mean) <= _STANDARD_ERRORS * math.hypot(candidate.sd, best.sd) / math.sqrt(seeds)


def table_title(entry: Table) -> str:
    """Title of a table, or its noise and regime."""
    noise, regime = (str(entry.get(name) or "") for name in ("noise", "regime"))
    parts = [f"{noise} noise" if noise else "", f"{regime} regime" if regime else ""]
    title = str(entry.get("title") or ", ".join(filter(None, parts)) or "results")
    return title[0].upper() + title[1:]


def failed(row: Mapping[str, Any]) -> bool:
    """Whether the method of a row failed."""
    return row.get("status") in ("failed", "crashed")


def seeds_of(entry: Table) -> int:
    """How many seeds a table averages."""
    seeds = entry.get("seeds")
    return seeds if isinstance(seeds, int) else 1


def results_table(entry: Table, rows: Rows, columns: Columns) -> str:
    """Every row: mean and sd, the best bold, those within its noise and those at the floor marked."""
    names, seeds = list(entry["columns"]), seeds_of(entry)
    styles = {name: column_style(columns, name) for name in names}
    ranked = {
        name: row for name, row in entry["rows"].items() if not failed(row) and not row_style(rows, name).reference
    }
    marked = {
        column: marks({name: row_score(row, column) for name, row in ranked.items()}, column=style, seeds=seeds)
        for column, style in styles.items()
    }
    body = []
    for name in ordered(rows, entry["rows"]):
        row = entry["rows"][name]
        cells = [_cell(entry, row, column, marked[column].get(name)) for column in names]
        body.append([_name_cell(row_style(rows, name), row), *cells])
    caption = f"{table_title(entry)}: mean {'± sd ' if seeds > 1 else ''}over {_sizes(entry)}"
    heads = [Column("method", number=False), *map(_head, styles.values())]
    return table(heads, body, caption=caption, sortable=True, foot=_floor_rows(entry), kind="results")


def _sizes(entry: Table) -> str:
    seeds, n = seeds_of(entry), entry.get("n_test")
    parts = [f"{seeds} seed{'s' if seeds != 1 else ''}", *_bins_and_df(entry)]
    return ", ".join([*parts, *([f"n = {count(n)}"] if isinstance(n, int) else [])])


def _bins_and_df(entry: Table) -> list[str]:
    return [f"{symbol} = {entry[name]}" for symbol, name in (("S", "bins"), ("K", "df")) if entry.get(name)]


def _head(column: ColumnStyle) -> Column:
    arrow = "" if column.lower_is_better else "↑"
    return Column(f"{shortened(column.title, _LONGEST_TITLE)} {arrow}".strip(), hint=column.description)


def _name_cell(style: RowStyle, row: Mapping[str, Any]) -> Cell:
    small = " · ".join(filter(None, (style.variant, "✗ failed" if failed(row) else "")))
    return Cell(shortened(style.title, _LONGEST_TITLE), style.full_title, "failed" if failed(row) else "", small)


def _cell(entry: Table, row: Mapping[str, Any], column: str, mark: Mark | None) -> Cell:
    value, (_, q95) = row_score(row, column), _floor(row.get(f"{column}_floor", _common_floor(entry, column)))
    if value.mean is None:
        return Cell(MISSING)
    at_floor = q95 is not None and value.mean <= q95
    signs = [_FLOOR_MARK] * at_floor + [_NEAR_MARK] * (mark == "near")
    text = " ".join([*signs, number(value.mean)])
    return Cell(text, value.mean, mark or "", _spread(value, seeds_of(entry)), _own_floor(row, column))


def _spread(value: Score, seeds: int) -> str:
    return "" if value.sd is None or seeds < 2 else f"± {number(value.sd, 2)}"


def _floor(floor: Any) -> tuple[float | None, float | None]:
    """Mean score of calibrated models, and the score that 95 % of them stay below."""
    if isinstance(floor, Mapping):
        return score(floor.get("expected", floor.get("mean"))).mean, score(floor.get("q95")).mean
    return score(floor).mean, None


def _common_floor(entry: Table, column: str) -> Any:
    """The floor of all rows; None where each has its own (``ence_floor``), as it depends on the predicted sigmas."""
    own = any(f"{column}_floor" in row for row in entry["rows"].values())
    return None if own else (entry.get("floors") or {}).get(column)


def has_own_floors(entry: Table) -> bool:
    """Whether some rows have a floor of their own."""
    return any(_own_floor(row, column) for row in entry["rows"].values() for column in entry["columns"])


def _own_floor(row: Mapping[str, Any], column: str) -> str:
    """The floor of this row alone, as text; empty where it has none."""
    expected, q95 = _floor(row.get(f"{column}_floor"))
    if expected is None:
        return ""
    return f"floor of this row: {number(expected)}" + ("" if q95 is None else f"; 95 % below {number(q95)}")


def _floor_rows(entry: Table) -> list[list[str]]:
    floors = [_floor(_common_floor(entry, column)) for column in entry["columns"]]
    if all(value is None for pair in floors for value in pair):
        return []
    names = "floor", "95 % below"
    return [[name, *(number(pair[i]) for pair in floors)] for i, name in enumerate(names)]


def notes_list(entry: Table, rows: Rows, columns: Columns) -> str:
    """Footnotes of columns and rows, as a list; empty where there are none."""
    return _listed([escaped(note) for note in (*footnotes(columns, entry["columns"]), *footnotes(rows, entry["rows"]))])


def failures_list(entry: Table, rows: Rows) -> str:
    """Why methods failed, as a list; empty where none did."""
    lines = []
    for name in ordered(rows, entry["rows"]):
        row = entry["rows"][name]
        if failed(row):
            title = escaped(row_style(rows, name).full_title)
            reason = shortened(str(row.get("reason") or "no reason given"), _LONGEST_REASON)
            lines.append(f"<strong>{title}</strong> failed: {escaped(reason)}")
    return _listed(lines)


def _listed(lines: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{line}</li>" for line in lines)}</ul>' if lines else ""


def paper_table(entry: Table, rows: Rows, columns: Columns) -> str:
    """Our numbers beside those of the paper; empty where no row has both."""
    paper = {name: row for name, row in (entry.get("paper") or {}).items() if isinstance(row, Mapping)}
    names = [name for name in ordered(rows, paper) if name in entry["rows"]]
    compared = [column for column in entry["columns"] if any(column in paper[name] for name in names)]
    if not names or not compared:
        return ""
    heads = [Column("method", number=False)]
    for style in (column_style(columns, column) for column in compared):
        heads += [_head(style), Column("paper", hint=f"{style.title} as the paper has it")]
    body = []
    for name in names:
        ours = entry["rows"][name]
        cells = [_name_cell(row_style(rows, name), ours)]
        for column in compared:
            cells += [
                _plain(score(ours.get(column)), seeds_of(entry)),
                _plain(score(paper[name].get(column)), 2, "paper"),
            ]
        body.append(cells)
    return table(heads, body, caption=f"Ours beside the paper's: {_paper_note(entry)}", kind="results")


def _paper_note(entry: Table) -> str:
    """What the paper's numbers were probably computed with."""
    grid = entry.get("paper_grid") or {}
    sizes = _bins_and_df(grid)
    parts = [f"theirs probably with {', '.join(sizes)}"] if sizes else []
    parts += [str(grid["note"])] if grid.get("note") else []
    return "; ".join(parts) or "their S and K are not known, so compare down a column, not across"


def _plain(value: Score, seeds: int, kind: str = "") -> Cell:
    return Cell(number(value.mean), value.mean, kind, _spread(value, seeds))
