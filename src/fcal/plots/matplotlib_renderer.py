"""Draws the figure model with matplotlib; also what pictures beyond the model share: new figures, captions, legends."""

import io
import math
from collections.abc import Sequence
from typing import Any

from fcal.plots.captions import shortened
from fcal.plots.figure import Axis, Band, Bars, Dots, Figure, Line, Mark, Note, Rule, Tint
from fcal.plots.styles import DASHES, SERIES

try:
    import matplotlib.figure
    from matplotlib.axes import Axes
    from matplotlib.patheffects import withStroke
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
except ImportError as error:
    raise ImportError("expected matplotlib for fcal.plots; pip install 'fcal[cli]'") from error

_SERIES_COLOURS = ("#0072B2", "#C75500", "#00805F", "#A8487F", "#8A6D00", "#2A8FC4", "#B3263A", "#6A5ACD")
# Okabe and Ito's palette, darkened where text or thin lines in it would be hard to see on white.
PALETTE: dict[str, str | tuple[str, float]] = {
    "ink": "#333333",
    "faint": "#666666",
    "data": "#0072B2",
    "data-soft": ("#0072B2", 0.35),
    "second": "#D55E00",
    "second-soft": ("#D55E00", 0.30),
    "third": "#008562",
    "fourth": "#AA4A84",
    "band": ("#9a9a9a", 0.45),
    "over-soft": ("#D55E00", 0.07),
    "under-soft": ("#56B4E9", 0.11),
    **dict(zip(SERIES, _SERIES_COLOURS, strict=True)),
}
VERDICT_COLOURS = {
    "calibrated": "#00735A",
    "over-confident": "#B34700",
    "under-confident": "#005A94",
    "biased": "#8E3B6B",
    "wrong shape": "#7A5200",
}
_POINTS, _MARKER_POINTS = 0.8, 0.63  # of a line's width and a marker's size, for a pixel of a page
_DASH_PIXELS = 2  # width of the line that lengths of dashes are given for; matplotlib takes them as shares of its width
_SYMBOLS = {"circle": "o", "triangle-left": "<", "triangle-right": ">"}
_SMALL, _TINY = 8, 7.5
_LONGEST_NAME = 32
_MANY_NAMES = 30


