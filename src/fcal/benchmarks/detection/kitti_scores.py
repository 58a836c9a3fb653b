"""Average precision of KITTI for images of any size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fcal.benchmarks.scoring import shortened
from fcal.data.detection import DetectionDataset
from fcal.metrics.detection import Detections, Truths, kitti_average_precision
from fcal.metrics.detection.matching import NO_CLASS

_WIDTH = 1242.0  # of KITTI's images, to which its limits of heights refer


@dataclass(frozen=True)
class KittiTruths:
    """Objects of images, enlarged to the width of KITTI's.

    Args:
        truths: Objects of each image; regions without labels have no class.
        attributes: Of each image, the difficulty of its objects in place of their occlusion, so that an object which
            was too hard in the original image stays so.
        factors: Enlargement of each image.
    """

    truths: Sequence[Truths]
    attributes: Sequence[Mapping[str, Any]]
    factors: Sequence[float]

    @classmethod
    def of(cls, images: DetectionDataset) -> "KittiTruths":
        """Objects of a data set whose targets have a ``difficulty``."""
        truths, attributes, factors = [], [], []
        for item in (images[index] for index in range(len(images))):
            target, (height, width) = item["target"], item["input"].shape[1:]
            factor = _WIDTH / width
            labels = target["labels"].masked_fill(target["crowd"], NO_CLASS)
            size = (round(height * factor), round(width * factor))
            boxes, ignored = target["boxes"].double() * factor, target["ignored"]
            truths.append(Truths(boxes=boxes, labels=labels, image_size=size, ignored=ignored))
            attributes.append({"occlusion": target["difficulty"]})
            factors.append(factor)
        return cls(truths, attributes, factors)

    def precision(self, detections: Sequence[Detections]) -> dict[str, dict[str, float | None]]:
        """Average precision of detections, by class and difficulty.

        Args:
            detections: Of each image, in its own pixels.
        """
        enlarged = [
            Detections.of_sigmas(
                found.boxes * factor, torch.zeros_like(found.boxes), scores=found.scores, labels=found.labels
            )
            for found, factor in zip(detections, self.factors, strict=True)
        ]
        report = kitti_average_precision(enlarged, self.truths, attributes=self.attributes)
        return {name: {kind: shortened(value) for kind, value in kinds.items()} for name, kinds in report.ap.items()}
