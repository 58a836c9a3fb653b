"""Draws the figure model with plotly: plain data that the script of the page hands over, with colours by name."""

import math
from collections.abc import Iterable
from typing import Any

from fcal.plots.captions import shortened
from fcal.plots.figure import Axis, Band, Bars, Dots, Figure, Line, Mark, Note, Rule, Tint
from fcal.plots.styles import DASHES
from fcal.reports.page import escaped, script_json

_NO_BOX = "<extra></extra>"  # for the name of a trace beside its hover text
_LEGENDS: dict[str, dict[str, Any]] = {
    "upper right": {"x": 0.99, "y": 0.99, "xanchor": "right", "yanchor": "top"},
    "lower left": {"x": 0.02, "y": 0.02, "xanchor": "left", "yanchor": "bottom"},
    "above": {
        "x": 0.5,
        "y": 1.02,
        "xanchor": "center",
        "yanchor": "bottom",
        "orientation": "h",
        "traceorder": "normal",
    },
}
_LONGEST_NAME = 24
_FEW_NUMBERS = 8
_PAD = 0.01


def figure_html(figure: Figure) -> str:
    """Markup of a figure; the page's script draws it."""
    lines = [line for line in figure.caption if line]
    caption = f"<figcaption>{'<br>'.join(map(escaped, lines))}</figcaption>" if lines else ""
    label = escaped(": ".join(text for text in (figure.title, "; ".join(lines)) if text))
    rows = len(figure.y.names)
    classes, height = ("plot wide", f' style="height:{110 + 21 * rows}px"') if rows else ("plot", "")
    document = script_json({"data": traces(figure), "layout": layout(figure)})
    return (
        f'<figure class="{classes}"><h3>{escaped(figure.title)}</h3>{caption}'
        f'<div class="drawing" role="img" aria-label="{label}"{height}></div>'
        f'<script type="application/json">{document}</script></figure>'
    )


def grid(figures: Iterable[Figure], *, classes: str = "") -> str:
    """Figures beside each other, as many as fit; with the class ``"two-columns"`` no more than two."""
    drawn = "\n".join(map(figure_html, figures))
    classes = f"plots {classes}".strip()
    return f'<div class="{classes}">\n{drawn}\n</div><noscript><p>The pictures need JavaScript.</p></noscript>'


def colour_of(name: str) -> str:
    """A colour that the style sheet defines, dark and light."""
    return f"var(--{name})"


def plot_text(text: str) -> str:
    """Text for a plotly figure, which interprets tags, entities, templates, and formulas between dollar signs."""
    return escaped(text).replace("$", "&#36;").replace("%", "&#37;")


def traces(figure: Figure) -> list[dict[str, Any]]:
    """The marks of a figure as plotly's traces; rules and tints are part of the layout."""
    drawn = [trace for mark in figure.marks for trace in _traces(mark)]
    return [trace | {"showlegend": figure.legend in _LEGENDS and bool(trace.get("name"))} for trace in drawn]


def _traces(mark: Mark) -> list[dict[str, Any]]:
    match mark:
        case Line():
            return [_line_trace(mark)]
        case Band():
            edge = {"type": "scatter", "mode": "lines", "x": list(mark.x), "line": {"width": 0}, "hoverinfo": "skip"}
            fill = {"fill": "tonexty", "fillcolor": colour_of(mark.colour)}
            return [edge | {"y": list(mark.low)}, edge | {"y": list(mark.high)} | fill]
        case Bars():
            return [_bar_trace(mark)]
        case Dots():
            return [_dot_trace(mark)]
        case Rule() | Tint():
            return []


def _line_trace(mark: Line) -> dict[str, Any]:
    shape = {"shape": "hv"} if mark.steps else {}
    colour = colour_of(mark.colour)
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if mark.marker else "lines",
        "x": list(mark.x),
        "y": [*mark.y, mark.y[-1]] if mark.steps else list(mark.y),
        "line": {"color": colour, "width": mark.width, "dash": _dashes(mark.dash)} | shape,
        "name": plot_text(mark.name),
        **_hover(mark.name, mark.hover),
    }
    if mark.marker:
        trace["marker"] = {"size": mark.marker, "color": colour}
    if mark.extra:
        trace["customdata"] = list(mark.extra)
    if not mark.clipped:
        trace["cliponaxis"] = False
    if mark.row is not None:
        trace |= {"meta": mark.row, "visible": mark.visible}
    return trace


def _bar_trace(mark: Bars) -> dict[str, Any]:
    ends = list(zip(mark.edges[:-1], mark.edges[1:], strict=True))
    colour = colour_of(mark.colour)
    return {
        "type": "bar",
        "x": [(low + high) / 2 for low, high in ends],
        "width": [high - low for low, high in ends],
        "y": list(mark.heights),
        "customdata": ends,
        "marker": {"color": colour_of(f"{mark.colour}-soft"), "line": {"color": colour, "width": 0.6}},
        "name": plot_text(mark.name),
        **_hover(mark.name, "from %{customdata[0]:.3~g} to %{customdata[1]:.3~g}<br>density %{y:.3~g}"),
    }


