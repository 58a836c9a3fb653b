"""The page of a benchmark: tables first, then the figures behind them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fcal._files import provenance
from fcal.plots.captions import shortened
from fcal.plots.method_curves import shown_at_first
from fcal.reports.drawing import grid
from fcal.reports.gallery import gallery_html
from fcal.reports.markup import escaped
from fcal.reports.method_figures import calibration_drawings, learning_drawings, line_legend
from fcal.reports.page import Section, page
from fcal.reports.ranking import ONE_SEED, RULE
from fcal.reports.scoreboard import (
    FLOOR_RULE,
    OWN_FLOOR_RULE,
    Table,
    failed,
    failures,
    footnotes,
    has_own_floors,
    paper_table,
    results_table,
    seeds_of,
    table_title,
)

_LONGEST_NOTE = 1000


def benchmark_page(
    tables: Sequence[Table],
    *,
    command: str,
    title: str = "Benchmark",
    notes: Sequence[str] = (),
    seconds: float | None = None,
    versions: Mapping[str, Any] | None = None,
) -> str:
    """The whole page of ``fcal benchmark``: tables, distributions and reliability, images, learning curves.

    Args:
        tables: As in ``fcal benchmark --json``: mappings with ``columns``, ``rows`` (by method, by column
            ``{"mean": .., "sd": ..}`` or None; ``seeds``, by column a list; ``"status": "failed"`` and ``"reason"``;
            ``<column>_floor`` where a row has a floor of its own),
            and where known ``noise``, ``regime``, ``seeds``, ``bins``, ``df``, ``n_test``, ``floors``, ``paper``,
            ``paper_grid``. Beside that, for the figures, each may have ``curves`` (see
            ``fcal.plots.method_curves.curves_of``), ``gallery`` (see ``fcal.plots.shots.read_shots``) and
            ``learning`` (by method a list of epochs, such as ``{"epoch": 0, "train_nll": 1.0, "val_nll": 1.2}``, with
            a ``stage`` where the loss changes on the way).
        command: What was run, exactly.
        title: Of the page.
        notes: Sentences for the top of the page.
        seconds: How long it took.
        versions: Versions, commit and machine; those of this process where absent.

    Returns:
        One self-contained HTML document; it makes no request and opens from disk.

    Raises:
        TypeError: ``tables`` is no list of mappings.
        ValueError: A table lacks columns or rows, or a figure's data do not fit together.
        ImportError: There are figures and plotly is not installed.
    """
    sections = benchmark_sections(tables, notes=notes)
    facts = dict(provenance() if versions is None else versions)
    if seconds is not None:
        facts["wall time"] = _duration(seconds)
    return page(title, sections, command=command, versions=facts)


def benchmark_sections(tables: Sequence[Table], *, notes: Sequence[str] = ()) -> list[Section]:
    """The sections of that page, for pages that hold more."""
    tables = _checked(tables)
    sections = [_introduction(tables, notes)]
    sections += [Section(table_title(one), _results(one)) for one in tables]
    sections += _calibration_sections([one for one in tables if one.get("curves")])
    for one in tables:
        if one.get("gallery"):
            sections.append(Section(f"Images: {table_title(one)}", _GALLERY_WORDS + gallery_html(one["gallery"])))
    for one in tables:
        learned = one.get("learning") or {}
        shown = _shown(learned, [one])
        drawings = learning_drawings(learned, shown)
        if drawings:
            body = _LEARNING_WORDS + line_legend(learned, shown) + grid(drawings)
            sections.append(Section(f"Learning: {table_title(one)}", body, plots=True))
    return sections


_CURVE_WORDS = (
    "<p>x is nominal, y is what happened. Grey bands, where there are any: where 95 % of perfectly calibrated models "
    "would lie. Click a name to show or hide its lines.</p>"
)
_LEARNING_WORDS = (
    "<p>Thin and dotted: on training data; else on validation data. Click a name to show or hide its lines.</p>"
)
_GALLERY_WORDS = (
    "<p>Where error bars are true, the label lies within the ellipse of 2 sigma in 86 % of the images. The true noise "
    "is what the label adds to the true centre; a prediction also has to answer for its own error.</p>"
)


def _checked(tables: Any) -> list[Table]:
    if isinstance(tables, str | Mapping) or not isinstance(tables, Sequence):
        raise TypeError(f"expected `tables` a list of tables, got {type(tables).__name__}")
    for i, one in enumerate(tables):
        if not isinstance(one, Mapping):
            raise TypeError(f"expected `tables[{i}]` a mapping, got {type(one).__name__}")
        for name, kind in (("columns", Sequence), ("rows", Mapping)):
            if not isinstance(one.get(name), kind):
                raise ValueError(f"expected `tables[{i}]` with {name!r}, got {', '.join(map(repr, one)) or 'nothing'}")
        for method, row in one["rows"].items():
            if not isinstance(row, Mapping):
                raise ValueError(f"expected `tables[{i}].rows.{method}` a mapping, got {type(row).__name__}")
    return list(tables)


def _introduction(tables: Sequence[Table], notes: Sequence[str]) -> Section:
    sentences = [shortened(str(note), _LONGEST_NOTE) for note in notes]
    shown = "".join(f"<p>{escaped(sentence)}</p>" for sentence in sentences)
    listed = "".join(f"<li>{escaped(rule)}</li>" for rule in _rules(tables))
    return Section("", f'<div class="verdict">{shown}<ul class="notes plain">{listed}</ul></div>')


def _rules(tables: Sequence[Table]) -> list[str]:
    """What the marks of these tables mean."""
    rules = {
        "No table is finished yet.": not tables,
        RULE: any(seeds_of(one) > 1 for one in tables),
        ONE_SEED: any(seeds_of(one) < 2 for one in tables),
        FLOOR_RULE: any(one.get("floors") for one in tables),
        OWN_FLOOR_RULE: any(has_own_floors(one) for one in tables),
        "A failed row is shown with the numbers it has; below its table stands why.": any(
            failed(row) for one in tables for row in one["rows"].values()
        ),
    }
    return [rule for rule, applies in rules.items() if applies]


def _results(one: Table) -> str:
    return results_table(one) + footnotes(one) + failures(one) + paper_table(one)


def _calibration_sections(tables: Sequence[Table]) -> list[Section]:
    """Tables of the same regime side by side, as in the paper."""
    regimes: dict[str, dict[str, Table]] = {}
    for one in tables:
        regime = str(one.get("regime") or "")
        name = f"{one['noise']} noise" if one.get("noise") else table_title(one)
        columns = regimes.setdefault(regime, {})
        columns[name if name not in columns else f"{name} ({len(columns) + 1})"] = one
    sections = []
    for regime, columns in regimes.items():
        heading = "Distributions and reliability" + (f": {regime} regime" if regime else "")
        methods = sorted({method for one in columns.values() for method in one["curves"]})
        shown = _shown(methods, list(columns.values()))
        drawn = grid(calibration_drawings(columns, shown), kind="two-columns")
        body = _CURVE_WORDS + line_legend(methods, shown, law=True) + drawn
        sections.append(Section(heading, body, plots=True))
    return sections


def _shown(methods: Iterable[str], tables: Sequence[Table]) -> set[str]:
    """The usual methods; lines of failed ones, which may be anywhere, are there for those who ask."""
    broken = {name for one in tables for name, row in one["rows"].items() if failed(row)}
    return shown_at_first([method for method in methods if method not in broken])


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
