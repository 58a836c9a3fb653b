"""Output of commands: one JSON document, or tables."""

import json
import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fcal.metrics.report import Floor, Report

_MOST_GROUPS = 30
_LONGEST_NAME = 100
_USUAL_WIDTH = 80


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(document, allow_nan=False))


def print_report(report: Report, source: str, *, page: str | None = None, order: str = "worst first") -> None:
    """Print verdict, numbers and groups of a report."""
    console = _console()
    console.print(_plain(source, style="dim"))
    console.print(Text.assemble((report.word, _colour(report)), ": ", report.reason))
    for warning in report.warnings:
        console.print(_plain(f"warning: {warning}", style="yellow"))
    console.print(_numbers(report))
    console.print(_scores(report))
    if report.groups:
        console.print(_groups(report.groups, order))
    console.print(Text(f"{report.n:,} scalars; {report.assumption}; smooth test of N(0, 1): p = {report.p_value:.3g}"))
    if page is not None:
        console.print(_plain(f"page: {page}"))


def print_before_after(before: Report, after: Report) -> None:
    """Print the main numbers of two reports side by side."""
    table = Table("", "before", "after", caption=f"{before.n:,} scalars; {before.assumption}")
    for row in (
        ("verdict", before.word, after.word),
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
        table.add_row(*row)
    _console().print(table)


def _numbers(report: Report) -> Table:
    caption = f"S = {report.bins}, K = {report.df}, n = {report.n:,}"
    table = Table("", "value", "calibrated model", "95 % below", caption=caption)
    for name, interval, ideal in (("scale of z", report.scale, "1"), ("shift of z", report.shift, "0")):
        table.add_row(name, f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})", ideal, "")
    table.add_row("shape of z", f"{report.shape:.3f}", "0", "")
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


def _groups(groups: Mapping[str, Report], order: str) -> Table:
    shown = list(groups.items()) if order == "as they are" else sorted(groups.items(), key=_badness, reverse=True)
    left_out = len(shown) - _MOST_GROUPS
    more = f"; {left_out} more: --json or --out shows all" if left_out > 0 else ""
    table = Table("group", "n", "verdict", "scale of z", "shift", "in 90%", caption=f"{order}{more}")
    table.columns[0].min_width = 8
    for column in table.columns[1:]:
        column.no_wrap = True
    for name, report in shown[:_MOST_GROUPS]:
        table.add_row(
            _plain(name[:_LONGEST_NAME] or "(empty)"),
            f"{report.n:,}",
            Text(report.word, style=_colour(report)),
            f"{report.scale.value:.2f} ({report.scale.low:.2f}-{report.scale.high:.2f})",
            f"{report.shift.value:+.2f}",
            f"{report.coverage['0.9']:.0%}",
        )
    return table


def _badness(item: tuple[str, Report]) -> tuple[bool, float]:
    """Sort key of groups: those that are not calibrated first, then by the largest deviation."""
    report = item[1]
    scale = abs(math.log(min(max(report.scale.value, 1e-9), 1e9)))
    return report.verdict != "calibrated", max(scale, abs(report.shift.value), report.shape)


def _colour(report: Report) -> str:
    if report.verdict != "calibrated":
        return "bold red"
    return "bold green" if report.conclusive else "yellow"


def _plain(text: str, style: str = "") -> Text:
    """Text from a file without markup and control characters, which a terminal would interpret."""
    return Text("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text), style=style)


def _console() -> Console:
    """Console on stdout; a terminal that reports no width gets the usual one."""
    console = Console(soft_wrap=True)
    return console if console.width > 0 else Console(soft_wrap=True, width=_USUAL_WIDTH)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def say(message: str) -> None:
    """Print a line on stderr."""
    print(_plain(message).plain, file=sys.stderr)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print each warning once, as one line on stderr without its source line."""
    seen: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = str(message)
        if text not in seen:
            seen.add(text)
            say(f"fcal: warning: {text}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield
