"""Interactive figures of a report as plain data for plotly; colours are names that the page fills in, dark or light."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fcal.metrics.report import Histogram, Reliability, Report, SigmaBins
from fcal.plots.captions import beyond, count, interval, number, shortened, sigma_bins, sizes, with_floor
from fcal.plots.geometry import CDF_REGIONS, INTERVAL_REGIONS, Region, band_at, sigma_limits
from fcal.plots.laws import chi2_curve, normal_curve
from fcal.reports.markup import escaped, plot_text, script_json

Traces = list[dict[str, Any]]

_INK, _FAINT, _BAND = "var(--ink)", "var(--faint)", "var(--band)"
_DATA, _SOFT, _SECOND, _SECOND_SOFT = "var(--data)", "var(--data-soft)", "var(--second)", "var(--second-soft)"
_OVER, _UNDER = "var(--over-soft)", "var(--under-soft)"
_TINTS = {"over-confident": _OVER, "under-confident": _UNDER}
_MOST_MARKERS = 60
_END = "<extra></extra>"  # without a box for the name of the trace
_ENDS, _ENDS_IN_PERCENT = (
    "%{customdata[0]:.3~g} to %{customdata[1]:.3~g}",
    "%{customdata[0]:.2%} to %{customdata[1]:.2%}",
)
_COLOURS = ("var(--third)", _DATA, "var(--fourth)", _SECOND, _FAINT)


@dataclass(frozen=True)
class Drawing:
    """A figure and the words around it.

    Attributes:
        title: Heading, as text.
        caption: Lines under it, as text.
        traces: As plotly takes them.
        layout: As plotly takes it; the page adds fonts, margins and colours.
        tall: Height in pixels; 340 where 0.
    """

    title: str
    caption: Sequence[str]
    traces: Traces
    layout: Mapping[str, Any]
    tall: int = 0

    def html(self) -> str:
        """Markup; the page's script draws it."""
        lines = "<br>".join(escaped(line) for line in self.caption if line)
        label = escaped(f"{self.title}: {'; '.join(self.caption)}")
        height = f' style="height:{self.tall}px"' if self.tall else ""
        kind = "plot wide" if self.tall else "plot"
        document = script_json({"data": self.traces, "layout": self.layout})
        return (
            f'<figure class="{kind}"><h3>{escaped(self.title)}</h3><figcaption>{lines}</figcaption>'
            f'<div class="drawing" role="img" aria-label="{label}"{height}></div>'
            f'<script type="application/json">{document}</script></figure>'
        )


def reliability_z(report: Report) -> Drawing:
    """CDF of z against N(0, 1)."""
    lines = with_floor("ECE(z)", report.ece_z, report.ece_z_floor), sizes(report)
    traces = _reliability(report.curves.z, _DATA, "z below")
    return Drawing(
        "CDF of z", lines, traces, _square("nominal probability", "share of z below", report.curves.z, CDF_REGIONS)
    )


def reliability_q(report: Report) -> Drawing:
    """CDF of q against chi-squared."""
    lines = with_floor("ECE(q)", report.ece_q, report.ece_q_floor), sizes(report)
    traces = _reliability(report.curves.q, _DATA, "q below")
    return Drawing(
        "CDF of q", lines, traces, _square("nominal probability", "share of q below", report.curves.q, INTERVAL_REGIONS)
    )


def reliability_central(report: Report) -> Drawing:
    """Coverage of central intervals."""
    lines = "share of targets in the central interval of each level", f"n = {count(report.n)}"
    traces = _reliability(report.curves.central, _DATA, "inside")
    return Drawing(
        "Central intervals",
        lines,
        traces,
        _square("nominal level", "share inside", report.curves.central, INTERVAL_REGIONS),
    )


def _square(x: str, y: str, curve: Reliability, regions: Sequence[Region]) -> dict[str, Any]:
    axis = {"range": [-0.01, 1.01], "tickformat": ".0%", "dtick": 0.2}
    return {
        "xaxis": axis | {"title": {"text": x}},
        "yaxis": axis | {"title": {"text": y}},
        "shapes": [_region(_TINTS[region.name], region.corners) for region in regions],
        "annotations": [_words(region.name, *region.spot(curve), region.side) for region in regions],
    }


def _region(colour: str, corners: Sequence[tuple[float, float]]) -> dict[str, Any]:
    path = "M" + "L".join(f"{x},{y}" for x, y in corners) + "Z"
    return {"type": "path", "path": path, "fillcolor": colour, "line": {"width": 0}, "layer": "below"}


def _words(text: str, x: float, y: float, side: str) -> dict[str, Any]:
    place = {"x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": side, "yanchor": "middle", "showarrow": False}
    return place | {"text": text, "font": {"size": 11, "color": _FAINT}}


def _line(x: Sequence[float], y: Sequence[float], colour: str, **style: Any) -> dict[str, Any]:
    line = {"color": colour, "width": style.pop("width", 1.5), "dash": style.pop("dash", "solid")}
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "line": line, "showlegend": False} | style


def _band(x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> Traces:
    still = {"hoverinfo": "skip", "width": 0}
    upper = _line(x, high, _BAND, **still) | {"fill": "tonexty", "fillcolor": _BAND}
    return [_line(x, low, _BAND, **still), upper]


def _diagonal(ends: Sequence[float]) -> dict[str, Any]:
    return _line(ends, ends, _FAINT, width=1, dash="dash", hoverinfo="skip")


def _reliability(curve: Reliability, colour: str, what: str, name: str = "") -> Traces:
    start = f"<b>{name}</b><br>" if name else ""
    hover = f"{start}nominal %{{x:.1%}}<br>{what} %{{y:.2%}}<br>calibrated models: {_ENDS_IN_PERCENT}"
    data = _line(curve.nominal, curve.empirical, colour, width=2) | {
        "mode": "lines+markers" if len(curve.nominal) <= _MOST_MARKERS else "lines",
        "marker": {"size": 5, "color": colour},
        "customdata": list(zip(curve.low, curve.high, strict=True)),
        "hovertemplate": hover + _END,
        "name": name,
        "cliponaxis": False,
    }
    return [*_band(curve.nominal, curve.low, curve.high), _diagonal((0, 1)), data]


def z_histogram(report: Report) -> Drawing:
    """Residuals beside N(0, 1)."""
    histogram = report.curves.z_histogram
    lines = f"mean {interval(report.shift)}", f"sd {interval(report.scale)}; n = {count(report.n)}{beyond(histogram)}"
    traces = [_bars(histogram, "z", _SOFT, _DATA), _law(normal_curve(histogram), "N(0, 1)")]
    return Drawing("Residuals z", lines, traces, _density("z, errors in units of the predicted sigma"))


def q_histogram(report: Report) -> Drawing:
    """Sums of squared residuals beside chi-squared."""
    histogram = report.curves.q_histogram
    lines = with_floor("ECE(q)", report.ece_q, report.ece_q_floor), sizes(report) + beyond(histogram)
    traces = [_bars(histogram, "q", _SOFT, _DATA), _law(chi2_curve(histogram, report.df), f"χ²({report.df})")]
    return Drawing("Sums q of squared residuals", lines, traces, _density("q, sum of K squared residuals"))


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
        "hovertemplate": f"{name} from {_ENDS}<br>density %{{y:.3~g}}{_END}",
    }


def _law(curve: tuple[list[float], list[float]], name: str) -> dict[str, Any]:
    hover = f"{name}<br>density %{{y:.3~g}} at %{{x:.3~g}}{_END}"
    return _line(*curve, _INK, width=2, name=name, showlegend=True, hovertemplate=hover)


def _density(x: str) -> dict[str, Any]:
    legend = {"x": 0.99, "y": 0.99, "xanchor": "right", "yanchor": "top", "bgcolor": "var(--clear)"}
    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": "density"}, "rangemode": "tozero"}}
    return axes | {"bargap": 0, "barmode": "overlay", "showlegend": True, "legend": legend}


def qq(report: Report) -> Drawing:
    """Quantiles of z against N(0, 1)."""
    x, y = report.curves.qq
    reach = max((abs(v) for v in x), default=1.0)
    hover = "N(0, 1): %{x:.3f}<br>z: %{y:.3f}" + _END
    data = _line(x, y, _DATA) | {"mode": "lines+markers", "marker": {"size": 4, "color": _DATA}, "hovertemplate": hover}
    layout = {
        "xaxis": {"title": {"text": "quantile of N(0, 1)"}},
        "yaxis": {"title": {"text": "quantile of z"}},
        "annotations": [_words("steeper than dashed: over-confident", 0.99, 0.03, "right")],
    }
    lines = f"sd {interval(report.scale)}", f"mean {interval(report.shift)}; n = {count(report.n)}"
    return Drawing("Quantiles of z", lines, [_diagonal((-reach, reach)), data], layout)


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
    traces = [*_band_of_sigma(curve), _diagonal((low, high)), _errors(curve, _DATA)]
    return Drawing("Error by predicted sigma", lines, traces, _log_square(low, high))


def _band_of_sigma(curve: SigmaBins) -> Traces:
    if len(curve.sigma) == 1:  # a band of one point has no width
        return [_line(curve.sigma * 2, (curve.low[0], curve.high[0]), _BAND, width=9, hoverinfo="skip")]
    return _band(curve.sigma, [max(v, 1e-300) for v in curve.low], curve.high)


def _errors(curve: SigmaBins, colour: str, name: str = "") -> dict[str, Any]:
    start = f"<b>{name}</b><br>" if name else ""
    return _line(curve.sigma, [v if v > 0 else math.nan for v in curve.error], colour) | {
        "mode": "lines+markers",
        "marker": {"size": 6, "color": colour},
        "customdata": list(zip(curve.low, curve.high, curve.count, strict=True)),
        "name": name,
        "hovertemplate": start
        + "sigma %{x:.3~g}<br>error %{y:.3~g}<br>calibrated models: "
        + f"{_ENDS}<br>%{{customdata[2]:,}} values{_END}",
    }


def _log_square(low: float, high: float) -> dict[str, Any]:
    axis = {"type": "log", "range": [math.log10(low), math.log10(high)], "tickformat": "~g", "nticks": 8}
    axis |= {"dtick": "D2" if high / low < 100 else 1}
    x, y = ({"title": {"text": name}} for name in ("predicted sigma", "root mean square error"))
    words = [_words("over-confident", 0.03, 0.97, "left"), _words("under-confident", 0.97, 0.03, "right")]
    parts = (_OVER, ((low, low), (low, high), (high, high))), (_UNDER, ((low, low), (high, low), (high, high)))
    return {"xaxis": axis | x, "yaxis": axis | y, "annotations": words, "shapes": [_region(*part) for part in parts]}


def sparsification(report: Report) -> Drawing | None:
    """How well sigma ranks errors; None without an sd."""
    curve = report.curves.sparsification
    if curve is None:
        return None
    hover = "dropped %{x:.0%}<br>RMSE of the rest %{y:.3f} of all"
    best = _line(curve.dropped, curve.by_error, _INK, dash="dash", name="largest error first", showlegend=True)
    ours = _line(curve.dropped, curve.by_sigma, _DATA, width=2, name="largest sigma first", showlegend=True)
    ours |= {"fill": "tonexty", "fillcolor": _SOFT}
    traces = [trace | {"hovertemplate": f"{trace['name']}<br>{hover}{_END}"} for trace in (best, ours)]
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
    line = {"color": colour, "width": 1, "dash": "dash"}
    return {"type": "line", "x0": level, "x1": level, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _coverage(groups: Mapping[str, Report], level: float, key: str, colour: str) -> Traces:
    rows, held = list(range(len(groups))), [group.coverage[key] for group in groups.values()]
    bands = [band_at(group.curves.central, level) for group in groups.values()]
    bar = {"type": "data", "symmetric": False, "thickness": 7, "width": 0, "color": _BAND}
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
            "hovertemplate": hover + _END,
        },
    ]


def compared(before: Report, after: Report) -> list[Drawing]:
    """Two reports in the same figures."""
    drawings = [_compared_intervals(before, after), _compared_histograms(before, after)]
    curves = before.curves.sigma, after.curves.sigma
    if curves[0] is not None and curves[1] is not None:
        low, high = sigma_limits([curves[0], curves[1]])
        lines = [_errors(curves[0], _SECOND, "before"), _errors(curves[1], _DATA, "after")]
        traces = [*_band_of_sigma(curves[1]), _diagonal((low, high)), *_with_legend(lines)]
        words = (f"ENCE {number(before.ence)} before, {number(after.ence)} after",)
        drawings.append(Drawing("Error by predicted sigma", words, traces, _log_square(low, high) | _LEGEND))
    return drawings


_LEGEND = {
    "showlegend": True,
    "legend": {
        "x": 0.5,
        "y": 1.02,
        "xanchor": "center",
        "yanchor": "bottom",
        "orientation": "h",
        "traceorder": "normal",
        "bgcolor": "var(--clear)",
    },
}


def _with_legend(traces: Traces) -> Traces:
    return [trace | {"showlegend": True} for trace in traces]


def _compared_intervals(before: Report, after: Report) -> Drawing:
    *_, first = _reliability(before.curves.central, _SECOND, "inside", "before")
    *rest, second = _reliability(after.curves.central, _DATA, "inside", "after")
    layout = _square("nominal level", "share inside", before.curves.central, INTERVAL_REGIONS) | _LEGEND
    lines = (f"n = {count(before.n)} before, {count(after.n)} after",)
    return Drawing("Central intervals", lines, [*rest, *_with_legend([first, second])], layout)


def _compared_histograms(before: Report, after: Report) -> Drawing:
    first = _bars(before.curves.z_histogram, "before", _SECOND_SOFT, _SECOND)
    second = _bars(after.curves.z_histogram, "after", _SOFT, _DATA)
    law = _law(normal_curve(after.curves.z_histogram), "N(0, 1)")
    lines = (f"sd of z {number(before.scale.value)} before, {number(after.scale.value)} after",)
    layout = _density("z, errors in units of the predicted sigma") | _LEGEND
    return Drawing("Residuals z", lines, [first, second, law], layout)
