"""Results of an ablation: lines over the setting that was varied, or a dot for every named choice."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from fcal.plots.captions import number, shortened
from fcal.plots.matplotlib_renderer import PALETTE, axes_for, caption, log_ticks, quiet

Pairs = Sequence[tuple[float | None, float | None]]
Floor = tuple[float, float]

_COLOURS = ("#0072B2", "#D55E00", "#008562", "#AA4A84", "#B07D00", "#56B4E9", "#7A5200", "#333333")
_MARKS = "osD^vPX*"
_LONGEST_NAME = 44
_APART = 0.055  # of the axis; ticks nearer than that to the one before have no room for their numbers
_MOST_TICKS = 12
_FACTOR = 3
_SMALL = 7.5
_FLOOR_LINE: dict[str, Any] = {"color": PALETTE["faint"], "lw": 0.8, "ls": ":", "zorder": 1}


def lines(
    series: Mapping[str, Pairs],
    *,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
    marks: Mapping[str, Sequence[str]] = {},
    floor: Floor | None = None,
    zero: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Lines through measured points, one for each series.

    Args:
        series: By name, pairs of x and y in the order in which they are joined. A series whose only x is None does not
            depend on x and is drawn across the panel; a point whose y is None leaves a gap.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        log_x: Whether x is logarithmic where it spans more than a factor of 3.
        log_y: The same of y.
        marks: By name, a label for every point of a series; the first and the last are written.
        floor: Mean and 95 % quantile of y for perfect predictions, drawn as a grey band.
        zero: Whether y = 0 is drawn.
        ax: Axes to draw on; new ones by default.

    Returns:
        The axes, with one line for each series in their order, labelled by their names.

    Raises:
        ValueError: There is no series, or a number that a logarithmic axis cannot show.

    Example:
        >>> ax = lines({"a": [(1, 2.0), (10, 3.0)], "b": [(None, 2.5)]}, x="K", y="ECE", log_x=True)
        >>> [line.get_label() for line in ax.lines]
        ['a', 'b']
    """
    if not any(series.values()):
        raise ValueError("expected `series` with a point at least, got none")
    for name, pairs in series.items():
        _check("series", name, [a for a, _ in pairs], log_x)
        _check("series", name, [b for _, b in pairs], log_y)
    ax = axes_for(ax, width=5.4, height=4.0)
    points = sorted({a for pairs in series.values() for a, _ in pairs if a is not None})
    heights = [b for pairs in series.values() for _, b in pairs]
    ax.set(xlabel=x, ylabel=y, xscale=_scale(log_x, points), yscale=_scale(log_y, [*heights, *(floor or ())]))
    for index, (name, pairs) in enumerate(series.items()):
        _draw(ax, name, pairs, index, marks.get(name, ()))
    _draw_floor(ax.axhspan, ax.axhline, floor)
    if zero:
        ax.axhline(0.0, **_FLOOR_LINE)
    _plain_numbers(ax.xaxis, points)
    _plain_numbers(ax.yaxis)
    caption(ax, "", _floor_note(floor))
    quiet(ax)
    return ax


