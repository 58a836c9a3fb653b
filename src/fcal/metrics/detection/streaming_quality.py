"""Streaming metrics of detected boxes: quality, average precision by contours, and consistency."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcal._checks import check_number
from fcal.metrics.detection.box_distances import check_images
from fcal.metrics.detection.mmap import (
    CONTOURS,
    ConsistencyReport,
    ConsistencyState,
    MMAPReport,
    MMAPState,
    checked_contours,
    consistency_report,
    consistency_state,
    empty_consistency_state,
    empty_mmap_state,
    mmap_report,
    mmap_state,
)
from fcal.metrics.detection.pdq import SPATIAL, PDQReport, PDQState, empty_pdq_state, pdq_report, pdq_state
from fcal.metrics.detection.records import Detections, Truths
from fcal.metrics.streaming import StreamingReport


class DetectionQuality(StreamingReport):
    """Streaming version of :func:`fcal.metrics.detection.detection_quality`, with a state of ten numbers.

    Args:
        spatial: Name of the spatial quality.
        temperature: T of the mask-free quality.
        **options: Options of :class:`torchmetrics.Metric`.

    Example:
        >>> boxes, labels = torch.tensor([[2.0, 2.0, 6.0, 8.0]]), torch.tensor([1])
        >>> exact = Detections.of_sigmas(boxes, torch.zeros(1, 4), scores=torch.tensor([1.0]), labels=labels)
        >>> metric = fcal.metrics.detection.DetectionQuality()
        >>> for shift in (0.0, 4.0):  # the second object is missed
        ...     metric.update([exact], [Truths(boxes=boxes + shift, labels=labels, image_size=(20, 20))])
        >>> metric.compute().true_positives, metric.compute().false_negatives, round(metric.compute().pdq, 4)
        (1, 1, 0.3333)
    """

    def __init__(self, *, spatial: str = "pixels", temperature: float = 10.0, **options: Any) -> None:
        super().__init__(empty_pdq_state(), **options)
        SPATIAL[spatial]
        self._spatial, self._temperature = spatial, check_number("temperature", temperature, low=1e-6, high=1e6)

    def update(self, detections: Sequence[Detections], truths: Sequence[Truths]) -> None:
        """Add images; arguments as for :func:`fcal.metrics.detection.detection_quality`."""
        check_images(detections, truths)
        batch = pdq_state(detections, truths, spatial=self._spatial, temperature=self._temperature)
        for total, more in zip(self._state(), batch, strict=True):
            total.add_(more.to(total.device))

    def compute(self) -> PDQReport:
        """Report of all images so far, on all ranks."""
        return pdq_report(PDQState(*self._state()), spatial=self._spatial)


class Consistency(StreamingReport):
    """Streaming version of :func:`fcal.metrics.detection.consistency`.

    Args:
        contours: Levels of the contours.
        iou: Least overlap of a pair.
        **options: Options of :class:`torchmetrics.Metric`.

    Example:
        >>> boxes, labels = torch.tensor([[20.0, 20.0, 60.0, 80.0]]), torch.tensor([1])
        >>> off = Detections.of_sigmas(boxes + 3, torch.full((1, 4), 2.0), scores=torch.tensor([0.9]), labels=labels)
        >>> metric = fcal.metrics.detection.Consistency()
        >>> for shift in (0.0, 3.0):
        ...     metric.update([off], [Truths(boxes=boxes + shift, labels=labels, image_size=(100, 100))])
        >>> metric.compute().share["0.9"]
        0.5
    """

    def __init__(self, *, contours: Sequence[float] = CONTOURS, iou: float = 0.5, **options: Any) -> None:
        levels = tuple(checked_contours(contours).tolist())
        super().__init__(empty_consistency_state(levels), **options)
        self._contours, self._iou = levels, check_number("iou", iou, low=1e-6, high=1.0)

    def update(self, detections: Sequence[Detections], truths: Sequence[Truths]) -> None:
        """Add images; arguments as for :func:`fcal.metrics.detection.consistency`."""
        check_images(detections, truths)
        batch = consistency_state(detections, truths, contours=self._contours, iou=self._iou)
        for total, more in zip(self._state(), batch, strict=True):
            total.add_(more.to(total.device))

    def compute(self) -> ConsistencyReport:
        """Report of all images so far, on all ranks."""
        return consistency_report(ConsistencyState(*self._state()), self._contours, self._iou)


class MahalanobisAveragePrecision(StreamingReport):
    """Streaming version of :func:`fcal.metrics.detection.mahalanobis_average_precision`.

    The state grows by about 30 bytes with each detection: precision depends on the order of all scores.

    Args:
        contours: Levels of the contours.
        **options: Options of :class:`torchmetrics.Metric`.

    Example:
        >>> boxes, labels = torch.tensor([[20.0, 20.0, 60.0, 80.0]]), torch.tensor([1])
        >>> off = Detections.of_sigmas(boxes + 3, torch.full((1, 4), 2.0), scores=torch.tensor([0.9]), labels=labels)
        >>> metric = fcal.metrics.detection.MahalanobisAveragePrecision()
        >>> metric.update([off], [Truths(boxes=boxes, labels=labels, image_size=(100, 100))])
        >>> metric.compute().mmap
        0.5
    """

    def __init__(self, *, contours: Sequence[float] = CONTOURS, **options: Any) -> None:
        super().__init__(_NoSums(), **options)
        self._contours = tuple(checked_contours(contours).tolist())
        for name in MMAPState._fields:
            self.add_state(f"{name}_", default=[], dist_reduce_fx="cat")

    def update(self, detections: Sequence[Detections], truths: Sequence[Truths]) -> None:
        """Add images; arguments as for :func:`fcal.metrics.detection.mahalanobis_average_precision`."""
        check_images(detections, truths)
        batch = mmap_state(detections, truths, contours=self._contours)
        for name, more in zip(self._defaults, batch, strict=True):
            getattr(self, name).append(more.to(self.device))

    def compute(self) -> MMAPReport:
        """Report of all images so far, on all ranks."""
        return mmap_report(MMAPState(*map(_joined, self._with_rows())), contours=self._contours)

    def _with_rows(self) -> list[Any]:
        """The state; where there is no image yet, rows of the right shape and dtype, of which there are none."""
        states: list[Any] = self._state()
        empty = (each.to(self.device) for each in empty_mmap_state(self._contours))
        return [
            state if isinstance(state, Tensor) or state else [none] for state, none in zip(states, empty, strict=True)
        ]

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        for name, rows in zip(self._defaults, self._with_rows(), strict=True):
            setattr(self, name, rows)  # torchmetrics would send a rank's empty list in another shape
        super()._sync_dist(*args, **kwargs)


class _NoSums(NamedTuple):
    """A state without sums."""


def _joined(rows: Tensor | list[Tensor]) -> Tensor:
    return rows if isinstance(rows, Tensor) else torch.cat(rows)  # synchronised states are tensors
