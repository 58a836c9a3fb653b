"""Largest errors of the hard families against mpmath, over the whole range of their parameters."""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from fcal._checks import check_integer
from fcal._files import atomic_path, provenance, writable_folder, write_json

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # the independent oracles live beside the tests
from distributions import accuracy  # type: ignore[import-not-found]

PRECISIONS = {"float64": (torch.float64, accuracy.Z64), "float32": (torch.float32, accuracy.Z32)}
VALUES = {"z": "z", "log_cdf": "log F", "log_survival": "log(1 - F)", "quantile": "quantile"}


def _by_shapes(*shapes: float) -> str:
    if min(shapes) < 1:
        return "a shape below 1"
    return "shapes from 1 to 101" if max(shapes) <= 101 else "shapes from 1, one 1e3 or 1e4"


def _by_dfs(*dfs: float) -> str:
    if min(dfs) < 2:
        return "df from 0.5 to 1"
    return "df from 2 to 30" if max(dfs) <= 30 else "df from 2, one 1e3 or 1e5"


def _by_index(_: float, __: float, concentration: float) -> str:
    return "tail index below 0" if concentration < 0 else "tail index from 0 to 3"


def _by_bounds(_: float, __: float, low: float, high: float) -> str:
    return "two bounds" if math.isfinite(low) and math.isfinite(high) else "one bound or none"


BANDS: dict[str, Callable[..., str]] = {
    "StudentT": lambda df, *_: _by_dfs(df),
    "Gamma": lambda shape, _: _by_shapes(shape),
    "Chi2": _by_dfs,
    "InverseGamma": lambda shape, _: _by_shapes(shape),
    "Beta": _by_shapes,
    "FisherSnedecor": _by_dfs,
    "GeneralizedPareto": _by_index,
    "AsymmetricLaplace": lambda *_: "asymmetry from 0.05 to 20",
    "TruncatedNormal": _by_bounds,
}


def cell(name: str, row: tuple[float, ...], precision: str) -> dict[str, Any]:
    """Largest errors at one set of parameters: of each value and of its derivatives, in each parameter."""
    dtype, z_values = PRECISIONS[precision]
    grid = accuracy.HARD[name]
    at = accuracy.points(name, rows=[row], z_values=z_values, dtype=dtype)
    wanted = accuracy.expected(at, list(accuracy.exact_points(grid, at)))
    errors = accuracy.relative_errors(accuracy.measured(grid, at), wanted, at)
    worst: dict[str, float] = {}

    def keep(title: str, error: torch.Tensor) -> None:
        defined = error[~error.isnan()]
        if len(defined):
            worst[title] = max(worst.get(title, 0.0), defined.max().item())

    for quantity in VALUES:
        keep(quantity, errors[quantity])
        first = "p" if quantity == "quantile" else "y"
        kind = "slope of the quantile" if quantity == "quantile" else "slope"
        for column, by in enumerate((first, *grid.names)):
            keep(f"{kind} by {by}", errors[f"d {quantity}"][:, column])
    return {
        "family": name,
        "band": BANDS[name](*row) if name in BANDS else "some of each family",
        "precision": precision,
        "parameters": [value if math.isfinite(value) else str(value) for value in row],
        "points": len(at.y),
        "farthest_z": [wanted["z"].min().item(), wanted["z"].max().item()],
        "worst": worst,
    }


def summarised(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per family, band and precision: the largest error of each column and its parameters."""
    lines: dict[tuple[str, str, str], dict[str, Any]] = {}
    for result in cells:
        key = (result["precision"], result["family"], result["band"])
        line = lines.setdefault(
            key, {"precision": key[0], "family": key[1], "band": key[2], "points": 0, "z": [0.0, 0.0], "worst": {}}
        )
        line["points"] += result["points"]
        line["z"] = [min(line["z"][0], result["farthest_z"][0]), max(line["z"][1], result["farthest_z"][1])]
        for title, error in result["worst"].items():
            if error >= line["worst"].get(title, {"error": -1.0})["error"]:
                line["worst"][title] = {"error": error, "parameters": result["parameters"]}
    return list(lines.values())


def _shown(error: float) -> str:
    return "**inf**" if math.isinf(error) else f"{error:.0e}" if error <= 1e-6 else f"**{error:.0e}**"


def _slopes(line: dict[str, Any], kind: str) -> str:
    named = {title: entry for title, entry in line["worst"].items() if title.startswith(f"{kind} by ")}
    return ", ".join(f"{title.removeprefix(f'{kind} by ')} {_shown(entry['error'])}" for title, entry in named.items())


def as_markdown(document: dict[str, Any]) -> str:
    titles = [
        "family",
        "parameters",
        "z",
        "points",
        *VALUES.values(),
        "slopes of z and both logs by",
        "of the quantile by",
    ]
    texts = []
    for precision in PRECISIONS:
        rows = [titles, ["---"] * len(titles)]
        for line in document["lines"]:
            if line["precision"] == precision:
                values = [_shown(line["worst"][title]["error"]) for title in VALUES]
                reach = f"{line['z'][0]:.0f} to {line['z'][1]:.0f}"
                slopes = [_slopes(line, "slope"), _slopes(line, "slope of the quantile")]
                rows.append([line["family"], line["band"], reach, str(line["points"]), *values, *slopes])
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        texts.append(f"## {precision}\n\n{table}\n")
    head = "Largest relative error against mpmath; bold where above 1e-6.\n"
    return "\n".join(["# Accuracy of the hard families\n", head, *texts])


def run(shrink: int, console: Console) -> dict[str, Any]:
    work = [
        (name, row, precision)
        for precision in PRECISIONS
        for name, grid in accuracy.HARD.items()
        for row in grid.rows[::shrink]
    ]
    cells = []
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("comparing", total=len(work))
        for name, row, precision in work:
            progress.update(task, description=f"{name}, {precision}")
            cells.append(cell(name, row, precision))
            progress.advance(task)
    return {"provenance": provenance(), "shrink": shrink, "lines": _finite(summarised(cells))}


def largest(document: dict[str, Any], families: list[str]) -> str:
    """Largest errors of families in float64: of z, of any value, of any derivative."""
    lines = [line for line in document["lines"] if line["precision"] == "float64" and line["family"] in families]
    errors = [(title, entry["error"]) for line in lines for title, entry in line["worst"].items()]
    values = max(error for title, error in errors if title in VALUES)
    slopes = max(error for title, error in errors if title not in VALUES)
    return " / ".join(f"{e:.0e}" for e in (max(error for title, error in errors if title == "z"), values, slopes))


def _finite(document: Any) -> Any:
    """Replace infinity, which JSON lacks, by the largest float."""
    if isinstance(document, dict):
        return {key: _finite(value) for key, value in document.items()}
    if isinstance(document, list):
        return [_finite(value) for value in document]
    return sys.float_info.max if isinstance(document, float) and math.isinf(document) else document


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/family_accuracy"), help="folder for result.json, table.md"
    )
    parser.add_argument("--shrink", type=int, default=1, help="use only every n-th set of parameters")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        check_integer("shrink", options.shrink, at_least=1, at_most=1_000_000)
        writable_folder(options.out)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    document = run(options.shrink, Console(stderr=True))
    with atomic_path(options.out / "table.md") as temporary:
        temporary.write_text(as_markdown(document), encoding="utf-8")
    write_json(options.out / "result.json", document)
    sys.stdout.write(f"table: {options.out / 'table.md'}\nnumbers: {options.out / 'result.json'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
