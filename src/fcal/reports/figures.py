"""Interactive figures of a report as plain data for plotly; colours are names that the page fills in, dark or light."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fcal.metrics.report import Histogram, Reliability, Report, SigmaBins
from fcal.plots.captions import beyond, count, interval, number, shortened, sigma_bins, sizes, with_floor
from fcal.plots.geometry import CDF_REGIONS, INTERVAL_REGIONS, band_at, sigma_limits
from fcal.plots.laws import chi2_curve, normal_curve
from fcal.reports.drawing import (
    BAND,
    DATA,
    END,
    FAINT,
    INK,
    LEGEND,
    OVER,
    SECOND,
    SECOND_SOFT,
    SOFT,
    UNDER,
    Drawing,
    Traces,
    band,
    density_axes,
    diagonal,
    line,
    square,
    tint,
    with_legend,
    words_at,
)
from fcal.reports.markup import plot_text

_MOST_MARKERS = 60
_ENDS, _ENDS_IN_PERCENT = (
    "%{customdata[0]:.3~g} to %{customdata[1]:.3~g}",
    "%{customdata[0]:.2%} to %{customdata[1]:.2%}",
)
_COLOURS = ("var(--third)", DATA, "var(--fourth)", SECOND, FAINT)


def reliability_z(report: Report) -> Drawing:
    """CDF of z against N(0, 1)."""
    lines = with_floor("ECE(z)", report.ece_z, report.ece_z_floor), sizes(report)
    traces = _reliability(report.curves.z, DATA, "z below")
    return Drawing(
        "CDF of z", lines, traces, square("nominal probability", "share of z below", report.curves.z, CDF_REGIONS)
    )


def reliability_q(report: Report) -> Drawing:
    """CDF of q against chi-squared."""
    lines = with_floor("ECE(q)", report.ece_q, report.ece_q_floor), sizes(report)
    traces = _reliability(report.curves.q, DATA, "q below")
    return Drawing(
        "CDF of q", lines, traces, square("nominal probability", "share of q below", report.curves.q, INTERVAL_REGIONS)
    )


def reliability_central(report: Report) -> Drawing:
    """Coverage of central intervals."""
    lines = "share of targets in the central interval of each level", f"n = {count(report.n)}"
    traces = _reliability(report.curves.central, DATA, "inside")
    return Drawing(
        "Central intervals",
        lines,
        traces,
        square("nominal level", "share inside", report.curves.central, INTERVAL_REGIONS),
    )


def _reliability(curve: Reliability, colour: str, what: str, name: str = "") -> Traces:
    start = f"<b>{name}</b><br>" if name else ""
    hover = f"{start}nominal %{{x:.1%}}<br>{what} %{{y:.2%}}<br>calibrated models: {_ENDS_IN_PERCENT}"
    data = line(curve.nominal, curve.empirical, colour, width=2) | {
        "mode": "lines+markers" if len(curve.nominal) <= _MOST_MARKERS else "lines",
        "marker": {"size": 5, "color": colour},
        "customdata": list(zip(curve.low, curve.high, strict=True)),
        "hovertemplate": hover + END,
        "name": name,
        "cliponaxis": False,
    }
    return [*band(curve.nominal, curve.low, curve.high), diagonal((0, 1)), data]


def z_histogram(report: Report) -> Drawing:
    """Residuals beside N(0, 1)."""
    histogram = report.curves.z_histogram
    lines = f"mean {interval(report.shift)}", f"sd {interval(report.scale)}; n = {count(report.n)}{beyond(histogram)}"
    traces = [_bars(histogram, "z", SOFT, DATA), _law(normal_curve(histogram), "N(0, 1)")]
    return Drawing("Residuals z", lines, traces, density_axes("z, errors in units of the predicted sigma"))


def q_histogram(report: Report) -> Drawing:
    """Sums of squared residuals beside chi-squared."""
    histogram = report.curves.q_histogram
    lines = with_floor("ECE(q)", report.ece_q, report.ece_q_floor), sizes(report) + beyond(histogram)
    traces = [_bars(histogram, "q", SOFT, DATA), _law(chi2_curve(histogram, report.df), f"χ²({report.df})")]
    return Drawing("Sums q of squared residuals", lines, traces, density_axes("q, sum of K squared residuals"))


def _bars(histogram: Histogram, name: str, fill: str, edge: str) -> dict[str, Any]:
    ends = list(zip(histogram.edges[:-1], histogram.edges[1:], strict=True))
    return {
        "type": "bar",
        "x": [(low + high) / 2 for low, high in ends],
        "width": [high - low for low, high in ends],
        "y": list(histogram.density),
        "customdata": ends,
        "marker": {"color": fill, "line": {"color": edge, "width": 0.6}},
        "name": name,
        "hovertemplate": f"{name} from {_ENDS}<br>density %{{y:.3~g}}{END}",
    }


def _law(curve: tuple[list[float], list[float]], name: str) -> dict[str, Any]:
    hover = f"{name}<br>density %{{y:.3~g}} at %{{x:.3~g}}{END}"
    return line(*curve, INK, width=2, name=name, showlegend=True, hovertemplate=hover)


def qq(report: Report) -> Drawing:
    """Quantiles of z against N(0, 1)."""
    x, y = report.curves.qq
    reach = max((abs(v) for v in x), default=1.0)
    hover = "N(0, 1): %{x:.3f}<br>z: %{y:.3f}" + END
    data = line(x, y, DATA) | {"mode": "lines+markers", "marker": {"size": 4, "color": DATA}, "hovertemplate": hover}
    layout = {
        "xaxis": {"title": {"text": "quantile of N(0, 1)"}},
        "yaxis": {"title": {"text": "quantile of z"}},
        "annotations": [words_at("steeper than dashed: over-confident", 0.99, 0.03, "right")],
    }
    lines = f"sd {interval(report.scale)}", f"mean {interval(report.shift)}; n = {count(report.n)}"
    return Drawing("Quantiles of z", lines, [diagonal((-reach, reach)), data], layout)


def error_by_sigma(report: Report) -> Drawing | None:
    """Actual errors against predicted sigma; None without an sd."""
    curve = report.curves.sigma
    if curve is None:
        return None
    low, high = sigma_limits([curve])
    lines = (
        with_floor("ENCE", report.ence, report.ence_floor),
        sigma_bins(report, len(curve.sigma)),
    )
    traces = [*_band_of_sigma(curve), diagonal((low, high)), _errors(curve, DATA)]
    return Drawing("Error by predicted sigma", lines, traces, _log_square(low, high))


def _band_of_sigma(curve: SigmaBins) -> Traces:
    if len(curve.sigma) == 1:  # a band of one point has no width
        return [line(curve.sigma * 2, (curve.low[0], curve.high[0]), BAND, width=9, hoverinfo="skip")]
    return band(curve.sigma, [max(v, 1e-300) for v in curve.low], curve.high)


def _errors(curve: SigmaBins, colour: str, name: str = "") -> dict[str, Any]:
    start = f"<b>{name}</b><br>" if name else ""
    return line(curve.sigma, [v if v > 0 else math.nan for v in curve.error], colour) | {
        "mode": "lines+markers",
        "marker": {"size": 6, "color": colour},
        "customdata": list(zip(curve.low, curve.high, curve.count, strict=True)),
        "name": name,
        "hovertemplate": start
        + "sigma %{x:.3~g}<br>error %{y:.3~g}<br>calibrated models: "
        + f"{_ENDS}<br>%{{customdata[2]:,}} values{END}",
    }


def _log_square(low: float, high: float) -> dict[str, Any]:
    axis = {"type": "log", "range": [math.log10(low), math.log10(high)], "tickformat": "~g", "nticks": 8}
    axis |= {"dtick": "D2" if high / low < 100 else 1}
    x, y = ({"title": {"text": name}} for name in ("predicted sigma", "root mean square error"))
    words = [words_at("over-confident", 0.03, 0.97, "left"), words_at("under-confident", 0.97, 0.03, "right")]
    parts = (OVER, ((low, low), (low, high), (high, high))), (UNDER, ((low, low), (high, low), (high, high)))
    return {"xaxis": axis | x, "yaxis": axis | y, "annotations": words, "shapes": [tint(*part) for part in parts]}


def sparsification(report: Report) -> Drawing | None:
    """How well sigma ranks errors; None without an sd."""
    curve = report.curves.sparsification
    if curve is None:
        return None
    hover = "dropped %{x:.0%}<br>RMSE of the rest %{y:.3f} of all"
    best = line(curve.dropped, curve.by_error, INK, dash="dash", name="largest error first", showlegend=True)
    ours = line(curve.dropped, curve.by_sigma, DATA, width=2, name="largest sigma first", showlegend=True)
    ours |= {"fill": "tonexty", "fillcolor": SOFT}
    traces = [trace | {"hovertemplate": f"{trace['name']}<br>{hover}{END}"} for trace in (best, ours)]
    layout = {
        "xaxis": {"title": {"text": "share dropped"}, "tickformat": ".0%", "range": [0, 1]},
        "yaxis": {"title": {"text": "RMSE of the rest / of all"}, "rangemode": "tozero"},
        "showlegend": True,
        "legend": {"x": 0.02, "y": 0.02, "xanchor": "left", "yanchor": "bottom", "bgcolor": "var(--clear)"},
    }
    lines = (f"AUSE {number(report.ause)}, n = {count(report.n)}",)
    return Drawing("How well sigma ranks errors", lines, traces, layout)


def coverage_by_group(report: Report, levels: Sequence[float] = (0.5, 0.9)) -> Drawing:
    """Coverage of every group, from the top, beside where calibrated groups would lie."""
    groups = report.groups
    known = {float(key): key for key in report.coverage}
    traces: Traces = []
    for colour, level in zip(_COLOURS, (level for level in levels if level in known), strict=False):
        traces += _coverage(groups, level, known[level], colour)
    ticks = {"tickvals": list(range(len(groups))), "ticktext": [plot_text(shortened(name, 24)) for name in groups]}
    layout = {
        "xaxis": {"title": {"text": "share of targets inside"}, "tickformat": ".0%"},
        "yaxis": ticks | {"range": [len(groups) - 0.5, -0.5], "zeroline": False, "showgrid": False},
        "shapes": [_level_line(level, colour) for colour, level in zip(_COLOURS, levels, strict=False)],
        "margin": {"l": 8},
    }
    lines = ("dashed: nominal; grey: where 95 % of calibrated groups would lie", f"{len(groups)} groups")
    return Drawing("Coverage by group", lines, traces, layout, tall=110 + 21 * len(groups))


def _level_line(level: float, colour: str) -> dict[str, Any]:
    dashes = {"color": colour, "width": 1, "dash": "dash"}
    return {"type": "line", "x0": level, "x1": level, "yref": "paper", "y0": 0, "y1": 1, "line": dashes}


def _coverage(groups: Mapping[str, Report], level: float, key: str, colour: str) -> Traces:
    rows, held = list(range(len(groups))), [group.coverage[key] for group in groups.values()]
    bands = [band_at(group.curves.central, level) for group in groups.values()]
    bar = {"type": "data", "symmetric": False, "thickness": 7, "width": 0, "color": BAND}
    bar |= {"array": [high - level for _, high in bands], "arrayminus": [level - low for low, _ in bands]}
    common = {"type": "scatter", "mode": "markers", "y": rows, "showlegend": False}
    hover = f"%{{text}}<br>{level:.0%} interval holds %{{x:.1%}}<br>calibrated groups: {_ENDS_IN_PERCENT}"
    return [
        common | {"x": [level] * len(rows), "error_x": bar, "marker": {"opacity": 0}, "hoverinfo": "skip"},
        common
        | {
            "x": held,
            "text": [plot_text(shortened(name, 60)) for name in groups],
            "customdata": bands,
            "marker": {"size": 8, "color": colour},
            "hovertemplate": hover + END,
        },
    ]


def compared(before: Report, after: Report) -> list[Drawing]:
    """Two reports in the same figures."""
    drawings = [_compared_intervals(before, after), _compared_histograms(before, after)]
    curves = before.curves.sigma, after.curves.sigma
    if curves[0] is not None and curves[1] is not None:
        low, high = sigma_limits([curves[0], curves[1]])
        lines = [_errors(curves[0], SECOND, "before"), _errors(curves[1], DATA, "after")]
        traces = [*_band_of_sigma(curves[1]), diagonal((low, high)), *with_legend(lines)]
        words = (f"ENCE {number(before.ence)} before, {number(after.ence)} after",)
        drawings.append(Drawing("Error by predicted sigma", words, traces, _log_square(low, high) | LEGEND))
    return drawings


def _compared_intervals(before: Report, after: Report) -> Drawing:
    *_, first = _reliability(before.curves.central, SECOND, "inside", "before")
    *rest, second = _reliability(after.curves.central, DATA, "inside", "after")
    layout = square("nominal level", "share inside", before.curves.central, INTERVAL_REGIONS) | LEGEND
    lines = (f"n = {count(before.n)} before, {count(after.n)} after",)
    return Drawing("Central intervals", lines, [*rest, *with_legend([first, second])], layout)


def _compared_histograms(before: Report, after: Report) -> Drawing:
    first = _bars(before.curves.z_histogram, "before", SECOND_SOFT, SECOND)
    second = _bars(after.curves.z_histogram, "after", SOFT, DATA)
    law = _law(normal_curve(after.curves.z_histogram), "N(0, 1)")
    lines = (f"sd of z {number(before.scale.value)} before, {number(after.scale.value)} after",)
    layout = density_axes("z, errors in units of the predicted sigma") | LEGEND
    return Drawing("Residuals z", lines, [first, second, law], layout)
