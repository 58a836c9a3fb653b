"""What is printed: one JSON document, or tables for people; progress goes to stderr."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fcal.metrics.report import Floor, Report

_MOST_GROUPS = 30
_COLOURS = {"calibrated": "bold green"}


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, allow_nan=False))


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while a person watches; gives a function to call with the number of rows done."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda rows: bar.advance(task, rows)


def print_report(report: Report, source: str, page: str | None = None) -> None:
    """Verdict, numbers and groups of a report."""
    console = Console(soft_wrap=True)
    console.print(Text(source, style="dim"))
    console.print(Text.assemble((report.verdict, _COLOURS.get(report.verdict, "bold red")), ": ", report.reason))
    for warning in report.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
    console.print(_numbers(report))
    console.print(_scores(report))
    if report.groups:
        console.print(_groups(report.groups))
    console.print(Text(f"{report.n:,} scalars; {report.assumption}; smooth test of N(0, 1): p = {report.p_value:.3g}"))
    if page is not None:
        console.print(Text(f"page: {page}"))


def print_before_after(before: Report, after: Report) -> None:
    """The main numbers of two reports side by side."""
    table = Table("", "before", "after", caption=f"the first {before.n:,} scalars")
    for name, one, two in (
        ("verdict", before.verdict, after.verdict),
        ("scale of z (1)", f"{before.scale.value:.3f}", f"{after.scale.value:.3f}"),
        *(
            (f"coverage of {float(k):.0%}", f"{before.coverage[k]:.1%}", f"{after.coverage[k]:.1%}")
            for k in before.coverage
        ),
        ("ECE(z)", _number(before.ece_z), _number(after.ece_z)),
        ("ECE(q)", _number(before.ece_q), _number(after.ece_q)),
        ("NLL", _number(before.nll), _number(after.nll)),
        ("CRPS", _number(before.crps), _number(after.crps)),
    ):
        table.add_row(name, one, two)
    Console(soft_wrap=True).print(table)


def _numbers(report: Report) -> Table:
    caption = f"S = {report.bins}, K = {report.df}, n = {report.n:,}"
    table = Table("", "value", "calibrated model", "95 % of them below", caption=caption)
    for name, interval, ideal in (("scale of z", report.scale, "1"), ("shift of z", report.shift, "0")):
        table.add_row(name, f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})", ideal, "")
    for level, share in report.coverage.items():
        table.add_row(f"within {float(level):.0%}", f"{share:.1%}", f"{float(level):.0%}", "")
    rows: tuple[tuple[str, float | None, Floor | None], ...] = (
        ("ECE(z)", report.ece_z, report.ece_z_floor),
        ("MCE(z)", report.mce_z, report.mce_z_floor),
        ("ECE(q)", report.ece_q, report.ece_q_floor),
        ("MCE(q)", report.mce_q, report.mce_q_floor),
        ("ENCE", report.ence, report.ence_floor),
    )
    for name, value, floor in rows:
        low, high = (None, None) if floor is None else (floor.expected, floor.q95)
        table.add_row(name, _number(value), _number(low), _number(high))
    return table


def _scores(report: Report) -> Text:
    named = {
        "NLL": report.nll,
        "CRPS": report.crps,
        "RMSE": report.rmse,
        "bias": report.bias,
        "sharpness": report.sharpness,
        "AUSE": report.ause,
    }
    return Text(", ".join(f"{name} {_number(value)}" for name, value in named.items()))


def _groups(groups: Mapping[str, Report]) -> Table:
    """The groups whose scale is farthest from 1 first."""
    worst = sorted(groups.items(), key=lambda item: -max(item[1].scale.value, 1 / max(item[1].scale.value, 1e-9)))
    left_out = len(worst) - _MOST_GROUPS
    caption = f"{left_out} more groups: --json or --out shows all" if left_out > 0 else None
    table = Table("group", "n", "verdict", "scale of z", "shift", "in 90%", "ECE(z)", caption=caption)
    table.columns[0].min_width = 8
    for column in table.columns[1:]:
        column.no_wrap = True
    for name, report in worst[:_MOST_GROUPS]:
        table.add_row(
            Text(name),  # names come from files: never markup
            f"{report.n:,}",
            Text(report.verdict, style=_COLOURS.get(report.verdict, "bold red")),
            f"{report.scale.value:.2f} ({report.scale.low:.2f}-{report.scale.high:.2f})",
            f"{report.shift.value:+.2f}",
            f"{report.coverage['0.9']:.0%}",
            f"{report.ece_z:.2g}",
        )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def say(message: str) -> None:
    """A line of prose on stderr."""
    print(message, file=sys.stderr)
