"""Tables of finished rows: means over seeds, floors, and the paper's numbers beside ours."""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from statistics import fmean, stdev
from typing import Any

from fcal.benchmarks.bokeh.rows import COLUMNS, ERRORS
from fcal.benchmarks.bokeh.settings import Settings
from fcal.data import Bokeh
from fcal.data.bokeh import SPLITS

_FEWEST_IMAGES = 1000  # a network that saw fewer has hardly learnt the task: the paper's numbers say nothing of it
AS_LONG = "nll trained as long"  # what f-Cal is compared with beside the likelihood's best
_OF_CANDIDATES = ("l1_gt", "ece_z", "ece_q", "nll")
TABLE_COLUMNS = (*COLUMNS, "cost")  # which is a ratio to another row
_REPAIRED = "temperature"  # what rows without a held-out set are compared with
_OUT_OF_FOLD = "oof_"
_OF_INTERVALS = ("coverage", "width")

Results = Mapping[str, Sequence[Mapping[str, Any]]]  # of each row, one result per seed


def table(settings: Settings, noise: str, regime: str, results: Results) -> dict[str, Any]:
    """One table, as it is printed by ``--json``.

    Args:
        settings: Of the benchmark.
        noise: Kind of label noise.
        regime: Regime of the data.
        results: Results of the rows' cells.
    """
    sizes = {split: len(Bokeh(split, settings.data(noise, regime, 0))) for split in SPLITS}
    test_images = sizes["test"] + sizes["extra"]
    results = _with_cost(results)
    return {
        "noise": noise,
        "regime": regime,
        "seeds": settings.seeds,
        "bins": settings.bins,
        "df": settings.df,
        "n_test": 2 * test_images,
        "images": {"train": sizes["train"], "validation": sizes["validation"], "test": test_images},
        "columns": list(TABLE_COLUMNS),
        "rows": {name: _row(found) for name, found in results.items()},
        "floors": _floors(results),
        "paired": _paired(results),
        "against_temperature": _against_temperature(results),
        "intervals": _intervals(results),
        "strata": _strata(results),
        "folds": _folds(results),
        "paper": paper_numbers(noise) if _like_the_paper(settings, regime) else {},
        "paper_grid": paper_grid(),
    }


def _like_the_paper(settings: Settings, regime: str) -> bool:
    return regime == "paper-like" and settings.images >= _FEWEST_IMAGES


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
    """Mean and sd of every column over seeds, and what each candidate would have scored."""
    by_seed = {column: [result.get("columns", {}).get(column) for result in found] for column in TABLE_COLUMNS}
    row: dict[str, Any] = {column: _spread(values) for column, values in by_seed.items()}
    row["seeds"] = by_seed
    row["ence_floor"] = next((result["floors"]["ence"] for result in found if "floors" in result), None)
    grids = [result["grids"] for result in found if "grids" in result]
    if grids:
        row["grids"] = _grids(grids)
    if any("candidates" in result for result in found):
        row["candidates"] = _candidates([result for result in found if "candidates" in result])
    failed = [result for result in found if result["status"] != "done"]
    if failed:
        row["status"] = "crashed" if any(result["status"] == "crashed" for result in failed) else "failed"
        row["reason"] = f"{len(failed)} of {len(found)} seeds: {failed[0].get('reason', 'unknown')}"
    return row


