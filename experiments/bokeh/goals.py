"""Goals of out-of-bag ensembles on Bokeh, judged by one rule from numbers paired over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from paired import Difference, difference

from fcal.benchmarks.methods import RECOMMENDED

Table = Mapping[str, Any]
DEARER = f"{RECOMMENDED}_5"
ACCURATE = "oob_mse"  # its mean is trained by squared error
_HELD_OUT = ("temperature", "conformal")
_ENSEMBLES = {RECOMMENDED: "ensemble_3", DEARER: "ensemble"}
_SCORES = {"nll": ("NLL", 1.0), "crps": ("CRPS x1000", 1000.0)}
_ERRORS = {"ece_q": "ECE(q)", "ece_z": "ECE(z)", "ence": "ENCE"}
_ACCURACY = 1.01  # largest ratio to the error of deterministic networks
_LEAK = 0.015  # largest distance of held-out / test z² from 1, by both limits


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A goal and whether it is reached.

    Attributes:
        goal: The goal, in words.
        reached: Whether it is reached, for every table.
        numbers: Measured numbers, a phrase for every table.
    """

    goal: str
    reached: tuple[bool, ...]
    numbers: tuple[str, ...]


def goals(document: Mapping[str, Any]) -> list[Goal]:
    """Judge the recommended row, the same recipe at a higher cost, and the row of an accurate mean.

    Args:
        document: Document of the benchmark; see :attr:`fcal.benchmarks.Benchmark.document`.

    Returns:
        One entry per goal, with the tables that have the rows it needs; those that no table has are left out.
    """
    tables = document["tables"]
    judged = []
    for row, ensemble in _ENSEMBLES.items():
        for other in (*_HELD_OUT, ensemble):
            for column, (title, factor) in _SCORES.items():
                judged.append(_below(tables, row, other, column, title, factor))
        judged += [_not_above(tables, row, column, title) for column, title in _ERRORS.items()]
    judged += [_accurate(tables), _below(tables, ACCURATE, "oof_nll", "crps", *_SCORES["crps"]), _without_leak(tables)]
    return [goal for goal in judged if goal.numbers]


def paired(table: Table, row: str, other: str, column: str) -> Difference:
    """Difference of two rows in a column, over the seeds that both have."""
    one, two = (table["rows"][name]["seeds"][column] for name in (row, other))
    return difference([a - b for a, b in zip(one, two, strict=False) if a is not None and b is not None])


def _below(tables: Sequence[Table], row: str, other: str, column: str, title: str, factor: float) -> Goal:
    answers = []
    for table in _with(tables, row, other):
        found = paired(table, row, other, column)
        answers.append((table, found.is_below(), f"{found.text(factor)}{_seeds(found, table)}"))
    return _goal(f"`{row}`: {title} below that of `{other}`", answers)


def _not_above(tables: Sequence[Table], row: str, column: str, title: str) -> Goal:
    """Against the better of both repairs; the margin is what chance adds to a factor fitted to held-out images."""
    answers = []
    for table in _with(tables, row, *_HELD_OUT):
        better = min(_HELD_OUT, key=lambda name: table["rows"][name][column]["mean"])
        found = paired(table, row, better, column)
        margin, exact = (_margin(table[floors][column]) for floors in ("repaired_floors", "floors"))
        margins = f"margin {100 * margin:.2g} ({100 * exact:.2g})"
        text = f"{found.text(100)}{_seeds(found, table)}, beside `{better}`, {margins}"
        answers.append((table, found.is_below(margin), text))
    return _goal(f"`{row}`: {title} x100 not above the better of temperature and conformal", answers)


def _margin(floor: Mapping[str, float]) -> float:
    return floor["q95"] - floor["expected"]


def _accurate(tables: Sequence[Table]) -> Goal:
    answers = []
    for table in _with(tables, ACCURATE, "deterministic_3"):
        one, two = (table["rows"][name]["seeds"]["l1_gt"] for name in (ACCURATE, "deterministic_3"))
        pairs = [(a, b) for a, b in zip(one, two, strict=False) if a is not None and b is not None]
        ratio = fmean(a for a, _ in pairs) / fmean(b for _, b in pairs)
        answers.append((table, ratio <= _ACCURACY, f"{ratio:.3f}"))
    return _goal(f"`{ACCURATE}`: L1(GT) at most {_ACCURACY:g} times that of three deterministic networks", answers)


def _without_leak(tables: Sequence[Table]) -> Goal:
    """Rows that a network left out are as new to it as test rows: pooled over all networks that leave rows out."""
    ratios = [ratio for table in tables for by_seed in table.get("held_out_z2", {}).values() for ratio in by_seed]
    found = difference([ratio - 1 for ratio in ratios], confidence=0.975)
    known = found.low is not None and found.high is not None
    held = known and found.low > -_LEAK and found.high < _LEAK  # type: ignore[operator]
    goal = f"z² of rows that networks left out as on test rows: within {_LEAK:g} of each other, pooled over all cells"
    text = f"{found.text()}, {found.seeds} cells" + ("" if held else " (no)")
    return Goal(goal=goal, reached=(held,), numbers=(text,) if ratios else ())


def _goal(goal: str, answers: Sequence[tuple[Table, bool, str]]) -> Goal:
    return Goal(
        goal=goal,
        reached=tuple(held for _, held, _ in answers),
        numbers=tuple(
            f"{table['noise']}, {table['regime']}: {text}{'' if held else ' (no)'}" for table, held, text in answers
        ),
    )


def _with(tables: Sequence[Table], *rows: str) -> list[Table]:
    """Tables that have these rows, with a number each."""
    return [table for table in tables if all(table["rows"].get(row, {}).get("finished") for row in rows)]


def _seeds(found: Difference, table: Table) -> str:
    return "" if found.seeds == table["seeds"] else f", {found.seeds} of {table['seeds']} seeds"


def goals_markdown(document: Mapping[str, Any]) -> str:
    """All goals; empty if no table has such rows."""
    judged = goals(document)
    if not judged:
        return ""
    lines = ["| goal | reached | measured |", "|---|---|---|"]
    for goal in judged:
        verdict = f"{sum(goal.reached)} of {len(goal.reached)}"
        lines.append(f"| {goal.goal} | **{verdict}** | {'<br>'.join(goal.numbers)} |")
    return "\n".join(lines) + "\n"
