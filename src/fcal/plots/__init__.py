"""Pictures of a report: ``ax=`` in, ``ax`` out; nothing is measured anew and no global style is touched."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fcal.plots.ellipses import didactic
    from fcal.plots.errors import error_by_sigma, sparsification
    from fcal.plots.galleries import disc_gallery
    from fcal.plots.groups import coverage_by_group
    from fcal.plots.histograms import q_histogram, z_histogram
    from fcal.plots.learning import learning_curves
    from fcal.plots.panels import before_after, overview
    from fcal.plots.quantiles import qq
    from fcal.plots.reliability import reliability_central, reliability_q, reliability_z
    from fcal.plots.sheets import calibration_sheet
    from fcal.plots.tradeoffs import tradeoff

# Names resolve on first use: the page of plotly figures shares words and laws with us, and needs no matplotlib.
_HOME_OF = {
    "before_after": "panels",
    "calibration_sheet": "sheets",
    "coverage_by_group": "groups",
    "didactic": "ellipses",
    "disc_gallery": "galleries",
    "error_by_sigma": "errors",
    "learning_curves": "learning",
    "overview": "panels",
    "q_histogram": "histograms",
    "qq": "quantiles",
    "reliability_central": "reliability",
    "reliability_q": "reliability",
    "reliability_z": "reliability",
    "sparsification": "errors",
    "tradeoff": "tradeoffs",
    "z_histogram": "histograms",
}

__all__ = [
    "before_after",
    "calibration_sheet",
    "coverage_by_group",
    "didactic",
    "disc_gallery",
    "error_by_sigma",
    "learning_curves",
    "overview",
    "q_histogram",
    "qq",
    "reliability_central",
    "reliability_q",
    "reliability_z",
    "sparsification",
    "tradeoff",
    "z_histogram",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fcal.plots' has no attribute {name!r}")
    importlib.import_module("fcal.plots.canvas")  # the one that says what to install where matplotlib is missing
    value = getattr(importlib.import_module(f"fcal.plots.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
