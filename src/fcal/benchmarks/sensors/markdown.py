"""Tables of the benchmark as Markdown: for terminals and the docs, written from the JSON, never typed."""

from collections.abc import Mapping, Sequence
from typing import Any

Table = Mapping[str, Any]

_SCALED = {"ece_z": 100, "ece_q": 100}
_TITLES = {"rmse": "RMSE", "ll": "LL", "crps": "CRPS", "coverage": "in 90 %", "z2": "mean z²"}
_TITLES |= {"ece_z": "ECE(z) x100", "ece_q": "ECE(q) x100"}
STATES = {
    "motion": "distance and speed",
    "signal": "C/N0, elevation and system",
    "whole": "everything that is known, with signs",
}


def title(table: Table) -> str:
    """What a table is of.

    Example:
        >>> title({"sensor": "gnss", "state": "signal"})
        'GNSS, given C/N0, elevation and system'
    """
    sensor = table["sensor"]
    return f"{sensor.upper() if sensor == 'gnss' else sensor.capitalize()}, given {STATES[table['state']]}"


def facts(table: Table) -> str:
    """What was tested on, in a sentence."""
    correction = "a correction of the known model and the scale" if table["corrects"] else "the scale"
    return (
        f"{table['n_test']:,} readings in {table['clusters']:,} tracks and {table['stretches']} stretches of time, "
        f"{table['folds']} folds of stretches; networks learn {correction} of its errors. "
        f"RMSE and CRPS in {table['unit']}; S = {table['bins']}, K = {table['df']}."
    )


def results_markdown(table: Table) -> str:
    """Every row: columns of all test rows together, the floor of each calibration error, the verdict."""
    columns = table["columns"]
    lines = _header(["", *(_TITLES[column] for column in columns), "scale of z", "verdict"])
    for name, row in table["rows"].items():
        scale = row["scale"]
        spread = f"{scale['value']:.3f} ({scale['low']:.2f}-{scale['high']:.2f})"
        word = row["verdict"] if row["conclusive"] else f"{row['verdict']}?"
        lines.append(_line([name, *(_cell(row, column) for column in columns), spread, word]))
    return "\n".join(lines) + "\n"


def known_markdown(table: Table) -> str:
    """Learnt sds beside those that are stated and measured."""
    known, unit = table["known"], table["unit"]
    bins = known["bins"]
    names = [_bin(table, one) for one in bins]
    lines = _header(["", f"all, {unit}", "ratio to the stated sd", *(f"{name}, {unit}" for name in names), "reached"])
    lines.append(
        _line(
            [
                "*stated; bins as measured before*",
                _number(known["stated_sd"]),
                "",
                *("-" if one["source_sd"] is None else _number(one["source_sd"]) for one in bins),
                "",
            ]
        )
    )
    measured = [_number(one["measured_sd"]) for one in bins]
    ratio = f"{known['measured_sd'] / known['stated_sd']:.3f}"
    lines.append(_line(["*measured here*", _number(known["measured_sd"]), ratio, *measured, ""]))
    for name, learnt in known["learnt"].items():
        cells = [_with_ratio(one["learnt"][name]) for one in bins]
        reached = {True: "yes", False: "no", None: "-"}[known["reached"][name]]
        lines.append(_line([name, _number(learnt["sd"]), f"{learnt['ratio']:.3f}", *cells, reached]))
    return "\n".join(lines) + "\n"


def noise_markdown(table: Table) -> str:
    """How much of the sd is noise about the learnt correction, of which the rest is."""
    known = table["known"]
    lines = _header(
        ["", "sd", "of it noise", "noise / stated", *(f"noise, {_bin(table, one)}" for one in known["bins"])]
    )
    for name, learnt in known["learnt"].items():
        noise = [_number(one["learnt"][name]["noise"]) for one in known["bins"]]
        cells = [_number(learnt["total"]), _number(learnt["noise"]), f"{learnt['noise_ratio']:.3f}", *noise]
        lines.append(_line([name, *cells]))
    return "\n".join(lines) + "\n"


def family_markdown(table: Table) -> str:
    """Families ranked by held-out errors, and what networks of each score."""
    family = table["family"]
    trained = family["log_likelihood"]
    lines = _header(
        ["", "log-likelihood of held-out errors", "behind the best", "shape", "LL of networks of the family"]
    )
    for one in family["ranking"]:
        behind = f"{one['behind']:.4f} ± {one['standard_error']:.4f}"
        shape = "" if one["shape"] is None else f"{one['shape']:.3g}"
        own = f"{trained[one['family']]:.4f}" if one["family"] in trained else ""
        lines.append(_line([one["family"], f"{one['log_likelihood']:.4f}", behind, shape, own]))
    return "\n".join(lines) + "\n"


def family_sentence(table: Table) -> str:
    """Which family the noise is of, with readings of a track, and with those of a stretch, counted as one."""
    family = table["family"]
    return (
        f"Family of the noise, with readings of a track as one: {family['verdict']}. With those of a stretch as one: "
        f"{family['by_stretches']['verdict']}."
    )


def everything(tables: Sequence[Table]) -> str:
    """What the command prints."""
    parts = []
    for table in tables:
        parts += [f"## {title(table)}\n", facts(table) + "\n", results_markdown(table)]
        parts += ["Standard deviations that laws say errors have:\n", known_markdown(table)]
        parts += [family_sentence(table) + "\n"]
    return "\n".join(parts)


def _cell(row: Mapping[str, Any], column: str) -> str:
    value = row[column]["mean"]
    if column not in _SCALED:
        return f"{value:.1%}" if column == "coverage" else _number(value)
    factor, floor = _SCALED[column], row["floors"][column]
    return f"{_number(factor * value)} ({_number(factor * floor['q95'])})"


def _with_ratio(one: Mapping[str, Any]) -> str:
    return f"{_number(one['sd'])} ({one['ratio']:.3f})"


def _bin(table: Table, one: Mapping[str, Any]) -> str:
    unit = "dBHz" if table["curve"]["axis"] == "strength" else "m"
    return f"{one['low']:g}-{one['high']:g} {unit}"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.4g}"


def _header(titles: Sequence[str]) -> list[str]:
    return [_line(titles), "|" + "|".join(["---"] + ["---:"] * (len(titles) - 1)) + "|"]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
