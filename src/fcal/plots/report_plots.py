"""Pictures of a report.

Functions take a ``report`` as ``fcal.evaluate`` returns it and draw on ``ax``, or on new axes where there are none.
They return the axes; those of several panels return a figure outside of pyplot, whose ``.savefig(path)`` writes it.
"""

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import matplotlib.figure
from matplotlib.axes import Axes

from fcal.metrics.report import Report
from fcal.plots import report_figures
from fcal.plots.matplotlib_renderer import PALETTE, VERDICT_COLOURS, draw, new_picture

_HEADLINE_CHARACTERS = 105
_FITTED_ON = "measured on the rows the recalibrator was fitted on"


def reliability_z(report: Report, *, ax: Axes | None = None) -> Axes:
    """CDF of the residuals z against N(0, 1), with the band in which calibrated models lie.

    An over-confident model lies above the diagonal left of 1/2 and below it on the right, an under-confident one the
    other way round; a biased one lies on one side all along.
    """
    return draw(report_figures.reliability_z(_checked(report)), ax)


def reliability_q(report: Report, *, ax: Axes | None = None) -> Axes:
    """CDF of the sums q of squared residuals against chi-squared; over-confidence lies below the diagonal."""
    return draw(report_figures.reliability_q(_checked(report)), ax)


def reliability_central(report: Report, *, ax: Axes | None = None) -> Axes:
    """Central intervals: nominal level against the share of targets inside; over-confidence lies below the diagonal."""
    return draw(report_figures.reliability_central(_checked(report)), ax)


def z_histogram(report: Report, *, ax: Axes | None = None) -> Axes:
    """Histogram of the residuals z beside N(0, 1)."""
    return draw(report_figures.z_histogram(_checked(report)), ax)


def q_histogram(report: Report, *, ax: Axes | None = None) -> Axes:
    """Histogram of the sums q of K squared residuals beside chi-squared with K degrees of freedom."""
    return draw(report_figures.q_histogram(_checked(report)), ax)


def qq(report: Report, *, ax: Axes | None = None) -> Axes:
    """Quantiles of z against N(0, 1): a steeper line means error bars that are too short, a shifted one a bias."""
    return draw(report_figures.qq(_checked(report)), ax)


def error_by_sigma(report: Report, *, ax: Axes | None = None) -> Axes:
    """Root mean square error against predicted sigma, with the ideal line and the band of calibrated models.

    Raises:
        ValueError: The prediction has no sd.
    """
    return draw(report_figures.error_by_sigma(_checked(report)), ax)


def sparsification(report: Report, *, ax: Axes | None = None) -> Axes:
    """RMSE of the rest when the least certain predictions are dropped, beside the best order possible.

    Raises:
        ValueError: The prediction has no sd.
    """
    return draw(report_figures.sparsification(_checked(report)), ax)


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
    for above, below in list(zip(*grid, strict=True))[2:]:
        _share_limits(above, below)
    return picture


def _checked(report: Any, name: str = "report") -> Report:
    if not isinstance(report, Report):
        raise TypeError(f"expected `{name}` a Report of fcal.evaluate, got {type(report).__name__}")
    return report


def _headline(report: Report) -> str:
    notes = (_FITTED_ON,) if report.fitted_on else ()
    return "\n".join((*wrap(f"{report.verdict}: {report.reason}", _HEADLINE_CHARACTERS), *notes))


def _share_limits(above: Axes, below: Axes) -> None:
    """Give two panels the wider limits of both, so that the eye can compare them."""
    (x0, x1), (y0, y1) = (
        zip(*(limits(ax) for ax in (above, below)), strict=True) for limits in (Axes.get_xlim, Axes.get_ylim)
    )
    for ax in (above, below):
        ax.set(xlim=(min(x0), max(x1)), ylim=(min(y0), max(y1)))
