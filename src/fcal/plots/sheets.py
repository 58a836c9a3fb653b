"""Several methods on one sheet: distributions and reliability of z and q, one column for each table."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fcal.plots.canvas import BAND, FAINT, OVER, UNDER, new_picture, quiet, write
from fcal.plots.captions import share, shortened
from fcal.plots.geometry import CDF_REGIONS, INTERVAL_REGIONS
from fcal.plots.laws import chi2_curve, normal_curve
from fcal.plots.line_styles import line_style
from fcal.plots.method_curves import (
    PANELS,
    Curve,
    Panel,
    band_of,
    beyond_axis,
    curves_of,
    shown_at_first,
    spanned,
    together,
)
from fcal.plots.methods import bottom_to_top, method_order, method_title

# Wide, pale and below: methods that follow the law are seen on it.
_LAW: dict[str, Any] = {"color": BAND, "alpha": 0.6, "lw": 4.0, "zorder": 0}
_TINTS = {"over-confident": (OVER, 0.07), "under-confident": (UNDER, 0.11)}


def calibration_sheet(tables: Mapping[str, Mapping[str, Any]]) -> Figure:
    """The paper's figure: chi-squared and normal distribution and reliability, in four rows.

    Args:
        tables: By title of the column, a mapping with ``curves`` (see ``fcal.plots.method_curves.curves_of``) and
            ``df``, the number of squared residuals in a sum.

    Returns:
        A figure outside of pyplot. Of many methods those most often compared are drawn.

    Raises:
        ValueError: There is no table, or curves do not fit together.
    """
    if not tables:
        raise ValueError("expected `tables` with at least one, got none")
    methods = shown_at_first(list(dict.fromkeys(name for entry in tables.values() for name in entry["curves"])))
    figure = new_picture(0.6 + 4.4 * len(tables), 13.2)
    grid = figure.subplots(len(PANELS), len(tables), squeeze=False)
    for i, panel in enumerate(PANELS):
        for ax, (title, entry) in zip(grid[i], tables.items(), strict=True):
            _panel(ax, panel, entry, methods)
            words = f"{shortened(title, 40)}\n\n{panel.title}" if i == 0 else panel.title
            ax.set_title(words, loc="left", fontsize=10, fontweight="bold", parse_math=False)
    _legend(figure, methods)
    return figure


def _panel(ax: Axes, panel: Panel, entry: Mapping[str, Any], methods: set[str]) -> None:
    every = curves_of(entry["curves"], panel.name)
    curves = {method: curve for method, curve in every.items() if method in methods}
    if panel.is_histogram:
        _distributions(ax, panel, curves, entry.get("df"))
    else:
        _reliabilities(ax, panel, curves, entry)
    ax.set(xlabel=panel.x, ylabel=panel.y)
    quiet(ax)


def _distributions(ax: Axes, panel: Panel, curves: Mapping[str, Curve], df: Any) -> None:
    for method in bottom_to_top(curves):
        edges, density = curves[method]
        ax.stairs(density, edges, lw=1.3, **line_style(method))
    if curves and (not panel.is_of_q or isinstance(df, int)):
        law = chi2_curve(spanned(curves), df) if panel.is_of_q else normal_curve(spanned(curves))
        ax.plot(*law, **_LAW)
    lines = [f"{shortened(method_title(method), 24)} {share(part, 0)}" for method, part in beyond_axis(curves).items()]
    if lines:
        write(
            ax, 0.99, 0.98, "\n".join(["beyond the axis:", *lines]), ha="right", va="top", fontsize=7, parse_math=False
        )
    ax.set_ylim(bottom=0)


def _reliabilities(ax: Axes, panel: Panel, curves: Mapping[str, Curve], entry: Mapping[str, Any]) -> None:
    for region in INTERVAL_REGIONS if panel.is_of_q else CDF_REGIONS:
        colour, strength = _TINTS[region.name]
        ax.fill(*zip(*region.corners, strict=True), color=colour, alpha=strength, lw=0)
        write(ax, *region.spot(together(curves)), region.name, ha=region.side, va="center")
    band = band_of(entry["curves"], panel.name)
    if band is not None:
        ax.fill_between(*band, color=BAND, alpha=0.45, lw=0)
    ax.plot([0, 1], [0, 1], color=FAINT, lw=0.8, ls="--")
    for method in bottom_to_top(curves):
        ax.plot(*curves[method], lw=1.5, clip_on=False, **line_style(method))
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")


def _legend(figure: Figure, methods: set[str]) -> None:
    ax = figure.axes[0]
    ordered = sorted(methods, key=method_order)
    handles = [ax.plot([], [], lw=1.6, **line_style(method))[0] for method in ordered]
    handles += ax.plot([], [], **_LAW)
    names = [method_title(method) for method in ordered] + ["chi-squared or N(0, 1)"]
    shown = figure.legend(
        handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=8, handlelength=4
    )
    for text in shown.get_texts():
        text.set_parse_math(False)
