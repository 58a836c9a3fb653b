"""The figure model: what a figure shows, as plain data.

A figure is derived once, by a function of ``report_figures``, ``row_figures`` or ``benchmark_figures``, and drawn
twice: by matplotlib for pictures and as SVG for pages. Colours are names, such as ``"data"`` or ``"series-a"``; each
renderer has a palette. Marks are drawn in their order, later ones on top.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Values = Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line through points; a NaN is a gap.

    Attributes:
        x: Abscissae; with ``steps`` the edges of intervals, one more than ``y``.
        y: Ordinates.
        colour: Name of a colour.
        width: In pixels of a page.
        dash: A key of ``styles.DASHES``, or ``"dashed"`` or ``"dotted"``.
        marker: Diameter of the dots at its points, in pixels of a page.
        name: What it is called when hovering, and in the legend.
        labelled: Whether the legend names it.
        hover: Lines shown when hovering, with values as ``str.format`` writes them: ``{x:.3g}``, ``{y:.1%}``, and
            ``{0:,}`` for the first of ``extra``; nothing is shown where empty.
        extra: More values for each point, for ``hover``.
        steps: Whether ``y`` is constant between two edges, as in a histogram.
        clipped: Whether it ends at the frame of the axes.
        row: Row of a benchmark that it belongs to; a page shows and hides all lines of a row together.
        visible: Whether a page shows it at first.
    """

    x: Values
    y: Values
    colour: str = "data"
    width: float = 2
    dash: str = "solid"
    marker: float = 0
    name: str = ""
    labelled: bool = True
    hover: str = ""
    extra: Sequence[Values] = ()
    steps: bool = False
    clipped: bool = True
    row: str | None = None
    visible: bool = True


@dataclass(frozen=True, kw_only=True)
class Band:
    """The area between two curves."""

    x: Values
    low: Values
    high: Values
    colour: str = "band"


@dataclass(frozen=True, kw_only=True)
class Bars:
    """A histogram: filled bars from zero; ``edges`` are one more than ``heights``."""

    edges: Values
    heights: Values
    name: str
    colour: str = "data"


@dataclass(frozen=True, kw_only=True)
class Dots:
    """Dots with a symbol for each: ``"circle"``, ``"triangle-left"`` or ``"triangle-right"``."""

    x: Values
    y: Values
    symbols: Sequence[str]
    texts: Sequence[str]
    colour: str
    hover: str
    extra: Sequence[Values]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A straight line across the axes where ``x``, or ``y``, has a value; ``label`` stands at its upper end."""

    at: float
    axis: Literal["x", "y"] = "x"
    colour: str = "faint"
    dash: str = "solid"
    name: str = ""
    label: str = ""


@dataclass(frozen=True)
class Tint:
    """A coloured polygon behind everything."""

    colour: str
    corners: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Note:
    """Text at a share of the width and height of the axes, with its ``side`` end there."""

    text: str
    x: float
    y: float
    side: Literal["left", "right"]


Mark = Line | Band | Bars | Dots | Rule | Tint


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis.

    Attributes:
        label: What it shows.
        limits: Its ends; those of the data if None.
        log: Whether it is logarithmic.
        share: Whether values are shares, which pages write in percent.
        whole: Whether only whole numbers are marked.
        from_zero: Whether it starts at 0.
        names: Names written at 0, 1, ... instead of numbers.
        ticks: Whether values are marked at all.
    """

    label: str = ""
    limits: tuple[float, float] | None = None
    log: bool = False
    share: bool = False
    whole: bool = False
    from_zero: bool = False
    names: Sequence[str] = ()
    ticks: bool = True


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure.

    Attributes:
        title: Heading.
        caption: Small lines under it; empty ones are left out.
        x: The horizontal axis.
        y: The vertical axis.
        marks: What is drawn, from the bottom to the top.
        notes: Text within the axes.
        legend: Where a picture has its legend; none where empty. ``"outside"`` is below the axes, ``"above"`` in the
            upper right corner. A page has it above the drawing. ``"free"`` is wherever there is room in a picture; a
            page has a legend of buttons for all its figures instead.
        aspect: ``"wide"``, ``"square"``, or ``"equal"`` for a square in which both axes have the same scale.
    """

    title: str
    caption: Sequence[str] = ()
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    notes: Sequence[Note] = ()
    legend: Literal["", "upper right", "above", "outside", "free"] = ""
    aspect: Literal["wide", "square", "equal"] = "wide"


def segments(ends: Mapping[int, tuple[float, float]], *, colour: str, width: float) -> Line:
    """Horizontal segments, each in the row that is its key.

    Example:
        >>> segments({2: (0.5, 1.5)}, colour="data", width=1).y[:2]
        [2, 2]
    """
    x = [value for pair in ends.values() for value in (*pair, math.nan)]
    y = [value for row in ends for value in (row, row, math.nan)]
    return Line(x=x, y=y, colour=colour, width=width)
