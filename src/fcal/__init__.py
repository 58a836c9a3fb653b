"""Predictive uncertainty that is true: train, check and repair the error bars of any regressor."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fcal import (
        benchmarks,
        data,
        distributions,
        divergences,
        losses,
        metrics,
        models,
        plots,
        recalibration,
        reports,
        residuals,
        scores,
        sweeps,
        tables,
        training,
    )
    from fcal.losses import FCalLoss
    from fcal.metrics import evaluate
    from fcal.residuals import standardize
    from fcal.scores import crps, nll

__version__ = "0.1.0"

# Names resolve on first use, so that importing fcal stays light.
_HOME_OF = {
    "FCalLoss": "fcal.losses",
    "crps": "fcal.scores",
    "evaluate": "fcal.metrics",
    "nll": "fcal.scores",
    "standardize": "fcal.residuals",
}
_ROOMS = (
    "benchmarks",
    "data",
    "distributions",
    "divergences",
    "losses",
    "metrics",
    "models",
    "plots",
    "recalibration",
    "reports",
    "residuals",
    "scores",
    "sweeps",
    "tables",
    "training",
)

__all__ = [
    "FCalLoss",
    "__version__",
    "benchmarks",
    "crps",
    "data",
    "distributions",
    "divergences",
    "evaluate",
    "losses",
    "metrics",
    "models",
    "nll",
    "plots",
    "recalibration",
    "reports",
    "residuals",
    "scores",
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
