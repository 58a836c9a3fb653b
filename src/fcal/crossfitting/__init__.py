"""Cross-fitting: error bars that hold on new data without a held-out set, learnt from models that did not see a row."""

from fcal.crossfitting.fitting import chosen_stages, scaled_nll
from fcal.crossfitting.held_out import cv_plus, error_ratio, levelled
from fcal.crossfitting.judging import Judged, judged
from fcal.crossfitting.out_of_bag import Bags, OutOfBag, RowsOfHeads
from fcal.crossfitting.procedure import CrossFit, crossfit
from fcal.crossfitting.recentering import Centered
from fcal.crossfitting.repairing import Calibrated, usual_repair
from fcal.distributions.functional import location_of, recentred
from fcal.models.scale_networks import WithScales

__all__ = [
    "Bags",
    "Calibrated",
    "Centered",
    "CrossFit",
    "Judged",
    "OutOfBag",
    "RowsOfHeads",
    "WithScales",
    "chosen_stages",
    "crossfit",
    "cv_plus",
    "error_ratio",
    "judged",
    "levelled",
    "location_of",
    "recentred",
    "scaled_nll",
    "usual_repair",
]
