"""Further tables of Bokeh's page of results, as Markdown."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fcal.benchmarks import Column, Table
from fcal.benchmarks.bokeh.tables import TABLE_COLUMNS, paper_section
from fcal.benchmarks.markdown import lines_of, row_label, spread_text
from fcal.benchmarks.scoring import ECE_Q, ECE_Z, NLL

_BY_NAME = {column.name: column for column in TABLE_COLUMNS}
_MISSING = "-"


def sections(table: Table) -> list[tuple[str, str]]:
    """Further tables as Markdown, each with a sentence before it; those without rows are left out."""
    parts = [
        ("f-Cal against the likelihood, seed by seed (`..._all`: both trained on all images):", _paired_lines(table)),
        (
            "Rows of networks that leave images out, minus temperature scaling, mean and seed by seed (L1(GT): ratio "
            "to the network that it repairs; band: what 95 % of calibrated models stay below):",
            _against_lines(table),
        ),
        ("Central intervals:", _interval_lines(table)),
        (
            "Networks without a fold: what they know of the images held out (1 would be nothing, up to the draw of "
            "images), and what they lack:",
            _fold_lines(table),
        ),
        (
            "Heads on one trunk, which has seen all images (`oob_heads`): z² of images that heads left out relative to "
            "test images, mean and seed by seed; 1 would be nothing:",
            _heads_lines(table),
        ),
        ("By size of the predicted sigma, eight strata:", _strata_lines(table)),
        ("Candidates (the test numbers beside them chose nothing):", _candidate_lines(table)),
        paper_section(table),
        ("With other numbers of bins and of residuals in a sum, x100:", _grid_lines(table)),
    ]
    return [(sentence, text) for sentence, text in parts if text]


def _grid_lines(table: Table) -> str:
    """ECE(z) and ECE(q) for other numbers of bins and of residuals in a sum; ECE(z) does not depend on the latter."""
    rows = {name: row.details["grids"] for name, row in table.rows.items() if "grids" in row.details}
    if not rows:
        return ""

    def shown(grids: Sequence[Mapping[str, Any]]) -> list[tuple[Column, Mapping[str, Any]]]:
        of_z = [(ECE_Z, grid) for grid in grids if grid["df"] == grids[0]["df"]]
        return of_z + [(ECE_Q, grid) for grid in grids]

    first = shown(next(iter(rows.values())))
    headings = ["", *(f"{column.title}, S = {grid['bins']}, K = {grid['df']}" for column, grid in first)]
    lines = [
        [row_label(name, table), *(spread_text(column, grid[column.name]) for column, grid in shown(grids))]
        for name, grids in rows.items()
    ]
    floors = [column.text(grid["floors"][column.name]["expected"]) for column, grid in first]
    return lines_of(headings, [*lines, ["*calibrated model*", *floors]])


def _paired_lines(table: Table) -> str:
    headings = ["", "seeds", "NLL outside its band", "f-Cal below NLL there", "difference of ECE(q) x100"]
    lines = [
        [
            name,
            *(str(pair[word]) for word in ("seeds", "outside_band", "below")),
            _several(pair["ece_q"], 100.0),
            _several(pair["l1_gt"], 1.0),
        ]
        for name, pair in table.details["paired"].items()
    ]
    return lines_of([*headings, "L1(GT), ratio"], lines)


def _against_lines(table: Table) -> str:
    rows = table.details["against_temperature"]
    factors = {"ece_q": 100.0, "ece_z": 100.0, "nll": 1.0, "crps": 1000.0, "l1_gt": 1.0}
    headings = [
        "",
        "ECE(q) x100",
        "ECE(z) x100",
        "NLL",
        "CRPS x1000",
        "L1(GT), ratio",
        "ECE(q) / band",
        "ECE(z) / band",
    ]
    lines = []
    for name, row in rows.items():
        numbers = [_mean_and_all(row[key], factor) for key, factor in factors.items()]
        bands = [_mean_and_all(row["of_band"][key], 1.0) for key in ("ece_q", "ece_z")]
        cost = [value for value in row["cost"] if value is not None]
        lines.append([row_label(name, table), *numbers, *bands, f"{fmean(cost):.2f}" if cost else _MISSING])
    return lines_of([*headings, "cost"], lines) if rows else ""


def _interval_lines(table: Table) -> str:
    rows = table.details["intervals"]
    if not rows:
        return ""
    level = next(iter(rows.values()))["level"]
    lines = [
        [row_label(name, table), _around(row["coverage"], 1.0, 4), _around(row["width"], 1000.0, 4)]
        for name, row in rows.items()
    ]
    return lines_of(["", f"coverage of {level:.0%} intervals", "mean width x1000"], lines)


def _heads_lines(table: Table) -> str:
    ratios = table.details["heads_z2"]
    return lines_of(["", "z²"], [["held out / test", _mean_and_all(ratios, 1.0)]]) if ratios else ""


def _fold_lines(table: Table) -> str:
    folds = table.details["folds"]
    titles = {
        "leak": "held-out images, as a ratio to test images",
        "fewer": "as a ratio to the network of all, on test images",
    }
    lines = (
        [
            [text, *(_around(folds[f"{name}_{ratio}"], 1.0, 3) for name in ("mse", "z2"))]
            for ratio, text in titles.items()
        ]
        if folds
        else []
    )
    return lines_of(["networks of folds", "squared errors", "z²"], lines) if folds else ""


def _strata_lines(table: Table) -> str:
    rows = table.details["strata"]
    keys = [(name, word) for name in ("ece_z", "ece_q") for word in ("mean", "worst")]
    headings = ["", *(f"{_BY_NAME[name].heading}, {word} stratum" for name, word in keys), "ENCE"]
    lines = [
        [
            row_label(name, table),
            *(_around(row[f"{key}_{word}"], 100.0, 3) for key, word in keys),
            spread_text(_BY_NAME["ence"], table.rows[name].columns["ence"]),
        ]
        for name, row in rows.items()
    ]
    return lines_of(headings, lines) if rows else ""


def _candidate_lines(table: Table) -> str:
    """Every candidate, how often it was chosen, and what it scored on test, which chose nothing."""
    shown = [_BY_NAME[name] for name in ("nll", "ece_q", "ece_z", "l1_gt")]
    lines = []
    for name, row in table.rows.items():
        for candidate in row.details.get("candidates", ()):
            options = ", ".join(f"{key} {value}" for key, value in candidate["options"].items() if key != "name")
            numbers = (spread_text(column, candidate[column.name]) for column in shown)
            validation = spread_text(NLL, candidate["validation_nll"])
            lines.append([name, options, str(candidate["chosen"]), validation, *numbers])
    return lines_of(["", "candidate", "chosen", "validation NLL", *(c.heading for c in shown)], lines)


def _mean_and_all(values: Sequence[float], factor: float) -> str:
    return f"**{factor * fmean(values):.3g}** ({_several(values, factor)})" if values else _MISSING


def _several(values: Sequence[float], factor: float) -> str:
    return ", ".join(f"{value * factor:.3g}" for value in values) or _MISSING


def _around(spread: Mapping[str, float | None], factor: float, digits: int) -> str:
    mean, sd = spread["mean"], spread["sd"]
    if mean is None:
        return _MISSING
    return f"{factor * mean:.{digits}g}" + ("" if sd is None else f" ± {factor * sd:.2g}")
