"""Several pictures on one sheet."""

from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fcal.metrics.report import Report
from fcal.plots.canvas import FAINT, VERDICT_COLOURS, checked, new_picture
from fcal.plots.errors import error_by_sigma
from fcal.plots.histograms import q_histogram, z_histogram
from fcal.plots.quantiles import qq
from fcal.plots.reliability import reliability_central, reliability_q, reliability_z

_LINE = 105  # characters of a headline
_FITTED_ON = "measured on the rows the recalibrator was fitted on"


def overview(report: Report) -> Figure:
    """The six most useful pictures of a report, under its verdict.

    Args:
        report: What ``fcal.evaluate`` returned.

    Returns:
        A figure outside of pyplot; ``.savefig(path)`` writes it, and a notebook shows it.
    """
    report = checked(report)
    figure = new_picture(12.4, 8.6)
    axes = figure.subplots(2, 3).flat
    for draw in (reliability_central, reliability_z, reliability_q, z_histogram, qq):
        draw(report, ax=next(axes))
    last = q_histogram if report.curves.sigma is None else error_by_sigma
    last(report, ax=next(axes))
    figure.suptitle(
        _headline(report), fontsize=13, color=VERDICT_COLOURS.get(report.verdict, "black"), parse_math=False
    )
    return figure


def _headline(report: Report) -> str:
    notes = (_FITTED_ON,) if report.fitted_on else ()
    return "\n".join((*wrap(f"{report.verdict}: {report.reason}", _LINE), *notes))


def before_after(report_before: Report, report_after: Report) -> Figure:
    """The same pictures before and after recalibration, one above the other, on the same axes.

    Args:
        report_before: Report of the predictions as they were.
        report_after: Report of the recalibrated ones.

    Returns:
        A figure outside of pyplot.
    """
    reports = checked(report_before, "report_before"), checked(report_after, "report_after")
    figure = new_picture(13.4, 7.6)
    kinds = [reliability_central, reliability_z, z_histogram]
    kinds.append(q_histogram if any(r.curves.sigma is None for r in reports) else error_by_sigma)
    rows: Any = figure.subfigures(2, 1)
    grid: list[list[Axes]] = []
    for row, report, when in zip(rows, reports, ("before", "after"), strict=True):
        grid.append(list(row.subplots(1, len(kinds))))
        for draw, ax in zip(kinds, grid[-1], strict=True):
            draw(report, ax=ax)
        colour = VERDICT_COLOURS.get(report.verdict, FAINT)
        row.suptitle(f"{when} — {_headline(report)}", fontsize=11, color=colour, parse_math=False)
    for above, below in list(zip(*grid, strict=True))[2:]:
        _same_limits(above, below)
    return figure


def _same_limits(above: Axes, below: Axes) -> None:
    """Give two panels the wider limits of both; the eye compares them."""
    (x0, x1), (y0, y1) = (
        zip(*(get(ax) for ax in (above, below)), strict=True) for get in (Axes.get_xlim, Axes.get_ylim)
    )
    for ax in (above, below):
        ax.set(xlim=(min(x0), max(x1)), ylim=(min(y0), max(y1)))
