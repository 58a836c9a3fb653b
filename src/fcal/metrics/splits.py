"""Scores taken apart: what miscalibration costs, and what predictions gain over knowing nothing.

A monotone map G of the predicted probabilities repairs a prediction. The best one for the likelihood has the density of
the PIT as its slope, and saves KL(law of z || N(0, 1)). The best one for the CRPS of normal predictions is the CDF of
the PIT with weights sigma, and saves mean(sigma) times the integral of its squared distance from Phi over z.
"""

import math

import numpy as np

from fcal.metrics.report import Split
from fcal.metrics.summary import MANY_OUT_OF_REACH, Summary, normal_cdf

_FEWEST_BINS = 8
_LEAST_SCALE = 1e-300
_LEAST_VARIATION = 1e-12  # variance by mean square: rounding of the sums is 1e-14 or so


def split_of_nll(data: Summary) -> Split | None:
    """NLL taken apart; None where targets, or residuals, do not vary."""
    score, variance = data.mean("nll"), _variance_of_target(data)
    if score is None or not variance > 0 or not data.evidence().scale > 0:
        return None
    cross = 0.5 * math.log(2 * math.pi) + 0.5 * data.means["z_sq"]
    miscalibration = max(cross - _entropy_of_z(data), 0.0)
    uncertainty = 0.5 * math.log(2 * math.pi * math.e * variance)
    return Split(miscalibration, uncertainty - (score - miscalibration), uncertainty)


def split_of_crps(data: Summary) -> Split | None:
    """CRPS taken apart, exactly for normal predictions, else as if z were linear in the target.

    None where there is no CRPS, or residuals are so large that the state does not tell them apart.
    """
    score, variance = data.mean("crps"), _variance_of_target(data)
    total = data.z_sigma.sum()
    if score is None or not variance > 0 or not total > 0 or data.out_of_reach() > MANY_OUT_OF_REACH:
        return None
    weighted = data.z_sigma[:-1].cumsum() / total
    gap = (weighted - normal_cdf(data.grid.z_edges)) ** 2
    miscalibration = float(total / data.n * np.trapezoid(gap, data.grid.z_edges))
    uncertainty = math.sqrt(variance / math.pi)
    return Split(miscalibration, uncertainty - (score - miscalibration), uncertainty)


def _variance_of_target(data: Summary) -> float:
    """Variance of the targets; 0 where they vary so little beside their mean that sums of squares do not tell."""
    square = data.means["target_sq"]
    variance = square - data.means["target"] ** 2
    return variance if variance > _LEAST_VARIATION * square else 0.0


def _entropy_of_z(data: Summary) -> float:
    """Entropy of z by a histogram, corrected for its number of bins; that of the normal fit where out of reach."""
    scale = data.evidence().scale
    if data.out_of_reach() > MANY_OUT_OF_REACH:
        return 0.5 * math.log(2 * math.pi * math.e) + math.log(scale)
    width = 2 * data.grid.reach / (len(data.z) - 2)
    if scale < _FEWEST_BINS * width:  # all within a few bins
        return 0.5 * math.log(2 * math.pi * math.e) + math.log(max(scale, _LEAST_SCALE))
    merged = max(int(2 * scale * data.n ** (-1 / 3) / width), 1)
    inner = data.z[1:-1]
    counts = np.add.reduceat(inner, np.arange(0, len(inner), merged))
    share = counts[counts > 0] / data.n
    return float(-(share * np.log(share / (merged * width))).sum()) + (len(share) - 1) / (2 * data.n)
