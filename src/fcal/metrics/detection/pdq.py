"""Probability-based detection quality (PDQ): are detected boxes where they should be, and as sure as they may be?"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcal._checks import check_number
from fcal._registry import Registry
from fcal.metrics.detection.box_distances import check_images, passed_over, squared_mahalanobis
from fcal.metrics.detection.heat_maps import ZERO, SpatialQuality, pixel_quality
from fcal.metrics.detection.records import Detections, Truths
from fcal.metrics.report import plain

SPATIAL: Registry[Callable[[Detections, Truths, float], SpatialQuality]] = Registry("spatial")
SUMS = ("pairwise", "spatial", "label", "foreground", "background")
_MOST_PAIRS = 1 << 16  # pairs whose residuals exist at once


@dataclass(frozen=True, kw_only=True)
class PDQReport:
    """Detection quality of a set of images; None where it is undefined.

    Attributes:
        pdq: Sum of the qualities of true positives, over the number of true and false positives and false negatives.
        pdq_spatial: Mean spatial quality of true positives.
        pdq_label: Mean label quality of true positives.
        pdq_foreground: Mean foreground quality of true positives: low where boxes leave out parts of their objects.
            None for the mask-free quality, as the next one.
        pdq_background: Mean background quality of true positives: low where boxes are too large or too vague.
        true_positives: Number of pairs whose quality is not numerically zero.
        false_positives: Number of other detections, without ignored ones.
        false_negatives: Number of other truths, without ignored ones.
        ignored_detections: Number of detections without a pair that lie on an ignored truth.
        images: Number of images.
        spatial: Name of the spatial quality.

    Example:
        >>> boxes, labels = torch.tensor([[2.0, 2.0, 6.0, 8.0]]), torch.tensor([1])
        >>> exact = Detections.of_sigmas(boxes, torch.zeros(1, 4), scores=torch.tensor([0.64]), labels=labels)
        >>> report = detection_quality([exact], [Truths(boxes=boxes, labels=labels, image_size=(10, 10))])
        >>> round(report.pdq, 6), round(report.pdq_spatial, 6), round(report.pdq_label, 6)
        (0.8, 1.0, 0.64)
    """

    pdq: float | None
    pdq_spatial: float | None
    pdq_label: float | None
    pdq_foreground: float | None
    pdq_background: float | None
    true_positives: int
    false_positives: int
    false_negatives: int
    ignored_detections: int
    images: int
    spatial: str

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}


class PDQState(NamedTuple):
    """Counts and sums, of a fixed size, which add up over images and ranks.

    Attributes:
        sums: Sums over true positives of pairwise, spatial, label, foreground and background quality. Shape ``(5,)``.
        counts: True positives, false positives, false negatives, ignored detections, images. Shape ``(5,)``, int64.
    """

    sums: Tensor
    counts: Tensor


def detection_quality(
    detections: Sequence[Detections], truths: Sequence[Truths], *, spatial: str = "pixels", temperature: float = 10.0
) -> PDQReport:
    r"""Probability-based detection quality of Hall et al. (2020).

    The quality of a detection beside a truth is the geometric mean of its spatial quality and of its probability of the
    true class. In each image pairs are assigned one-to-one so that the sum of qualities is largest. A pair whose
    quality, or spatial quality, is at most 1e-8 does not count, as in the authors' evaluator: then its detection is a
    false positive and its truth a false negative.

    .. math:: \mathrm{PDQ} = \frac{\sum_{\mathrm{TP}} \sqrt{Q_S Q_L}}{\mathrm{TP} + \mathrm{FP} + \mathrm{FN}}

    Pairs are made with the truths that count. A detection that is left over is not a false positive if at least half of
    its box lies within the box of an ignored truth of its label or of label 0; ignored truths are never missed.

    Args:
        detections: Detections of each image.
        truths: Objects of each image.
        spatial: ``"pixels"``: foreground and background loss over pixels, the original; ``"mahalanobis"``: the
            mask-free :math:`\exp(-d^2 / T)` with the squared Mahalanobis distance of the truth.
        temperature: T of the mask-free quality.

    Returns:
        PDQ and its parts, from 0 to 1; PDQ is 1 if all boxes are exact and sure, and nothing else is detected.

    Raises:
        TypeError: An item is no record of an image.
        ValueError: Lengths differ, a truth has no pixel in its image, or an unknown spatial quality.

    Note:
        The authors' evaluator sets probabilities below 0.0027 to 0; here all pixels have their exact probability. For
        calibrated boxes of a few pixels of error this changes a quality by about 2e-4, and by more where parts of an
        object have so small a probability. Boxes are continuous here, from their first to their last edge; there,
        coordinates are of whole pixels, the last one included.

    References:
        Hall et al., Probabilistic Object Detection: Definition and Evaluation, WACV 2020.

    Example:
        >>> boxes, labels = torch.tensor([[20.0, 20.0, 60.0, 80.0]]), torch.tensor([1])
        >>> truths = [Truths(boxes=boxes, labels=labels, image_size=(100, 100))]
        >>> for sigma in (0.0, 1.0, 30.0):
        ...     found = Detections.of_sigmas(
        ...         boxes + 1, torch.full((1, 4), sigma), scores=torch.tensor([1.0]), labels=labels
        ...     )
        ...     print(f"{detection_quality([found], truths).pdq:.2f}")
        0.26
        0.92
        0.43
    """
    check_images(detections, truths)
    return pdq_report(pdq_state(detections, truths, spatial=spatial, temperature=temperature), spatial=spatial)


def empty_pdq_state(device: torch.device | None = None) -> PDQState:
    """State before any image."""
    sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
    return PDQState(sums, torch.zeros(5, dtype=torch.int64, device=device))


def pdq_state(
    detections: Sequence[Detections], truths: Sequence[Truths], *, spatial: str = "pixels", temperature: float = 10.0
) -> PDQState:
    """State of some images; arguments as for :func:`detection_quality`."""
    quality, temperature = SPATIAL[spatial], check_number("temperature", temperature, low=1e-6, high=1e6)
    state = empty_pdq_state()
    with torch.no_grad():
        for detected, there in zip(detections, truths, strict=True):
            for total, more in zip(state, _image_state(detected, there, quality, temperature), strict=True):
                total.add_(more)
    return state


def _image_state(
    detections: Detections,
    truths: Truths,
    quality: Callable[[Detections, Truths, float], SpatialQuality],
    temperature: float,
) -> PDQState:
    counted = ~truths.is_ignored.cpu()
    objects = truths if bool(counted.all()) else _selected(truths, counted)
    n, m = len(detections), len(objects)
    state = empty_pdq_state()
    left = torch.ones(n, dtype=torch.bool)
    if n and m:
        parts, label = quality(detections, objects, temperature), label_quality(detections, objects)
        pairwise = (parts.spatial * label).sqrt()
        pairs = _best_pairs(torch.where(pairwise > ZERO, pairwise, 0.0))
        left[pairs[0]] = False
        qualities = (pairwise, parts.spatial, label, parts.foreground, parts.background)
        state = PDQState(torch.stack([each[pairs].sum() for each in qualities]), state.counts)
    found = n - int(left.sum())
    ignored = int((left & passed_over(detections, truths)).sum()) if m < len(truths) else 0
    return state._replace(counts=torch.tensor([found, n - found - ignored, m - found, ignored, 1]))


def _selected(truths: Truths, chosen: Tensor) -> Truths:
    masks = None if truths.masks is None else truths.masks[chosen]
    return Truths(boxes=truths.boxes[chosen], labels=truths.labels[chosen], image_size=truths.image_size, masks=masks)


def label_quality(detections: Detections, truths: Truths) -> Tensor:
    """Probability that each detection gives to the class of each truth. Shape ``(n, m)``, float64."""
    labels = truths.labels.cpu()
    if detections.label_probs is None:
        same = detections.labels.cpu()[:, None] == labels
        return detections.scores.detach().cpu().double()[:, None] * same
    probabilities = detections.label_probs.detach().cpu().double()
    classes = probabilities.shape[1]
    if not classes:
        return torch.zeros(len(detections), len(labels), dtype=torch.float64)
    return torch.where(labels < classes, probabilities[:, labels.clamp(max=classes - 1)], 0.0)


def _best_pairs(quality: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of detections and truths with the largest sum of qualities, one-to-one, each quality positive."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ModuleNotFoundError as error:
        raise ImportError("expected scipy for the assignment of PDQ; pip install 'fcal[vision]'") from error
    rows, columns = map(torch.as_tensor, linear_sum_assignment(quality.numpy(), maximize=True))
    good = quality[rows, columns] > 0
    return rows[good], columns[good]


def pdq_report(state: PDQState, *, spatial: str = "pixels") -> PDQReport:
    """Report of a state."""
    true, false, missed, ignored, images = state.counts.tolist()
    pairwise, *parts = state.sums.tolist()
    known = [None if not true or math.isnan(part) else part / true for part in parts]
    means = {f"pdq_{name}": part for name, part in zip(SUMS[1:], known, strict=True)}
    every = true + false + missed
    return PDQReport(
        pdq=pairwise / every if every else None,
        **means,
        true_positives=true,
        false_positives=false,
        false_negatives=missed,
        ignored_detections=ignored,
        images=images,
        spatial=spatial,
    )


def _pixels(detections: Detections, truths: Truths, temperature: float) -> SpatialQuality:  # noqa: ARG001
    return pixel_quality(detections, truths)


def _mahalanobis(detections: Detections, truths: Truths, temperature: float) -> SpatialQuality:
    """Mask-free quality, which has no foreground and background."""
    boxes, covariances, others = detections.boxes.cpu(), detections.covariances.cpu(), truths.boxes.cpu()
    n, m = len(boxes), len(others)
    step = max(_MOST_PAIRS // max(m, 1), 1)
    distances = [
        squared_mahalanobis(
            boxes[part].repeat_interleave(m, 0),
            covariances[part].repeat_interleave(m, 0),
            others.repeat(len(boxes[part]), 1),
        )
        for part in (slice(start, start + step) for start in range(0, n, step))
    ]
    spatial = (torch.cat(distances).reshape(n, m) / -temperature).exp()
    spatial = torch.where(spatial > ZERO, spatial, 0.0)
    none = torch.full_like(spatial, math.nan)
    return SpatialQuality(spatial=spatial, foreground=none, background=none)


SPATIAL.add("pixels", _pixels)
SPATIAL.add("mahalanobis", _mahalanobis)
