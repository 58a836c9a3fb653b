"""Tables of the sensor benchmark: columns, and learnt and known standard deviations, as Markdown."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fcal.benchmarks.markdown import lines_of
from fcal.benchmarks.scoring import COVERAGE, CRPS, ECE_Q, ECE_Z, RMSE
from fcal.benchmarks.sensors.settings import SensorTable, Settings
from fcal.benchmarks.table import DONE, Column, Row, Spread, Table, row_of
from fcal.benchmarks.task import Result, Results

TABLE_COLUMNS = (
    RMSE,
    Column(name="ll", title="LL", description="mean log-likelihood", lower_is_better=False, digits=4),
    CRPS,
    ECE_Z,
    ECE_Q,
    COVERAGE,
    Column(name="z2", title="mean z²", description="mean squared residual; 1 is calibrated", ranked=False, digits=4),
)
STATES = {
    "motion": "distance and speed",
    "signal": "C/N0, elevation and system",
    "whole": "everything that is known, with signs",
}
_STATED = "stated"
_ROW_DETAILS = ("verdict", "conclusive", "verdict_reason", "scale", "shift", "covered", "floors")
_BANDED = (ECE_Z, ECE_Q)
_MISSING = "-"


def sensors_table(
    settings: Settings, name: str, definition: SensorTable, results: Results, facts: Result | None
) -> Table:
    """The table of one sensor and state.

    Args:
        settings: Settings of the benchmark.
        name: Name of the table.
        definition: Its sensor, inputs and bins.
        results: The result of every row's cell.
        facts: Result of :meth:`SensorsProblem.facts`; None if it could not be computed.
    """
    known = {row: result["learnt"] for row, (result,) in results.items() if "learnt" in result}
    details = {} if facts is None else _details(definition, facts, known)
    return Table(
        labels={"name": name},
        seeds=settings.folds,
        bins=settings.bins,
        df=settings.df,
        n_test=0 if facts is None else facts["n_test"],
        columns=tuple(column.name for column in TABLE_COLUMNS),
        rows={row: _row(result) for row, (result,) in results.items()},
        details={
            "sensor": definition.sensor,
            "state": definition.state,
            "inputs": list(definition.inputs),
            "corrects": definition.corrects,
            "robust": definition.robust,
            "folds": settings.folds,
            **details,
        },
    )


def _row(result: Result) -> Row:
    """Columns of all test rows together, and their standard deviation over folds."""
    columns = [column.name for column in TABLE_COLUMNS]
    row = row_of([result], columns, **{name: result[name] for name in _ROW_DETAILS if name in result})
    overall = result.get("overall", {})
    return replace(row, columns={name: Spread(**overall.get(name, {})) for name in columns})


def _details(definition: SensorTable, facts: Result, learnt: Mapping[str, Any]) -> dict[str, Any]:
    stated, family = facts["stated_sd"], facts["family"]
    sources = dict(zip(definition.edges, definition.source, strict=False))
    bins = []
    for number, facts_of_bin in enumerate(facts["bins"]):
        source = sources.get(facts_of_bin["low"])
        truth = facts_of_bin["measured_sd"] if source is None else source
        compared = {row: _compared(spreads["bins"][number], truth) for row, spreads in learnt.items()}
        bins.append({**facts_of_bin, "source_sd": source, "learnt": compared})
    return {
        **{name: facts[name] for name in ("unit", "clusters", "stretches")},
        "known": {
            "stated_sd": stated,
            "measured_sd": facts["measured_sd"],
            "learnt": {row: _compared(spreads["all"], stated) for row, spreads in learnt.items()},
            "bins": bins,
        },
        "curve": {
            "axis": definition.axis,
            **facts["curve"],
            "learnt": {row: spreads["curve"] for row, spreads in learnt.items() if row != _STATED},
        },
        "family": family,
    }


def _compared(spread: Mapping[str, Any], truth: float) -> dict[str, Any]:
    """A predicted spread, and its ratio to a known one."""
    sd = spread["total"] if spread["robust"] is None else spread["robust"]
    return {"sd": sd, **spread, "ratio": sd / truth, "noise_ratio": spread["noise"] / truth}


def title(table: Table) -> str:
    """Sensor and state."""
    return f"{sensor_title(table)}, given {STATES.get(table.details['state'], table.details['state'])}"


def sensor_title(table: Table) -> str:
    """Name of the sensor, as a title."""
    sensor: str = table.details["sensor"]
    return sensor.upper() if sensor == "gnss" else sensor.capitalize()


def size_sentence(table: Table) -> str:
    """Size of the test data and what networks learn, in a sentence."""
    details = table.details
    learnt = "a correction of the known model and the scale" if details["corrects"] else "the scale"
    if "known" not in details:
        return ""
    return (
        f"{table.n_test:,} readings in {details['clusters']:,} tracks and {details['stretches']} stretches of time, "
        f"{details['folds']} folds of stretches; networks learn {learnt} of its errors. "
        f"RMSE and CRPS in {details['unit']}; S = {table.bins}, K = {table.df}."
    )


def sections(table: Table) -> list[tuple[str, str]]:
    """Further tables as Markdown, each with a sentence before it."""
    parts = [
        (
            "Verdicts (what 95 % of calibrated models stay below, given the clusters, and the scale of z with its 95 % "
            "interval):",
            _verdict_lines(table),
        )
    ]
    if "known" not in table.details:
        return parts
    parts.append(
        (
            "Standard deviations of errors about the known model, in brackets their ratio to those that were measured "
            "before, or here:",
            _known_lines(table),
        )
    )
    if table.details["corrects"]:
        parts.append(("How much of these is noise about the learnt correction:", _noise_lines(table)))
    return [*parts, (_family_sentence(table), _family_lines(table))]


def _verdict_lines(table: Table) -> str:
    lines = []
    for name, row in table.rows.items():
        details = row.details
        if row.status != DONE or "verdict" not in details:
            continue
        bands = [column.text(details["floors"][column.name]["q95"]) for column in _BANDED]
        scale = "{value:.3f} ({low:.2f}-{high:.2f})".format(**details["scale"])
        lines.append([name, *bands, scale, details["verdict"] + ("" if details["conclusive"] else "?")])
    return lines_of(["", *(f"{column.heading} below" for column in _BANDED), "scale of z", "verdict"], lines)


def _known_lines(table: Table) -> str:
    known, unit = table.details["known"], table.details["unit"]
    bins = known["bins"]
    headings = ["", f"all, {unit}", "ratio to the stated sd", *(f"{_bin(table, each)}, {unit}" for each in bins)]
    sources = [_MISSING if each["source_sd"] is None else _number(each["source_sd"]) for each in bins]
    ratio = f"{known['measured_sd'] / known['stated_sd']:.3f}"
    lines = [
        ["*stated; bins as measured before*", _number(known["stated_sd"]), "", *sources],
        ["*measured here*", _number(known["measured_sd"]), ratio, *(_number(each["measured_sd"]) for each in bins)],
    ]
    for name, learnt in known["learnt"].items():
        cells = [f"{_number(each['learnt'][name]['sd'])} ({each['learnt'][name]['ratio']:.3f})" for each in bins]
        lines.append([name, _number(learnt["sd"]), f"{learnt['ratio']:.3f}", *cells])
    return lines_of(headings, lines)


def _noise_lines(table: Table) -> str:
    known = table.details["known"]
    headings = ["", "sd", "of it noise", "noise / stated", *(f"noise, {_bin(table, each)}" for each in known["bins"])]
    lines = []
    for name, learnt in known["learnt"].items():
        noise = [_number(each["learnt"][name]["noise"]) for each in known["bins"]]
        totals = [_number(learnt["total"]), _number(learnt["noise"]), f"{learnt['noise_ratio']:.3f}"]
        lines.append([name, *totals, *noise])
    return lines_of(headings, lines)


def _family_sentence(table: Table) -> str:
    family = table.details["family"]
    chosen = ", ".join(f"{name} in {count}" for name, count in Counter(family["chosen"]).items())
    return (
        f"Family of the noise, with readings of a track as one: {family['verdict']}. With those of a stretch as one: "
        f"{family['by_stretches']['verdict']}. Networks predict: {chosen} of the folds."
    )


def _family_lines(table: Table) -> str:
    """Families ranked by held-out errors, and the log-likelihood of networks of each."""
    family = table.details["family"]
    headings = ["", "log-likelihood of held-out errors", "behind the best", "shape", "LL of networks of the family"]
    lines = []
    for candidate in family["ranking"]:
        behind = f"{candidate['behind']:.4f} ± {candidate['standard_error']:.4f}"
        shape = "" if candidate["shape"] is None else f"{candidate['shape']:.3g}"
        trained = family["log_likelihood"].get(candidate["family"])
        own = "" if trained is None else f"{trained:.4f}"
        lines.append([candidate["family"], f"{candidate['log_likelihood']:.4f}", behind, shape, own])
    return lines_of(headings, lines)


def _bin(table: Table, bounds: Mapping[str, Any]) -> str:
    unit = "dBHz" if table.details["curve"]["axis"] == "strength" else "m"
    return f"{bounds['low']:g}-{bounds['high']:g} {unit}"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.4g}"
