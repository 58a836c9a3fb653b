"""Claims of the paper and our own goals on depth, judged by one rule from numbers paired over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paired import Difference, difference

from fcal.benchmarks.methods import RECOMMENDED

Table = Mapping[str, Any]
_FCAL = ("fcal_kl", "fcal_wass")
_ACCURACY = 1.05  # largest ratio of SiLog
_FACTORS = {"ece_z": 100.0, "nll": 1.0, "crps": 1.0, "silog": 100.0}


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


def bars(table: Table) -> list[Bar]:
    """Every goal whose rows the table has."""
    judged = [_better_calibrated(table, row) for row in _FCAL]
    judged += [_accurate(table, row) for row in _FCAL]
    judged += [_not_above(table, "temperature", column) for column in ("ece_z", "nll", "crps")]
    judged.append(_not_above(table, "ensemble_3", "nll"))
    return [bar for bar in judged if bar is not None]


def paired(table: Table, row: str, other: str, column: str) -> Difference:
    """Difference of two rows in a column, over the seeds that both have."""
    one, two = (table["rows"][name]["seeds"][column] for name in (row, other))
    return difference([a - b for a, b in zip(one, two, strict=False) if a is not None and b is not None])


def _better_calibrated(table: Table, row: str) -> Bar | None:
    """ECE(z) below that of the likelihood, in seeds in which the likelihood is outside its band."""
    if not _has(table, row, "nll"):
        return None
    errors = [table["rows"][name]["seeds"]["ece_z"] for name in (row, "nll")]
    bands = table["rows"]["nll"]["bands"]["ece_z"]
    off = [(a, b) for a, b, band in zip(*errors, bands, strict=False) if None not in (a, b) and b > band["q95"]]
    found = difference([a - b for a, b in off])
    goal = f"`{row}`: ECE(z) x100 below that of `nll`, where that is outside its band"
    measured = f"{found.text(100)}, {len(off)} of {table['seeds']} seeds"
    return Bar(goal=goal, reached=found.is_below() if len(off) > 1 else None, measured=measured)


def _accurate(table: Table, row: str) -> Bar | None:
    if not _has(table, row, "nll"):
        return None
    pairs = zip(*(table["rows"][name]["seeds"]["silog"] for name in (row, "nll")), strict=False)
    found = difference([a / b for a, b in pairs if a is not None and b is not None])
    goal = f"`{row}`: SiLog at most {_ACCURACY:g} times that of `nll`"
    return Bar(goal=goal, reached=found.mean is not None and found.mean <= _ACCURACY, measured=f"{found.mean:.3f}")


def _not_above(table: Table, other: str, column: str) -> Bar | None:
    """Not above: the difference is not clearly positive, by its lower limit."""
    if not _has(table, RECOMMENDED, other):
        return None
    found = paired(table, RECOMMENDED, other, column)
    goal = f"`{RECOMMENDED}`: {column} not above that of `{other}`"
    reached = None if found.low is None else found.low <= 0
    return Bar(goal=goal, reached=reached, measured=found.text(_FACTORS[column]))


def _has(table: Table, *rows: str) -> bool:
    return all(table["rows"].get(row, {}).get("finished") for row in rows)


def bars_markdown(judged: Sequence[Bar]) -> str:
    """The goals as a table; empty without any."""
    words = {True: "**yes**", False: "**no**", None: "too few seeds"}
    lines = ["| goal | reached | measured |", "|---|---|---|"]
    lines += [f"| {bar.goal} | {words[bar.reached]} | {bar.measured} |" for bar in judged]
    return "\n".join(lines) + "\n" if judged else ""
