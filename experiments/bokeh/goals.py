"""Goals of calibration without a held-out set on Bokeh, judged by fixed rules from the tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

Table = Mapping[str, Any]
_DEAREST = 3.0  # times plain likelihood
_BANDS = 2.0  # multiple of the band that holds 95 % of calibrated models that still counts as close to the oracle


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A goal and whether a row reaches it.

    Attributes:
        goal: The goal, in words.
        reached: Whether it is reached, for every table.
        numbers: Measured numbers, a phrase for every table.
    """

    goal: str
    reached: tuple[bool, ...]
    numbers: tuple[str, ...]


def goals(document: Mapping[str, Any], row: str) -> list[Goal]:
    """Judge a row without a held-out set, against temperature scaling and the limits of calibrated models.

    Args:
        document: Document of the benchmark; see :attr:`fcal.benchmarks.Benchmark.document`.
        row: Name of the row.

    Returns:
        One entry per goal; none if no table has the row and temperature scaling.
    """
    tables = [table for table in document["tables"] if row in table["against_temperature"]]
    judged = []
    for goal, test in _GOALS if tables else ():
        answers = [(table, *test(table["against_temperature"][row])) for table in tables]
        numbers = tuple(f"{_where(table)}: {text}{'' if held else ' (no)'}" for table, held, text in answers)
        judged.append(Goal(goal=goal, reached=tuple(held for _, held, _ in answers), numbers=numbers))
    return judged


def conditional_goals(document: Mapping[str, Any], row: str = "oof_fcal_strata", plain: str = "oof_fcal") -> list[Goal]:
    """Whether constraints on every stratum calibrate small and large error bars better than one on the whole batch."""
    tables = [table for table in document["tables"] if {row, plain} <= set(table["strata"])]
    judged = []
    for goal, score in _CONDITIONAL if tables else ():
        both = [(table, score(table, row), score(table, plain)) for table in tables]
        numbers = tuple(
            f"{_where(table)}: {ours:.2f} against {theirs:.2f}{'' if ours < theirs else ' (no)'}"
            for table, ours, theirs in both
        )
        judged.append(Goal(goal=goal, reached=tuple(ours < theirs for _, ours, theirs in both), numbers=numbers))
    return judged


def best_row(document: Mapping[str, Any]) -> str | None:
    """The out-of-fold row that reaches the largest share of its goals; of equal ones, the cheapest."""
    return max(_rows(document), key=lambda row: (_share(document, row), -_cost(document, row)), default=None)


def _rows(document: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(row for table in document["tables"] for row in table["against_temperature"]))


def goals_markdown(document: Mapping[str, Any]) -> str:
    """How many goals every row reaches, and the goals of the best of them; empty if there are no such rows."""
    best = best_row(document)
    if best is None:
        return ""
    lines = ["| row | goals reached, over all tables | cost |", "|---|---:|---:|"]
    for row in _rows(document):
        judged = [held for goal in goals(document, row) for held in goal.reached]
        lines.append(f"| {row} | {sum(judged)} of {len(judged)} | {_cost(document, row):.2f} |")
    lines += ["", f"`{best}`, the row that reaches most, chosen by these numbers:", "", *_listed(goals(document, best))]
    conditional = conditional_goals(document)
    if conditional:
        lines += [
            "",
            "`oof_fcal_strata`, with the constraint on eight strata of sigma, beside `oof_fcal`, without:",
            "",
        ]
        lines += _listed(conditional)
    return "\n".join(lines) + "\n"


def _listed(goals: Sequence[Goal]) -> list[str]:
    lines = ["| goal | reached | measured |", "|---|---|---|"]
    for goal in goals:
        verdict = f"{sum(goal.reached)} of {len(goal.reached)} tables"
        lines.append(f"| {goal.goal} | **{verdict}** | {'<br>'.join(goal.numbers)} |")
    return lines


def _where(table: Table) -> str:
    return f"{table['noise']}, {table['regime']}"


def _share(document: Mapping[str, Any], row: str) -> float:
    return fmean(held for goal in goals(document, row) for held in goal.reached)


def _cost(document: Mapping[str, Any], row: str) -> float:
    costs = [
        cost
        for table in document["tables"]
        for cost in table["against_temperature"].get(row, {}).get("cost", ())
        if cost is not None
    ]
    return fmean(costs) if costs else float("inf")


Comparison = Mapping[str, Any]  # of a row with temperature scaling


def _mean_difference(name: str, factor: float, *, equal: bool = False) -> Callable[[Comparison], tuple[bool, str]]:
    """Test whether the mean of paired differences is below zero, or not above it."""

    def test(comparison: Comparison) -> tuple[bool, str]:
        if len(comparison[name]) < comparison["seeds"]:
            return False, "a seed has no number"
        mean = fmean(comparison[name])
        below = sum(value < 0 for value in comparison[name])
        return (
            mean <= 0 if equal else mean < 0
        ), f"{factor * mean:+.3g} ({below} of {comparison['seeds']} seeds below)"

    return test


def _accuracy(comparison: Comparison) -> tuple[bool, str]:
    if len(comparison["l1_gt"]) < comparison["seeds"]:
        return False, "a seed has no number"
    ratio = fmean(comparison["l1_gt"])
    return ratio <= 1.0, f"{ratio:.3f}"


def _near_oracle(comparison: Comparison) -> tuple[bool, str]:
    ratios = {title: comparison["of_band"][name] for name, title in _ERRORS}
    if any(len(values) < comparison["seeds"] for values in ratios.values()):
        return False, "a seed has no number"
    texts = ", ".join(
        f"{title} {fmean(values):.2f} ({sum(value <= _BANDS for value in values)} of {len(values)} seeds)"
        for title, values in ratios.items()
    )
    return all(fmean(values) <= _BANDS for values in ratios.values()), texts


def _affordable(comparison: Comparison) -> tuple[bool, str]:
    known = [cost for cost in comparison["cost"] if cost is not None]
    return bool(known) and fmean(known) <= _DEAREST, f"{fmean(known):.2f}" if known else "unknown"


_ERRORS = (("ece_q", "ECE(q)"), ("ece_z", "ECE(z)"))
_GOALS: tuple[tuple[str, Callable[[Comparison], tuple[bool, str]]], ...] = (
    ("ECE(q) x100 not above temperature scaling's", _mean_difference("ece_q", 100.0, equal=True)),
    ("ECE(z) x100 not above it", _mean_difference("ece_z", 100.0, equal=True)),
    ("NLL below it", _mean_difference("nll", 1.0)),
    ("CRPS x1000 below it", _mean_difference("crps", 1000.0)),
    ("smooth L1 to the truth at most 1.0 times that of the network it repairs", _accuracy),
    (f"ECE(q) and ECE(z) at most {_BANDS:g} times the band of calibrated models", _near_oracle),
    (f"training at most {_DEAREST:g} times plain likelihood", _affordable),
)
_CONDITIONAL: tuple[tuple[str, Callable[[Table, str], float]], ...] = (
    ("ENCE x100 below", lambda table, row: 100 * table["rows"][row]["ence"]["mean"]),
    ("ECE(q) x100 of the worst stratum below", lambda table, row: 100 * table["strata"][row]["ece_q_worst"]["mean"]),
    ("ECE(z) x100 of the worst stratum below", lambda table, row: 100 * table["strata"][row]["ece_z_worst"]["mean"]),
)
