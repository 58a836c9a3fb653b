"""Pictures of ablations, from their documents."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fcal.benchmarks.bokeh.ablations import ABLATIONS, Panel
from fcal.plots.ablation_plots import dots, lines
from fcal.plots.matplotlib_renderer import new_picture

_DIVERGENCE = "divergence"  # varies names, not numbers


def draw(document: Mapping[str, Any]) -> Figure:
    """Draw an ablation, with the panels of its definition.

    Args:
        document: Result of :func:`ablation`, or the same read from JSON.

    Returns:
        A figure outside of pyplot; ``.savefig(path)`` writes it.
    """
    design = ABLATIONS[document["ablation"]]
    of_names = document["ablation"] == _DIVERGENCE
    across = 2 if len(design.panels) > 1 else 1
    down = -(-len(design.panels) // across)
    figure = new_picture(5.2 * across, (4.2 if of_names else 3.3) * down + 1.0)
    panels = figure.subplots(down, across, squeeze=False).flat
    for ax, panel in zip(panels, design.panels, strict=True):
        _dots(document, panel, ax) if of_names else _lines(document, panel, ax)
    figure.suptitle(_headline(document), fontsize=11)
    if not of_names:
        handles, labels = max((ax.get_legend_handles_labels() for ax in figure.axes), key=lambda legend: len(legend[1]))
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def _lines(document: Mapping[str, Any], panel: Panel, ax: Axes) -> None:
    design = ABLATIONS[document["ablation"]]
    across = panel.against or "x"
    # The baseline is the line at zero.
    curves = {name: points for name, points in document["series"].items() if name != design.baseline}
    pairs = {
        document["titles"][name]: [
            (_times(point.get(across), panel.against_factor), _times(point.get(panel.column), panel.factor))
            for point in points
        ]
        for name, points in curves.items()
    }
    marks = {
        document["titles"][name]: [f"{point['x']:g}" for point in points]
        for name, points in curves.items()
        if points[0]["x"] is not None
    }
    lines(
        pairs,
        x=panel.against_label or design.varied,
        y=panel.label,
        log_x=design.log or panel.against is not None,
        log_y=panel.log,
        marks=marks if panel.against else {},
        floor=_floor(document, panel),
        zero=design.baseline is not None,
        ax=ax,
    )


def _dots(document: Mapping[str, Any], panel: Panel, ax: Axes) -> None:
    series = document["series"]
    dots(
        {point["x"]: _times(point.get(panel.column), panel.factor) for point in series["fcal"]},
        x=panel.label,
        log_x=panel.log,
        reference=("NLL", _times(series["nll"][0].get(panel.column), panel.factor)),
        floor=_floor(document, panel),
        ax=ax,
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def _floor(document: Mapping[str, Any], panel: Panel) -> tuple[float, float] | None:
    floor = document["floors"].get(panel.column)
    return None if floor is None else (floor["expected"], floor["q95"])


def _headline(document: Mapping[str, Any]) -> str:
    seeds = "one seed" if document["seeds"] == 1 else f"mean of {document['seeds']} seeds"
    data = f"{document['noise']} noise, {document['regime']}, {seeds}"
    grid = f"K = {document['df']}, S = {document['bins']}, n = {document['n_test']:,}"
    return f"{document['title']}\n{data}; evaluated at {grid}"
