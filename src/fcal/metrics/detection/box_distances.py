"""How far a truth is from a detected box: in standard deviations of its corners, and by overlap."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fcal.metrics.detection.matching import NO_CLASS
from fcal.metrics.detection.records import Detections, Truths

_SMALLEST_SIGMA = 1e-9  # pixels; with a sigma of 0 any other value of the coordinate is far outside of every contour
_ROUNDING = 1e-7  # of a variance, relative to the largest along any direction; covariances may be single precision
_COVERED = 0.5


def squared_mahalanobis(boxes: Tensor, covariances: Tensor, truths: Tensor) -> Tensor:
    r"""Squared Mahalanobis distance :math:`d^2 = r^\top \Sigma^{-1} r` of true boxes from detected ones, in pairs.

    A standard deviation, along any direction, counts as at least 1e-9 pixels. So a coordinate without variance is a
    step: it adds nothing where the truth has exactly the detected value, and is far outside elsewhere.

    Args:
        boxes: Detected corners. Shape ``(n, 4)``.
        covariances: Their covariances. Shape ``(n, 4, 4)``.
        truths: True corners. Shape ``(n, 4)``.

    Returns:
        Distances in float64, chi-squared with 4 degrees of freedom where the covariances are true. Shape ``(n,)``.

    Example:
        >>> squared_mahalanobis(torch.zeros(1, 4), torch.eye(4)[None] * 4, torch.tensor([[2.0, 0.0, 0.0, 4.0]]))
        tensor([5.], dtype=torch.float64)
    """
    residuals = truths.double() - boxes.double()
    exact = covariances.double()
    variances = exact.diagonal(dim1=1, dim2=2).clamp(min=_SMALLEST_SIGMA**2)
    distances = (residuals.square() / variances).sum(1)
    rest = exact.clone()
    rest.diagonal(dim1=1, dim2=2).zero_()
    correlated = rest.abs().amax((1, 2)).nonzero()[:, 0] if len(exact) else rest.new_zeros(0, dtype=torch.int64)
    if len(correlated):
        whitened = _whitened(exact[correlated], residuals[correlated])
        distances[correlated] = whitened.square().sum(1)
    return distances


def _whitened(covariances: Tensor, residuals: Tensor) -> Tensor:
    """Residuals whose squares sum up to the distance. Shape ``(n, 4)``."""
    symmetric = (covariances + covariances.mT) / 2
    variances, directions = torch.linalg.eigh(symmetric)
    along = (directions.mT @ residuals.unsqueeze(-1)).squeeze(-1)
    # Rounding of a singular covariance leaves a tiny variance of either sign along some direction.
    least = (_ROUNDING * variances[:, -1:]).clamp(min=_SMALLEST_SIGMA**2)
    return along / variances.maximum(least).sqrt()


def contour_level(distances: Tensor) -> Tensor:
    r"""Probability within the contour through a point: the law of :math:`d^2`, chi-squared with 4 degrees of freedom.

    .. math:: F(d^2) = 1 - (1 + d^2 / 2) \, e^{-d^2 / 2}

    Example:
        >>> contour_level(torch.tensor([0.0, 18.4668], dtype=torch.float64))  # the quantile of 0.999
        tensor([0.0000, 0.9990], dtype=torch.float64)
    """
    half = distances / 2
    return 1 - torch.exp(torch.log1p(half) - half)


def covered_share(boxes: Tensor, regions: Tensor) -> Tensor:
    """Share of the area of boxes that lies within regions, in pairs; 0 for a box without area. Shape ``(n,)``."""
    sides = (torch.minimum(boxes[:, 2:], regions[:, 2:]) - torch.maximum(boxes[:, :2], regions[:, :2])).clamp(min=0)
    area = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1)
    return torch.where(area > 0, sides.prod(1) / area, 0.0)


def overlap(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of boxes, in pairs. Shape ``(n,)``."""
    sides = (torch.minimum(boxes[:, 2:], others[:, 2:]) - torch.maximum(boxes[:, :2], others[:, :2])).clamp(min=0)
    shared = sides.prod(1)
    areas = sum((each[:, 2:] - each[:, :2]).clamp(min=0).prod(1) for each in (boxes, others))
    return torch.where(shared > 0, shared / (areas - shared), 0.0)


def is_passed_over(boxes: Tensor, labels: Tensor, regions: Tensor, region_labels: Tensor) -> Tensor:
    """Whether a detection lies on an ignored truth, in pairs: then it is no mistake if it finds nothing else.

    This is so where at least half of its own area lies within the box of the truth, and the truth has its label or the
    label 0, as regions that belong to no class. Any number of detections may lie on one ignored truth.
    """
    return ((labels == region_labels) | (region_labels == NO_CLASS)) & (covered_share(boxes, regions) >= _COVERED)


def passed_over(detections: Detections, truths: Truths) -> Tensor:
    """Detections of an image that lie on an ignored truth, as :func:`is_passed_over` says. Shape ``(n,)``, bool."""
    ignored = truths.is_ignored.nonzero()[:, 0]
    n, m = len(detections), len(ignored)
    first, second = (index.reshape(-1) for index in torch.meshgrid(torch.arange(n), ignored.cpu(), indexing="ij"))
    boxes, labels = detections.boxes.cpu().double(), detections.labels.cpu()
    regions, region_labels = truths.boxes.cpu().double(), truths.labels.cpu()
    pairs = is_passed_over(boxes[first], labels[first], regions[second], region_labels[second])
    return pairs.reshape(n, m).any(1)


def check_images(detections: Any, truths: Any) -> None:
    """Check that both are sequences of records, one for each image.

    Raises:
        TypeError: One is something else.
        ValueError: Lengths differ.
    """
    for name, items, kind in (("detections", detections, Detections), ("truths", truths, Truths)):
        if not isinstance(items, Sequence):
            got = type(items).__name__
            raise TypeError(f"expected `{name}` a sequence of {kind.__name__}, one per image, got {got}")
        wrong = (
            next((item for item in items if not isinstance(item, kind)), None)
            if isinstance(items, list | tuple)
            else None
        )
        if wrong is not None:
            raise TypeError(f"expected `{name}` a sequence of {kind.__name__}, got an item {type(wrong).__name__}")
    if len(detections) != len(truths):
        counts = f"{len(detections)} and {len(truths)}"
        raise ValueError(f"expected `detections` and `truths` of as many images, got {counts}")
