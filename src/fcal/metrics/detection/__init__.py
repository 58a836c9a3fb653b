"""Evaluation of detected boxes with error bars."""

from fcal.metrics.detection.matching import Matches, MatchingRule, match, pairwise_covered_share, pairwise_iou
from fcal.metrics.detection.records import Detections, Truths

__all__ = ["Detections", "Matches", "MatchingRule", "Truths", "match", "pairwise_covered_share", "pairwise_iou"]
