"""Evaluation of detected boxes with error bars."""

import importlib
from typing import TYPE_CHECKING, Any

from fcal.metrics.detection.box_reports import BoxOptions, BoxReport, box_calibration
from fcal.metrics.detection.coco_precision import PrecisionReport, average_precision
from fcal.metrics.detection.detection_scores import detection_report
from fcal.metrics.detection.energy_scores import energy_score
from fcal.metrics.detection.kitti_precision import KittiReport, kitti_average_precision
from fcal.metrics.detection.matching import Matches, MatchingRule, match, pairwise_covered_share, pairwise_iou
from fcal.metrics.detection.matching_effects import MatchingEffect, matching_effect
from fcal.metrics.detection.mmap import ConsistencyReport, MMAPReport, consistency, mahalanobis_average_precision
from fcal.metrics.detection.pdq import PDQReport, detection_quality
from fcal.metrics.detection.records import Detections, Truths
from fcal.metrics.detection.score_reports import ScoreReport, score_calibration

if TYPE_CHECKING:
    from fcal.metrics.detection.streaming_boxes import AveragePrecision, BoxCalibration, KittiAveragePrecision
    from fcal.metrics.detection.streaming_quality import Consistency, DetectionQuality, MahalanobisAveragePrecision

__all__ = [
    "AveragePrecision",
    "BoxCalibration",
    "BoxOptions",
    "BoxReport",
    "Consistency",
    "ConsistencyReport",
    "DetectionQuality",
    "Detections",
    "KittiAveragePrecision",
    "KittiReport",
    "MMAPReport",
    "MahalanobisAveragePrecision",
    "Matches",
    "MatchingEffect",
    "MatchingRule",
    "PDQReport",
    "PrecisionReport",
    "ScoreReport",
    "Truths",
    "average_precision",
    "box_calibration",
    "consistency",
    "detection_quality",
    "detection_report",
    "energy_score",
    "kitti_average_precision",
    "mahalanobis_average_precision",
    "match",
    "matching_effect",
    "pairwise_covered_share",
    "pairwise_iou",
    "score_calibration",
]

# Modules that import torchmetrics, which takes seconds.
_HOME_OF = {
    "AveragePrecision": "streaming_boxes",
    "BoxCalibration": "streaming_boxes",
    "KittiAveragePrecision": "streaming_boxes",
    "Consistency": "streaming_quality",
    "DetectionQuality": "streaming_quality",
    "MahalanobisAveragePrecision": "streaming_quality",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fcal.metrics.detection' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fcal.metrics.detection.{_HOME_OF[name]}"), name)
