"""Pictures of a report.

Functions take a ``report`` as ``fcal.evaluate`` returns it and draw on ``ax``, or on new axes where there are none.
They return the axes; those of several panels return a figure outside of pyplot, whose ``.savefig(path)`` writes it.
"""

from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import Any, Protocol

import matplotlib.figure
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from fcal.metrics.report import Report
from fcal.plots import report_figures, row_figures
from fcal.plots.figure import Figure
from fcal.plots.matplotlib_renderer import PALETTE, VERDICT_COLOURS, draw, new_picture

_HEADLINE_CHARACTERS = 105
_FITTED_ON = "measured on the rows the recalibrator was fitted on"


class Plot(Protocol):
    """A picture of one figure of a report."""

    def __call__(self, report: Report, *, ax: Axes | None = None) -> Axes:
        """Draw it on ``ax``, or on new axes where there are none, and return the axes."""
        ...


def _plot(figure: Callable[[Report], Figure]) -> Plot:
    def plot(report: Report, *, ax: Axes | None = None) -> Axes:
        return draw(figure(_checked(report)), ax)

    plot.__name__ = plot.__qualname__ = figure.__name__
    plot.__doc__ = figure.__doc__
    return plot


reliability_z = _plot(report_figures.reliability_z)
reliability_q = _plot(report_figures.reliability_q)
reliability_central = _plot(report_figures.reliability_central)
z_histogram = _plot(report_figures.z_histogram)
q_histogram = _plot(report_figures.q_histogram)
qq = _plot(report_figures.qq)
error_by_sigma = _plot(report_figures.error_by_sigma)
sparsification = _plot(report_figures.sparsification)
residuals_by_sigma = _plot(row_figures.residuals_by_sigma)
error_bars = _plot(row_figures.error_bars)
worst_rows = _plot(row_figures.worst_rows)


def coverage_by_group(report: Report, *, levels: Sequence[float] = (0.5, 0.9), ax: Axes | None = None) -> Axes:
    """Share of targets in the central intervals of each group: dots, beside where calibrated groups lie.

    Args:
        report: Of data in groups, which are shown in their order, from the top.
        levels: Levels to show, of those that the report has.
        ax: Axes to draw on; by default new ones, as high as the groups need.

    Raises:
        ValueError: The report has no groups, or not one of the levels.
    """
    return draw(report_figures.coverage_by_group(_checked(report), levels), ax)


def overview(report: Report) -> matplotlib.figure.Figure:
    """The six most useful pictures of a report, under its verdict."""
    report = _checked(report)
    picture = new_picture(12.4, 8.6)
    last = q_histogram if report.curves.sigma is None else error_by_sigma
    panels = (reliability_central, reliability_z, reliability_q, z_histogram, qq, last)
    for ax, panel in zip(picture.subplots(2, 3).flat, panels, strict=True):
        panel(report, ax=ax)
    colour = VERDICT_COLOURS.get(report.verdict, "black")
    picture.suptitle(_headline(report), fontsize=13, color=colour, parse_math=False)
    return picture


def before_after(report_before: Report, report_after: Report) -> matplotlib.figure.Figure:
    """The same pictures before and after recalibration, one above the other, on the same axes."""
    reports = _checked(report_before, "report_before"), _checked(report_after, "report_after")
    picture = new_picture(13.4, 7.6)
    last = q_histogram if any(report.curves.sigma is None for report in reports) else error_by_sigma
    panels = (reliability_central, reliability_z, z_histogram, last)
    halves: Any = picture.subfigures(2, 1)
    grid: list[list[Axes]] = []
    for half, report, when in zip(halves, reports, ("before", "after"), strict=True):
        grid.append([panel(report, ax=ax) for panel, ax in zip(panels, half.subplots(1, len(panels)), strict=True)])
        colour = VERDICT_COLOURS.get(report.verdict, PALETTE["faint"])
        half.suptitle(f"{when} — {_headline(report)}", fontsize=11, color=colour, parse_math=False)
    for panels_compared in list(zip(*grid, strict=True))[2:]:
        widest = Bbox.union([ax.viewLim for ax in panels_compared])  # the same limits, so that the eye can compare
        for ax in panels_compared:
            ax.set(xlim=widest.intervalx, ylim=widest.intervaly)
    return picture


def _checked(report: Any, name: str = "report") -> Report:
    if not isinstance(report, Report):
        raise TypeError(f"expected `{name}` a Report of fcal.evaluate, got {type(report).__name__}")
    return report


def _headline(report: Report) -> str:
    notes = (_FITTED_ON,) if report.fitted_on else ()
    return "\n".join((*wrap(f"{report.verdict}: {report.reason}", _HEADLINE_CHARACTERS), *notes))
