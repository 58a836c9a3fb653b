"""Pictures of a report: ``ax=`` in, ``ax`` out; nothing is measured anew and no global style is touched."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fcal.plots.ellipses import didactic
    from fcal.plots.errors import error_by_sigma, sparsification
    from fcal.plots.groups import coverage_by_group
    from fcal.plots.histograms import q_histogram, z_histogram
    from fcal.plots.panels import before_after, overview
    from fcal.plots.quantiles import qq
    from fcal.plots.reliability import reliability_central, reliability_q, reliability_z

# Names resolve on first use: the page of plotly figures shares words and laws with us, and needs no matplotlib.
_HOME_OF = {
    "before_after": "panels",
    "coverage_by_group": "groups",
    "didactic": "ellipses",
    "error_by_sigma": "errors",
    "overview": "panels",
    "q_histogram": "histograms",
    "qq": "quantiles",
    "reliability_central": "reliability",
    "reliability_q": "reliability",
    "reliability_z": "reliability",
    "sparsification": "errors",
    "z_histogram": "histograms",
}

__all__ = [
    "before_after",
    "coverage_by_group",
    "didactic",
    "error_by_sigma",
    "overview",
    "q_histogram",
    "qq",
    "reliability_central",
    "reliability_q",
    "reliability_z",
    "sparsification",
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
