"""Evaluation of detected boxes with error bars."""

from fcal.metrics.detection.box_reports import BoxOptions, BoxReport, box_calibration
from fcal.metrics.detection.energy_scores import energy_score
from fcal.metrics.detection.matching import Matches, MatchingRule, match, pairwise_covered_share, pairwise_iou
from fcal.metrics.detection.matching_effects import MatchingEffect, matching_effect
from fcal.metrics.detection.records import Detections, Truths
from fcal.metrics.detection.score_reports import ScoreReport, score_calibration

__all__ = [
    "BoxOptions",
    "BoxReport",
    "Detections",
    "Matches",
    "MatchingEffect",
    "MatchingRule",
    "ScoreReport",
    "Truths",
    "box_calibration",
    "energy_score",
    "match",
    "matching_effect",
    "pairwise_covered_share",
    "pairwise_iou",
    "score_calibration",
]
