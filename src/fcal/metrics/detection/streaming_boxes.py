"""Streaming metrics of detected boxes: rows of images that add up over batches, shards and ranks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcal._checks import check_integer
from fcal.metrics.clusters import draw_seed
from fcal.metrics.detection.box_reports import BoxOptions, BoxReport, box_report
from fcal.metrics.detection.coco_precision import PrecisionReport, precision_report
from fcal.metrics.detection.image_streams import Attributes
from fcal.metrics.detection.kitti_precision import (
    KITTI_CLASSES,
    KITTI_OVERLAPS,
    KittiReport,
    check_overlaps,
    kitti_report,
)
from fcal.metrics.detection.matched_boxes import MatchedBoxes, empty_matched_boxes, match_images
from fcal.metrics.detection.matching import MatchingRule
from fcal.metrics.detection.records import Detections, Truths
from fcal.metrics.detection.scored_boxes import ScoredBoxes, empty_scored_boxes, scored_boxes_of
from fcal.metrics.streaming import StreamingReport


class StreamingRows(StreamingReport):
    """A metric whose states are rows, which grow with the data; the result is a frozen dataclass.

    Args:
        empty: State before any data.
        **options: Options of :class:`torchmetrics.Metric`.
    """

    def __init__(self, empty: NamedTuple, **options: Any) -> None:
        super().__init__(_NOTHING, **options)
        self._empty = empty
        for name in empty._fields:
            self.add_state(f"{name}_", default=[], dist_reduce_fx="cat")

    def _add(self, rows: NamedTuple) -> None:
        for name, value in rows._asdict().items():
            getattr(self, f"{name}_").append(value.to(self.device))

    def _state(self) -> list[Tensor]:
        """Tensors of the state, in its order."""
        return [self._rows(f"{name}_", value) for name, value in self._empty._asdict().items()]

    def _rows(self, name: str, empty: Tensor) -> Tensor:
        """Rows of one state: a list before ranks are synchronised, a tensor afterwards."""
        rows = getattr(self, name)
        return torch.cat([empty.to(self.device), *([rows] if isinstance(rows, Tensor) else rows)])

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        """Gather rows of all ranks; one without data has an empty tensor of the right shape and dtype."""
        for name, value in zip(self._empty._fields, self._state(), strict=True):
            setattr(self, f"{name}_", [value])
        super()._sync_dist(*args, **kwargs)


class _Nothing(NamedTuple):
    """No sums."""


_NOTHING = _Nothing()


class BoxCalibration(StreamingRows):
    """Streaming version of :func:`fcal.metrics.detection.box_calibration`, for detections in batches of images.

    The state has a row for every pair, about 300 bytes, and for every detection that counts, 17 bytes. Batches of any
    size and order give the same report.

    Args:
        rule: When a detection and an object are a pair.
        options: Bins, facets and names.
        generator: Source of randomness; torch's default where None. One number is drawn from it, here.
        **metric_options: Options of :class:`torchmetrics.Metric`.

    Example:
        >>> boxes, labels = torch.tensor([[10.0, 10.0, 50.0, 40.0]]), torch.tensor([1])
        >>> metric = fcal.metrics.detection.BoxCalibration()
        >>> for shift in (-1.0, 0.5, 2.0):
        ...     found = Detections.of_sigmas(
        ...         boxes + shift, torch.ones(1, 4), scores=torch.tensor([0.9]), labels=labels
        ...     )
        ...     metric.update([found], [Truths(boxes=boxes, labels=labels, image_size=(50, 80))])
        >>> metric.compute().corners.n, round(metric.compute().corners.bias, 6)
        (12, -0.5)
    """

    def __init__(
        self,
        rule: MatchingRule | None = None,
        *,
        options: BoxOptions | None = None,
        generator: torch.Generator | None = None,
        **metric_options: Any,
    ) -> None:
        super().__init__(empty_matched_boxes(), **metric_options)
        self._rule, self._options = rule or MatchingRule(), options or BoxOptions()
        self._seed = draw_seed(generator)

    def update(
        self,
        detections: Iterable[Detections],
        truths: Iterable[Truths],
        *,
        attributes: Iterable[Attributes] | None = None,
    ) -> None:
        """Add a batch of images; arguments as for :func:`fcal.metrics.detection.box_calibration`."""
        self._add(match_images(detections, truths, rule=self._rule, attributes=attributes))

    def compute(self) -> BoxReport:
        """Report of all images so far, on all ranks."""
        return box_report(MatchedBoxes(*self._state()), self._rule, self._options, seed=self._seed)


class AveragePrecision(StreamingRows):
    """Streaming version of :func:`fcal.metrics.detection.average_precision`; 48 bytes per detection, 64 per object.

    Args:
        classes: Names of classes 1, 2, ...; their numbers by default.
        max_detections: Number of detections of a class in an image that count.
        **options: Options of :class:`torchmetrics.Metric`.

    Example:
        >>> boxes, labels = torch.tensor([[10.0, 10.0, 50.0, 40.0]]), torch.tensor([1])
        >>> metric = fcal.metrics.detection.AveragePrecision(classes=["car"])
        >>> for score in (0.9, 0.8):
        ...     found = Detections.of_sigmas(boxes, torch.ones(1, 4), scores=torch.tensor([score]), labels=labels)
        ...     metric.update([found], [Truths(boxes=boxes, labels=labels, image_size=(50, 80))])
        >>> round(metric.compute().per_class["car"]["ap50"], 6)
        1.0
    """

    def __init__(self, *, classes: Sequence[str] | None = None, max_detections: int = 100, **options: Any) -> None:
        super().__init__(empty_scored_boxes(), **options)
        self._classes = classes
        self._max_detections = check_integer("max_detections", max_detections, at_least=1)

    def update(self, detections: Iterable[Detections], truths: Iterable[Truths]) -> None:
        """Add a batch of images; arguments as for :func:`fcal.metrics.detection.average_precision`."""
        self._add(scored_boxes_of(detections, truths))

    def compute(self) -> PrecisionReport:
        """Report of all images so far, on all ranks."""
        state = ScoredBoxes(*self._state())
        return precision_report(state, classes=self._classes, max_detections=self._max_detections)


class KittiAveragePrecision(StreamingRows):
    """Streaming version of :func:`fcal.metrics.detection.kitti_average_precision`.

    Args:
        classes: Names of classes 1, 2, ...
        overlaps: Least intersection over union of the classes to evaluate, by name.
        **options: Options of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = fcal.metrics.detection.KittiAveragePrecision()
        >>> metric.update([], [])
        >>> metric.compute().ap["Car"]["easy"] is None
        True
    """

    def __init__(
        self,
        *,
        classes: Sequence[str] = KITTI_CLASSES,
        overlaps: Mapping[str, float] = KITTI_OVERLAPS,
        **options: Any,
    ) -> None:
        check_overlaps(overlaps, classes)
        super().__init__(empty_scored_boxes(), **options)
        self._classes, self._overlaps = tuple(classes), dict(overlaps)

    def update(
        self,
        detections: Iterable[Detections],
        truths: Iterable[Truths],
        *,
        attributes: Iterable[Attributes] | None = None,
    ) -> None:
        """Add a batch of images; arguments as for :func:`fcal.metrics.detection.kitti_average_precision`."""
        self._add(scored_boxes_of(detections, truths, attributes))

    def compute(self) -> KittiReport:
        """Report of all images so far, on all ranks."""
        return kitti_report(ScoredBoxes(*self._state()), classes=self._classes, overlaps=self._overlaps)
