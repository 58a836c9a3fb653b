"""Goals judged by one rule, from numbers of tables paired over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paired import Difference, difference

Table = Mapping[str, Any]
NOT_ABOVE = (
    "Below means that the upper limit of the paired difference is below 0; not above that it is below the margin, "
    "for calibration errors the 95 % quantile of calibrated models less their mean, and 0 for others.\n"
)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A goal, whether it is reached, and the numbers.

    Attributes:
        goal: The goal, in words.
        reached: Whether it is reached; None where it does not apply or seeds are too few.
        measured: Measured numbers, in words.
    """

    goal: str
    reached: bool | None
    measured: str


def has_rows(table: Table, *rows: str) -> bool:
    """Whether a table has finished seeds of all rows."""
    return all(table["rows"].get(row, {}).get("finished") for row in rows)


def pairs_of(table: Table, row: str, other: str, column: str) -> list[tuple[float, float]]:
    """Values of two rows in a column, of the seeds that both have."""
    one, two = (table["rows"][name]["seeds"][column] for name in (row, other))
    return [(a, b) for a, b in zip(one, two, strict=False) if a is not None and b is not None]


def paired(table: Table, row: str, other: str, column: str) -> Difference:
    """Difference of two rows in a column, over the seeds that both have."""
    return difference([a - b for a, b in pairs_of(table, row, other, column)])


def not_above(table: Table, row: str, other: str, column: str, factor: float = 1.0) -> Bar | None:
    """Whether a row is not above another one in a column; None where the table lacks one of them."""
    if not has_rows(table, row, other):
        return None
    found, floor = paired(table, row, other, column), table["floors"].get(column)
    margin = floor["q95"] - floor["expected"] if floor else 0.0
    goal = f"`{row}`: {column}{f' x{factor:g}' if factor != 1 else ''} not above that of `{other}`"
    measured = f"{found.text(factor)}{f', margin {factor * margin:.2g}' if margin else ''}"
    return Bar(goal=goal, reached=None if found.high is None else found.is_below(margin), measured=measured)


def bars_markdown(judged: Sequence[Bar]) -> str:
    """The goals as a table; empty without any."""
    words = {True: "**yes**", False: "**no**", None: "too few seeds"}
    lines = ["| goal | reached | measured |", "|---|---|---|"]
    lines += [f"| {bar.goal} | {words[bar.reached]} | {bar.measured} |" for bar in judged]
    return "\n".join(lines) + "\n" if judged else ""
