"""Training on Lightning: any model that returns a distribution, any objective, repeatable and resumable."""

import importlib
from typing import TYPE_CHECKING, Any

from fcal._datasets import as_batch
from fcal.models.predicting import Predicted, predict
from fcal.training import objectives
from fcal.training.box_objective import BoxObjective
from fcal.training.config import CrossfitConfig, DataConfig, ModelConfig, RecalibrationConfig, RunConfig
from fcal.training.each_head import EachHead
from fcal.training.objectives import Objective, ObjectiveConfig, objective
from fcal.training.optimization import FitConfig
from fcal.training.record import Diverged, Fit
from fcal.training.reproducibility import Batches
from fcal.training.run_folder import Run, load

if TYPE_CHECKING:
    from fcal.training.callbacks import BestCalibration, CalibrationLogger, Stages
    from fcal.training.pipeline import train
    from fcal.training.trainer import fit

# Imported on first use, because Lightning takes seconds to import.
_MODULE_OF = {
    "BestCalibration": "callbacks",
    "CalibrationLogger": "callbacks",
    "Stages": "callbacks",
    "fit": "trainer",
    "train": "pipeline",
}

__all__ = [
    "Batches",
    "BestCalibration",
    "BoxObjective",
    "CalibrationLogger",
    "CrossfitConfig",
    "DataConfig",
    "Diverged",
    "EachHead",
    "Fit",
    "FitConfig",
    "ModelConfig",
    "Objective",
    "ObjectiveConfig",
    "Predicted",
    "RecalibrationConfig",
    "Run",
    "RunConfig",
    "Stages",
    "as_batch",
    "fit",
    "load",
    "objective",
    "objectives",
    "predict",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fcal.training' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"fcal.training.{_MODULE_OF[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "lightning":
            raise
        raise ImportError("expected lightning for training; pip install 'fcal[train]'") from error
    return getattr(module, name)
