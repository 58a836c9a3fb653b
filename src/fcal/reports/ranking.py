"""Who is best in a column, and who cannot be told from it by these seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, Literal

Mark = Literal["best", "near"]

HIGHER_IS_BETTER = frozenset(
    {"sigma_corr", "ll", "d1", "map", "ap50", "ap75", "mmap", "pdq", "pdq_spatial", "pdq_label"}
)
# More coverage is not better than what was promised, nor a narrow interval that does not cover.
_NOT_RANKED = frozenset({"train_s", "predict_ms", "coverage_68", "coverage", "coverage_95", "width"})
_LIMITS = frozenset({"oracle"})  # they know what no method may
_STANDARD_ERRORS = 2.0
RULE = (
    "Bold: the best mean of a column. ≈: its mean difference to the best is at most twice the standard error of that "
    "difference, paired over seeds where every seed's value is known, else from both standard deviations. "
    "The oracle, failed rows, times, coverage and widths are not ranked."
)
ONE_SEED = "Of one seed there is no standard deviation: differences may be noise, and no row is marked as the best."


@dataclass(frozen=True)
class Score:
    """A value of a table over seeds.

    Attributes:
        mean: Over seeds; None where undefined.
        sd: Over seeds; None where there is one seed.
        values: Of every seed, in the same order for all methods; empty where unknown.
    """

    mean: float | None
    sd: float | None = None
    values: tuple[float | None, ...] = ()


def score(entry: Any) -> Score:
    """Read a value as results have it: a number, ``[mean, sd]``, or ``{"mean": .., "sd": ..}``.

    Example:
        >>> score([0.5, 0.1]), score(None).mean, score({"mean": 2, "sd": None}).mean
        (Score(mean=0.5, sd=0.1, values=()), None, 2.0)
    """
    if isinstance(entry, Mapping):
        return Score(_number(entry.get("mean")), _number(entry.get("sd")))
    if isinstance(entry, Sequence) and not isinstance(entry, str):
        mean, sd = (*entry, None, None)[:2]
        return Score(_number(mean), _number(sd))
    return Score(_number(entry))


def row_score(row: Mapping[str, Any], column: str) -> Score:
    """A value of a row, with that of every seed where ``row["seeds"]`` has them by column.

    Example:
        >>> row_score({"nll": {"mean": 1.5, "sd": 0.7}, "seeds": {"nll": [1.0, 2.0]}}, "nll").values
        (1.0, 2.0)
    """
    one, seeds = score(row.get(column)), row.get("seeds")
    values = seeds.get(column) if isinstance(seeds, Mapping) else None
    return replace(one, values=tuple(_number(value) for value in values)) if values else one


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def marks(scores: Mapping[str, Score], *, column: str, seeds: int) -> dict[str, Mark]:
    """The best methods of a column, and those within the noise of the best.

    Args:
        scores: By method; failed ones left out.
        column: Its name, which says whether less is better.
        seeds: How many were averaged.

    Returns:
        ``"best"`` or ``"near"`` for the methods that are; equal means are all best. Of one seed nobody is: nothing is
        known about its noise.

    Example:
        >>> rows = {"a": Score(1.0, 0.1), "b": Score(1.05, 0.1), "c": Score(2.0, 0.1), "oracle": Score(0.0, 0.0)}
        >>> marks(rows, column="nll", seeds=5)
        {'a': 'best', 'b': 'near'}
    """
    ranked = {name: one for name, one in scores.items() if one.mean is not None and name not in _LIMITS}
    if column in _NOT_RANKED or not ranked or seeds < 2:
        return {}
    sign = -1 if column in HIGHER_IS_BETTER else 1
    best = min(ranked, key=lambda name: sign * (ranked[name].mean or 0.0))
    found: dict[str, Mark] = {}
    for name, one in ranked.items():
        if one.mean == ranked[best].mean:
            found[name] = "best"
        elif _within_noise(one, ranked[best], seeds):
            found[name] = "near"
    return found


def _within_noise(one: Score, best: Score, seeds: int) -> bool:
    pairs = [(a, b) for a, b in zip(one.values, best.values, strict=False) if a is not None and b is not None]
    if len(pairs) >= 2:
        differences = [a - b for a, b in pairs]
        error = stdev(differences) / math.sqrt(len(differences))
        return abs(fmean(differences)) <= _STANDARD_ERRORS * error
    if one.sd is None or best.sd is None or one.mean is None or best.mean is None:
        return False
    return abs(one.mean - best.mean) <= _STANDARD_ERRORS * math.hypot(one.sd, best.sd) / math.sqrt(seeds)
