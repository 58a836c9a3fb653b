"""Tables of finished rows: means over seeds, floors, and the paper's numbers beside ours."""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from statistics import fmean, stdev
from typing import Any

from fcal.benchmarks.bokeh.rows import COLUMNS, ERRORS
from fcal.benchmarks.bokeh.settings import Settings

Results = Mapping[str, Sequence[Mapping[str, Any]]]  # of each row, one result per seed


def table(settings: Settings, noise: str, regime: str, results: Results) -> dict[str, Any]:
    """One table, as it is printed by ``--json``.

    Args:
        settings: Of the benchmark.
        noise: Kind of label noise.
        regime: Regime of the data.
        results: Results of the rows' cells.
    """
    test_images = settings.images // 5 + settings.extra
    return {
        "noise": noise,
        "regime": regime,
        "seeds": settings.seeds,
        "bins": settings.bins,
        "df": settings.df,
        "n_test": 2 * test_images,
        "images": {"train": settings.images * 3 // 5, "validation": settings.images // 5, "test": test_images},
        "columns": list(COLUMNS),
        "rows": {name: _row(found) for name, found in results.items()},
        "floors": _floors(results),
        "paired": _paired(results),
        "paper": paper_numbers(noise),
        "paper_grid": paper_grid(),
    }


def paper_numbers(noise: str) -> dict[str, Any]:
    """What the paper's appendix reports for Bokeh, by method; empty where it has no table of this noise.

    Example:
        >>> paper_numbers("homoscedastic")["fcal_wass"]["ece_q"]["mean"]
        0.037
    """
    return {
        method: {column: dict(zip(("mean", "sd"), pair, strict=True)) for column, pair in columns.items()}
        for method, columns in _paper()["tables"].get(noise, {}).items()
    }


def paper_grid() -> dict[str, str]:
    """Numbers of bins and of residuals in a sum that the paper's numbers were probably made with."""
    return {name: _paper()[name] for name in ("bins", "df", "note")}


def _paper() -> dict[str, Any]:
    text = resources.files("fcal.benchmarks.bokeh").joinpath("paper.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def _row(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and sd of every column over seeds."""
    whole = [result["columns"] for result in found if "columns" in result]
    row: dict[str, Any] = {column: _spread([columns.get(column) for columns in whole]) for column in COLUMNS}
    row["seeds"] = {column: [columns.get(column) for columns in whole] for column in COLUMNS}
    grids = [result["grids"] for result in found if "grids" in result]
    if grids:
        row["grids"] = _grids(grids)
    failed = [result for result in found if result["status"] != "done"]
    if failed:
        row["status"] = "failed"
        row["reason"] = f"{len(failed)} of {len(found)} seeds: {failed[0].get('reason', 'unknown')}"
    return row


def _grids(grids: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The same for every number of bins and of residuals in a sum."""
    names = [name for name in ERRORS if name != "ence"]
    return [
        {"bins": same[0]["bins"], "df": same[0]["df"]}
        | {name: _spread([grid[name] for grid in same]) for name in names}
        | {"floors": {name: same[0]["floors"][name] for name in names}}
        for same in zip(*grids, strict=True)
    ]


def _spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Mean and sd of what is known; the sd of one value is unknown."""
    known = [value for value in values if value is not None]
    return {
        "mean": fmean(known) if known else None,
        "sd": stdev(known) if len(known) > 1 else None,
    }


def _floors(results: Results) -> dict[str, Any]:
    """What a calibrated model scores on as many test images; that of ENCE depends on the sigmas: the oracle's."""
    laws = [found for row in ("oracle", *results) for found in results.get(row, ()) if "floors" in found]
    return dict(laws[0]["floors"]) if laws else {}


def _paired(results: Results) -> dict[str, Any]:
    """ECE(q) of f-Cal against that of the likelihood, seed by seed; the claim is made where the latter is off."""
    pairs = (("fcal_kl", "nll"), ("fcal_wass", "nll"), ("fcal_kl_all", "nll_all"), ("fcal_wass_all", "nll_all"))
    return {f"{one} - {two}": _pair(results[one], results[two]) for one, two in pairs if {one, two} <= set(results)}


def _pair(one: Sequence[Mapping[str, Any]], two: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Excess of ECE(q) over what calibrated models score on average: the floors are the same, so they cancel."""
    both = [(a, b) for a, b in zip(one, two, strict=True) if "floors" in a and "floors" in b]
    off = [(a, b) for a, b in both if b["columns"]["ece_q"] > b["floors"]["ece_q"]["q95"]]
    return {
        "seeds": len(both),
        "outside_band": len(off),
        "below": sum(a["columns"]["ece_q"] < b["columns"]["ece_q"] for a, b in off),
        "ece_q": [a["columns"]["ece_q"] - b["columns"]["ece_q"] for a, b in both],
        "l1_gt": [a["columns"]["l1_gt"] / b["columns"]["l1_gt"] for a, b in both],
    }
