"""The rooms of the package as rows of boxes, from the layers that ``make lint`` enforces."""

import tomllib
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

ROOT = Path(__file__).resolve().parents[2]
WORDS = {
    "cli": "arguments, files,\nexit codes",
    "benchmarks": "every method beside every other:\ntasks, methods, cells, tables, pages",
    "export": "predictions of\nfinished runs",
    "reports": "the HTML page",
    "training": "the harness\non Lightning",
    "sweeps": "cells computed\nonce",
    "plots": "figures, drawn\nby matplotlib",
    "crossfitting": "calibrated\nout of sample",
    "selection": "which family\nthe noise is of",
    "models": "networks that return\na distribution",
    "data": "datasets",
    "recalibration": "Distribution ->\nDistribution",
    "tables": "prediction\nfiles",
    "losses": "residuals, then\na divergence",
    "metrics": "the same, without\nthe gradient",
    "residuals": "draws of a\nknown law",
    "constraints": "moments of\nz and q",
    "divergences": "how far from\nthat law",
    "scores": "nll, crps",
    "distributions": "what torch.distributions lacks: log-CDF, quantile, families",
}
SHADES = ("#dbe7f3", "#e8f0e4", "#f6ecd9", "#f3e1e1", "#e9e4f2")


def rooms() -> list[list[str]]:
    """Rooms that exist, by row, from the top."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    rows = [[name.strip(" ()") for name in layer.split("|")] for layer in layers]
    source = ROOT / "src" / "fcal"
    return [[name for name in row if (source / name).is_dir() or (source / f"{name}.py").is_file()] for row in rows]


def size(room: str) -> str:
    """Number of modules of a room."""
    count = len(list((ROOT / "src" / "fcal" / room).rglob("*.py")))
    return f"{count} modules" if count else "1 module"


def draw() -> Figure:
    """A row of boxes for each layer; upper rows import lower ones."""
    rows = [row for row in rooms() if row and row != ["__main__"]]
    figure = Figure(figsize=(10, 0.95 * len(rows) + 0.3), layout="constrained")
    ax = figure.subplots()
    for number, row in enumerate(reversed(rows)):
        private = row[0].startswith("_")
        for column, room in enumerate(row):
            left, width = column / len(row), 1 / len(row)
            box = FancyBboxPatch(
                (left + 0.006, number + 0.08),
                width - 0.012,
                0.84,
                boxstyle="round,pad=0,rounding_size=0.02",
                facecolor=SHADES[number % len(SHADES)],
                edgecolor="#888888",
                linewidth=0.6,
                mutation_aspect=len(rows),
            )
            ax.add_patch(box)
            middle = left + width / 2
            if private:
                ax.text(middle, number + 0.5, room, ha="center", va="center", fontsize=7.5, family="monospace")
                continue
            ax.text(middle, number + 0.72, room, ha="center", va="center", fontsize=9.5, weight="bold")
            ax.text(middle, number + 0.4, WORDS[room], ha="center", va="center", fontsize=7, linespacing=1.1)
            ax.text(middle, number + 0.15, size(room), ha="center", va="center", fontsize=6, color="#666666")
    ax.set_xlim(0, 1)
    ax.set_ylim(0, len(rows))
    ax.set_axis_off()
    return figure
