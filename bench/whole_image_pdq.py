"""Detection quality as Hall et al. (2020) define it, evaluated in NumPy over the whole image for each pair.

Only for comparison: what a user would write from the paper, with nothing left out and nothing shared between pairs.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import ndtr

Array = NDArray[np.float64]
FLOOR = 1e-14


def heat_map(box: Array, sigmas: Array, size: tuple[int, int]) -> tuple[Array, Array]:
    """Probability that each pixel belongs to the box, and its complement. Shapes ``size``."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    inside, outside = np.ones(size), np.zeros(size)
    for position, corner in ((columns, 0), (rows, 1)):
        for score in (
            (position + 1 - box[corner]) / sigmas[corner],
            (box[corner + 2] - position) / sigmas[corner + 2],
        ):
            outside = outside + inside * ndtr(-score)
            inside = inside * ndtr(score)
    return inside, outside


def spatial_quality(box: Array, sigmas: Array, truth: Array, size: tuple[int, int]) -> float:
    """Quality of one detection beside one truth, whose pixels are those of its box."""
    inside, outside = heat_map(box, sigmas, size)
    pixels = np.zeros(size, dtype=bool)
    (x1, y1), (x2, y2) = np.floor(truth[:2]).astype(int), np.ceil(truth[2:]).astype(int)
    pixels[max(y1, 0) : y2, max(x1, 0) : x2] = True
    foreground = (np.log(inside + FLOOR) * pixels).sum()
    background = (np.log(outside + FLOOR) * ~pixels).sum()
    return float(np.exp((foreground + background) / pixels.sum()))


def pdq(boxes: Array, sigmas: Array, probabilities: Array, truths: Array, size: tuple[int, int]) -> float:
    """PDQ of an image; ``probabilities`` are those of each truth's class, of shape ``(detections, truths)``."""
    spatial = np.array(
        [[spatial_quality(b, s, truth, size) for truth in truths] for b, s in zip(boxes, sigmas, strict=True)]
    )
    quality = np.sqrt(np.where(spatial > 1e-8, spatial, 0) * probabilities)
    pairs = linear_sum_assignment(quality, maximize=True)
    found = quality[pairs][quality[pairs] > 1e-8]
    return float(found.sum() / (len(boxes) + len(truths) - len(found)))
