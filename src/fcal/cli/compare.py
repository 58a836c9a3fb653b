"""``fcal compare``."""

import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from fcal._executor import keep_freed_memory
from fcal._files import provenance
from fcal._progress import ProgressBar
from fcal.cli.commands import print_json, say
from fcal.cli.consoles import report_console
from fcal.cli.evaluate import MIN_TARGETS, check_page, columns_of, name_of, plain_text
from fcal.metrics.comparison import (
    DIFFERENCE_HEADINGS,
    LEGEND,
    SCORES,
    Comparison,
    comparison_of,
    difference_rows,
    score_rows,
)
from fcal.metrics.paired_scores import PairedScores
from fcal.metrics.state import Grid
from fcal.tables import Predictions, open_predictions, side_by_side

_CHUNK_ROWS = 1 << 18  # of every file: scores of their rows are in memory at the same time


def run(arguments: Namespace, words: list[str]) -> int:
    """Compare files, print the differences and write the page."""
    if len(arguments.path) < 2:
        single = shlex.join(["fcal", "evaluate", *arguments.path])
        raise ValueError(f"expected at least 2 files to compare, got 1; {single} judges one")
    if arguments.out is not None:
        check_page(Path(arguments.out))
    grid = Grid(arguments.df, arguments.bins)
    sources = list(_opened(arguments))
    names = _distinct([name_of(source) for source in sources], arguments.path)
    comparison, missing = _compared(sources, names, grid)
    command = f"fcal {shlex.join(words)}"
    if arguments.out is not None:
        # Imported only here: most comparisons write no page.
        from fcal.reports.comparison import comparison_page
        from fcal.reports.page import write_html

        write_html(arguments.out, comparison_page(comparison, command=command))
    if arguments.json:
        described = {name: source.describe() for name, source in zip(names, sources, strict=True)}
        head = {"sources": described, "command": command, "versions": provenance(), "missing": missing}
        print_json({**head, **comparison.as_dict()})
        return 0
    _print_comparison(comparison, sources)
    if missing:
        say(f"{missing:,} of {missing + comparison.n:,} targets are missing and do not count")
    if arguments.out is not None:
        say(f"page: {arguments.out}")
    return 0


def _opened(arguments: Namespace) -> Iterator[Predictions]:
    """The predictions of every model; clusters are those of the first file."""
    columns = columns_of(arguments)
    for path in arguments.path:
        yield open_predictions(path, columns=columns, family=arguments.family, chunk_rows=_CHUNK_ROWS)
        columns = replace(columns, cluster=None)


def _distinct(names: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Names of files, with their folders where two are the same, and numbered where even these are."""
    chosen = list(names) if len(set(names)) == len(names) else [str(path) for path in paths]
    seen: dict[str, int] = {}
    distinct = []
    for name in chosen:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return distinct


def _compared(sources: Sequence[Predictions], names: Sequence[str], grid: Grid) -> tuple[Comparison, int]:
    """The comparison, and the number of missing targets."""
    keep_freed_memory()
    scores = PairedScores(len(sources), grid, clustered=sources[0].columns.cluster is not None)
    missing = 0
    with ProgressBar("comparing", total=sources[0].rows, unit="rows") as bar:
        for chunks in side_by_side(sources, names, advance=bar.advance):
            first = chunks[0]
            scores.add([chunk.pred for chunk in chunks], first.target, cluster=first.cluster)
            missing += int(first.target.isnan().sum())
    counted = int(scores.states[0].n.sum()) if scores.states else 0
    if counted < MIN_TARGETS:
        raise ValueError(f"expected `{names[0]}` with at least {MIN_TARGETS} rows that have a target, got {counted}")
    return comparison_of(scores, names), missing


def _print_comparison(comparison: Comparison, sources: Sequence[Predictions]) -> None:
    console = report_console()
    for source in sources:
        console.print(plain_text(source.describe(), style="dim"))
    for sentence in comparison.sentences:
        console.print(plain_text(sentence, style="bold"))
    for name, report in comparison.reports.items():
        for warning in report.warnings:
            console.print(plain_text(f"warning: {name}: {warning}", style="yellow"))
    console.print(_table(["score", *comparison.scores], zip(SCORES.values(), *_columns(comparison), strict=True)))
    for name in comparison.differences:
        console.print(plain_text(f"{name} less {comparison.reference}"))
        console.print(_table(DIFFERENCE_HEADINGS, difference_rows(comparison, name)))
    console.print(Text(comparison.assumption))
    console.print(Text(LEGEND, style="dim"))


def _columns(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """Scores of every model, as text."""
    for _, *values in score_rows(comparison):
        yield tuple(values)


def _table(headings: Sequence[str], rows: Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]]) -> Table:
    table = Table()
    for heading in headings:
        table.add_column(plain_text(heading))
    for row in rows:
        table.add_row(*row)
    return table