class Picture(matplotlib.figure.Figure):
    """A figure outside of pyplot: it is freed when nobody holds it, and notebooks still show it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def new_picture(width: float, height: float) -> Picture:
    """An empty figure that keeps its labels apart; sizes in inches."""
    return Picture(figsize=(width, height), layout="constrained")


def axes_for(ax: Any, *, width: float = 4.2, height: float = 4.2) -> Axes:
    """The axes passed in, or those of a new figure."""
    if ax is None:
        return new_picture(width, height).subplots()
    if not isinstance(ax, Axes):
        raise TypeError(f"expected `ax` matplotlib axes or None, got {type(ax).__name__}")
    return ax


def draw(figure: Figure, ax: Any = None) -> Axes:
    """Draw a figure on axes, or on those of a new picture of a fitting size."""
    rows = len(figure.y.names)
    if rows:
        ax = axes_for(ax, width=6.4, height=1.3 + rows * min(max(0.17, 1.6 / rows), 0.34))
    else:
        ax = axes_for(ax, height=3.4 if figure.aspect == "wide" else 4.2)
    for name, axis in (("x", figure.x), ("y", figure.y)):
        if axis.log:
            ax.set(**{f"{name}scale": "log"})
    for index, mark in enumerate(figure.marks):
        _draw_mark(mark, ax, 1 + index / 100)
    for note in figure.notes:
        _write(ax, note)
    for axis, ticks, name in ((figure.x, ax.xaxis, "x"), (figure.y, ax.yaxis, "y")):
        _set_axis(axis, ax, ticks, name)
    if figure.aspect == "equal":
        ax.set_aspect("equal")
    if figure.legend:
        _legend(ax, figure.legend)
    if figure.title:
        caption(ax, figure.title, *figure.caption)
    quiet(ax)
    if rows:
        ax.tick_params(axis="y", labelsize=_SMALL if rows <= _MANY_NAMES else 6.5, length=0)
    return ax


def _draw_mark(mark: Mark, ax: Axes, order: float) -> None:
    match mark:
        case Line():
            _draw_line(mark, ax, order)
        case Band():
            ax.fill_between(mark.x, mark.low, mark.high, color=PALETTE[mark.colour], lw=0, zorder=order)
        case Bars():
            soft = PALETTE[f"{mark.colour}-soft"]
            ax.stairs(mark.heights, mark.edges, fill=True, color=soft, lw=0, label=mark.name, zorder=order)
            ax.stairs(mark.heights, mark.edges, color=PALETTE[mark.colour], lw=1.2, zorder=order)
        case Dots():
            _draw_dots(mark, ax, order)
        case Rule():
            _draw_rule(mark, ax, order)
        case Tint():
            ax.fill(*zip(*mark.corners, strict=True), color=PALETTE[mark.colour], lw=0, zorder=order)


def _draw_line(mark: Line, ax: Axes, order: float) -> None:
    if not mark.visible:
        return
    style: dict[str, Any] = {**stroke(mark.colour, mark.dash), "lw": _POINTS * mark.width, "zorder": order}
    label = mark.name if mark.name and mark.labelled else None
    if mark.steps:
        ax.stairs(mark.y, mark.x, baseline=None, label=label, **style)
        return
    dots: dict[str, Any] = {"marker": "o", "ms": _MARKER_POINTS * mark.marker} if mark.marker else {}
    if not mark.clipped:
        style |= {"clip_on": False, "zorder": 3}
    ax.plot(mark.x, mark.y, label=label, solid_capstyle="butt", **style, **dots)


def _draw_dots(mark: Dots, ax: Axes, order: float) -> None:
    for symbol, marker in _SYMBOLS.items():
        points = [(x, y) for x, y, own in zip(mark.x, mark.y, mark.symbols, strict=True) if own == symbol]
        x, y = [x for x, _ in points], [y for _, y in points]
        ax.scatter(x, y, s=22, color=PALETTE[mark.colour], marker=marker, lw=0, zorder=order)


def _draw_rule(mark: Rule, ax: Axes, order: float) -> None:
    across = ax.axvline if mark.axis == "x" else ax.axhline
    across(mark.at, **stroke(mark.colour, mark.dash), lw=0.9, zorder=order, label=mark.name or None)
    if mark.label:
        top: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "top"}
        colour = PALETTE[mark.colour]
        ax.annotate(mark.label, (mark.at, 0.99), **top, fontsize=_SMALL, color=colour, fontweight="bold")


def stroke(colour: str, dash: str = "solid") -> dict[str, Any]:
    """Colour and dashes of a line, by their names.

    Example:
        >>> stroke("series-b"), stroke("ink", "dash")
        ({'color': '#C75500', 'linestyle': '-'}, {'color': '#333333', 'linestyle': (0, (2.5, 4.5))})
    """
    plain: dict[str, Any] = {"solid": "-", "dashed": "--", "dotted": ":"}
    lengths = tuple(length / _DASH_PIXELS for length in DASHES.get(dash, ()))
    return {"color": PALETTE[colour], "linestyle": plain.get(dash, (0, lengths))}


def _set_axis(axis: Axis, ax: Axes, ticks: Any, name: str) -> None:
    ticks.set_label_text(axis.label, parse_math=False)
    if not axis.ticks:
        ticks.set_ticks([])
    if axis.names:
        # A dollar sign in a name is not mathematics.
        names = [shortened(text, _LONGEST_NAME) for text in axis.names]
        ticks.set_ticks(range(len(names)), names, parse_math=False)
    if axis.limits is not None or axis.from_zero:
        ax.set(**{f"{name}lim": axis.limits or (0, None)})
    if axis.log:
        log_ticks(ticks)
    elif axis.whole:
        ticks.set_major_locator(MaxNLocator(8, integer=True))


def log_ticks(ticks: Any) -> None:
    """Plain numbers, at 1, 2 and 5 where the axis spans less than two decades."""
    low, high = ticks.get_view_interval()
    steps = (1.0, 2.0, 5.0) if math.log10(high / low) < 2 else (1.0,)
    ticks.set_major_locator(LogLocator(subs=steps, numticks=8))
    ticks.set_minor_formatter(NullFormatter())
    ticks.set_major_formatter(StrMethodFormatter("{x:g}"))


def _legend(ax: Axes, where: str) -> None:
    corner: dict[str, Any] = {
        "loc": "upper right" if where == "above" else where,
        "handlelength": 1.2,
        "borderaxespad": 0.1,
    }
    below: dict[str, Any] = {
        "loc": "upper center",
        "bbox_to_anchor": (0.5, -0.14),
        "ncols": 4,
        "handlelength": 1.2,
        "columnspacing": 1,
    }
    style: dict[str, Any] = {"free": {"handlelength": 4}, "outside": below}.get(where, corner)
    for text in ax.legend(frameon=False, fontsize=_SMALL, **style).get_texts():
        text.set_parse_math(False)


def common_legend(picture: Picture, handles: Sequence[Any], names: Sequence[str], **style: Any) -> None:
    """A legend for all panels, under them; names are plain text."""
    legend = picture.legend(handles, names, loc="outside lower center", frameon=False, fontsize=_SMALL, **style)
    for text in legend.get_texts():
        text.set_parse_math(False)


def caption(ax: Axes, title: str, *lines: str) -> None:
    """A title with small lines under it, above the axes, where no curve goes."""
    lines = tuple(line for line in lines if line)
    pad = 6 + (_TINY + 2.5) * len(lines)
    ax.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=pad, parse_math=False)
    below: dict[str, Any] = {"xy": (0, 1), "xycoords": "axes fraction", "xytext": (0, 4), "textcoords": "offset points"}
    style: dict[str, Any] = {"fontsize": _TINY, "color": PALETTE["faint"], "parse_math": False}
    ax.annotate("\n".join(lines), **below, ha="left", va="bottom", **style)


def _write(ax: Axes, note: Note) -> None:
    """Text in a panel, readable also across a curve."""
    halo = [withStroke(linewidth=2.5, foreground="white", alpha=0.85)]
    style: dict[str, Any] = {"fontsize": _SMALL, "color": PALETTE["faint"], "path_effects": halo}
    ax.text(note.x, note.y, note.text, ha=note.side, va="center", transform=ax.transAxes, **style)


def quiet(ax: Axes) -> None:
    """Remove what carries no information."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    ax.xaxis.label.set_fontsize(9)
    ax.yaxis.label.set_fontsize(9)
