"""Predictive uncertainty that is true: train, check and repair the error bars of any regressor."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fcal import (
        benchmarks,
        crossfitting,
        data,
        distributions,
        divergences,
        export,
        losses,
        metrics,
        models,
        plots,
        recalibration,
        reports,
        residuals,
        scores,
        selection,
        sweeps,
        tables,
        training,
    )
    from fcal.crossfitting import crossfit
    from fcal.losses import FCalLoss
    from fcal.metrics import compare, evaluate
    from fcal.residuals import standardize
    from fcal.scores import crps, nll
    from fcal.selection import select_family

__version__ = "0.1.0"

# Names resolve on first use, so that importing fcal stays light.
_HOME_OF = {
    "FCalLoss": "fcal.losses",
    "compare": "fcal.metrics",
    "crossfit": "fcal.crossfitting",
    "crps": "fcal.scores",
    "evaluate": "fcal.metrics",
    "nll": "fcal.scores",
    "select_family": "fcal.selection",
    "standardize": "fcal.residuals",
}
_ROOMS = (
    "benchmarks",
    "crossfitting",
    "data",
    "distributions",
    "divergences",
    "export",
    "losses",
    "metrics",
    "models",
    "plots",
    "recalibration",
    "reports",
    "residuals",
    "scores",
    "selection",
    "sweeps",
    "tables",
    "training",
)

__all__ = [
    "FCalLoss",
    "__version__",
    "benchmarks",
    "compare",
    "crossfit",
    "crossfitting",
    "crps",
    "data",
    "distributions",
    "divergences",
    "evaluate",
    "export",
    "losses",
    "metrics",
    "models",
    "nll",
    "plots",
    "recalibration",
    "reports",
    "residuals",
    "scores",
    "select_family",
    "selection",
    "standardize",
    "sweeps",
    "tables",
    "training",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"fcal.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fcal' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
