"""Rows of Bokeh's tables compared seed by seed: what the paper's claims and our own goals are judged by."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fcal.benchmarks import Benchmark, Table
from fcal.benchmarks.bokeh.tables import value_of
from fcal.benchmarks.table import Spread
from fcal.benchmarks.task import Result, Results

AS_LONG = "nll trained as long"  # what f-Cal is compared with beside the likelihood's best
_HELD_OUT = "temperature"  # what rows without a held-out set are compared with
_TRAININGS = {"oof_temperature": "crossfit", "oob_auto": "bags", "oob_auto_5": "bags", "oob_mse": "bags"}
_LEFT_OUT = ("oof_", "oob_")  # rows of networks that leave rows out, instead of holding out a set


def with_comparisons(benchmark: Benchmark[Any]) -> Benchmark[Any]:
    """A finished benchmark, with comparisons among the details of its tables."""
    tables = [compared(table, benchmark.results[tuple(table.labels.values())]) for table in benchmark.tables]
    return replace(benchmark, tables=tables)


def compared(table: Table, results: Results) -> Table:
    """A table with ``paired``, ``against_temperature``, ``folds`` and so on among its details."""
    details = {
        "paired": _paired(results),
        "against_temperature": _against_temperature(table, results),
        "folds": _folds(results),
        "held_out_z2": _held_out_z2(results, _TRAININGS),
        "heads_z2": _held_out_z2(results, {"oob_heads": "bags"}).get("oob_heads", []),
    }
    return replace(table, details={**table.details, **details})


def _paired(results: Results) -> dict[str, Any]:
    """ECE(q) of f-Cal against that of the likelihood, seed by seed; the claim is made where the latter is off.

    The likelihood may choose to stop before the epochs that all other losses train for, which is when it is best
    calibrated. What f-Cal does to a network shows beside one that trained on by likelihood for as many.
    """
    known = {**results, AS_LONG: [_trained_as_long(result) for result in results.get("nll", ())]}
    if not any("columns" in result for result in known[AS_LONG]):
        del known[AS_LONG]
    pairs = [(fcal, nll) for fcal in ("fcal_kl", "fcal_wass") for nll in ("nll", AS_LONG)]
    pairs += [(f"{fcal}_all", "nll_all") for fcal in ("fcal_kl", "fcal_wass")]
    return {f"{fcal} - {nll}": _pair(known[fcal], known[nll]) for fcal, nll in pairs if {fcal, nll} <= set(known)}


def _trained_as_long(result: Result) -> dict[str, Any]:
    """The first network that the likelihood trained on from the weights that all start from, whatever was chosen."""
    candidates = result.get("candidates", ())
    numbers = [record.get("test") for record in candidates if record["options"].get("repetition") == 1]
    if not numbers or not numbers[0]:
        return {}
    return {"columns": {name: [value] for name, value in numbers[0].items()}, "floors": result["floors"]}


def _pair(fcal: Sequence[Result], nll: Sequence[Result]) -> dict[str, Any]:
    """Excess of ECE(q) over what calibrated models score on average: the floors are the same, so they cancel.

    A seed in which f-Cal has no numbers counts as one in which it is not below.
    """
    seeds = [(value_of(a, "ece_q"), value_of(b, "ece_q"), a, b) for a, b in zip(fcal, nll, strict=True)]
    off = [(a, b) for a, b, _, result in seeds if b is not None and b > result["floors"]["ece_q"]["q95"]]
    both = [(a, b, one, two) for a, b, one, two in seeds if a is not None and b is not None]
    return {
        "seeds": len(fcal),
        "outside_band": len(off),
        "below": sum(a is not None and a < b for a, b in off),
        "ece_q": [a - b for a, b, _, _ in both],
        "l1_gt": [value_of(one, "l1_gt") / value_of(two, "l1_gt") for _, _, one, two in both],
    }


def _against_temperature(table: Table, results: Results) -> dict[str, Any]:
    """Rows that hold out nothing beside temperature scaling, which does, seed by seed."""
    temperature = results.get(_HELD_OUT, ())
    rows = [row for row in results if row.startswith(_LEFT_OUT)] if temperature else []
    return {row: _beside(results[row], temperature, table.rows[row].seeds["cost"]) for row in rows}


def _beside(results: Sequence[Result], temperature: Sequence[Result], cost: Sequence[float | None]) -> dict[str, Any]:
    """Differences of errors and scores; ratios of accuracy, and of calibration errors to the band."""
    both = [(a, b, c) for a, b, c in zip(results, temperature, cost, strict=True) if "floors" in a and "floors" in b]
    known = [(a, b) for a, b, _ in both]
    return {
        "seeds": len(results),
        **{
            name: [value_of(a, name) - value_of(b, name) for a, b in known]
            for name in ("ece_z", "ece_q", "nll", "crps")
        },
        "l1_gt": [value_of(a, "l1_gt") / value_of(b, "l1_gt") for a, b in known],
        "of_band": {
            name: [value_of(a, name) / a["floors"][name]["q95"] for a, _ in known] for name in ("ece_z", "ece_q")
        },
        "cost": [c for _, _, c in both],
    }


def _held_out_z2(results: Results, trainings: Mapping[str, str]) -> dict[str, list[float]]:
    """Mean squared residuals of rows that networks left out relative to those of test rows, for every training.

    Where only a sample of the rows is left out, its mean is that of all rows, by residuals of seen rows.

    Args:
        results: Results of the rows' cells, one per seed.
        trainings: Row of every kind of training, and what its results call it.
    """
    return {
        row: [
            result[name]["z2"]["held_out"] * result[name].get("sample_ratio", 1.0) ** 2 / result[name]["z2"]["test"]
            for result in results.get(row, ())
            if name in result
        ]
        for row, name in trainings.items()
    }


def _folds(results: Results) -> dict[str, Any]:
    """What networks of folds owe to the images held out, and to having seen fewer than the network of all."""
    errors = [result["crossfit"] for result in results.get("oof_temperature", ()) if "crossfit" in result]
    if not errors:
        return {}
    return {
        f"{name}_{word}": Spread.of([seed[name][above] / seed[name][below] for seed in errors]).as_dict()
        for name in ("mse", "z2")
        for word, above, below in (("leak", "held_out", "test"), ("fewer", "test", "full_test"))
    }
