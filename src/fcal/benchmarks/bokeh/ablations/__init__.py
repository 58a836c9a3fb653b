"""Ablations of the Bokeh benchmark: one thing varied, one seed, from stored weights."""

import importlib
from typing import TYPE_CHECKING, Any

from fcal.benchmarks.bokeh.ablations.designs import ABLATIONS, Ablation
from fcal.benchmarks.bokeh.ablations.documents import ablation, ablation_cells, markdown
from fcal.benchmarks.bokeh.ablations.points import KIND, compute, compute_point

if TYPE_CHECKING:
    from fcal.benchmarks.bokeh.ablations.drawing import draw

__all__ = [
    "ABLATIONS",
    "KIND",
    "Ablation",
    "ablation",
    "ablation_cells",
    "compute",
    "compute_point",
    "draw",
    "markdown",
]


def __getattr__(name: str) -> Any:
    # Processes that compute points need no matplotlib.
    if name != "draw":
        raise AttributeError(f"module 'fcal.benchmarks.bokeh.ablations' has no attribute {name!r}")
    importlib.import_module("fcal.plots.matplotlib_renderer")  # says what to install where matplotlib is missing
    return importlib.import_module("fcal.benchmarks.bokeh.ablations.drawing").draw


def __dir__() -> list[str]:
    return sorted(__all__)
