"""The figures of a report, one function each; ``comparison`` draws two reports in the same ones."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Literal

from fcal.metrics.report import Floor, Histogram, Reliability, Report, SigmaBins
from fcal.plots.calibrated import (
    CDF_REGIONS,
    INTERVAL_REGIONS,
    TINTS,
    Region,
    band_at,
    diagonal,
    law,
    reliability_figure,
    sigma_limits,
)
from fcal.plots.captions import count, interval, number, share, shortened
from fcal.plots.figure import Axis, Band, Bars, Dots, Figure, Line, Mark, Note, Rule, Tint, segments

_MOST_MARKERS = 60
_CAPTION_LEVELS = ("0.5", "0.9", "0.95")
_LONGEST_NAME = 60
_LEVEL_COLOURS = ("third", "data", "fourth", "second", "faint")
_BEYOND_AXES = 1e4  # regions go on beyond the axes, which a caller may widen
_SMALLEST = 1e-300  # that a logarithmic axis can show
_CONSTANT = 1.0001  # ratio of sigmas up to which they are the same
_CURVE_STEPS = 40
_LEAST_SHARE = 5e-5  # that does not round to 0
_ENDS, _ENDS_IN_PERCENT = (
    "{0:.3g} to {1:.3g}",
    "{0:.2%} to {1:.2%}",
)


def reliability_z(report: Report) -> Figure:
    """CDF of the residuals z against N(0, 1), with the band in which calibrated models lie.

    An over-confident model lies above the diagonal left of 1/2 and below it on the right, an under-confident one the
    other way round; a biased one lies on one side all along.
    """
    return _cdf("z", report, report.curves.z, CDF_REGIONS)


def reliability_q(report: Report) -> Figure:
    """CDF of the sums q of squared residuals against chi-squared; over-confidence lies below the diagonal."""
    return _cdf("q", report, report.curves.q, INTERVAL_REGIONS)


def _cdf(name: Literal["z", "q"], report: Report, curve: Reliability, regions: Sequence[Region]) -> Figure:
    error, floor = getattr(report, f"ece_{name}"), getattr(report, f"ece_{name}_floor")
    return reliability_figure(
        title=f"CDF of {name}",
        caption=(_with_floor(f"ECE({name})", error, floor), _sizes(report)),
        axes=("nominal probability", f"share of {name} below"),
        regions=regions,
        band=_band(curve),
        lines=[_reliability_line(curve, f"{name} below")],
    )


def reliability_central(report: Report) -> Figure:
    """Central intervals: nominal level against the share of targets inside; over-confidence lies below the diagonal."""
    levels = {level: held for level, held in report.coverage.items() if level in _CAPTION_LEVELS}
    held = ", ".join(f"{float(level):.0%} held {share(value)}" for level, value in levels.items())
    return _intervals((held, f"n = {count(report.n)}"), {"": report.curves.central})


def _intervals(caption: Sequence[str], curves: Mapping[str, Reliability]) -> Figure:
    """Reliability of central intervals, of one report or of two by name; the band is that of the last."""
    return reliability_figure(
        title="Central intervals",
        caption=caption,
        axes=("nominal level", "share inside"),
        regions=INTERVAL_REGIONS,
        band=_band(list(curves.values())[-1]),
        lines=[_reliability_line(curve, "inside", name) for name, curve in curves.items()],
        legend="above" if len(curves) > 1 else "",
    )


def _band(curve: Reliability) -> Band:
    return Band(x=curve.nominal, low=curve.low, high=curve.high)


def _reliability_line(curve: Reliability, y: str, name: str = "") -> Line:
    return Line(
        x=curve.nominal,
        y=curve.empirical,
        colour=_colour(name),
        marker=5 if len(curve.nominal) <= _MOST_MARKERS else 0,
        name=name,
        hover=f"nominal {{x:.1%}}\n{y} {{y:.2%}}\ncalibrated models: {_ENDS_IN_PERCENT}",
        extra=list(zip(curve.low, curve.high, strict=True)),
        clipped=False,
    )


def _colour(name: str) -> str:
    return "second" if name == "before" else "data"


def z_histogram(report: Report) -> Figure:
    """Histogram of the residuals z beside N(0, 1)."""
    histogram = report.curves.z_histogram
    moments = f"mean {interval(report.shift)}, sd {interval(report.scale)}"
    return _residuals((moments, f"n = {count(report.n)}{_beyond(histogram)}"), {"z": histogram})


def _residuals(caption: Sequence[str], histograms: Mapping[str, Histogram]) -> Figure:
    edges = list(histograms.values())[-1].edges
    density = law(None, edges[0], edges[-1])
    return _histogram("Residuals z", caption, histograms, density, "z, errors in units of the predicted sigma")


def q_histogram(report: Report) -> Figure:
    """Histogram of the sums q of K squared residuals beside chi-squared with K degrees of freedom."""
    histogram = report.curves.q_histogram
    caption = _with_floor("ECE(q)", report.ece_q, report.ece_q_floor), _sizes(report) + _beyond(histogram)
    density = law(report.df, histogram.edges[0], histogram.edges[-1])
    return _histogram(
        "Sums q of squared residuals", caption, {"q": histogram}, density, "q, sum of K squared residuals"
    )


def _histogram(
    title: str, caption: Sequence[str], histograms: Mapping[str, Histogram], density: Line, x: str
) -> Figure:
    low, high = min(h.edges[0] for h in histograms.values()), max(h.edges[-1] for h in histograms.values())
    highest = max(max(h.density) for h in histograms.values())
    bars = [Bars(edges=h.edges, heights=h.density, name=name, colour=_colour(name)) for name, h in histograms.items()]
    return Figure(
        title=title,
        caption=caption,
        x=Axis(label=x, limits=(low, high)),
        y=Axis(label="density", limits=(0, 1.12 * max(highest, *density.y))),
        marks=[*bars, density],
        legend="above" if len(bars) > 1 else "upper right",  # the corner above the tails is always free
    )


def qq(report: Report) -> Figure:
    """Quantiles of z against N(0, 1): a steeper line means error bars that are too short, a shifted one a bias."""
    x, y = report.curves.qq
    reach = max((abs(v) for v in x), default=1.0)
    points = Line(x=x, y=y, width=1.5, marker=4, hover="N(0, 1): {x:.3f}\nz: {y:.3f}")
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
    """Root mean square error against predicted sigma, with the ideal line and the band of calibrated models.

    Raises:
        ValueError: The prediction has no sd.
    """
    curve = report.curves.sigma
    if curve is None:
        raise ValueError("expected `report` of predictions that have an sd, got one without")
    bins = "one bin" if len(curve.sigma) == 1 else f"{len(curve.sigma)} bins of about equal counts"
    caption = _with_floor("ENCE", report.ence, report.ence_floor), f"{bins}, n = {count(report.n)}"
    return _errors(caption, {"": curve})


def _errors(caption: Sequence[str], curves: Mapping[str, SigmaBins]) -> Figure:
    limits = sigma_limits(curves.values())
    low, high = limits[0] / _BEYOND_AXES, limits[1] * _BEYOND_AXES
    above = Tint(TINTS["over-confident"], ((low, low), (low, high), (high, high)))
    below = Tint(TINTS["under-confident"], ((low, low), (high, low), (high, high)))
    lines = [_error_line(curve, name) for name, curve in curves.items()]
    return Figure(
        title="Error by predicted sigma",
        caption=caption,
        x=Axis(label="predicted sigma", limits=limits, log=True),
        y=Axis(label="root mean square error", limits=limits, log=True),
        marks=[above, below, _sigma_band(list(curves.values())[-1]), diagonal(low, high), *lines],
        notes=[Note("over-confident", 0.03, 0.95, "left"), Note("under-confident", 0.97, 0.05, "right")],
        legend="above" if len(curves) > 1 else "",
        aspect="equal",
    )


def _sigma_band(curve: SigmaBins) -> Mark:
    low, high = ([max(value, _SMALLEST) for value in ends] for ends in (curve.low, curve.high))
    if len(curve.sigma) == 1:  # a band of one point has no width
        return Line(x=curve.sigma * 2, y=(low[0], high[0]), colour="band", width=9)
    return Band(x=curve.sigma, low=low, high=high)


def _error_line(curve: SigmaBins, name: str) -> Line:
    return Line(
        x=curve.sigma,
        y=[value if value > 0 else math.nan for value in curve.error],
        colour=_colour(name),
        width=1.5,
        marker=6,
        name=name,
        hover=f"sigma {{x:.3g}}\nerror {{y:.3g}}\ncalibrated models: {_ENDS}\n{{2:,}} values",
        extra=list(zip(curve.low, curve.high, curve.count, strict=True)),
    )


def sparsification(report: Report) -> Figure:
    """RMSE of the rest when the least certain predictions are dropped, beside the best order possible.

    Raises:
        ValueError: The prediction has no sd.
    """
    curve = report.curves.sparsification
    if curve is None:
        raise ValueError("expected `report` of predictions that have an sd, got one without")
    hover = "dropped {x:.0%}\nRMSE of the rest {y:.3f} of all"
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
        y=Axis(label="RMSE of the rest / of all", limits=(0, 1.3 * max(1.0, *curve.by_sigma))),  # room for the legend
        marks=[Band(x=curve.dropped, low=curve.by_error, high=curve.by_sigma, colour="data-soft"), by_error, by_sigma],
        legend="upper right",
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
        hover=f"{level:.0%} interval holds {{x:.1%}}\ncalibrated groups: {_ENDS_IN_PERCENT}",
        extra=bands,
    )
    return [
        segments(dict(enumerate(bands)), colour="band", width=7),
        Rule(at=level, colour=colour, dash="dashed", label=f"{level:.0%}"),
        segments({row: (level, value) for row, value in enumerate(held)}, colour=colour, width=1),
        dots,
    ]


def _symbol(value: float, low: float, high: float) -> str:
    return "triangle-left" if value < low else "triangle-right" if value > high else "circle"


def comparison(before: Report, after: Report) -> list[Figure]:
    """Two reports in the same figures, such as before and after a recalibration; bands are of the second."""
    sizes = f"n = {count(before.n)} before, {count(after.n)} after"
    moments = f"sd of z {number(before.scale.value)} before, {number(after.scale.value)} after"
    errors = f"ENCE {number(before.ence)} before, {number(after.ence)} after"
    old, new = before.curves, after.curves
    figures = [
        _intervals([sizes], {"before": old.central, "after": new.central}),
        _residuals([moments], {"before": old.z_histogram, "after": new.z_histogram}),
    ]
    if old.sigma is not None and new.sigma is not None:
        figures.append(_errors([errors], {"before": old.sigma, "after": new.sigma}))
    return figures


def _with_floor(name: str, value: float | None, floor: Floor | None) -> str:
    """A named score beside those of calibrated models."""
    least = "" if floor is None else f"; floor {number(floor.expected)} (95 % below {number(floor.q95)})"
    return f"{name} {number(value)}{least}"


def _sizes(report: Report) -> str:
    return f"S = {report.bins}, K = {report.df}, n = {count(report.n)}"


def _beyond(histogram: Histogram) -> str:
    return f"; {share(histogram.beyond, 2)} beyond the axis" if histogram.beyond >= _LEAST_SHARE else ""
