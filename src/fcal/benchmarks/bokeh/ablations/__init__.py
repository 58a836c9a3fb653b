"""Ablations of the Bokeh benchmark: one thing varied, one seed, from stored weights."""

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
    from fcal.benchmarks.bokeh.ablations.drawing import draw

    return draw


def __dir__() -> list[str]:
    return sorted(__all__)
