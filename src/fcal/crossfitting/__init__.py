"""Error bars that hold on new data without a held-out set: learnt from models that have not seen the row."""

from fcal.crossfitting.centers import Centered, location_of, recentred
from fcal.crossfitting.levels import levelled
from fcal.crossfitting.result import Calibrated, CrossFit, WithScales
from fcal.crossfitting.running import crossfit

__all__ = [
    "Calibrated",
    "Centered",
    "CrossFit",
    "WithScales",
    "crossfit",
    "levelled",
    "location_of",
    "recentred",
]
