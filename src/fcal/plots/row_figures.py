"""The figures of single rows of a report: a sample of them, and the worst."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from fcal.metrics.report import Report, Rows
from fcal.plots.captions import count, number, share
from fcal.plots.figure import Axis, Figure, Line, Mark

_CONSTANT = 1.0001  # ratio of sigmas up to which they are the same
_CURVE_STEPS = 40


def residuals_by_sigma(report: Report) -> Figure:
    """Errors of a sample of rows against their predicted sigma, between lines of one and two sigma.

    Raises:
        ValueError: The report has no sample of rows.
    """
    rows = _rows(report, "sample")
    errors = [target - mean for target, mean in zip(rows.target, rows.mean, strict=True)]
    low, high = min(rows.sigma), max(rows.sigma)
    low, high = (low / 1.1, high * 1.1) if high / low > _CONSTANT else (low / 2, high * 2)
    sigmas = [low * (high / low) ** (k / _CURVE_STEPS) for k in range(_CURVE_STEPS + 1)]
    lines = [_multiple_of_sigma(factor, sigmas) for factor in (1, -1, 2, -2)]
    within = [_share_within(rows, factor) for factor in (1, 2)]
    points = Line(
        x=rows.sigma,
        y=errors,
        width=0,
        marker=4,
        hover="row {0:,}\nerror {y:.3g}\nsigma {x:.3g}\nz {1:.3g}",
        extra=list(zip(rows.row, rows.z, strict=True)),
    )
    reach = 1.05 * max(*map(abs, errors), 2 * max(rows.sigma))
    return Figure(
        title="Errors by sigma, row by row",
        caption=(
            f"{count(len(rows.row))} random rows of n = {count(report.n)}",
            f"|z| below 1: {share(within[0], 0)} (right: 68 %), below 2: {share(within[1], 0)} (right: 95 %)",
        ),
        x=Axis(label="predicted sigma", limits=(low, high), log=True),
        y=Axis(label="target - predicted mean", limits=(-reach, reach)),
        marks=[*lines, points],
        legend="outside",
        aspect="square",
    )


def _multiple_of_sigma(factor: int, sigmas: Sequence[float]) -> Line:
    return Line(
        x=sigmas,
        y=[factor * sigma for sigma in sigmas],
        colour="faint",
        width=1,
        dash="solid" if abs(factor) == 1 else "dashed",
        name=f"± {factor} sigma",
        labelled=factor > 0,
    )


def _share_within(rows: Rows, factor: float) -> float:
    return sum(abs(z) <= factor for z in rows.z) / len(rows.z)


def error_bars(report: Report) -> Figure:
    """Predicted means with 90 % intervals and targets, of a sample of rows in the order of their means.

    Raises:
        ValueError: The report has no sample of rows with intervals.
    """
    rows = _rows_with_bars(report, "sample")
    order = sorted(range(len(rows.low)), key=lambda k: rows.mean[k])
    inside = sum(rows.low[k] <= rows.target[k] <= rows.high[k] for k in order)
    return Figure(
        title="Error bars, row by row",
        caption=(
            f"{len(order)} random rows of n = {count(report.n)}, by predicted mean",
            f"grey: 90 % interval; {inside} of {len(order)} hold their target ({share(inside / len(order), 0)})",
        ),
        x=Axis(label="rows, by predicted mean", limits=(-1, len(order)), ticks=False),
        y=Axis(label="predicted and true value"),
        marks=_bar_marks(rows, order, upright=True),
        legend="outside",
        aspect="square",
    )


def worst_rows(report: Report) -> Figure:
    """The rows with the largest residuals: where to look first.

    Raises:
        ValueError: The report has no rows with intervals.
    """
    rows = _rows_with_bars(report, "worst")
    order = range(len(rows.low))
    return Figure(
        title="Worst rows",
        caption=("largest |z|, that first; a row is numbered from 1, grey: its 90 % interval",),
        x=Axis(label="predicted and true value"),
        y=Axis(limits=(len(order) - 0.4, -0.6), names=[f"row {rows.row[k]:,}, z {number(rows.z[k])}" for k in order]),
        marks=_bar_marks(rows, order, upright=False),
        legend="outside",
    )


def _bar_marks(rows: Rows, order: Sequence[int], *, upright: bool) -> list[Mark]:
    """Intervals, means and targets of rows, upwards or to the right."""

    def marks(values: Sequence[float], places: Sequence[float], **style: Any) -> Line:
        x, y = (places, values) if upright else (values, places)
        return Line(x=x, y=y, **style)

    places = range(len(order))
    ends = [end for k in order for end in (rows.low[k], rows.high[k], math.nan)]
    held = {i: rows.low[k] <= rows.target[k] <= rows.high[k] for i, k in zip(places, order, strict=True)}
    value = "y" if upright else "x"
    drawn: list[Mark] = [
        marks(ends, [place for place in places for _ in range(3)], colour="band", width=4, name="90 % interval"),
        marks([rows.mean[k] for k in order], places, width=0, marker=4, name="predicted mean"),
    ]
    for name, colour, wanted in (("target inside", "ink", True), ("target outside", "second", False)):
        chosen = [i for i in places if held[i] == wanted]
        kept = [order[i] for i in chosen]
        extra = [(rows.row[k], rows.mean[k], rows.low[k], rows.high[k], rows.z[k]) for k in kept]
        hover = f"row {{0:,}}: target {{{value}:.4g}}\nmean {{1:.4g}}, 90 % from {{2:.4g}} to {{3:.4g}}\nz {{4:.3g}}"
        style: dict[str, Any] = {"colour": colour, "width": 0, "marker": 6, "hover": hover, "extra": extra}
        if chosen:
            drawn.append(marks([rows.target[k] for k in kept], chosen, name=name, **style))
    return drawn


def _rows(report: Report, kind: Literal["sample", "worst"]) -> Rows:
    rows: Rows | None = getattr(report.curves, kind)
    if rows is None:
        raise ValueError("expected `report` of scalar predictions by fcal.evaluate, got one without single rows")
    return rows


def _rows_with_bars(report: Report, kind: Literal["sample", "worst"]) -> Rows:
    rows = _rows(report, kind)
    if not rows.low:
        raise ValueError("expected `report` of a family with quantiles, got one without")
    return rows


def row_figures(report: Report) -> list[Figure]:
    """The figures of single rows that a report has data for."""
    sample, worst = report.curves.sample, report.curves.worst
    figures = [error_bars(report)] if sample and sample.low else []
    figures += [residuals_by_sigma(report)] if sample else []
    return [*figures, worst_rows(report)] if worst and worst.low else figures
