"""What calibration costs: two columns of a benchmark against each other while one setting varies."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fcal.plots.canvas import FAINT, axes_for, quiet
from fcal.plots.columns import column_title
from fcal.plots.line_styles import line_style
from fcal.plots.methods import method_order, method_title

_SCALES = ("", "x", "y", "xy")


def tradeoff(
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    x: str,
    y: str,
    label: str | None = None,
    log: str = "",
    floor: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A line for each method through its points in the order given, such as L1 against ECE while lam grows.

    It serves ablations too: ``x`` may be the setting itself.

    Args:
        curves: By method, points such as ``{"lam": 0.1, "l1": 0.002, "ece_q": 0.05}``; those that lack a value are
            left out.
        x: Name of what is drawn to the right.
        y: Name of what is drawn upwards.
        label: Name of what is written beside the points; nothing where absent.
        log: Axes with a logarithmic scale: ``""``, ``"x"``, ``"y"`` or ``"xy"``.
        floor: What a calibrated model scores in ``y``, dashed; nothing where absent.
        ax: Axes to draw on; new ones where absent.

    Returns:
        The axes.
    """
    if log not in _SCALES:
        raise ValueError(f"expected `log` one of {', '.join(map(repr, _SCALES))}, got {log!r}")
    ax = axes_for(ax, height=3.6)
    for method in sorted(curves, key=method_order):
        points = [point for point in curves[method] if _known(point, x) and _known(point, y)]
        place = [[float(point[name]) for point in points] for name in (x, y)]
        ax.plot(*place, marker="o", ms=3.5, lw=1.4, label=method_title(method), **line_style(method))
        if label is not None:
            _write_beside(ax, points, (x, y), label, line_style(method)["color"])
    if floor is not None:
        ax.axhline(floor, color=FAINT, lw=0.9, ls="--", label="floor: a calibrated model")
    _finish(ax, x, y, log)
    return ax


def _known(point: Mapping[str, Any], name: str) -> bool:
    value = point.get(name)
    return isinstance(value, int | float) and math.isfinite(value)


def _write_beside(
    ax: Axes, points: Sequence[Mapping[str, Any]], names: tuple[str, str], label: str, colour: str
) -> None:
    for point in points:
        value = point.get(label, "")
        words = f"{value:g}" if isinstance(value, int | float) else str(value)
        xy = (float(point[names[0]]), float(point[names[1]]))
        ax.annotate(words, xy, (3, 3), textcoords="offset points", fontsize=6.5, color=colour, parse_math=False)


def _finish(ax: Axes, x: str, y: str, log: str) -> None:
    for name, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        if name in log:
            ax.set(**{f"{name}scale": "log"})
        else:
            axis.set_major_locator(MaxNLocator(5))
    ax.set_xlabel(column_title(x), parse_math=False)
    ax.set_ylabel(column_title(y), parse_math=False)
    for text in ax.legend(frameon=False, fontsize=8, handlelength=4).get_texts():
        text.set_parse_math(False)
    quiet(ax)
