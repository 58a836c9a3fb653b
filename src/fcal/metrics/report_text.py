"""A report for people: as text, as a table of a page, and as rows of a data frame."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fcal.metrics.report import Report

MISSING = "-"
MARK = "▲"
ERRORS = {"ece_z": "ECE(z)", "mce_z": "MCE(z)", "ece_q": "ECE(q)", "mce_q": "MCE(q)", "ence": "ENCE"}
_SCORES = {"nll": "NLL", "crps": "CRPS", "rmse": "RMSE", "bias": "bias", "sharpness": "sharpness", "ause": "AUSE"}
_MOST_GROUPS = 30


def number(value: float | None) -> str:
    """Four digits, or a dash."""
    return MISSING if value is None else f"{value:.4g}"


def number_rows(report: "Report") -> list[tuple[str, str, str, str]]:
    """Name, value, score of a calibrated model and what 95 % of calibrated models stay below, of every number."""
    rows = []
    for name, interval, ideal in (("scale of z", report.scale, "1"), ("shift of z", report.shift, "0")):
        rows.append((name, f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})", ideal, ""))
    rows.append(("shape of z", f"{report.shape:.3f}", "0", ""))
    rows += [
        (f"within {float(level):.0%}", f"{share:.1%}", f"{float(level):.0%}", "")
        for level, share in report.coverage.items()
    ]
    for key, name in ERRORS.items():
        floor = getattr(report, f"{key}_floor")
        low, high = (None, None) if floor is None else (floor.expected, floor.q95)
        mark = f" {MARK}" if key in report.marked else ""
        rows.append((name, f"{number(getattr(report, key))}{mark}", number(low), number(high)))
    return rows


def legend(report: "Report") -> tuple[str, ...]:
    """What the symbols of the table mean, a line each."""
    lines = [
        "z: residual, N(0, 1) where error bars are right; scale and shift: its sd and mean",
        "shape: largest gap between the CDF of z and the normal one with its mean and sd",
        f"q: sum of K = {report.df} squared residuals; within 90%: targets in central 90 % intervals",
        f"ECE, MCE: mean, weighted by shares, and largest gap of shares in S = {report.bins} bins of z and q",
        "ENCE: mean relative gap between predicted sd and actual errors, over bins of the sd",
    ]
    if report.marked:
        lines.append(f"{MARK}: above what 95 % of calibrated models score on as many values")
    if not all(own.conclusive for own in (report, *report.groups.values())):
        lines.append("calibrated?: not shown to be wrong, but too few values to show that it is right")
    if report.wild is not None:
        lines.append("scale, shift and shape are without wild values, all other numbers with them")
    return tuple(lines)


def score_line(report: "Report") -> str:
    """Scores in the target's unit, in one line."""
    return ", ".join(f"{name} {number(getattr(report, key))}" for key, name in _SCORES.items())


def group_rows(groups: Mapping[str, "Report"]) -> list[tuple[str, str, str, str, str, str]]:
    """Name, count, verdict, scale, shift and coverage of 90 % intervals of every group."""
    return [
        (
            name or "(empty)",
            f"{group.n:,}",
            group.word,
            f"{group.scale.value:.2f} ({group.scale.low:.2f}-{group.scale.high:.2f})",
            f"{group.shift.value:+.2f}",
            f"{group.coverage['0.9']:.0%}",
        )
        for name, group in groups.items()
    ]


GROUP_HEADINGS = ("group", "n", "verdict", "scale of z", "shift", "in 90%")
NUMBER_HEADINGS = ("", "value", "calibrated model", "95 % below")


def as_text(report: "Report") -> str:
    """Verdict, numbers, scores and groups as lines of text."""
    parts = [f"{report.word}: {report.reason}", *(f"warning: {warning}" for warning in report.warnings), ""]
    parts += [*aligned([NUMBER_HEADINGS, *number_rows(report)]), "", *legend(report)]
    parts += ["", score_line(report), f"n = {report.n:,}, S = {report.bins}, K = {report.df}; {report.assumption}"]
    if report.groups:
        shown = group_rows(dict(list(report.groups.items())[:_MOST_GROUPS]))
        parts += ["", *aligned([GROUP_HEADINGS, *shown])]
        left_out = len(report.groups) - len(shown)
        parts += [f"and {left_out} more groups: report.groups has all"] if left_out else []
    return "\n".join(parts)


def as_html(report: "Report") -> str:
    """The same as an HTML fragment, in which nothing of the data is markup."""
    rows = [html_table(NUMBER_HEADINGS, number_rows(report))]
    if report.groups:
        rows.append(html_table(GROUP_HEADINGS, group_rows(report.groups)))
    warnings = "".join(f"<p>warning: {escape(warning)}</p>" for warning in report.warnings)
    head = f"<p><b>{escape(report.word)}</b>: {escape(report.reason)}</p>{warnings}"
    explained = "".join(f"<br>{escape(line)}" for line in legend(report))
    rows[0] += f"<small>{explained.removeprefix('<br>')}</small>"
    return f"<div>{head}{rows[0]}<p>{escape(score_line(report))}</p>{''.join(rows[1:])}</div>"


def as_records(report: "Report") -> list[dict[str, Any]]:
    """A row of plain numbers of the whole, named ``all``, and of every group."""
    return [_record("all", report), *(_record(name, group) for name, group in report.groups.items())]


def as_frame(records: Sequence[Mapping[str, Any]], index: str) -> Any:
    """Rows as a pandas data frame.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ImportError("expected pandas for `to_frame`; pip install pandas") from error
    return pd.DataFrame(list(records)).set_index(index)


def _record(name: str, report: "Report") -> dict[str, Any]:
    document = report.as_dict()
    record: dict[str, Any] = {"group": name, "n": report.n, "verdict": report.verdict, "conclusive": report.conclusive}
    for key in ("scale", "shift"):
        record |= {
            key: document[key]["value"],
            f"{key}_low": document[key]["low"],
            f"{key}_high": document[key]["high"],
        }
    record |= {"shape": report.shape} | {key: document[key] for key in (*_SCORES, *ERRORS)}
    return record | {f"coverage_{level}": share for level, share in report.coverage.items()}


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, the first column to the left and the others to the right.

    Example:
        >>> aligned([("name", "n"), ("a", "100")])
        ['name    n', 'a     100']
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in which nothing is markup.

    Example:
        >>> html_table(["a"], [["<b>"]])
        '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
