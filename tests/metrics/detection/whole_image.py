"""Detection quality by brute force: every pixel of the image, SciPy's laws, all assignments."""

import itertools
import math

import numpy as np
import torch
from scipy import integrate

from fcal.metrics.detection import Detections, Truths

FLOOR = 1e-14


def normal_cdf(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))


def below_both(h, k, rho):
    """P(X < h, Y < k) by adaptive quadrature over X."""
    spread = math.sqrt(1 - rho**2)
    jump = k / rho if rho else 0.0
    breaks = [x for x in (jump - 6 * spread, jump, jump + 6 * spread, 0.0) if -12 < x < h]
    value, _ = integrate.quad(
        lambda x: math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * normal_cdf((k - rho * x) / spread),
        -12,
        max(min(h, 12), -12),
        points=sorted(breaks) or None,
        epsabs=1e-18,
        epsrel=1e-11,
        limit=200,
    )
    return value


def corner(x_gap, y_gap, covariance):
    """Probability that both coordinates of a corner stay below these gaps; a zero variance is a step."""
    (xx, xy), (_, yy) = covariance
    if xx > 0 and yy > 0 and xy != 0:
        return below_both(x_gap / np.sqrt(xx), y_gap / np.sqrt(yy), xy / np.sqrt(xx * yy))
    sides = [
        normal_cdf(gap / math.sqrt(variance)) if variance > 0 else float(gap > 0)
        for gap, variance in ((x_gap, xx), (y_gap, yy))
    ]
    return sides[0] * sides[1]


def heat_map(box, covariance, size):
    """Probability that the box touches each pixel."""
    return np.array(
        [
            [
                corner(c + 1 - box[0], r + 1 - box[1], covariance[:2, :2])
                * corner(box[2] - c, box[3] - r, covariance[2:, 2:])
                for c in range(size[1])
            ]
            for r in range(size[0])
        ]
    )


def touched(box, size):
    """Pixels that a box touches with an area."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    return (columns + 1 > box[0]) & (columns < box[2]) & (rows + 1 > box[1]) & (rows < box[3])


def spatial_quality(box, covariance, truth, size, mask=None):
    heat = heat_map(box, covariance, size)
    outside = ~touched(truth, size)
    pixels = touched(truth, size) if mask is None else mask
    foreground = np.log(heat + FLOOR)[pixels].sum()
    background = np.log(1 - heat + FLOOR)[outside].sum()
    return np.exp((foreground + background) / pixels.sum())


def best_sum(quality):
    """Largest sum of qualities over all one-to-one assignments."""
    n, m = quality.shape
    if n > m:
        return best_sum(quality.T)
    return max(sum(quality[i, j] for i, j in enumerate(order)) for order in itertools.permutations(range(m), n))


def random_scene(
    seed, detections=3, truths=2, *, size=(18, 25), least=4, correlated=False, labels=1, masks=False, ignored=0.0
):
    """An image whose detections are scattered around its truths."""
    draw = np.random.default_rng(seed)
    start = draw.uniform(-2, 0.5 * np.array(size)[::-1], (truths, 2))
    boxes = np.hstack([start, start + draw.uniform(least, 0.6 * np.array(size)[::-1], (truths, 2))])
    if correlated:
        factors = draw.normal(size=(detections, 4, 4)) * draw.uniform(0.3, 1.5, (detections, 1, 1))
        covariances = factors @ factors.transpose(0, 2, 1)
    else:
        covariances = np.array([np.diag(v) for v in draw.uniform(0.1, 6, (detections, 4))]).reshape(-1, 4, 4)
    chosen = draw.integers(0, truths, detections) if truths else np.zeros(detections, dtype=int)
    centres = boxes[chosen] if truths else draw.uniform(0, 9, (detections, 4))
    noise = np.array([draw.multivariate_normal(np.zeros(4), c) for c in covariances]).reshape(-1, 4)
    truth_labels = torch.from_numpy(draw.integers(1, labels + 1, truths))
    guesses = torch.from_numpy(draw.integers(1, labels + 1, detections))
    same = torch.from_numpy(draw.random(detections) < 0.8)
    found = Detections(
        boxes=torch.from_numpy(centres + noise),
        covariances=torch.from_numpy(covariances),
        scores=torch.from_numpy(draw.random(detections)),
        labels=torch.where(same, truth_labels[chosen], guesses) if truths else guesses,
    )
    there = Truths(
        boxes=torch.from_numpy(boxes),
        labels=truth_labels,
        image_size=size,
        masks=torch.from_numpy(np.array([touched(b, size) & (draw.random(size) < 0.6) for b in boxes]))
        if masks
        else None,
        ignored=torch.from_numpy(draw.random(truths) < ignored) if ignored else None,
    )
    return found, there
