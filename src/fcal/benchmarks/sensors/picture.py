"""The picture of the sensor benchmark: how large errors are along the state, measured, stated and learnt."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from fcal.benchmarks.methods import METHODS, row_styles
from fcal.benchmarks.sensors.settings import STATES, TITLES
from fcal.benchmarks.table import Table
from fcal.plots.matplotlib_renderer import PALETTE, caption, new_picture, quiet, stroke
from fcal.plots.styles import line_styles

_SHOWN = ("nll", "oof_nll")
_AXES = {"distance": "true distance, m", "strength": "C/N0, dBHz"}
_COLUMNS = 2
_LOGARITHMIC = ("strength",)


def draw(tables: Sequence[Table]) -> Figure:
    """A panel for each table whose state is the one that is compared with what is known; for all where there is none.

    Args:
        tables: At least one.
    """
    shown = [table for table in tables if table.details["state"] != "whole"] or list(tables)
    columns = min(len(shown), _COLUMNS)
    lines = -(-len(shown) // columns)
    picture = new_picture(4.6 * columns, 3.4 * lines)
    panels = picture.subplots(lines, columns, squeeze=False).ravel()
    for table, ax in zip(shown, panels, strict=False):
        _panel(table, ax)
    for ax in panels[len(shown) :]:
        ax.set_axis_off()
    return picture


def _panel(table: Table, ax: Axes) -> None:
    details, curve = table.details, table.details["curve"]
    ax.plot(curve["x"], curve["stated"], color="#9a9a9a", linestyle="--", lw=1.4, label="stated")
    measured: dict[str, Any] = {"color": PALETTE["ink"], "linestyle": "none", "marker": "o", "ms": 4.5, "zorder": 4}
    ax.plot(curve["x"], curve["measured"], **measured, label="measured")
    styles = line_styles(row_styles(METHODS.names()))
    for row in _SHOWN:
        if row in curve["learnt"]:
            ax.plot(curve["x"], curve["learnt"][row], **stroke(*styles[row]), lw=1.6, label=f"learnt: {row}")
    if curve["axis"] in _LOGARITHMIC:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_ylim(bottom=0)
    caption(ax, TITLES[details["sensor"]], f"given {STATES[details['state']]}; test stretches never seen")
    ax.set_xlabel(_AXES.get(curve["axis"], curve["axis"]))
    ax.set_ylabel(f"{'robust sd' if details['robust'] else 'sd'} of errors, {details['unit']}")
    ax.legend(frameon=False, fontsize=8)
    quiet(ax)
