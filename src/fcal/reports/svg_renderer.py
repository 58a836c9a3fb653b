"""Draws the figure model as SVG, in the markup of the page, with colours by name.

Drawings need no script; that of the page shows the values of the nearest point, for which they come along as JSON, and
hides the lines of a row.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fcal.plots.figure import Band, Bars, Dots, Figure, Line, Mark, Note, Rule, Tint
from fcal.plots.styles import DASHES
from fcal.reports.page import escaped, script_json
from fcal.reports.svg_axes import CHARACTER, NAME_CHARACTER, Scale, scale_of, ticks_of

_WIDTH, _HEIGHT = 400, 350
_WIDE, _ROW_HEIGHT = 640, 21
_TOP, _RIGHT, _BOTTOM = 10, 16, 42
_LABEL = 18  # room for the label of an axis or of a rule
_PLAIN_DASHES = {"dashed": (6, 5), "dotted": (2, 3)}
_SHAPES = {
    "circle": "m-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "triangle-left": "m-5,0l8,-5v10z",
    "triangle-right": "m5,0l-8,-5v10z",
}


def figure_html(figure: Figure) -> str:
    """Markup of a figure: heading, caption, legend and drawing."""
    lines = [line for line in figure.caption if line]
    caption = f"<figcaption>{'<br>'.join(map(escaped, lines))}</figcaption>" if lines else ""
    label = escaped(": ".join(text for text in (figure.title, "; ".join(lines)) if text))
    plane = _Plane.of(figure)
    box = f'viewBox="0 0 {plane.width} {plane.height}"'
    points = script_json(plane.document()) if plane.hovers else ""
    data = f'<script type="application/json">{points}</script>' if points else ""
    drawing = f'<svg class="drawing" {box} role="img" aria-label="{label}">{plane.drawing}</svg>'
    classes = "plot"
    if figure.y.names:  # too wide for a phone
        classes, drawing = "plot wide", f'<div class="scrolls" tabindex="0">{drawing}</div>'
    heading = f"<h3>{escaped(figure.title)}</h3>{caption}{_legend(figure)}"
    return f'<figure class="{classes}">{heading}{drawing}{data}</figure>'


def grid(figures: Iterable[Figure], *, classes: str = "") -> str:
    """Figures beside each other, as many as fit; with the class ``"two-columns"`` no more than two."""
    drawn = "\n".join(map(figure_html, figures))
    return f'<div class="{f"plots {classes}".strip()}">\n{drawn}\n</div>'


def colour_of(name: str) -> str:
    """A colour that the style sheet defines, dark and light."""
    return f"var(--{name})"


def line_sample(colour: str, dash: str = "solid", width: float = 2) -> str:
    """A short piece of a line, for a legend."""
    return _sample(f'<path d="M1 5H35"{_stroke(colour, dash, width)}/>')


def _dot_sample(colour: str, radius: float) -> str:
    return _sample(f'<circle cx="18" cy="5" r="{radius:g}" style="fill:{colour_of(colour)}"/>')


def _sample(shape: str) -> str:
    return f'<svg class="sample" viewBox="0 0 36 10" aria-hidden="true">{shape}</svg>'


def _legend(figure: Figure) -> str:
    """Names of marks, above the drawing, where they hide nothing; a ``"free"`` one is that of the whole section."""
    if figure.legend in ("", "free"):
        return ""
    entries = []
    for mark in figure.marks:
        if isinstance(mark, Bars):
            entries.append((line_sample(f"{mark.colour}-soft", width=8), mark.name))
        elif isinstance(mark, Line) and mark.name and mark.labelled:
            dot = _dot_sample(mark.colour, mark.marker / 2)
            entries.append((line_sample(mark.colour, mark.dash, mark.width) if mark.width else dot, mark.name))
    items = "".join(f"<li>{sample}{escaped(name)}</li>" for sample, name in entries)
    return f'<ul class="legend small">{items}</ul>'


@dataclass
class _Plane:
    """A drawing: its size, the scales within its frame, its marks, and the points that show their values."""

    width: int
    height: int
    left: float
    top: float
    x: Scale
    y: Scale
    drawing: str = ""
    hovers: list[dict[str, Any]] = field(default_factory=list)
    _columns: list[list[float | None]] = field(default_factory=list)

    @classmethod
    def of(cls, figure: Figure) -> "_Plane":
        rows = len(figure.y.names)
        top = _TOP + (_LABEL if any(isinstance(mark, Rule) and mark.label for mark in figure.marks) else 0)
        width, height = (_WIDE, top + _BOTTOM + _ROW_HEIGHT * rows + 8) if rows else (_WIDTH, _HEIGHT)
        y = scale_of(figure, "y", height - top - _BOTTOM)
        widest = max((len(label) for _, label in ticks_of(figure.y, y)), default=1)
        character = NAME_CHARACTER if rows else CHARACTER
        left = character * widest + 9 + (_LABEL if figure.y.label else 0)
        x = scale_of(figure, "x", width - left - _RIGHT)
        plane = cls(width, height, left, top, x, y)
        plane.drawing = plane._axes(figure) + plane._marks(figure)
        return plane

    def document(self) -> dict[str, Any]:
        """What the script needs to find the nearest point."""
        scales = {name: [s.low, s.high, s.length, int(s.log)] for name, s in (("x", self.x), ("y", self.y))}
        return {"at": [round(self.left, 1), self.top], **scales, "columns": self._columns, "marks": self.hovers}

    def _axes(self, figure: Figure) -> str:
        bottom, right = self.top + self.y.length, self.left + self.x.length
        lines, texts = [], []
        for value, label in ticks_of(figure.x, self.x):
            place = self.left + self.x(value)
            lines.append(f"M{place:.1f},{self.top}V{bottom:.1f}")
            texts.append(f'<text class="x" x="{place:.1f}" y="{bottom + 15:.1f}">{escaped(label)}</text>')
        for value, label in ticks_of(figure.y, self.y):
            place = self.top + self.y(value)
            lines += [] if figure.y.names else [f"M{self.left:.1f},{place:.1f}H{right:.1f}"]
            texts.append(f'<text class="y" x="{self.left - 6:.1f}" y="{place + 4:.1f}">{escaped(label)}</text>')
        middle = self.left + self.x.length / 2
        if figure.x.label:
            texts.append(f'<text class="axis" x="{middle:.1f}" y="{self.height - 6}">{escaped(figure.x.label)}</text>')
        if figure.y.label:
            centre = f"12,{self.top + self.y.length / 2:.1f}"
            texts.append(
                f'<text class="axis" transform="translate({centre}) rotate(-90)">{escaped(figure.y.label)}</text>'
            )
        return f'<path class="grid" d="{"".join(lines)}"/>{"".join(texts)}'

    def _marks(self, figure: Figure) -> str:
        """Marks within the frame, which cuts them off, then those that may reach beyond it, and labels."""
        inside: list[str] = []
        beyond: list[str] = []
        for mark in figure.marks:
            into = beyond if (isinstance(mark, Line) and not mark.clipped) or isinstance(mark, Dots) else inside
            into.append(self._mark(mark))
        size = f'x="{self.left:.1f}" y="{self.top}" width="{self.x.length:.1f}" height="{self.y.length:.1f}"'
        rules = "".join(self._rule_label(mark) for mark in figure.marks if isinstance(mark, Rule) and mark.label)
        notes = "".join(map(self._note, figure.notes))
        move = f'transform="translate({self.left:.1f},{self.top})"'
        return f'<svg class="frame" {size}>{"".join(inside)}</svg><g {move}>{"".join(beyond)}{rules}{notes}</g>'

    def _mark(self, mark: Mark) -> str:
        match mark:
            case Line():
                return self._line(mark)
            case Band():
                there = self._path(mark.x, mark.high)
                back = self._path(mark.x[::-1], mark.low[::-1]).replace("M", "L", 1)  # the first point is absolute
                return f'<path class="area" d="{there}{back}Z" style="fill:{colour_of(mark.colour)}"/>'
            case Bars():
                return self._bars(mark)
            case Dots():
                return self._dots(mark)
            case Rule():
                at = f"M{self.x(mark.at):.1f},0v{self.y.length:.1f}"
                if mark.axis == "y":
                    at = f"M0,{self.y(mark.at):.1f}h{self.x.length:.1f}"
                return f'<path d="{at}"{_stroke(mark.colour, mark.dash, 1)}/>'
            case Tint():
                corners = self._path(*zip(*mark.corners, strict=True))
                return f'<path class="area" d="{corners}Z" style="fill:{colour_of(mark.colour)}"/>'

    def _path(self, x: Sequence[float], y: Sequence[float]) -> str:
        """A path through points, with a gap where one is not a number; steps are relative, which is shorter."""
        parts: list[str] = []
        last: tuple[int, int] | None = None
        for a, b in zip(x, y, strict=True):
            place = self.x(a), self.y(b)
            if math.isnan(place[0]) or math.isnan(place[1]):
                last = None
                continue
            here = round(10 * place[0]), round(10 * place[1])
            parts.append(_step(*here, "M") if last is None else _step(here[0] - last[0], here[1] - last[1], "l"))
            last = here
        return "".join(parts)

    def _line(self, mark: Line) -> str:
        x, y = mark.x, mark.y
        if mark.steps:
            path = self._path([edge for edge in x for _ in range(2)][1:-1], [value for value in y for _ in range(2)])
            x = [(low + high) / 2 for low, high in pairwise(x)]
        else:
            path = self._path(x, y)
        if mark.hover:
            self._points(mark.name, mark.hover, x, y, mark.extra, row=mark.row)
        shapes = f'<path d="{path}"{_stroke(mark.colour, mark.dash, mark.width)}/>' if mark.width else ""
        if mark.marker:
            shapes += f'<path d="{self._spots(x, y, mark.marker / 2)}" style="fill:{colour_of(mark.colour)}"/>'
        if mark.row is None:
            return shapes
        return f'<g data-row="{escaped(mark.row)}"{"" if mark.visible else " hidden"}>{shapes}</g>'

    def _spots(self, x: Sequence[float], y: Sequence[float], radius: float) -> str:
        """Circles of one path."""
        places = ((self.x(a), self.y(b)) for a, b in zip(x, y, strict=True))
        r = f"{radius:g}"
        circle = f"m-{r},0a{r},{r} 0 1,0 {2 * radius:g},0a{r},{r} 0 1,0 -{2 * radius:g},0"
        return "".join(f"M{_short(a)},{_short(b)}{circle}" for a, b in places if a == a and b == b)

    def _bars(self, mark: Bars) -> str:
        ends = list(pairwise(mark.edges))
        shape, ground = [], _short(self.y(0.0))
        for (low, high), height in zip(ends, mark.heights, strict=True):
            if height > 0:
                left, right, top = (_short(value) for value in (self.x(low), self.x(high), self.y(height)))
                shape.append(f"M{left},{ground}V{top}H{right}V{ground}")
        text = "from {0:.3g} to {1:.3g}\ndensity {y:.3g}"
        self._points(mark.name, text, [(low + high) / 2 for low, high in ends], mark.heights, ends, bars=True)
        fill = f"fill:{colour_of(f'{mark.colour}-soft')};stroke:{colour_of(mark.colour)};stroke-width:0.6"
        return f'<path d="{"".join(shape)}" style="{fill}"/>'

    def _dots(self, mark: Dots) -> str:
        shape = [
            f"M{_short(self.x(x))},{_short(self.y(y))}{_SHAPES[symbol]}"
            for x, y, symbol in zip(mark.x, mark.y, mark.symbols, strict=True)
            if math.isfinite(x) and math.isfinite(y)
        ]
        self._points("", mark.hover, mark.x, mark.y, mark.extra, texts=mark.texts)
        return f'<path d="{"".join(shape)}" style="fill:{colour_of(mark.colour)}"/>'

    def _points(
        self, name: str, text: str, x: Sequence[float], y: Sequence[float], extra: Sequence[Any], **more: Any
    ) -> None:
        """Keep values of points, columns that several marks share once."""
        entry: dict[str, Any] = {"text": text, "x": self._column(x), "y": self._column(y)}
        if name:
            entry["name"] = name
        if extra:
            entry["extra"] = [self._column(column) for column in zip(*extra, strict=True)]
        self.hovers.append(entry | {key: value for key, value in more.items() if value})

    def _column(self, values: Sequence[float]) -> int:
        column = [_rounded(value) for value in values]
        if column not in self._columns:
            self._columns.append(column)
        return self._columns.index(column)

    def _rule_label(self, rule: Rule) -> str:
        style = f'style="fill:{colour_of(rule.colour)}"'
        return f'<text class="rule" x="{self.x(rule.at):.1f}" y="-6" {style}>{escaped(rule.label)}</text>'

    def _note(self, note: Note) -> str:
        x, y = note.x * self.x.length, (1 - note.y) * self.y.length
        return f'<text class="note {note.side}" x="{x:.1f}" y="{y + 4:.1f}">{escaped(note.text)}</text>'


def _rounded(value: float) -> float | None:
    """A value for reading, with five digits; whole numbers, which may be the number of a row, keep all of theirs.

    Example:
        >>> _rounded(0.123456789), _rounded(12345678), _rounded(float("nan"))
        (0.12346, 12345678, None)
    """
    if isinstance(value, int):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _step(across: int, down: int, command: str) -> str:
    """A step of a path in tenths of a pixel.

    Example:
        >>> _step(10, -5, "M"), _step(32, 0, "l"), _step(0, 7, "l"), _step(0, 0, "l")
        ('M1-.5', 'h3.2', 'v.7', '')
    """
    if command == "l" and not (across and down):
        return f"h{_tenths(across)}" if across else f"v{_tenths(down)}" if down else ""
    return f"{command}{_tenths(across)}{'' if down < 0 else ','}{_tenths(down)}"


def _tenths(value: int) -> str:
    """A number of tenths, as short as SVG allows.

    Example:
        >>> _tenths(5), _tenths(-123), _tenths(40), _tenths(0)
        ('.5', '-12.3', '4', '0')
    """
    text = f"{value / 10:.1f}".removesuffix(".0")
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def _short(value: float) -> str:
    """A coordinate with one decimal, none where it is 0.

    Example:
        >>> _short(12.04), _short(12.16), _short(-0.01)
        ('12', '12.2', '0')
    """
    text = f"{value:.1f}"
    return "0" if text == "-0.0" else text.removesuffix(".0")


def _stroke(colour: str, dash: str, width: float) -> str:
    dashes = " ".join(map(str, _PLAIN_DASHES.get(dash) or DASHES[dash]))
    end = f";stroke-dasharray:{dashes}" if dashes else ""
    return f' class="line" style="stroke:{colour_of(colour)};stroke-width:{width:g}{end}"'
