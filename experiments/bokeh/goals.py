"""What calibration without a held-out set is to reach on Bokeh, judged by stated rules from the tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

Table = Mapping[str, Any]
_DEAREST = 3.0  # times plain likelihood
_BANDS = 2.0  # how many times the band that holds 95 % of calibrated models is still near the oracle


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A goal and how far a row came.

    Attributes:
        goal: What is to be reached.
        reached: In which of the tables it is, by noise and regime.
        numbers: What was found, a phrase for every table.
    """

    goal: str
    reached: tuple[bool, ...]
    numbers: tuple[str, ...]


def goals(document: Mapping[str, Any], row: str) -> list[Goal]:
    """Judge a row that holds out nothing, beside temperature scaling and the limits of calibrated models.

    Args:
        document: Of the benchmark; see :func:`fcal.benchmarks.bokeh.benchmark`.
        row: Its name.

    Returns:
        One entry per goal; none where no table has the row and temperature scaling.
    """
    tables = [table for table in document["tables"] if row in table["against_temperature"]]
    found = []
    for goal, test in _GOALS if tables else ():
        answers = [(table, *test(table["against_temperature"][row])) for table in tables]
        numbers = tuple(f"{_where(table)}: {words}{'' if held else ' (no)'}" for table, held, words in answers)
        found.append(Goal(goal=goal, reached=tuple(held for _, held, _ in answers), numbers=numbers))
    return found


def conditional_goals(document: Mapping[str, Any], row: str = "oof_fcal_strata", plain: str = "oof_fcal") -> list[Goal]:
    """Whether constraints on every stratum make small and large error bars truer than one on the whole batch does."""
    tables = [table for table in document["tables"] if {row, plain} <= set(table["strata"])]
    found = []
    for goal, of in _CONDITIONAL if tables else ():
        both = [(table, of(table, row), of(table, plain)) for table in tables]
        numbers = tuple(
            f"{_where(table)}: {one:.2f} against {two:.2f}{'' if one < two else ' (no)'}" for table, one, two in both
        )
        found.append(Goal(goal=goal, reached=tuple(one < two for _, one, two in both), numbers=numbers))
    return found


def best_row(document: Mapping[str, Any]) -> str | None:
    """The out-of-fold row that reaches the largest share of its goals; of equal ones, the cheapest."""
    return max(_rows(document), key=lambda row: (_share(document, row), -_cost(document, row)), default=None)


def _rows(document: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(row for table in document["tables"] for row in table["against_temperature"]))


def goals_markdown(document: Mapping[str, Any]) -> str:
    """How many goals every row reaches, and the goals of the best of them; empty where there are no such rows."""
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


def _listed(found: Sequence[Goal]) -> list[str]:
    lines = ["| goal | reached | found |", "|---|---|---|"]
    for one in found:
        verdict = f"{sum(one.reached)} of {len(one.reached)} tables"
        lines.append(f"| {one.goal} | **{verdict}** | {'<br>'.join(one.numbers)} |")
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


Found = Mapping[str, Any]  # of a row beside temperature scaling


def _mean_difference(name: str, factor: float, *, equal: bool = False) -> Callable[[Found], tuple[bool, str]]:
    """The mean of paired differences is below zero, or not above it."""

    def test(found: Found) -> tuple[bool, str]:
        if len(found[name]) < found["seeds"]:
            return False, "a seed has no number"
        mean = fmean(found[name])
        below = sum(value < 0 for value in found[name])
        return (mean <= 0 if equal else mean < 0), f"{factor * mean:+.3g} ({below} of {found['seeds']} seeds below)"

    return test


def _accuracy(found: Found) -> tuple[bool, str]:
    if len(found["l1_gt"]) < found["seeds"]:
        return False, "a seed has no number"
    ratio = fmean(found["l1_gt"])
    return ratio <= 1.0, f"{ratio:.3f}"


def _near_oracle(found: Found) -> tuple[bool, str]:
    ratios = {title: found["of_band"][name] for name, title in _ERRORS}
    if any(len(values) < found["seeds"] for values in ratios.values()):
        return False, "a seed has no number"
    words = ", ".join(
        f"{title} {fmean(values):.2f} ({sum(value <= _BANDS for value in values)} of {len(values)} seeds)"
        for title, values in ratios.items()
    )
    return all(fmean(values) <= _BANDS for values in ratios.values()), words


def _affordable(found: Found) -> tuple[bool, str]:
    known = [cost for cost in found["cost"] if cost is not None]
    return bool(known) and fmean(known) <= _DEAREST, f"{fmean(known):.2f}" if known else "unknown"


_ERRORS = (("ece_q", "ECE(q)"), ("ece_z", "ECE(z)"))
_GOALS: tuple[tuple[str, Callable[[Found], tuple[bool, str]]], ...] = (
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
