"""The page of a comparison of models: sentences, scores, and differences with their intervals."""

import math
import os
from collections.abc import Sequence

from fcal._files import provenance
from fcal.metrics.comparison import LEGEND, SCORES, Comparison, difference_rows, is_clear, shown
from fcal.metrics.paired_scores import COVERAGES
from fcal.plots.captions import count, shortened
from fcal.plots.figure import Axis, Dots, Figure, Line, Rule, segments
from fcal.reports.page import Cell, Column, Section, escaped, page, table, write_html
from fcal.reports.svg_renderer import grid

_LONGEST_NAME = 60
_MARGIN = 0.08  # of an axis, beyond the farthest interval


def comparison_page(comparison: Comparison, *, command: str) -> str:
    """The whole page of ``fcal compare --out``, as one self-contained HTML document that makes no request.

    Args:
        comparison: From ``fcal.compare``.
        command: The command that was run.
    """
    title = f"Comparison of {count(len(comparison.scores))} models on {count(comparison.n)} targets"
    sections = [_words_section(comparison), _forest_section(comparison), _scores_section(comparison)]
    return page(title, [*sections, *_difference_sections(comparison)], command=command, versions=provenance())


def write_page(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Write the page of a comparison made in Python, atomically."""
    write_html(path, comparison_page(comparison, command="fcal.compare(...)"))


def _words_section(comparison: Comparison) -> Section:
    said = "".join(f'<p class="reason">{escaped(sentence)}</p>' for sentence in comparison.sentences)
    warned = [f"{name}: {text}" for name, report in comparison.reports.items() for text in report.warnings]
    notes = "".join(f"<li>{escaped(note)}</li>" for note in (comparison.assumption, *warned, LEGEND))
    return Section("", f'<div class="verdict">{said}<ul class="notes">{notes}</ul></div>')


def _forest_section(comparison: Comparison) -> Section:
    figures = [
        forest(comparison, score) for score in SCORES if any(score in own for own in comparison.differences.values())
    ]
    text = (
        f"<p>Each line is the difference from {escaped(comparison.reference)} with its 95 % interval. Intervals "
        "that do not reach 0 are drawn in colour.</p>"
    )
    return Section("Differences", text + grid(figures))


def forest(comparison: Comparison, score: str) -> Figure:
    """Differences of a score from the first model, with their intervals; a line for every other model."""
    named = {name: own[score] for name, own in comparison.differences.items() if score in own}
    gaps = [*named.values()]
    clear = [is_clear(gap) for gap in gaps]
    ends = [(gap.low, gap.high) if math.isfinite(gap.high - gap.low) else (gap.value, gap.value) for gap in gaps]
    dots = Dots(
        x=[gap.value for gap in gaps],
        y=range(len(gaps)),
        symbols=["circle"] * len(gaps),
        texts=list(named),
        colour="data",
        hover="difference {x:.4g}\nfrom {0:.4g} to {1:.4g}",
        extra=ends,
    )
    better = "negative is better" if score not in COVERAGES and score in list(SCORES)[:5] else ""
    return Figure(
        title=SCORES[score],
        caption=(f"less {shortened(comparison.reference, _LONGEST_NAME)}", better),
        x=Axis(label="difference", limits=_limits(ends)),
        y=Axis(limits=(len(gaps) - 0.4, -0.6), names=[shortened(name, _LONGEST_NAME) for name in named]),
        marks=[Rule(at=0.0), _lines(ends, clear, wanted=False), _lines(ends, clear, wanted=True), dots],
    )


def _lines(ends: Sequence[tuple[float, float]], clear: Sequence[bool], *, wanted: bool) -> Line:
    chosen = {row: pair for row, (pair, own) in enumerate(zip(ends, clear, strict=True)) if own is wanted}
    return segments(chosen, colour="data" if wanted else "faint", width=4)


def _limits(ends: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Ends of an axis that shows 0 and all intervals."""
    low, high = min(0.0, *(pair[0] for pair in ends)), max(0.0, *(pair[1] for pair in ends))
    pad = _MARGIN * (high - low) or 1.0
    return low - pad, high + pad


def _scores_section(comparison: Comparison) -> Section:
    columns = [
        Column("model", number=False),
        *(Column(title) for title in SCORES.values()),
        Column("verdict", number=False),
    ]
    rows: list[list[Cell | str]] = []
    for name, own in comparison.scores.items():
        report = comparison.reports[name]
        verdict = Cell(report.word, kind=f"chip {report.verdict.replace(' ', '-')}", hint=report.reason)
        rows.append(
            [shortened(name, _LONGEST_NAME), *(Cell(shown(key, own[key]), own[key]) for key in SCORES), verdict]
        )
    caption = f"Scores of every model on the same {count(comparison.n)} values"
    return Section("Scores", table(columns, rows, caption=caption, sortable=True))


def _difference_sections(comparison: Comparison) -> list[Section]:
    sections = []
    columns = [Column("score", number=False), Column("difference"), Column("95 % interval"), Column("", number=False)]
    for name in comparison.differences:
        caption = f"{name} less {comparison.reference}"
        sections.append(
            Section(
                f"{name} less {comparison.reference}",
                table(columns, difference_rows(comparison, name), caption=caption),
            )
        )
    return sections
