"""Evaluation of predictions against targets, in memory or streaming: are these error bars true?"""

import importlib
from typing import TYPE_CHECKING, Any

from fcal.metrics.calibration_errors import (
    drawn_calibration_error,
    expected_calibration_error,
    expected_ece_of_z,
    interval_calibration_error,
    maximum_calibration_error,
    quantile_calibration_error,
    repaired_floors,
)
from fcal.metrics.evaluation import evaluate, region_groups, sigma_groups
from fcal.metrics.report import Report
from fcal.metrics.state import fingerprint

if TYPE_CHECKING:
    from fcal.metrics.streaming import Calibration

__all__ = [
    "Calibration",
    "Report",
    "drawn_calibration_error",
    "evaluate",
    "expected_calibration_error",
    "expected_ece_of_z",
    "fingerprint",
    "interval_calibration_error",
    "maximum_calibration_error",
    "quantile_calibration_error",
    "region_groups",
    "repaired_floors",
    "sigma_groups",
]


def __getattr__(name: str) -> Any:
    if name != "Calibration":  # torchmetrics takes seconds to import
        raise AttributeError(f"module 'fcal.metrics' has no attribute {name!r}")
    return importlib.import_module("fcal.metrics.streaming").Calibration
