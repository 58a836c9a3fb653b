"""The figures of a report, one function each."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

from fcal.metrics.report import Histogram, Reliability, Report, SigmaBins
from fcal.plots.calibrated import (
    CDF_REGIONS,
    INTERVAL_REGIONS,
    TINTS,
    band_at,
    chi2_density,
    density_line,
    diagonal,
    normal_density,
    reliability_figure,
    sigma_limits,
)
from fcal.plots.captions import beyond, count, interval, number, share, shortened, sigma_bins, sizes, with_floor
from fcal.plots.figure import Axis, Band, Bars, Dots, Figure, Line, Mark, Note, Rule, Tint

_MOST_MARKERS = 60
_CAPTION_LEVELS = ("0.5", "0.9", "0.95")
_LONGEST_NAME = 60
_LEVEL_COLOURS = ("third", "data", "fourth", "second", "faint")
_BEYOND_AXES = 1e4  # regions go on beyond the axes, which a caller may widen
_SMALLEST = 1e-300  # that a logarithmic axis can show
_ENDS, _ENDS_IN_PERCENT = (
    "%{customdata[0]:.3~g} to %{customdata[1]:.3~g}",
    "%{customdata[0]:.2%} to %{customdata[1]:.2%}",
)
_Z, _Q = "z, errors in units of the predicted sigma", "q, sum of K squared residuals"


def reliability_z(report: Report) -> Figure:
    """CDF of z against N(0, 1)."""
    return reliability_figure(
        title="CDF of z",
        caption=(with_floor("ECE(z)", report.ece_z, report.ece_z_floor), sizes(report)),
        axes=("nominal probability", "share of z below"),
        regions=CDF_REGIONS,
        band=_consistency(report.curves.z),
        lines=[_reliability_line(report.curves.z, "z below")],
    )


def reliability_q(report: Report) -> Figure:
    """CDF of q against chi-squared."""
    return reliability_figure(
        title="CDF of q",
        caption=(with_floor("ECE(q)", report.ece_q, report.ece_q_floor), sizes(report)),
        axes=("nominal probability", "share of q below"),
        regions=INTERVAL_REGIONS,
        band=_consistency(report.curves.q),
        lines=[_reliability_line(report.curves.q, "q below")],
    )


def reliability_central(report: Report) -> Figure:
    """Nominal level of central intervals against the share of targets inside."""
    levels = {level: held for level, held in report.coverage.items() if level in _CAPTION_LEVELS}
    held = ", ".join(f"{float(level):.0%} held {share(value)}" for level, value in levels.items())
    lines = [_reliability_line(report.curves.central, "inside")]
    return _central((held, f"n = {count(report.n)}"), report, lines)


def _central(caption: Sequence[str], report: Report, lines: Sequence[Line]) -> Figure:
    return reliability_figure(
        title="Central intervals",
        caption=caption,
        axes=("nominal level", "share inside"),
        regions=INTERVAL_REGIONS,
        band=_consistency(report.curves.central),
        lines=lines,
    )


def _consistency(curve: Reliability) -> Band:
    return Band(x=curve.nominal, low=curve.low, high=curve.high)


def _reliability_line(curve: Reliability, y: str, name: str = "", colour: str = "data") -> Line:
    return Line(
        x=curve.nominal,
        y=curve.empirical,
        colour=colour,
        marker=5 if len(curve.nominal) <= _MOST_MARKERS else 0,
        name=name,
        hover=f"nominal %{{x:.1%}}<br>{y} %{{y:.2%}}<br>calibrated models: {_ENDS_IN_PERCENT}",
        extra=list(zip(curve.low, curve.high, strict=True)),
        clipped=False,
    )


def z_histogram(report: Report) -> Figure:
    """Histogram of z beside N(0, 1)."""
    histogram = report.curves.z_histogram
    moments = f"mean {interval(report.shift)}, sd {interval(report.scale)}"
    caption = moments, f"n = {count(report.n)}{beyond(histogram)}"
    return _histogram("Residuals z", caption, [_bars(histogram, "z")], _normal(histogram), _Z)


def q_histogram(report: Report) -> Figure:
    """Histogram of q beside chi-squared."""
    histogram = report.curves.q_histogram
    caption = with_floor("ECE(q)", report.ece_q, report.ece_q_floor), sizes(report) + beyond(histogram)
    density = chi2_density(histogram.edges[0], histogram.edges[-1], report.df)
    law = density_line(density, f"χ²({report.df})")
    return _histogram("Sums q of squared residuals", caption, [_bars(histogram, "q")], law, _Q)


def _histogram(title: str, caption: Sequence[str], bars: Sequence[Bars], law: Line, x: str) -> Figure:
    low, high = min(b.edges[0] for b in bars), max(b.edges[-1] for b in bars)
    highest = max(max(b.heights) for b in bars)
    return Figure(
        title=title,
        caption=caption,
        x=Axis(label=x, limits=(low, high)),
        y=Axis(label="density", limits=(0, 1.12 * max(highest, *law.y))),
        marks=[*bars, law],
        legend="upper right",  # the corner above the tails is always free
    )


def _bars(histogram: Histogram, name: str, colour: str = "data") -> Bars:
    return Bars(edges=histogram.edges, heights=histogram.density, name=name, colour=colour)


def _normal(histogram: Histogram) -> Line:
    return density_line(normal_density(histogram.edges[0], histogram.edges[-1]), "N(0, 1)")


def qq(report: Report) -> Figure:
    """Quantiles of z against those of N(0, 1)."""
    x, y = report.curves.qq
    reach = max((abs(v) for v in x), default=1.0)
    points = Line(x=x, y=y, width=1.5, marker=4, hover="N(0, 1): %{x:.3f}<br>z: %{y:.3f}")
    return Figure(
        title="Quantiles of z",
        caption=(f"sd {interval(report.scale)}", f"mean {interval(report.shift)}; n = {count(report.n)}"),
        x=Axis(label="quantile of N(0, 1)"),
        y=Axis(label="quantile of z"),
        marks=[diagonal(-reach, reach), points],
        notes=[Note("steeper than dashed: over-confident", 0.98, 0.05, "right")],
        aspect="square",
    )


def error_by_sigma(report: Report) -> Figure:
    """Root mean square error against predicted sigma."""
    curve = report.curves.sigma
    if curve is None:
        raise ValueError("expected `report` of predictions that have an sd, got one without")
    caption = with_floor("ENCE", report.ence, report.ence_floor), sigma_bins(report, len(curve.sigma))
    return _errors(caption, sigma_limits([curve]), curve, [_error_line(curve)])


def _errors(caption: Sequence[str], limits: tuple[float, float], band: SigmaBins, lines: Sequence[Line]) -> Figure:
    low, high = limits[0] / _BEYOND_AXES, limits[1] * _BEYOND_AXES
    above = Tint(TINTS["over-confident"], ((low, low), (low, high), (high, high)))
    below = Tint(TINTS["under-confident"], ((low, low), (high, low), (high, high)))
    return Figure(
        title="Error by predicted sigma",
        caption=caption,
        x=Axis(label="predicted sigma", limits=limits, log=True),
        y=Axis(label="root mean square error", limits=limits, log=True),
        marks=[above, below, _sigma_band(band), diagonal(low, high), *lines],
        notes=[Note("over-confident", 0.03, 0.95, "left"), Note("under-confident", 0.97, 0.05, "right")],
        aspect="equal",
    )


def _sigma_band(curve: SigmaBins) -> Mark:
    low, high = ([max(value, _SMALLEST) for value in ends] for ends in (curve.low, curve.high))
    if len(curve.sigma) == 1:  # a band of one point has no width
        return Line(x=curve.sigma * 2, y=(low[0], high[0]), colour="band", width=9)
    return Band(x=curve.sigma, low=low, high=high)


def _error_line(curve: SigmaBins, name: str = "", colour: str = "data") -> Line:
    return Line(
        x=curve.sigma,
        y=[value if value > 0 else math.nan for value in curve.error],
        colour=colour,
        width=1.5,
        marker=6,
        name=name,
        hover=f"sigma %{{x:.3~g}}<br>error %{{y:.3~g}}<br>calibrated models: {_ENDS}<br>%{{customdata[2]:,}} values",
        extra=list(zip(curve.low, curve.high, curve.count, strict=True)),
    )


def sparsification(report: Report) -> Figure:
    """RMSE of the remaining predictions when the least certain ones are dropped."""
    curve = report.curves.sparsification
    if curve is None:
        raise ValueError("expected `report` of predictions that have an sd, got one without")
    hover = "dropped %{x:.0%}<br>RMSE of the rest %{y:.3f} of all"
    by_sigma = Line(x=curve.dropped, y=curve.by_sigma, name="largest sigma first", hover=hover)
    by_error = Line(
        x=curve.dropped,
        y=curve.by_error,
        colour="ink",
        width=1.5,
        dash="dashed",
        name="largest error first",
        hover=hover,
    )
    return Figure(
        title="How well sigma ranks errors",
        caption=(f"AUSE {number(report.ause)}, n = {count(report.n)}",),
        x=Axis(label="share dropped", limits=(0, 1), share=True),
        y=Axis(label="RMSE of the rest / of all", limits=(0, 1.08 * max(1.0, *curve.by_sigma))),
        marks=[Band(x=curve.dropped, low=curve.by_error, high=curve.by_sigma, colour="data-soft"), by_error, by_sigma],
        legend="lower left",
    )


def coverage_by_group(report: Report, levels: Sequence[float] = (0.5, 0.9)) -> Figure:
    """Share of targets in the central intervals of each group, in the order of the report, from the top."""
    groups = report.groups
    if not groups:
        raise ValueError("expected `report` with groups, got none")
    marks: list[Mark] = []
    for level, colour in zip(levels, cycle(_LEVEL_COLOURS), strict=False):
        marks += _group_marks(report, level, colour)
    grey = f"grey: where 95 % of calibrated groups lie; {len(groups)} groups, n = {count(report.n)}"
    return Figure(
        title="Coverage by group",
        caption=(grey, "triangles lie outside: left over-confident, right under-confident"),
        x=Axis(label="share of targets in the central interval", share=True),
        y=Axis(limits=(len(groups) - 0.4, -1.2), names=_group_names(report)),
        marks=marks,
    )


def _group_names(report: Report) -> list[str]:
    return [shortened(name, _LONGEST_NAME) or "(empty)" for name in report.groups]


def _group_marks(report: Report, level: float, colour: str) -> list[Mark]:
    known = {float(key): key for key in report.coverage}
    if level not in known:
        raise ValueError(f"expected `levels` of {', '.join(report.coverage)}, got {level!r}")
    groups = report.groups.values()
    held = [group.coverage[known[level]] for group in groups]
    bands = [band_at(group.curves.central, level) for group in groups]
    dots = Dots(
        x=held,
        y=range(len(held)),
        symbols=[_symbol(value, *band) for value, band in zip(held, bands, strict=True)],
        texts=_group_names(report),
        colour=colour,
        hover=f"{level:.0%} interval holds %{{x:.1%}}<br>calibrated groups: {_ENDS_IN_PERCENT}",
        extra=bands,
    )
    return [
        _segments(bands, colour="band", width=7),
        Rule(at=level, colour=colour, dash="dashed", label=f"{level:.0%}"),
        _segments([(level, value) for value in held], colour=colour, width=1),
        dots,
    ]


def _symbol(value: float, low: float, high: float) -> str:
    return "triangle-left" if value < low else "triangle-right" if value > high else "circle"


def _segments(ends: Sequence[tuple[float, float]], *, colour: str, width: float) -> Line:
    """Horizontal segments, one for each row."""
    x = [value for pair in ends for value in (*pair, math.nan)]
    y = [value for row in range(len(ends)) for value in (row, row, math.nan)]
    return Line(x=x, y=y, colour=colour, width=width)


def comparison(before: Report, after: Report) -> list[Figure]:
    """Two reports in the same figures, such as before and after a recalibration."""
    return [
        _compared_intervals(before, after),
        _compared_histograms(before, after),
        *_compared_errors(before, after),
    ]


def _compared_intervals(before: Report, after: Report) -> Figure:
    lines = [
        _reliability_line(before.curves.central, "inside", "before", "second"),
        _reliability_line(after.curves.central, "inside", "after"),
    ]
    caption = (f"n = {count(before.n)} before, {count(after.n)} after",)
    return replace(_central(caption, after, lines), legend="above")


def _compared_histograms(before: Report, after: Report) -> Figure:
    first, second = before.curves.z_histogram, after.curves.z_histogram
    caption = (f"sd of z {number(before.scale.value)} before, {number(after.scale.value)} after",)
    bars = _bars(first, "before", "second"), _bars(second, "after")
    return replace(_histogram("Residuals z", caption, bars, _normal(second), _Z), legend="above")


def _compared_errors(before: Report, after: Report) -> list[Figure]:
    first, second = before.curves.sigma, after.curves.sigma
    if first is None or second is None:
        return []
    caption = (f"ENCE {number(before.ence)} before, {number(after.ence)} after",)
    lines = _error_line(first, "before", "second"), _error_line(second, "after")
    return [replace(_errors(caption, sigma_limits([first, second]), second, lines), legend="above")]
