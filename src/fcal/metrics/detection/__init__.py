"""Evaluation of detected boxes with error bars."""

import importlib
from typing import TYPE_CHECKING, Any

from fcal.metrics.detection.detection_scores import detection_report
from fcal.metrics.detection.mmap import ConsistencyReport, MMAPReport, consistency, mahalanobis_average_precision
from fcal.metrics.detection.pdq import PDQReport, detection_quality
from fcal.metrics.detection.records import Detections, Truths

if TYPE_CHECKING:
    from fcal.metrics.detection.streaming_quality import Consistency, DetectionQuality, MahalanobisAveragePrecision

__all__ = [
    "Consistency",
    "ConsistencyReport",
    "DetectionQuality",
    "Detections",
    "MMAPReport",
    "MahalanobisAveragePrecision",
    "PDQReport",
    "Truths",
    "consistency",
    "detection_quality",
    "detection_report",
    "mahalanobis_average_precision",
]

# Modules that import torchmetrics, which takes seconds.
_HOME_OF = {
    "Consistency": "streaming_quality",
    "DetectionQuality": "streaming_quality",
    "MahalanobisAveragePrecision": "streaming_quality",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fcal.metrics.detection' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fcal.metrics.detection.{_HOME_OF[name]}"), name)
