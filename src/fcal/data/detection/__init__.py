"""Images with boxes: readers of KITTI, Cityscapes, COCO and Pascal VOC, and rendered streets with known noise.

The formats are chosen by name: :func:`by_name` returns a function of keyword options that returns training, validation
and test data.
"""

from collections.abc import Callable
from typing import Protocol

from fcal._registry import Registry
from fcal.data.detection.annotations import AnnotatedImage
from fcal.data.detection.cityscapes import CityscapesConfig, cityscapes, cityscapes_splits
from fcal.data.detection.coco import CocoConfig, coco, coco_splits
from fcal.data.detection.detection_frames import DetectionDataset, DetectionFrames
from fcal.data.detection.detection_splits import DetectionSplits, fold_splits
from fcal.data.detection.kitti_object import KittiObjectConfig, kitti_object, kitti_object_splits
from fcal.data.detection.street_detection import (
    BoxNoise,
    StreetDetection,
    StreetDetectionConfig,
    StreetDetectionSplits,
)
from fcal.data.detection.voc import VocConfig, voc, voc_splits

__all__ = [
    "AnnotatedImage",
    "BoxNoise",
    "CityscapesConfig",
    "CocoConfig",
    "DetectionDataset",
    "DetectionFrames",
    "DetectionSplits",
    "KittiObjectConfig",
    "StreetDetection",
    "StreetDetectionConfig",
    "StreetDetectionSplits",
    "VocConfig",
    "by_name",
    "cityscapes",
    "coco",
    "fold_splits",
    "kitti_object",
    "names",
    "voc",
]


class Splits(Protocol):
    """Training, validation and test images with boxes."""

    @property
    def train(self) -> DetectionDataset:
        """Images that the weights are fitted to."""

    @property
    def validation(self) -> DetectionDataset:
        """Images for choosing epochs, hyper-parameters and recalibrators."""

    @property
    def test(self) -> DetectionDataset:
        """Images for the report only."""


_FORMATS: Registry[Callable[..., Splits]] = Registry("format")
_FORMATS.add("kitti", kitti_object_splits)
_FORMATS.add("cityscapes", cityscapes_splits)
_FORMATS.add("coco", coco_splits)
_FORMATS.add("voc", voc_splits)
_FORMATS.add("street", StreetDetectionSplits.from_options)


def names() -> list[str]:
    """Names of the formats.

    Example:
        >>> names()
        ['kitti', 'cityscapes', 'coco', 'voc', 'street']
    """
    return _FORMATS.names()


def by_name(name: str) -> Callable[..., Splits]:
    """The data of a format, as a function of its options.

    Raises:
        ValueError: No format has this name; the message lists the known ones.

    Example:
        >>> len(by_name("street")(train=10, validation=10, test=20).test)
        20
    """
    return _FORMATS[name]
