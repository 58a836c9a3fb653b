"""The page of a benchmark: tables first, then the figures behind them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fcal._files import provenance
from fcal.plots.benchmark_figures import LAW_WIDTH, PANELS, calibration_figure, learning_figure, logged_quantities
from fcal.plots.captions import shortened
from fcal.plots.styles import (
    Columns,
    ColumnStyle,
    Rows,
    RowStyle,
    described,
    line_styles,
    ordered,
    row_style,
    shown_at_first,
)
from fcal.reports.page import Section, escaped, page
from fcal.reports.results_table import (
    FLOOR_RULE,
    ONE_SEED,
    OWN_FLOOR_RULE,
    RANKING_RULE,
    Table,
    failed,
    failures_list,
    has_own_floors,
    notes_list,
    paper_table,
    results_table,
    seeds_of,
    table_title,
)
from fcal.reports.svg_gallery import gallery_html
from fcal.reports.svg_renderer import grid, line_sample

_LONGEST_NOTE = 1000
_LONGEST_TITLE = 40
_MOST_QUANTITIES = 6
_CURVES_TEXT = (
    "<p>x is nominal, y is what happened. Grey bands, where there are any: where 95 % of perfectly calibrated models "
    "would lie. Click a name to show or hide its lines.</p>"
)
_LEARNING_TEXT = (
    "<p>Thin and dotted: on training data; else on validation data. Click a name to show or hide its lines.</p>"
)
_GALLERY_TEXT = (
    "<p>Where error bars are true, the label lies within the ellipse of 2 sigma in 86 % of the images. The true noise "
    "is what the label adds to the true centre; a prediction also has to answer for its own error.</p>"
)


def benchmark_page(
    tables: Sequence[Table],
    *,
    command: str,
    title: str = "Benchmark",
    conclusion: Sequence[str] = (),
    notes: Sequence[str] = (),
    seconds: float | None = None,
    versions: Mapping[str, Any] | None = None,
    rows: Mapping[str, RowStyle] = {},
    columns: Mapping[str, ColumnStyle] = {},
) -> str:
    """The whole page of ``fcal benchmark``: tables, distributions and reliability, images, learning curves.

    Args:
        tables: As in ``fcal benchmark --json``: mappings with ``columns``, ``rows`` (by name, by column
            ``{"mean": .., "sd": ..}`` or None; ``seeds``, by column a list; ``"status": "failed"`` and ``"reason"``;
            ``<column>_floor`` where a row has a floor of its own),
            and where known ``noise``, ``regime``, ``seeds``, ``bins``, ``df``, ``n_test``, ``floors``, ``paper``,
            ``paper_grid``. For the figures, each may also have ``curves`` (see
            ``fcal.plots.benchmark_figures.curves_of``), ``gallery`` (see
            ``fcal.plots.predicted_positions.read_gallery``) and ``learning`` (see ``fcal.plots.learning_curves``).
        command: The command that was run.
        title: Of the page.
        conclusion: Sentences on what it showed, for the top of the page.
        notes: Sentences on what it is, after them.
        seconds: How long it took.
        versions: Versions, commit and machine; those of this process by default.
        rows: Descriptions of rows, in the order in which they are shown; a row without one has its name as a title.
        columns: Descriptions of columns; a column without one has its name as a title.

    Returns:
        One self-contained HTML document; it makes no request and opens from disk.

    Raises:
        TypeError: ``tables`` is no list of mappings.
        ValueError: A table lacks columns or rows, or a figure's data do not fit together.
    """
    sections = benchmark_sections(tables, conclusion=conclusion, notes=notes, rows=rows, columns=columns)
    facts = dict(provenance() if versions is None else versions)
    if seconds is not None:
        facts["wall time"] = _duration(seconds)
    return page(title, sections, command=command, versions=facts)


def benchmark_sections(
    tables: Sequence[Table],
    *,
    conclusion: Sequence[str] = (),
    notes: Sequence[str] = (),
    rows: Mapping[str, RowStyle] = {},
    columns: Mapping[str, ColumnStyle] = {},
) -> list[Section]:
    """The sections of :func:`benchmark_page`, for pages that hold more."""
    tables = _checked(tables)
    parts = [table.get(part) or {} for table in tables for part in ("rows", "curves", "learning")]
    rows = described(rows, (name for part in parts for name in part))
    return [
        _introduction(tables, conclusion, notes),
        *(Section(table_title(table), _results(table, rows, columns)) for table in tables),
        *_calibration_sections([table for table in tables if table.get("curves")], rows),
        *(
            Section(f"Images: {table_title(table)}", _GALLERY_TEXT + gallery_html(table["gallery"], rows=rows))
            for table in tables
            if table.get("gallery")
        ),
        *(section for table in tables for section in _learning_sections(table, rows, columns)),
    ]


def _checked(tables: Any) -> list[Table]:
    if isinstance(tables, str | Mapping) or not isinstance(tables, Sequence):
        raise TypeError(f"expected `tables` a list of tables, got {type(tables).__name__}")
    for i, table in enumerate(tables):
        if not isinstance(table, Mapping):
            raise TypeError(f"expected `tables[{i}]` a mapping, got {type(table).__name__}")
        for name, expected in (("columns", Sequence), ("rows", Mapping)):
            if not isinstance(table.get(name), expected):
                keys = ", ".join(map(repr, table)) or "nothing"
                raise ValueError(f"expected `tables[{i}]` with {name!r}, got {keys}")
        for name, row in table["rows"].items():
            if not isinstance(row, Mapping):
                raise ValueError(f"expected `tables[{i}].rows.{name}` a mapping, got {type(row).__name__}")
    return list(tables)


def _introduction(tables: Sequence[Table], conclusion: Sequence[str], notes: Sequence[str]) -> Section:
    marked = [*((sentence, ' class="reason"') for sentence in conclusion), *((note, "") for note in notes)]
    paragraphs = "".join(f"<p{kind}>{escaped(shortened(str(note), _LONGEST_NOTE))}</p>" for note, kind in marked)
    rules = "".join(f"<li>{escaped(rule)}</li>" for rule in _rules(tables))
    return Section("", f'<div class="verdict">{paragraphs}<ul class="notes plain">{rules}</ul></div>')


def _rules(tables: Sequence[Table]) -> list[str]:
    """What the marks of these tables mean."""
    rules = {
        "No table is finished yet.": not tables,
        RANKING_RULE: any(seeds_of(table) > 1 for table in tables),
        ONE_SEED: any(seeds_of(table) < 2 for table in tables),
        FLOOR_RULE: any(table.get("floors") for table in tables),
        OWN_FLOOR_RULE: any(has_own_floors(table) for table in tables),
        "A failed row is shown with the numbers it has; the reason stands below its table.": any(
            failed(row) for table in tables for row in table["rows"].values()
        ),
    }
    return [rule for rule, applies in rules.items() if applies]


def _results(table: Table, rows: Rows, columns: Columns) -> str:
    parts = results_table(table, rows, columns), notes_list(table, rows, columns), failures_list(table, rows)
    return "".join((*parts, paper_table(table, rows, columns)))


def _calibration_sections(tables: Sequence[Table], rows: Rows) -> list[Section]:
    """Tables of the same regime side by side, as in the paper."""
    regimes: dict[str, dict[str, Table]] = {}
    for table in tables:
        name = f"{table['noise']} noise" if table.get("noise") else table_title(table)
        same = regimes.setdefault(str(table.get("regime") or ""), {})
        same[name if name not in same else f"{name} ({len(same) + 1})"] = table
    sections = []
    for regime, same in regimes.items():
        heading = "Distributions and reliability" + (f": {regime} regime" if regime else "")
        names = list(dict.fromkeys(name for table in same.values() for name in table["curves"]))
        shown = _shown(names, list(same.values()), rows)
        figures = [calibration_figure(panel, *entry, rows, shown) for panel in PANELS for entry in same.items()]
        body = _CURVES_TEXT + _line_legend(names, shown, rows, law=True) + grid(figures, classes="two-columns")
        sections.append(Section(heading, body))
    return sections


def _learning_sections(table: Table, rows: Rows, columns: Columns) -> list[Section]:
    histories = table.get("learning") or {}
    shown = _shown(histories, [table], rows)
    quantities = logged_quantities(histories)[:_MOST_QUANTITIES]
    figures = [learning_figure(histories, quantity, rows, columns, shown) for quantity in quantities]
    figures = [figure for figure in figures if figure.marks]
    if not figures:
        return []
    body = _LEARNING_TEXT + _line_legend(histories, shown, rows) + grid(figures)
    return [Section(f"Learning: {table_title(table)}", body)]


def _shown(names: Iterable[str], tables: Sequence[Table], rows: Rows) -> set[str]:
    """Rows whose lines are shown at first; those of failed rows, which may be anywhere, are hidden."""
    failures = {name for table in tables for name, row in table["rows"].items() if failed(row)}
    return shown_at_first(rows, [name for name in names if name not in failures])


def _line_legend(names: Iterable[str], shown: Collection[str], rows: Rows, *, law: bool = False) -> str:
    """Buttons that show and hide the lines of a row in all figures of a section; ``law`` names the density too."""
    names = ordered(rows, names)
    styles, entries = line_styles(rows, names), []
    for name in names:
        title = escaped(shortened(row_style(rows, name).full_title, _LONGEST_TITLE))
        attributes = f'type="button" data-method="{escaped(name)}" aria-pressed="{str(name in shown).lower()}"'
        entries.append(f"<li><button {attributes}>{line_sample(*styles[name])}{title}</button></li>")
    if law:
        entries.append(f"<li>{line_sample('band', width=LAW_WIDTH)}χ² or N(0, 1)</li>")
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
