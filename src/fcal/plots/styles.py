"""Titles, footnotes and line styles of the rows and columns of a benchmark.

A benchmark describes its rows and columns; pictures and pages know none of them by name. A row or column without a
description is shown under its own name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

# Ink and gaps in turn, in pixels of a line two wide, by falling share of ink. Their periods share no small multiple: of
# lines that coincide, drawn in this order, a part of each is seen.
DASHES = {
    "solid": (),
    "longdashdot": (12, 6, 4, 6),
    "longdash": (10, 11),
    "dashdot": (7, 5, 2, 5),
    "dash": (5, 9),
    "dot": (2, 5),
}
SERIES = tuple(f"series-{letter}" for letter in "abcdefgh")  # names of colours
_CYCLE = ("longdash", "solid", "dash", "dashdot", "longdashdot")
_MOST_AT_FIRST = 6


@dataclass(frozen=True)
class RowStyle:
    """How a row of a benchmark, usually a method, is presented.

    Attributes:
        title: Its name in tables and legends. Rows with the same title are variants of one method and share a colour.
        variant: Which variant it is, such as ``"all data"``; empty for the plain method.
        footnote: A sentence for the foot of every table that has the row.
        highlight: Rank among the methods most often compared, from 0. Their lines are drawn at first and have colours
            and dashes of their own. None for the others.
        reference: Whether it knows what no method may know, such as an oracle. References are never ranked.
    """

    title: str
    variant: str = ""
    footnote: str = ""
    highlight: int | None = None
    reference: bool = False

    @property
    def full_title(self) -> str:
        """Title and variant.

        Example:
            >>> RowStyle("NLL", "all data").full_title
            'NLL, all data'
        """
        return f"{self.title}, {self.variant}" if self.variant else self.title


@dataclass(frozen=True)
class ColumnStyle:
    """How a column of a benchmark is presented.

    Attributes:
        title: Its heading.
        description: Short description, shown when hovering; empty if the title suffices.
        footnote: A sentence for the foot of every table that has the column.
        factor: What values are multiplied by in printed tables; pages show them as they are.
        lower_is_better: Direction of the ranking.
        ranked: Whether the best row is marked.
    """

    title: str
    description: str = ""
    footnote: str = ""
    factor: int = 1
    lower_is_better: bool = True
    ranked: bool = True


Rows = Mapping[str, RowStyle]
Columns = Mapping[str, ColumnStyle]


def described(rows: Rows, names: Iterable[str]) -> dict[str, RowStyle]:
    """Descriptions of all rows of a picture or page: a name without one is its own title, and comes last.

    Example:
        >>> {name: style.title for name, style in described({"nll": RowStyle("NLL")}, ["mine", "nll"]).items()}
        {'nll': 'NLL', 'mine': 'mine'}
    """
    return dict(rows) | {name: RowStyle(name) for name in names if name not in rows}


def row_style(rows: Rows, name: str) -> RowStyle:
    """The description of a row; its own name where there is none."""
    return rows.get(name) or RowStyle(name)


def column_style(columns: Columns, name: str) -> ColumnStyle:
    """The description of a column; its own name where there is none."""
    return columns.get(name) or ColumnStyle(name)


def footnotes(styles: Mapping[str, RowStyle] | Mapping[str, ColumnStyle], names: Iterable[str]) -> list[str]:
    """The footnotes of these rows or columns, each once.

    Example:
        >>> footnotes({"l1": ColumnStyle("L1", footnote="A smooth L1.")}, ["l1", "nll"])
        ['A smooth L1.']
    """
    notes = (styles[name].footnote for name in names if name in styles)
    return list(dict.fromkeys(note for note in notes if note))


def ordered(rows: Rows, names: Iterable[str]) -> list[str]:
    """Names in the order of their descriptions; rows without one come last, as they were.

    Example:
        >>> ordered({"oracle": RowStyle("oracle"), "nll": RowStyle("NLL")}, ["mine", "nll", "oracle"])
        ['oracle', 'nll', 'mine']
    """
    positions = {name: i for i, name in enumerate(rows)}
    return sorted(names, key=lambda name: positions.get(name, len(positions)))


def shown_at_first(rows: Rows, names: Iterable[str]) -> set[str]:
    """References and highlighted rows, or all if there are few: more lines cannot be distinguished."""
    known = set(names)
    chosen = {name for name in known & set(rows) if rows[name].reference or rows[name].highlight is not None}
    return chosen if len(known) > _MOST_AT_FIRST and chosen else known


def most_compared(rows: Rows, names: Iterable[str]) -> list[str]:
    """The two rows of the highest rank, or the first ones where fewer are highlighted, in their usual order."""
    ranks = {name: style.highlight for name, style in rows.items() if style.highlight is not None}
    by_rank = sorted(ordered(rows, names), key=lambda name: ranks.get(name, len(rows)))
    return ordered(rows, by_rank[:2])


class LineStyle(NamedTuple):
    """Colour and dashes of the lines of a row.

    Attributes:
        colour: One of ``SERIES``; ``"ink"``, the colour of the text, for a reference.
        dash: One of ``DASHES``.
    """

    colour: str
    dash: str


def line_styles(rows: Rows, names: Iterable[str] = ()) -> dict[str, LineStyle]:
    """Colour and dashes of every described row, and of further names, the same in every picture of a benchmark.

    Either distinguishes highlighted rows. Styles depend on ranks and on the order of the descriptions, not on the rows
    a picture shows.

    Example:
        >>> rows = {"oracle": RowStyle("oracle", reference=True), "nll": RowStyle("NLL", highlight=1)}
        >>> line_styles(rows, ["mine"])["nll"], line_styles(rows)["oracle"].colour
        (LineStyle(colour='series-b', dash='solid'), 'ink')
    """
    styles = described(rows, names)
    ranks = {style.title: style.highlight for style in styles.values() if style.highlight is not None}
    free = max(ranks.values(), default=-1) + 1
    others = dict.fromkeys(s.title for s in styles.values() if s.title not in ranks and not s.reference)
    positions = ranks | {title: free + i for i, title in enumerate(others)}
    return {name: _line_style(style, positions.get(style.title, 0)) for name, style in styles.items()}


def _line_style(style: RowStyle, position: int) -> LineStyle:
    if style.reference:
        return LineStyle("ink", "dot")
    # At most four share a colour: two methods, each with its variant; a step of its own each keeps their dashes apart.
    lap, colour = divmod(position, len(SERIES))
    step = lap + (2 if style.variant else 0)
    return LineStyle(SERIES[colour], _CYCLE[(colour + step) % len(_CYCLE)])


def bottom_to_top(rows: Rows, names: Iterable[str]) -> list[str]:
    """Rows in the order in which lines are drawn: the more ink the lower, so that none hides another.

    Example:
        >>> rows = {"fcal": RowStyle("f-Cal", highlight=0), "nll": RowStyle("NLL", highlight=1)}
        >>> bottom_to_top(rows, ["fcal", "nll"])
        ['nll', 'fcal']
    """
    names = ordered(rows, names)
    styles, levels = line_styles(rows, names), list(DASHES)
    return sorted(names, key=lambda name: levels.index(styles[name].dash))
