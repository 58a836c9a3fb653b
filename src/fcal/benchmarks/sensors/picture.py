"""The picture of the benchmark: how large errors are along the state, measured, stated and learnt."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from fcal.benchmarks.sensors.markdown import STATES
from fcal.benchmarks.titles import ROW_STYLES
from fcal.plots.matplotlib_renderer import PALETTE, caption, new_picture, quiet, stroke
from fcal.plots.styles import line_styles

_SHOWN = ("nll", "oof_nll")
_AXES = {"distance": "true distance, m", "strength": "C/N0, dBHz"}
_COLUMNS = 2
_LOGARITHMIC = ("strength",)


def draw(tables: Sequence[Mapping[str, Any]]) -> Figure:
    """A panel for each table whose state is the one that is compared with what is known.

    Args:
        tables: Of the benchmark's document.
    """
    shown = [table for table in tables if table["state"] != "whole"] or list(tables)
    columns = min(len(shown), _COLUMNS)
    lines = -(-len(shown) // columns)
    picture = new_picture(4.6 * columns, 3.4 * lines)
    panels = picture.subplots(lines, columns, squeeze=False).ravel()
    for table, ax in zip(shown, panels, strict=False):
        _panel(table, ax)
    for ax in panels[len(shown) :]:
        ax.set_axis_off()
    return picture


def _panel(table: Mapping[str, Any], ax: Axes) -> None:
    curve = table["curve"]
    ax.plot(curve["x"], curve["stated"], color="#9a9a9a", linestyle="--", lw=1.4, label="stated")
    ax.plot(
        curve["x"],
        curve["measured"],
        color=PALETTE["ink"],
        linestyle="none",
        marker="o",
        ms=4.5,
        label="measured",
        zorder=4,
    )
    styles = line_styles(ROW_STYLES)
    for method in _SHOWN:
        ax.plot(curve["x"], curve["learnt"][method], **stroke(*styles[method]), lw=1.6, label=f"learnt: {method}")
    if curve["axis"] in _LOGARITHMIC:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_ylim(bottom=0)
    robust = "robust sd" if table["sensor"] == "gnss" else "sd"
    name = table["sensor"].upper() if table["sensor"] == "gnss" else table["sensor"].capitalize()
    caption(ax, name, f"given {STATES[table['state']]}; test stretches never seen")
    ax.set_xlabel(_AXES[curve["axis"]])
    ax.set_ylabel(f"{robust} of errors, {table['unit']}")
    ax.legend(frameon=False, fontsize=8)
    quiet(ax)
