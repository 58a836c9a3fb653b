"""Accuracy against calibration: every row of a depth table, and every weight that was tried."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fcal.benchmarks.methods import row_styles
from fcal.plots.matplotlib_renderer import log_ticks, quiet

_TRIED = ("calibration_loss", "fcal_kl", "fcal_wass")  # rows with a weight
_COLOURS = (
    "#0072B2",
    "#C75500",
    "#00805F",
    "#A8487F",
    "#6A5ACD",
    "#8A6D00",
    "#333333",
    "#56B4E9",
    "#E69F00",
    "#999999",
)
_COLUMNS = {"ece_z": "ECE(z) x100", "ece_q": "ECE(q) x100"}


def tradeoff(table: Mapping[str, Any]) -> Figure:
    """SiLog against ECE(z) and ECE(q); lines join the weights of a method, the chosen row is filled.

    Args:
        table: A table of the depth benchmark as a document.
    """
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    for ax, (column, label) in zip(figure.subplots(1, 2), _COLUMNS.items(), strict=True):
        _panel(ax, table, column)
        ax.set(xlabel="SiLog x100", ylabel=label, yscale="log")
        log_ticks(ax.yaxis)
        quiet(ax)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _panel(ax: Axes, table: Mapping[str, Any], column: str) -> None:
    rows = {name: row for name, row in table["rows"].items() if row[column]["mean"] is not None}
    styles = row_styles(rows)
    for (name, row), colour in zip(rows.items(), _COLOURS * 3, strict=False):
        if name == "oracle":
            continue  # its SiLog is that of the noise alone, far from the others
        ax.plot(*_point(row, column), "o", color=colour, label=styles[name].full_title, zorder=3)
        tried = sorted(row.get("candidates", ()) if name in _TRIED else (), key=lambda each: each["options"]["lam"])
        known = [(each, _point(each, column)) for each in tried if each[column]["mean"] is not None]
        if known:
            ax.plot(*zip(*(point for _, point in known), strict=True), ".-", color=colour, lw=1, ms=4)
        for each, point in known:
            text, offset = f"{each['options']['lam']:g}", (3, 3)
            ax.annotate(text, point, xytext=offset, textcoords="offset points", fontsize=6, color=colour)
    band = table["floors"].get(column)
    if band is not None:
        ax.axhline(100 * band["q95"], color="#666666", lw=0.8, ls=":", label="95 % of calibrated models")


def _point(numbers: Mapping[str, Any], column: str) -> tuple[float, float]:
    return 100 * numbers["silog"]["mean"], 100 * numbers[column]["mean"]
