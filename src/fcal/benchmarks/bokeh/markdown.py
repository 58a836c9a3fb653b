"""Tables of the benchmark as Markdown, for the docs: written from the JSON, never typed."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fcal.benchmarks.columns import scaled_number, scaled_title

Table = Mapping[str, Any]

_OF_PAPER = ("l1_gt", "l1", "ece_z", "ece_q", "nll")
_MISSING = "-"


def results_markdown(table: Table) -> str:
    """Every row of a table: mean ± sd over seeds, and what calibrated models score."""
    lines = _header(["", *(scaled_title(column) for column in table["columns"])])
    for name, row in table["rows"].items():
        mark = f" ({row['status']})" if "status" in row else ""
        lines.append(_line([name + mark, *(_spread(row[column], column) for column in table["columns"])]))
    floors = {**table["floors"], "ence": None}  # that of ENCE depends on the predicted sigmas: every row has its own
    for what, label in (("expected", "*calibrated model*"), ("q95", "*95 % of them below*")):
        lines.append(_line([label, *(_floor(floors.get(column), what, column) for column in table["columns"])]))
    return "\n".join(lines) + "\n"


def paper_markdown(table: Table) -> str:
    """The paper's numbers beside ours; empty where it has none."""
    rows = {name: row for name, row in table["paper"].items() if name in table["rows"]}
    if not rows:
        return ""
    lines = _header(["", *(f"{scaled_title(column)}, {who}" for column in _OF_PAPER for who in ("ours", "paper"))])
    for name, paper in rows.items():
        both = (table["rows"][name], paper)
        lines.append(_line([name, *(_spread(of.get(column), column) for column in _OF_PAPER for of in both)]))
    return "\n".join(lines) + "\n"


def grids_markdown(table: Table) -> str:
    """ECE(z) and ECE(q) for other numbers of bins and of residuals in a sum, x100."""
    rows = {name: row["grids"] for name, row in table["rows"].items() if "grids" in row}
    if not rows:
        return ""
    grids = next(iter(rows.values()))
    titles = [f"{kind}, S = {grid['bins']}, K = {grid['df']}" for kind, _, grid in _kinds(grids)]
    lines = _header(["", *titles])
    lines += [_line([name, *(_spread(grid[key], key) for _, key, grid in _kinds(row))]) for name, row in rows.items()]
    floors = [_floor(grid["floors"][key], "expected", key) for _, key, grid in _kinds(grids)]
    return "\n".join([*lines, _line(["*calibrated model*", *floors])]) + "\n"


def paired_markdown(table: Table) -> str:
    """f-Cal against the likelihood, seed by seed."""
    lines = _header(
        ["", "seeds", "NLL outside its band", "f-Cal below NLL there", "difference of ECE(q) x100", "L1(GT), ratio"]
    )
    for name, pair in table["paired"].items():
        lines.append(
            _line(
                [
                    name,
                    str(pair["seeds"]),
                    str(pair["outside_band"]),
                    str(pair["below"]),
                    _several(pair["ece_q"], 100.0),
                    _several(pair["l1_gt"], 1.0),
                ]
            )
        )
    return "\n".join(lines) + "\n"


def against_markdown(table: Table) -> str:
    """Rows that hold out nothing beside temperature scaling, seed by seed; empty where there are none."""
    rows = table["against_temperature"]
    if not rows:
        return ""
    titles = [
        "ECE(q) x100",
        "ECE(z) x100",
        "NLL",
        "CRPS x1000",
        "L1(GT), ratio",
        "ECE(q), ECE(z) near the oracle",
        "cost",
    ]
    lines = _header(["", *titles])
    for name, one in rows.items():
        bands = [_mean_and_all(one["of_band"][key], 1.0) for key in ("ece_q", "ece_z")]
        factors = (("ece_q", 100.0), ("ece_z", 100.0), ("nll", 1.0), ("crps", 1000.0), ("l1_gt", 1.0))
        numbers = [_mean_and_all(one[key], factor) for key, factor in factors]
        cost = [value for value in one["cost"] if value is not None]
        lines.append(_line([name, *numbers, *bands, f"{fmean(cost):.2f}" if cost else _MISSING]))
    return "\n".join(lines) + "\n"


