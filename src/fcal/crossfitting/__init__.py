"""Error bars that hold on new data without a held-out set: learnt from models that have not seen the row."""

from fcal.crossfitting.centers import Centered, location_of, recentred
from fcal.crossfitting.intervals import cv_plus
from fcal.crossfitting.levels import levelled
from fcal.crossfitting.result import Calibrated, CrossFit, WithScales
from fcal.crossfitting.running import crossfit
from fcal.crossfitting.small_folds import error_ratio

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
