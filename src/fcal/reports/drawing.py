"""What figures are made of: lines, bands, regions and legends as plain data for plotly, and the words around them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fcal.metrics.report import Reliability
from fcal.plots.geometry import Region
from fcal.reports.markup import escaped, script_json

Traces = list[dict[str, Any]]

INK, FAINT, BAND = "var(--ink)", "var(--faint)", "var(--band)"
DATA, SOFT, SECOND, SECOND_SOFT = "var(--data)", "var(--data-soft)", "var(--second)", "var(--second-soft)"
OVER, UNDER = "var(--over-soft)", "var(--under-soft)"
_TINTS = {"over-confident": OVER, "under-confident": UNDER}
END = "<extra></extra>"  # without a box for the name of the trace

LEGEND: dict[str, Any] = {
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
        caption = f"<figcaption>{lines}</figcaption>" if lines else ""
        label = escaped(": ".join(part for part in (self.title, "; ".join(filter(None, self.caption))) if part))
        height = f' style="height:{self.tall}px"' if self.tall else ""
        kind = "plot wide" if self.tall else "plot"
        document = script_json({"data": self.traces, "layout": self.layout})
        return (
            f'<figure class="{kind}"><h3>{escaped(self.title)}</h3>{caption}'
            f'<div class="drawing" role="img" aria-label="{label}"{height}></div>'
            f'<script type="application/json">{document}</script></figure>'
        )


def grid(drawings: Iterable[Drawing | None], *, kind: str = "") -> str:
    """Figures beside each other, as many as fit.

    Args:
        drawings: Without those that are None.
        kind: Extra classes, such as ``"two-columns"`` for no more than two where the page is wide.
    """
    parts = "\n".join(drawing.html() for drawing in drawings if drawing is not None)
    kinds = f"plots {kind}".strip()
    return f'<div class="{kinds}">\n{parts}\n</div><noscript><p>The pictures need JavaScript.</p></noscript>'


def square(x: str, y: str, curve: Reliability, regions: Sequence[Region]) -> dict[str, Any]:
    """Layout of a reliability diagram, whose regions bear their names where the curve leaves room."""
    axis = {"range": [-0.01, 1.01], "tickformat": ".0%", "dtick": 0.2}
    return {
        "xaxis": axis | {"title": {"text": x}},
        "yaxis": axis | {"title": {"text": y}},
        "shapes": [tint(_TINTS[region.name], region.corners) for region in regions],
        "annotations": [words_at(region.name, *region.spot(curve), region.side) for region in regions],
    }


def tint(colour: str, corners: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """A coloured part of a diagram, behind everything."""
    path = "M" + "L".join(f"{x},{y}" for x, y in corners) + "Z"
    return {"type": "path", "path": path, "fillcolor": colour, "line": {"width": 0}, "layer": "below"}


def words_at(text: str, x: float, y: float, side: str) -> dict[str, Any]:
    """Words in a figure, at a share of its width and height."""
    place = {"x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": side, "yanchor": "middle", "showarrow": False}
    return place | {"text": text, "font": {"size": 11, "color": FAINT}}


def line(x: Sequence[float], y: Sequence[float], colour: str, **style: Any) -> dict[str, Any]:
    """A line; what is said of its style goes to plotly, but for its width and dashes."""
    stroke = {"color": colour, "width": style.pop("width", 1.5), "dash": style.pop("dash", "solid")}
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "line": stroke, "showlegend": False} | style


def band(x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> Traces:
    """What lies between two lines."""
    still = {"hoverinfo": "skip", "width": 0}
    upper = line(x, high, BAND, **still) | {"fill": "tonexty", "fillcolor": BAND}
    return [line(x, low, BAND, **still), upper]


def diagonal(ends: Sequence[float]) -> dict[str, Any]:
    """Where nominal and actual agree."""
    return line(ends, ends, FAINT, width=1, dash="dash", hoverinfo="skip")


def density_axes(x: str) -> dict[str, Any]:
    """Layout of a histogram, with its legend in the corner above the tails."""
    legend = {"x": 0.99, "y": 0.99, "xanchor": "right", "yanchor": "top", "bgcolor": "var(--clear)"}
    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": "density"}, "rangemode": "tozero"}}
    return axes | {"bargap": 0, "barmode": "overlay", "showlegend": True, "legend": legend}


def with_legend(traces: Traces) -> Traces:
    """The same traces, named in the legend."""
    return [trace | {"showlegend": True} for trace in traces]