def intervals_markdown(table: Table) -> str:
    """Coverage and width of central intervals; empty where nothing is known."""
    rows = table["intervals"]
    if not rows:
        return ""
    level = next(iter(rows.values()))["level"]
    lines = _header(["", f"coverage of {level:.0%} intervals", "mean width x1000"])
    for name, one in rows.items():
        words = (_around(one["coverage"], 1.0, 4), _around(one["width"], 1000.0, 4))
        lines.append(_line([name, *words]))
    return "\n".join(lines) + "\n"


def folds_markdown(table: Table) -> str:
    """How far networks of folds know the images held out, and how much worse than that of all images they are."""
    found = table["folds"]
    if not found:
        return ""
    lines = _header(["networks of folds", "squared errors", "z²"])
    for what, words in (
        ("leak", "held-out images, as a ratio to test images"),
        ("fewer", "as a ratio to the network of all, on test images"),
    ):
        lines.append(_line([words, *(_around(found[f"{name}_{what}"], 1.0, 3) for name in ("mse", "z2"))]))
    return "\n".join(lines) + "\n"


def strata_markdown(table: Table) -> str:
    """Calibration by size of the predicted sigma; empty where nothing is known."""
    rows = table["strata"]
    if not rows:
        return ""
    titles = [f"{kind} x100, {word} stratum" for kind in ("ECE(z)", "ECE(q)") for word in ("mean", "worst")]
    lines = _header(["", *titles, "ENCE"])
    for name, one in rows.items():
        numbers = (_around(one[f"{key}_{word}"], 100.0, 3) for key in ("ece_z", "ece_q") for word in ("mean", "worst"))
        lines.append(_line([name, *numbers, _spread(table["rows"][name]["ence"], "ence")]))
    return "\n".join(lines) + "\n"


def _mean_and_all(values: Sequence[float], factor: float) -> str:
    return f"**{factor * fmean(values):.3g}** ({_several(values, factor)})" if values else _MISSING


def _around(value: Mapping[str, float | None], factor: float, digits: int) -> str:
    mean, sd = value["mean"], value["sd"]
    if mean is None:
        return _MISSING
    return f"{factor * mean:.{digits}g}" + ("" if sd is None else f" ± {factor * sd:.2g}")


def candidates_markdown(table: Table) -> str:
    """Every candidate, how often it was chosen, and what it scored on test, which chose nothing."""
    lines = _header(["", "candidate", "chosen", "validation NLL", "NLL", "ECE(q) x100", "ECE(z) x100", "L1(GT) x1000"])
    for name, row in table["rows"].items():
        for one in row.get("candidates", ()):
            options = ", ".join(f"{key} {value}" for key, value in one["options"].items() if key != "name")
            numbers = (_spread(one[column], column) for column in ("nll", "ece_q", "ece_z", "l1_gt"))
            lines.append(_line([name, options, str(one["chosen"]), _spread(one["validation_nll"], "nll"), *numbers]))
    return "\n".join(lines) + "\n"


def failures(table: Table) -> list[str]:
    """A sentence for every method that failed to train or could not be computed."""
    return [f"{name} {row['status']}: {row['reason']}" for name, row in table["rows"].items() if "status" in row]


def _kinds(grids: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """ECE(z) does not depend on K, so it is shown once for every number of bins."""
    first = grids[0]["df"]
    of_z = [("ECE(z)", "ece_z", grid) for grid in grids if grid["df"] == first]
    return of_z + [("ECE(q)", "ece_q", grid) for grid in grids]


def _header(titles: Sequence[str]) -> list[str]:
    return [_line(titles), _line(["---", *["---:"] * (len(titles) - 1)])]


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def _several(values: Sequence[float], factor: float) -> str:
    return ", ".join(f"{value * factor:.3g}" for value in values) or _MISSING


def _spread(value: Mapping[str, float | None] | None, column: str) -> str:
    mean, sd = (value or {}).get("mean"), (value or {}).get("sd")
    if mean is None:
        return _MISSING
    text = scaled_number(column, mean)
    return text if sd is None else f"{text} ± {scaled_number(column, sd, 2)}"


def _floor(floor: Mapping[str, float] | None, what: str, column: str) -> str:
    return "" if floor is None else scaled_number(column, floor[what])
