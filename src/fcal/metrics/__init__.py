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
from fcal.metrics.clusters import ClusterReport, cluster_calibration
from fcal.metrics.comparison import Comparison, compare
from fcal.metrics.depth_accuracy import DepthReport, depth_errors
from fcal.metrics.evaluation import depth_groups, evaluate, region_groups, sigma_groups
from fcal.metrics.report import Report
from fcal.metrics.sparsification import SparsificationReport, sparsification_curves
from fcal.metrics.state import fingerprint

if TYPE_CHECKING:
    from fcal.metrics.streaming import Calibration
    from fcal.metrics.streaming_depth import ClusterCalibration, DepthErrors, SparsificationCurves

__all__ = [
    "Calibration",
    "ClusterCalibration",
    "ClusterReport",
    "Comparison",
    "DepthErrors",
    "DepthReport",
    "Report",
    "SparsificationCurves",
    "SparsificationReport",
    "cluster_calibration",
    "compare",
    "depth_errors",
    "depth_groups",
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
    "sparsification_curves",
]

# Modules that import torchmetrics, which takes seconds.
_HOME_OF = {
    "Calibration": "streaming",
    "ClusterCalibration": "streaming_depth",
    "DepthErrors": "streaming_depth",
    "SparsificationCurves": "streaming_depth",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fcal.metrics' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fcal.metrics.{_HOME_OF[name]}"), name)
