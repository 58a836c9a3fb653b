"""Evaluation of detected boxes with error bars."""

from fcal.metrics.detection.records import Detections, Truths

__all__ = ["Detections", "Truths"]
