"""All scores of a set of images in one pass: quality, average precision by contours, and consistency."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

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

_BATCH = 64  # images


def detection_report(
    detections: Iterable[Detections],
    truths: Iterable[Truths],
    *,
    on_images: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Scores of detections, as plain numbers for JSON.

    Images are read one after the other, so that both may be made as they are asked for.

    Args:
        detections: Detections of each image.
        truths: Objects of each image, as many.
        on_images: Called with the number of images of each batch, for a progress bar.

    Returns:
        ``pdq``, ``pdq_spatial``, ``true_positives`` and what else :func:`fcal.metrics.detection.detection_quality`
        reports; ``pdq_mahalanobis``, a dictionary of the same for its mask-free variant; ``mmap``, ``mmap_contours``
        and, by label, ``mmap_classes`` of :func:`fcal.metrics.detection.mahalanobis_average_precision`; by contour,
        ``consistency``, and the number ``pairs`` it is of (:func:`fcal.metrics.detection.consistency`); ``n_images``,
        ``n_detections``, ``n_truths`` that count.

    Raises:
        ValueError: There are more of one than of the other.

    Example:
        >>> boxes, labels = torch.tensor([[2.0, 2.0, 6.0, 8.0]]), torch.tensor([1])
        >>> exact = Detections.of_sigmas(boxes, torch.zeros(1, 4), scores=torch.tensor([1.0]), labels=labels)
        >>> report = detection_report([exact], [Truths(boxes=boxes, labels=labels, image_size=(10, 10))])
        >>> round(report["pdq"], 6), report["mmap"]
        (1.0, 1.0)
    """
    totals = {spatial: empty_pdq_state() for spatial in SPATIAL.names()}
    precision, inside = empty_mmap_state(), empty_consistency_state()
    count = 0
    for found, there in _batches(detections, truths):
        count += sum(map(len, found))
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
        "n_images": by_contour["images"],
        "n_detections": count,
        "n_truths": by_contour["truths"],
    }


def _add_(totals: tuple[Any, ...], batch: tuple[Any, ...]) -> None:
    for total, more in zip(totals, batch, strict=True):
        total.add_(more)


def _batches(
    detections: Iterable[Detections], truths: Iterable[Truths]
) -> Iterator[tuple[list[Detections], list[Truths]]]:
    """Batches of images."""
    pairs = zip(detections, truths, strict=True)
    while batch := list(islice(pairs, _BATCH)):
        yield [found for found, _ in batch], [there for _, there in batch]