def _candidates(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Options of every candidate, in how many seeds it was chosen, and its test numbers, which chose nothing."""
    return [
        {
            "options": same[0]["options"],
            "chosen": sum(result.get("chosen") == place for result in found),
            "diverged": sum(one["status"] == "diverged" for one in same),
            "validation_nll": _spread([one.get("nll") for one in same]),
            **{name: _spread([(one.get("test") or {}).get(name) for one in same]) for name in _OF_CANDIDATES},
        }
        for place, same in enumerate(zip(*(result["candidates"] for result in found), strict=True))
    ]


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
    """ECE(q) of f-Cal against that of the likelihood, seed by seed; the claim is made where the latter is off.

    The likelihood may choose to stop before the epochs that all other losses train on for, which is when it is best
    calibrated. What f-Cal does to a network shows beside one that trained on by likelihood for as many.
    """
    known = {**results, AS_LONG: [_trained_as_long(result) for result in results.get("nll", ())]}
    if not any("columns" in result for result in known[AS_LONG]):
        del known[AS_LONG]
    pairs = [(one, two) for one in ("fcal_kl", "fcal_wass") for two in ("nll", AS_LONG)]
    pairs += [(f"{one}_all", "nll_all") for one in ("fcal_kl", "fcal_wass")]
    return {f"{one} - {two}": _pair(known[one], known[two]) for one, two in pairs if {one, two} <= set(known)}


def _with_cost(results: Results) -> Results:
    """Every row with its time of training beside that of plain likelihood, seed by seed."""
    plain = [result.get("columns", {}).get("train_s") for result in results.get("nll", ())]
    if not plain:
        return results
    return {row: [_costed(one, base) for one, base in zip(found, plain, strict=True)] for row, found in results.items()}


def _costed(result: Mapping[str, Any], plain: float | None) -> Mapping[str, Any]:
    seconds = result.get("columns", {}).get("train_s")
    if seconds is None or not plain:
        return result
    return {**result, "columns": {**result["columns"], "cost": seconds / plain}}


def _against_temperature(results: Results) -> dict[str, Any]:
    """Rows that hold out nothing for good beside temperature scaling, which does, seed by seed."""
    rival = results.get(_REPAIRED, ())
    rows = {row: found for row, found in results.items() if row.startswith(_OUT_OF_FOLD)}
    return {row: _beside_temperature(found, rival) for row, found in rows.items()} if rival else {}


def _beside_temperature(found: Sequence[Mapping[str, Any]], rival: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Differences of errors and scores; ratios of accuracy, and of calibration errors to the band."""
    known = [(a, b) for a, b in zip(found, rival, strict=True) if "floors" in a and "floors" in b]
    both = [(a["columns"], b["columns"]) for a, b in known]
    of_band = {name: [a["columns"][name] / a["floors"][name]["q95"] for a, _ in known] for name in ("ece_z", "ece_q")}
    return {
        "seeds": len(found),
        **{name: [one[name] - two[name] for one, two in both] for name in ("ece_z", "ece_q", "nll", "crps")},
        "l1_gt": [one["l1_gt"] / two["l1_gt"] for one, two in both],
        "of_band": of_band,
        "cost": [one.get("cost") for one, _ in both],
    }


def _intervals(results: Results) -> dict[str, Any]:
    """Coverage of central intervals of a level, and their width where it is known."""
    known = {row: [result["interval"] for result in found if "interval" in result] for row, found in results.items()}
    return {
        row: {"level": same[0]["level"]}
        | {name: _spread([one[name] for one in same]) for name in ("coverage", "width")}
        for row, same in known.items()
        if same
    }


def _strata(results: Results) -> dict[str, Any]:
    """Mean and worst calibration error of residuals by size of the predicted sigma."""
    known = {row: [result["strata"] for result in found if "strata" in result] for row, found in results.items()}
    return {
        row: {
            f"{name}_{word}": _spread([of(one[name]) for one in same])
            for name in ("ece_z", "ece_q")
            for word, of in (("mean", fmean), ("worst", max))
        }
        for row, same in known.items()
        if same
    }


def _folds(results: Results) -> dict[str, Any]:
    """What networks of folds owe to the images held out, and to having seen fewer than the network of all."""
    found = [result["crossfit"] for result in results.get("oof_temperature", ()) if "crossfit" in result]
    if not found:
        return {}
    return {
        f"{name}_{what}": _spread([one[name][above] / one[name][below] for one in found])
        for name in ("mse", "z2")
        for what, above, below in (("leak", "held_out", "test"), ("fewer", "test", "full_test"))
    }


def _trained_as_long(result: Mapping[str, Any]) -> dict[str, Any]:
    """The first network that the likelihood trained on from the weights that all start from, whatever was chosen."""
    numbers = [one.get("test") for one in result.get("candidates", ()) if one["options"].get("repetition") == 1]
    return {"columns": numbers[0], "floors": result["floors"]} if numbers and numbers[0] else {}


def _pair(one: Sequence[Mapping[str, Any]], two: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Excess of ECE(q) over what calibrated models score on average: the floors are the same, so they cancel.

    A seed in which f-Cal has no numbers counts as one in which it is not below.
    """
    off = [(a, b) for a, b in zip(one, two, strict=True) if _ece_q(b) is not None and _ece_q(b) > _band(b)]
    both = [(a, b) for a, b in zip(one, two, strict=True) if _ece_q(a) is not None and _ece_q(b) is not None]
    return {
        "seeds": len(one),
        "outside_band": len(off),
        "below": sum(_ece_q(a) is not None and _ece_q(a) < _ece_q(b) for a, b in off),
        "ece_q": [_ece_q(a) - _ece_q(b) for a, b in both],
        "l1_gt": [a["columns"]["l1_gt"] / b["columns"]["l1_gt"] for a, b in both],
    }


def _ece_q(result: Mapping[str, Any]) -> Any:
    return result.get("columns", {}).get("ece_q")


def _band(result: Mapping[str, Any]) -> Any:
    return result["floors"]["ece_q"]["q95"]
