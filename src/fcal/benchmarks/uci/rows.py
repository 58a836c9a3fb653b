"""The numbers of one row: a prediction for every split's test rows, in original units."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

import fcal
from fcal.distributions import quantile
from fcal.metrics.calibration_errors import floor_of_q, floor_of_z

LEVELS = {"coverage_68": 0.68, "coverage": 0.9, "coverage_95": 0.95}  # of central intervals; width is that of 90 %
COLUMNS = ("rmse", "ll", "crps", "ece_z", "ece_q", *LEVELS, "width", "train_s")
ERRORS = ("ece_z", "ece_q")
_DIGITS = 7


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a method says of the test rows of every split.

    Attributes:
        laws: Predicted laws in original units; None for a method without.
        means: Predicted means; from the laws where None.
        intervals: For each split, lower and upper ends by name of the column; from the laws where None.
        seconds: Processor time of one split's trainings and fits.
        details: What else is worth keeping.
    """

    laws: Sequence[Distribution] | None = None
    means: Sequence[Tensor] | None = None
    intervals: Sequence[Mapping[str, tuple[Tensor, Tensor]]] | None = None
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)


def grid_of(count: int) -> tuple[int, int]:
    """Bins S and squared residuals in a sum K for as many test rows: fewer where 20 and 75 would hardly be filled.

    Example:
        >>> grid_of(31), grid_of(160), grid_of(4573)
        ((5, 5), (10, 20), (20, 75))
    """
    return min(20, max(5, count // 15)), min(75, max(5, count // 8))


def floors_of(count: int, bins: int, df: int) -> dict[str, dict[str, float]]:
    """What calibrated models score on as many independent rows."""
    found = {"ece_z": floor_of_z(count, bins)[0], "ece_q": floor_of_q(count, bins, df).ece}
    return {name: _rounded({"expected": floor.expected, "q95": floor.q95}) for name, floor in found.items()}


def scored(answer: Answer, targets: Sequence[Tensor]) -> dict[str, Any]:
    """Every column by split, and calibration errors of all splits' residuals together.

    Args:
        answer: What a method says.
        targets: Targets of each split's test rows, in original units.

    Returns:
        ``columns``: by name a list with a number for each split, None where undefined. ``pooled``: ECE of residuals of
        all splits, where the method has a law.
    """
    residuals: list[Tensor] = []
    by_split = []
    for split, target in enumerate(targets):
        row: dict[str, float | None] = dict.fromkeys(COLUMNS)
        row["train_s"] = answer.seconds
        if answer.laws is not None:
            z = _of_law(row, answer.laws[split], target)
            residuals.append(z)
        if answer.means is not None:
            row["rmse"] = _root_mean_square(answer.means[split] - target)
        if answer.intervals is not None:
            for name, (low, high) in answer.intervals[split].items():
                row[name] = ((low <= target) & (target <= high)).double().mean().item()
                if name == "coverage":
                    row["width"] = (high - low).mean().item()
        by_split.append(_rounded(row))
    columns = {name: [row[name] for row in by_split] for name in COLUMNS}
    pooled = {"pooled": _pooled(torch.cat(residuals))} if residuals else {}
    return {"status": "done", "columns": columns, **pooled, **answer.details}


def _of_law(row: dict[str, float | None], law: Distribution, target: Tensor) -> Tensor:
    """Enter what a law scores; returns its residuals."""
    z = fcal.standardize(law, target).double()
    row["rmse"] = _root_mean_square(law.mean - target)
    row["ll"] = -fcal.nll(law, target).mean().item()
    row["crps"] = fcal.crps(law, target).mean().item()
    bins, df = grid_of(len(target))
    row |= _errors(z, bins, df)
    for name, level in LEVELS.items():
        row[name] = (z.abs() <= math.sqrt(2) * torch.erfinv(torch.tensor(level).double())).double().mean().item()
    tail = (1 - LEVELS["coverage"]) / 2
    row["width"] = (quantile(law, 1 - tail, tail) - quantile(law, tail, 1 - tail)).mean().item()
    return z


def _errors(z: Tensor, bins: int, df: int) -> dict[str, float]:
    report = fcal.evaluate(Normal(torch.zeros_like(z), torch.ones_like(z)), z, bins=bins, df=df)
    return {name: getattr(report, name) for name in ERRORS}


def _pooled(z: Tensor) -> dict[str, Any]:
    bins, df = grid_of(len(z))
    return {"n": len(z), "bins": bins, "df": df, **_rounded(_errors(z, bins, df))}


def _root_mean_square(error: Tensor) -> float:
    return error.double().square().mean().sqrt().item()


def _rounded(numbers: Mapping[str, float | None]) -> dict[str, Any]:
    """Few digits, and None for what JSON has no word for."""
    return {
        name: None if value is None or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")
        for name, value in numbers.items()
    }
