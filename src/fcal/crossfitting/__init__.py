"""Cross-fitting: error bars that hold on new data without a held-out set, learnt from models that did not see a row."""

from fcal.crossfitting.held_out import cv_plus, error_ratio, levelled
from fcal.crossfitting.procedure import Calibrated, CrossFit, WithScales, crossfit
from fcal.crossfitting.recentering import Centered, location_of, recentred

__all__ = [
    "Calibrated",
    "Centered",
    "CrossFit",
    "WithScales",
    "crossfit",
    "cv_plus",
    "error_ratio",
    "levelled",
    "location_of",
    "recentred",
]
