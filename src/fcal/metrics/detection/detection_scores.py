"""All scores of a set of images in one pass: average precision, quality, consistency and calibration."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fcal.metrics.detection.box_reports import BoxOptions, box_report
from fcal.metrics.detection.coco_precision import precision_report
from fcal.metrics.detection.image_streams import Attributes, images_of
from fcal.metrics.detection.kitti_precision import KITTI_OVERLAPS, kitti_report
from fcal.metrics.detection.matched_boxes import MatchedBoxes, match_images, merged
from fcal.metrics.detection.matching import MatchingRule
from fcal.metrics.detection.mmap import (
    CONTOURS,
    consistency_report,
    consistency_state,
    empty_consistency_state,
    empty_mmap_state,
    mmap_report,
    mmap_state,
)
from fcal.metrics.detection.pdq import SPATIAL, empty_pdq_state, pdq_report, pdq_state
from fcal.metrics.detection.records import Detections, Truths
from fcal.metrics.detection.scored_boxes import ScoredBoxes, joined, scored_boxes_of

_BATCH = 64  # images
_MOST_MASKS = 1 << 28  # pixels of the masks of a batch, a byte each
_MOST_DETECTIONS = 100  # of a class in an image, as COCO has it
_LEAST_CORNERS = 2  # with a variance, of a report on calibration
_OF_CORNERS = ("nll", "crps", "ece_z", "ece_q", "ence")


def detection_report(
    detections: Iterable[Detections],
    truths: Iterable[Truths],
    *,
    attributes: Iterable[Attributes] | None = None,
    rule: MatchingRule | None = None,
    options: BoxOptions | None = None,
    on_images: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Scores of detections, as plain numbers for JSON.

    Images are read one after the other, so that both may be made as they are asked for.

    Args:
        detections: Detections of each image.
        truths: Objects of each image, as many.
        attributes: Of each image, a mapping that may have ``"truncation"``, ``"occlusion"`` and ``"distance"`` of each
            object, as for :func:`fcal.metrics.detection.box_calibration` and
            :func:`fcal.metrics.detection.kitti_average_precision`.
        rule: When a detection and an object are a pair, for calibration.
        options: Names of classes, and options of the report on calibration.
        on_images: Called with the number of images of each batch, for a progress bar.

    Returns:
        ``pdq``, ``pdq_spatial``, ``true_positives`` and what else :func:`fcal.metrics.detection.detection_quality`
        reports; ``pdq_mahalanobis``, a dictionary of the same for its mask-free variant; ``mmap``, ``mmap_contours``
        and, by label, ``mmap_classes`` of :func:`fcal.metrics.detection.mahalanobis_average_precision`; by contour,
        ``consistency``, and the number ``pairs`` it is of (:func:`fcal.metrics.detection.consistency`); ``map``,
        ``ap50``, ``ap75`` and, by class, ``average_precision`` of COCO; ``kitti``, average precision of KITTI by class
        and difficulty, None unless ``options`` names one of its classes; ``calibration``, the whole report of
        :func:`fcal.metrics.detection.box_calibration`, and of it ``nll``, ``crps``, ``ece_z``, ``ece_q``; None where
        no detection has found an object or has error bars; ``n_images``, ``n_detections``, ``n_truths`` that count.

    Raises:
        ValueError: Different numbers of images.

    Example:
        >>> boxes, labels = torch.tensor([[2.0, 2.0, 6.0, 8.0]]), torch.tensor([1])
        >>> exact = Detections.of_sigmas(boxes, torch.zeros(1, 4), scores=torch.tensor([1.0]), labels=labels)
        >>> report = detection_report([exact], [Truths(boxes=boxes, labels=labels, image_size=(10, 10))])
        >>> round(report["pdq"], 6), report["mmap"]
        (1.0, 1.0)
    """
    totals = {spatial: empty_pdq_state() for spatial in SPATIAL.names()}
    precision, inside = empty_mmap_state(), empty_consistency_state()
    rule, options = rule or MatchingRule(), options or BoxOptions()
    scored, matched = [scored_boxes_of([], [])], [match_images([], [], rule=rule)]
    count = 0
    for found, there, known in _batches(images_of(detections, truths, attributes)):
        count += sum(map(len, found))
        scored.append(scored_boxes_of(found, there, known))
        matched.append(match_images(found, there, rule=rule, attributes=known))
        for spatial, total in totals.items():
            _add_(total, pdq_state(found, there, spatial=spatial))
        precision += mmap_state(found, there)
        _add_(inside, consistency_state(found, there))
        if on_images is not None:
            on_images(len(there))
    qualities = {spatial: pdq_report(total, spatial=spatial).as_dict() for spatial, total in totals.items()}
    by_contour, consistent = mmap_report(precision).as_dict(), consistency_report(inside, CONTOURS).as_dict()
    original = {name: value for name, value in qualities["pixels"].items() if name not in ("images", "spatial")}
    return {
        **original,
        "pdq_mahalanobis": qualities["mahalanobis"],
        "mmap": by_contour["mmap"],
        "mmap_contours": by_contour["contours"],
        "mmap_classes": by_contour["classes"],
        "consistency": consistent["share"],
        "pairs": consistent["n"],
        **_precision(joined(scored), options.classes),
        **_calibration(merged(matched), rule, options),
        "n_images": by_contour["images"],
        "n_detections": count,
        "n_truths": by_contour["truths"],
    }


def _precision(scored: ScoredBoxes, classes: Sequence[str] | None) -> dict[str, Any]:
    """Average precision as COCO, and, of its classes, as KITTI defines it."""
    report = precision_report(scored, classes=classes, max_detections=_MOST_DETECTIONS)
    coco = {"map": report.map, "ap50": report.ap50, "ap75": report.ap75, "average_precision": dict(report.per_class)}
    of_kitti = {name.lower() for name in KITTI_OVERLAPS} & {name.strip().lower() for name in classes or ()}
    kitti = kitti_report(scored, classes=classes or (), overlaps=KITTI_OVERLAPS).as_dict()["ap"] if of_kitti else None
    return {**coco, "kitti": kitti}


def _calibration(matched: MatchedBoxes, rule: MatchingRule, options: BoxOptions) -> dict[str, Any]:
    """The report of matched boxes, and its main numbers."""
    if int((matched.covariances.diagonal(dim1=1, dim2=2) > 0).sum()) < _LEAST_CORNERS:
        return dict.fromkeys(("calibration", *_OF_CORNERS))
    report = box_report(matched, rule, options, seed=0)
    return {"calibration": report.as_dict(), **{name: getattr(report.corners, name) for name in _OF_CORNERS}}


def _add_(totals: tuple[Any, ...], batch: tuple[Any, ...]) -> None:
    for total, more in zip(totals, batch, strict=True):
        total.add_(more)


def _batches(
    images: Iterable[tuple[Detections, Truths, Attributes]],
) -> Iterator[tuple[list[Detections], list[Truths], list[Attributes]]]:
    """Batches of images, smaller ones where there are large masks."""
    found: list[Detections] = []
    there: list[Truths] = []
    known: list[Attributes] = []
    masks = 0
    for detections, truths, attributes in images:
        found.append(detections)
        there.append(truths)
        known.append(attributes)
        masks += 0 if truths.masks is None else truths.masks.numel()
        if len(found) == _BATCH or masks > _MOST_MASKS:
            yield found, there, known
            found, there, known, masks = [], [], [], 0
    if found:
        yield found, there, known
