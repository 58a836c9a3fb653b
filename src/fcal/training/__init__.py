"""Training on Lightning: any model that returns a distribution, any objective, repeatable and resumable."""

import importlib
from typing import TYPE_CHECKING, Any

from fcal._datasets import as_batch
from fcal.models.predicting import Predicted, predict
from fcal.training import objectives
from fcal.training.batches import Batches
from fcal.training.configuration import FitConfig
from fcal.training.objectives import Objective, ObjectiveConfig, objective
from fcal.training.results import Diverged, Fit
from fcal.training.run_configuration import CrossfitConfig, DataConfig, ModelConfig, RecalibrationConfig, RunConfig

if TYPE_CHECKING:
    from fcal.training.callbacks import BestCalibration, CalibrationLogger
    from fcal.training.fitting import fit
    from fcal.training.runs import Run, load, train

# Lightning takes seconds to import.
_HOME_OF = {
    "BestCalibration": "callbacks",
    "CalibrationLogger": "callbacks",
    "Run": "runs",
    "fit": "fitting",
    "load": "runs",
    "train": "runs",
}

__all__ = [
    "Batches",
    "BestCalibration",
    "CalibrationLogger",
    "CrossfitConfig",
    "DataConfig",
    "Diverged",
    "Fit",
    "FitConfig",
    "ModelConfig",
    "Objective",
    "ObjectiveConfig",
    "Predicted",
    "RecalibrationConfig",
    "Run",
    "RunConfig",
    "as_batch",
    "fit",
    "load",
    "objective",
    "objectives",
    "predict",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fcal.training' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fcal.training.{_HOME_OF[name]}"), name)
