"""Moments of residuals and of the chi-squared hyper-constraints built from them."""

from fcal.constraints.draws import draw_indices, sampled_moments_of_q, weighted_indices
from fcal.constraints.moments import Moments, moments_of_q, moments_of_z
from fcal.constraints.sums import (
    SIZE,
    BatchSums,
    Scalar,
    SumInputs,
    SumOptions,
    are_sound,
    are_steep,
    batch_slopes,
    batch_sums,
    slope_of_z,
    traced_sums,
)

__all__ = [
    "SIZE",
    "BatchSums",
    "Moments",
    "Scalar",
    "SumInputs",
    "SumOptions",
    "are_sound",
    "are_steep",
    "batch_slopes",
    "batch_sums",
    "draw_indices",
    "moments_of_q",
    "moments_of_z",
    "sampled_moments_of_q",
    "slope_of_z",
    "traced_sums",
    "weighted_indices",
]