def dots(
    values: Mapping[str, float | None],
    *,
    x: str,
    log_x: bool = False,
    reference: tuple[str, float | None] | None = None,
    floor: Floor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """One value for each name, from the top, with the number beside its dot.

    Args:
        values: By name; None where it failed.
        x: Label of the horizontal axis.
        log_x: Whether the axis is logarithmic where it spans more than a factor of 3.
        reference: Name and value that all are compared with, drawn as a dashed line.
        floor: Mean and 95 % quantile for perfect predictions, drawn as a grey band.
        ax: Axes to draw on; by default new ones, as high as the names need.

    Raises:
        ValueError: There is no name, or a number that a logarithmic axis cannot show.

    Example:
        >>> ax = dots({"kl": 0.02, "hellinger": None}, x="ECE(q)")
        >>> [label.get_text() for label in ax.get_yticklabels()], [text.get_text() for text in ax.texts[:2]]
        (['kl', 'hellinger'], ['0.0200', 'failed'])
    """
    if not values:
        raise ValueError("expected `values` of a name at least, got none")
    for name, value in values.items():
        _check("values", name, [value], log_x)
    ax = axes_for(ax, width=6.4, height=1.4 + 0.28 * len(values))
    ax.set(xscale=_scale(log_x, [*values.values(), *(floor or ())]), xlabel=x, ylim=(len(values) - 0.4, -0.6))
    known = [(value, row) for row, value in enumerate(values.values()) if value is not None]
    ax.plot([value for value, _ in known], [row for _, row in known], "o", ms=5, color=PALETTE["data"])
    for row, value in enumerate(values.values()):
        if value is None:
            style: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "color": PALETTE["second"], "va": "center"}
            ax.text(0.02, row, "failed", fontsize=_SMALL, **style)
        else:
            ax.annotate(number(value), (value, row), (6, 0), textcoords="offset points", fontsize=_SMALL, va="center")
    compared = ""
    if reference is not None and reference[1] is not None:
        ax.axvline(reference[1], color=PALETTE["second"], lw=1.1, ls="--", zorder=1)
        compared = f"dashed: {reference[0]}, {number(reference[1])}"
    _draw_floor(ax.axvspan, ax.axvline, floor)
    ax.margins(x=0.22)
    ax.set_yticks(range(len(values)), [shortened(name, _LONGEST_NAME) for name in values], parse_math=False)
    _plain_numbers(ax.xaxis)
    caption(ax, "", compared, _floor_note(floor))
    quiet(ax)
    ax.tick_params(axis="y", length=0)
    return ax


def _check(argument: str, name: str, values: Iterable[float | None], log: bool) -> None:
    for value in values:
        if value is not None and (not math.isfinite(value) or (log and value <= 0)):
            requirement = "positive, for a logarithmic axis" if log else "finite"
            raise ValueError(f"expected `{argument}` {name!r} {requirement}, got {value}")


def _draw(ax: Axes, name: str, pairs: Pairs, index: int, point_labels: Sequence[str]) -> None:
    style: dict[str, Any] = {
        "color": _COLOURS[index % len(_COLOURS)],
        "lw": 1.3,
        "label": shortened(name, _LONGEST_NAME),
    }
    if len(pairs) == 1 and pairs[0][0] is None and pairs[0][1] is not None:
        ax.axhline(pairs[0][1], ls="--", zorder=2, **style)
        return
    nan = math.nan  # a gap
    shown = [(nan, nan) if a is None or b is None else (a, b) for a, b in pairs]
    size = 4.5 if len(pairs) > 1 else 8
    ax.plot(*zip(*shown, strict=True), marker=_MARKS[index % len(_MARKS)], ms=size, zorder=3, **style)
    labelled = [(pair, text) for pair, text in zip(shown, point_labels, strict=False) if not math.isnan(pair[1])]
    for pair, text in dict([labelled[0], labelled[-1]] if labelled else []).items():
        ax.annotate(text, pair, (4, 3), textcoords="offset points", fontsize=6.5, color=style["color"])


def _draw_floor(span: Any, line: Any, floor: Floor | None) -> None:
    if floor is not None:
        span(*floor, color="#9a9a9a", alpha=0.3, lw=0, zorder=0)
        line(floor[0], **_FLOOR_LINE)


def _floor_note(floor: Floor | None) -> str:
    return "" if floor is None else f"grey: perfect predictions, mean {number(floor[0])} to 95 % {number(floor[1])}"


def _scale(log: bool, values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return "log" if log and known and max(known) > _FACTOR * min(known) else "linear"


def _plain_numbers(axis: Any, points: Sequence[float] = ()) -> None:
    """Plain decimal numbers; on a logarithmic axis, ticks at the points themselves where they are few."""
    if axis.get_scale() != "log":
        axis.get_major_formatter().set_useOffset(False)
        return
    log_ticks(axis)
    if 2 <= len(points) <= _MOST_TICKS:
        kept = [points[0]]
        for point in points[1:]:
            if math.log(point / kept[-1]) >= _APART * math.log(points[-1] / points[0]):
                kept.append(point)
        axis.set_major_locator(FixedLocator(kept))
        axis.set_minor_locator(NullLocator())