def _dot_trace(mark: Dots) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": list(mark.x),
        "y": list(mark.y),
        "text": [plot_text(text) for text in mark.texts],
        "customdata": list(mark.extra),
        "marker": {"size": 8, "color": colour_of(mark.colour), "symbol": list(mark.symbols)},
        "hovertemplate": f"%{{text}}<br>{mark.hover}{_NO_BOX}",
    }


def _hover(name: str, template: str) -> dict[str, str]:
    if not template:
        return {"hoverinfo": "skip"}
    start = f"<b>{plot_text(name)}</b><br>" if name else ""
    return {"hovertemplate": f"{start}{template}{_NO_BOX}"}


def _dashes(dash: str) -> str:
    plain = {"solid": "solid", "dashed": "dash", "dotted": "dot"}
    return plain[dash] if dash in plain else ",".join(f"{length}px" for length in DASHES[dash])


def layout(figure: Figure) -> dict[str, Any]:
    """Axes, legend, rules, tints and notes; the page adds fonts, margins and colours."""
    rules = [mark for mark in figure.marks if isinstance(mark, Rule)]
    tints = [mark for mark in figure.marks if isinstance(mark, Tint)]
    document: dict[str, Any] = {
        "xaxis": _axis(figure.x),
        "yaxis": _axis(figure.y),
        "shapes": [*map(_tint_shape, tints), *map(_rule_shape, rules)],
        "annotations": [*map(_annotation, figure.notes), *(_rule_label(rule) for rule in rules if rule.label)],
    }
    longest = max((x for mark in figure.marks if isinstance(mark, Line) for x in mark.x), default=0)
    if figure.x.whole and longest <= _FEW_NUMBERS:
        document["xaxis"]["dtick"] = 1
    if figure.y.names:
        document["margin"] = {"l": 8}
    if any(isinstance(mark, Bars) for mark in figure.marks):
        document |= {"bargap": 0, "barmode": "overlay"}
    if figure.legend in _LEGENDS:
        document |= {"showlegend": True, "legend": _LEGENDS[figure.legend] | {"bgcolor": colour_of("clear")}}
    return document


def _axis(axis: Axis) -> dict[str, Any]:
    document: dict[str, Any] = {"title": {"text": plot_text(axis.label)}} if axis.label else {}
    if axis.names:
        ticks = [plot_text(shortened(name, _LONGEST_NAME)) for name in axis.names]
        document |= {"tickvals": list(range(len(ticks))), "ticktext": ticks, "zeroline": False, "showgrid": False}
    if axis.from_zero:
        document["rangemode"] = "tozero"
    if axis.share:
        document["tickformat"] = ".0%"
    if axis.limits is None:
        return document
    low, high = axis.limits
    if axis.log:
        document |= {"type": "log", "range": [math.log10(low), math.log10(high)], "tickformat": "~g", "nticks": 8}
        return document | {"dtick": "D2" if high / low < 100 else 1}
    if axis.share:  # dots at the ends are seen whole
        return document | {"range": [low - _PAD, high + _PAD], "dtick": 0.2}
    return document | {"range": [low, high]}


def _tint_shape(tint: Tint) -> dict[str, Any]:
    path = "M" + "L".join(f"{x},{y}" for x, y in tint.corners) + "Z"
    return {"type": "path", "path": path, "fillcolor": colour_of(tint.colour), "line": {"width": 0}, "layer": "below"}


def _rule_shape(rule: Rule) -> dict[str, Any]:
    other = "y" if rule.axis == "x" else "x"
    stroke = {"color": colour_of(rule.colour), "width": 1, "dash": _dashes(rule.dash)}
    place = {f"{rule.axis}0": rule.at, f"{rule.axis}1": rule.at}
    return {"type": "line", "line": stroke} | place | {f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1}


def _rule_label(rule: Rule) -> dict[str, Any]:
    position = {"x": rule.at, "y": 1, "yref": "paper", "xanchor": "center", "yanchor": "top", "showarrow": False}
    return position | {"text": f"<b>{plot_text(rule.label)}</b>", "font": {"size": 11, "color": colour_of(rule.colour)}}


def _annotation(note: Note) -> dict[str, Any]:
    position = {"x": note.x, "y": note.y, "xref": "paper", "yref": "paper", "xanchor": note.side, "yanchor": "middle"}
    style = {"showarrow": False, "font": {"size": 11, "color": colour_of("faint")}}
    return position | style | {"text": plot_text(note.text)}
