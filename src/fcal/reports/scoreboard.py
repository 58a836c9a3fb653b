"""The table of a benchmark: every method beside every other, beside its floor, and beside the paper."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fcal.plots.captions import MISSING, count, number, shortened
from fcal.plots.columns import column_hint, column_notes, column_title
from fcal.plots.methods import method_notes, method_order, method_parts, method_title
from fcal.reports.markup import Cell, Column, escaped, table
from fcal.reports.ranking import HIGHER_IS_BETTER, Mark, Score, marks, row_score, score

Table = Mapping[str, Any]

_LONGEST = 60
_LONGEST_REASON = 300
_FLOOR_MARK, _NEAR_MARK = "○", "≈"
FLOOR_RULE = (
    "Floor: what a perfectly calibrated model scores on as much data, on average; 95 % of such models stay below the "
    f"number under it. {_FLOOR_MARK}: not above that number either."
)
OWN_FLOOR_RULE = "The floor of ENCE depends on the predicted sigmas: hovering over a number shows that of its row."


def table_title(entry: Table) -> str:
    """What a table is of: its noise and regime, where it has them."""
    noise, regime = (str(entry.get(name) or "") for name in ("noise", "regime"))
    parts = [f"{noise} noise" if noise else "", f"{regime} regime" if regime else ""]
    title = ", ".join(part for part in parts if part) or str(entry.get("title") or "results")
    return title[0].upper() + title[1:]


def methods_of(rows: Iterable[str]) -> list[str]:
    """Methods in the order in which tables show them."""
    return sorted(rows, key=method_order)


def failed(row: Mapping[str, Any]) -> bool:
    """Whether a row says that its method failed."""
    return row.get("status") in ("failed", "crashed")


def results_table(entry: Table) -> str:
    """Every method: mean and sd, the best bold, those within its noise and those at the floor marked."""
    columns, rows, seeds = list(entry["columns"]), entry["rows"], seeds_of(entry)
    alive = {name: row for name, row in rows.items() if not failed(row)}
    marked = {
        column: marks({name: row_score(row, column) for name, row in alive.items()}, column=column, seeds=seeds)
        for column in columns
    }
    heads = [Column("method", number=False), *map(_head, columns)]
    body = []
    for name in methods_of(rows):
        cells = [_cell(entry, rows[name], column, marked[column].get(name)) for column in columns]
        body.append([_name_cell(name, rows[name]), *cells])
    caption = f"{table_title(entry)}: mean {'± sd ' if seeds > 1 else ''}over {_sizes(entry)}"
    return table(heads, body, caption=caption, sortable=True, foot=_floor_rows(entry, columns), kind="results")


def seeds_of(entry: Table) -> int:
    """How many seeds a table is of."""
    seeds = entry.get("seeds")
    return seeds if isinstance(seeds, int) else 1


def _sizes(entry: Table) -> str:
    seeds = seeds_of(entry)
    parts = [f"{seeds} seed{'s' if seeds != 1 else ''}"]
    parts += [f"{symbol} = {entry[name]}" for symbol, name in (("S", "bins"), ("K", "df")) if entry.get(name)]
    n = entry.get("n_test")
    parts += [f"n = {count(n)}"] if isinstance(n, int) else []
    return ", ".join(parts)


def _head(column: str) -> Column:
    arrow = "↑" if column in HIGHER_IS_BETTER else ""
    return Column(f"{shortened(column_title(column), _LONGEST)} {arrow}".strip(), hint=column_hint(column))


def _name_cell(name: str, row: Mapping[str, Any]) -> Cell:
    title, variant = method_parts(name)
    small = " · ".join(part for part in (variant, "✗ failed" if failed(row) else "") if part)
    return Cell(shortened(title, _LONGEST), method_title(name), "failed" if failed(row) else "", small)


def _cell(entry: Table, row: Mapping[str, Any], column: str, mark: Mark | None) -> Cell:
    one, q95 = row_score(row, column), _q95(entry, row, column)
    if one.mean is None:
        return Cell(MISSING)
    at_floor = q95 is not None and one.mean <= q95
    signs = [_FLOOR_MARK] * at_floor + [_NEAR_MARK] * (mark == "near")
    text = " ".join([*signs, number(one.mean)])
    return Cell(text, one.mean, mark or "", _spread(one, seeds_of(entry)), _own_floor(row, column))


def _spread(one: Score, seeds: int) -> str:
    return "" if one.sd is None or seeds < 2 else f"± {number(one.sd, 2)}"


def _floor(floor: Any) -> tuple[float | None, float | None]:
    """What a calibrated model scores, and what 95 % of them stay below."""
    if isinstance(floor, Mapping):
        return score(floor.get("expected", floor.get("mean"))).mean, score(floor.get("q95")).mean
    return score(floor).mean, None


def _common_floor(entry: Table, column: str) -> Any:
    """The floor of all rows; None where each has its own (``ence_floor``), as it depends on the predicted sigmas."""
    own = any(f"{column}_floor" in row for row in entry["rows"].values())
    return None if own else (entry.get("floors") or {}).get(column)


def _q95(entry: Table, row: Mapping[str, Any], column: str) -> float | None:
    return _floor(row.get(f"{column}_floor", _common_floor(entry, column)))[1]


def has_own_floors(entry: Table) -> bool:
    """Whether some of its rows have a floor that is not that of all."""
    return any(_own_floor(row, column) for row in entry["rows"].values() for column in entry["columns"])


def _own_floor(row: Mapping[str, Any], column: str) -> str:
    """The floor of this row alone, in words; nothing where it has none."""
    expected, q95 = _floor(row.get(f"{column}_floor"))
    if expected is None:
        return ""
    return f"floor of this row: {number(expected)}" + ("" if q95 is None else f"; 95 % below {number(q95)}")


def _floor_rows(entry: Table, columns: Sequence[str]) -> list[list[Cell]]:
    floors = [_floor(_common_floor(entry, column)) for column in columns]
    if all(value is None for pair in floors for value in pair):
        return []
    names = "floor", "95 % below"
    return [[Cell(name), *(Cell(number(pair[i])) for pair in floors)] for i, name in enumerate(names)]


def footnotes(entry: Table) -> str:
    """What the names of columns and rows do not say, as a list; nothing where they say it all."""
    return _listed([escaped(note) for note in (*column_notes(entry["columns"]), *method_notes(entry["rows"]))])


def _listed(lines: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{line}</li>" for line in lines)}</ul>' if lines else ""


def failures(entry: Table) -> str:
    """Why methods failed, as a list; nothing where none did."""
    lines = []
    for name in methods_of(entry["rows"]):
        row = entry["rows"][name]
        if failed(row):
            reason = shortened(str(row.get("reason") or "no reason given"), _LONGEST_REASON)
            lines.append(f"<strong>{escaped(method_title(name))}</strong> failed: {escaped(reason)}")
    return _listed(lines)


def paper_table(entry: Table) -> str:
    """Our numbers beside those of the paper; nothing where no method has both."""
    paper = entry.get("paper") or {}
    rows = [name for name in methods_of(paper) if isinstance(paper[name], Mapping) and name in entry["rows"]]
    columns = [column for column in entry["columns"] if any(column in paper[name] for name in rows)]
    if not rows or not columns:
        return ""
    heads = [Column("method", number=False)]
    for column in columns:
        heads += [_head(column), Column("paper", hint=f"{column_title(column)} as the paper has it")]
    body = []
    for name in rows:
        ours = entry["rows"][name]
        cells = [_name_cell(name, ours)]
        for column in columns:
            cells += [
                _plain(score(ours.get(column)), seeds_of(entry)),
                _plain(score(paper[name].get(column)), 2, "paper"),
            ]
        body.append(cells)
    return table(heads, body, caption=f"Ours beside the paper's: {_paper_note(entry)}", kind="results")


def _paper_note(entry: Table) -> str:
    """What the paper's numbers were probably made with."""
    made_with = entry.get("paper_grid") or {}
    sizes = [f"{symbol} = {made_with[name]}" for symbol, name in (("S", "bins"), ("K", "df")) if made_with.get(name)]
    words = [f"theirs probably with {', '.join(sizes)}"] if sizes else []
    words += [str(made_with["note"])] if made_with.get("note") else []
    return "; ".join(words) or "their S and K are not known, so compare down a column, not across"


def _plain(one: Score, seeds: int, kind: str = "") -> Cell:
    return Cell(number(one.mean), one.mean, kind, _spread(one, seeds))
