"""Torchvision's components of Faster R-CNN, with the two steps that torchvision's own leave no room for.

Ignored regions: an anchor or proposal that matches no object, and more than half of whose area lies within one ignored
box, is left out of the sample for training: it is neither an object nor background. Kept boxes: non-maximum suppression
returns which proposal and class a detection comes from, so that its standard deviations can follow.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models import get_model
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign
from torchvision.ops.boxes import batched_nms, clip_boxes_to_image, remove_small_boxes

from fcal.models.detection.config import BACKBONES, DECODERS, DetectorConfig
from fcal.models.detection.corners import CornerCoder
from fcal.models.pretrained import Weights, copy_weights

_LEFT_OUT = -1  # torchvision's label of what is not sampled
_IGNORED_SHARE = 0.5  # of the area of a proposal
_SMALLEST_SIDE = 1e-2  # pixels of a detection, as in torchvision
_IMAGENET_MEAN, _IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_RATIOS = (0.5, 1.0, 2.0)


def without_ignored(labels: Tensor, boxes: Tensor, ignored: Tensor) -> Tensor:
    """Labels in which background boxes that lie mostly within an ignored box are left out.

    Args:
        labels: 0 for background. Shape ``(n,)``.
        boxes: Anchors or proposals. Shape ``(n, 4)``.
        ignored: Ignored boxes. Shape ``(m, 4)``.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [8.0, 0.0, 12.0, 4.0]])
        >>> without_ignored(torch.zeros(2), boxes, torch.tensor([[0.0, 0.0, 9.0, 9.0]]))
        tensor([-1.,  0.])
    """
    if not len(ignored):
        return labels
    corners = torch.minimum(boxes[:, None, 2:], ignored[:, 2:]) - torch.maximum(boxes[:, None, :2], ignored[:, :2])
    shared = corners.clamp(min=0).prod(-1).amax(1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return labels.masked_fill((labels == 0) & (shared > _IGNORED_SHARE * area), _LEFT_OUT)


class RegionProposals(RegionProposalNetwork):  # type: ignore[misc]
    """Torchvision's region proposals, trained without anchors in ignored regions."""

    training: bool

    def proposed(self, images: Any, maps: Any, targets: Any = None) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Proposals, and losses if there are targets; the training mode makes no other difference here."""
        mode, self.training = self.training, targets is not None
        try:
            proposals, losses = self(images, maps, targets)
        finally:
            self.training = mode
        return proposals, losses

    def assign_targets_to_anchors(
        self, anchors: list[Tensor], targets: list[dict[str, Tensor]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Labels of the anchors, and the objects they match."""
        labels, boxes = super().assign_targets_to_anchors(anchors, targets)
        ignored = [target["ignored_boxes"] for target in targets]
        return list(map(without_ignored, labels, anchors, ignored)), boxes

    def compute_loss(
        self, objectness: Tensor, pred_bbox_deltas: Tensor, labels: list[Tensor], regression_targets: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Losses of objectness and boxes; zero where all anchors are left out, whose mean torchvision has as NaN."""
        if all(bool((label == _LEFT_OUT).all()) for label in labels):
            return 0.0 * objectness.sum(), 0.0 * pred_bbox_deltas.sum()
        losses: tuple[Tensor, Tensor] = super().compute_loss(objectness, pred_bbox_deltas, labels, regression_targets)
        return losses


class Sampled(NamedTuple):
    """Sampled proposals of one image, their labels (0 for background), objects, and whether they are true boxes."""

    proposals: Tensor
    labels: Tensor
    objects: Tensor
    is_truth: Tensor


class Kept(NamedTuple):
    """Detections of one image: clipped boxes, the rows of their proposals, and their classes."""

    boxes: Tensor
    rows: Tensor
    labels: Tensor


class BoxHeads(RoIHeads):  # type: ignore[misc]
    """Torchvision's second stage, which returns what it samples and what it keeps."""

    def sampled(self, proposals: list[Tensor], targets: list[dict[str, Tensor]], *, truths: bool) -> list[Sampled]:
        """Sample proposals for training; with ``truths``, true boxes are proposals, too."""
        boxes = [target["boxes"] for target in targets]
        counts = [len(each) for each in proposals]
        proposals = self.add_gt_proposals(proposals, boxes) if truths else proposals
        objects, labels = self.assign_targets_to_proposals(proposals, boxes, [target["labels"] for target in targets])
        ignored = [target["ignored_boxes"] for target in targets]
        labels = list(map(without_ignored, labels, proposals, ignored))
        chosen = self.subsample(labels)
        return [
            Sampled(proposals[image][rows], labels[image][rows], objects[image][rows], rows >= counts[image])
            for image, rows in enumerate(chosen)
        ]

    def kept(
        self, boxes: Tensor, label_probs: Tensor, counts: Sequence[int], sizes: Sequence[tuple[int, int]]
    ) -> list[Kept]:
        """Detections by torchvision's rules: clipping, score threshold, smallest side, suppression by class, number.

        Args:
            boxes: Boxes of all classes. Shape ``(n, classes, 4)``.
            label_probs: Probabilities of all classes. Shape ``(n, classes)``.
            counts: Number of proposals of each image.
            sizes: Height and width of each image.
        """
        per_image = zip(boxes.split(list(counts)), label_probs.split(list(counts)), sizes, strict=True)
        starts = torch.tensor([0, *counts]).cumsum(0).tolist()
        return [self._kept_in_image(*each, start) for each, start in zip(per_image, starts[:-1], strict=True)]

    def _kept_in_image(self, boxes: Tensor, label_probs: Tensor, size: tuple[int, int], start: int) -> Kept:
        objects = label_probs.shape[1] - 1
        boxes = clip_boxes_to_image(boxes, size)[:, 1:].reshape(-1, 4)
        scores = label_probs[:, 1:].reshape(-1)
        index = torch.where(scores > self.score_thresh)[0]
        index = index[remove_small_boxes(boxes[index], min_size=_SMALLEST_SIDE)]
        labels = index % objects + 1
        best = batched_nms(boxes[index], scores[index], labels, self.nms_thresh)[: self.detections_per_img]
        return Kept(boxes[index[best]], start + index[best] // objects, labels[best])


# Components of a config.


def backbone_with_pyramid(config: DetectorConfig, weights: Weights | None) -> nn.Module:
    """The backbone, with pretrained weights if there are any, and the feature pyramid on it."""
    layers = BACKBONES[config.backbone]
    fixed_norm, fixed = config.frozen()
    norm = {"norm_layer": FrozenBatchNorm2d} if fixed_norm else {}
    network = get_model(config.backbone, weights=None, **norm)
    if weights is not None:
        copy_weights(network, weights, "backbone")
    body = getattr(network, layers.part) if layers.part else network
    body.requires_grad_(not fixed)
    outputs = {layer: str(level) for level, layer in enumerate(layers.layers)}
    return BackboneWithFPN(body, outputs, list(layers.channels), config.width)


def region_proposals(config: DetectorConfig) -> RegionProposals:
    """The first stage, with torchvision's thresholds."""
    anchors = AnchorGenerator(tuple((size,) for size in config.anchors), (_RATIOS,) * len(config.anchors))
    number = {"training": config.proposals, "testing": config.proposals}
    return RegionProposals(
        anchors,
        RPNHead(config.width, len(_RATIOS)),
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=256,
        positive_fraction=0.5,
        pre_nms_top_n=number,
        post_nms_top_n=number,
        nms_thresh=0.7,
    )


def box_heads(config: DetectorConfig) -> BoxHeads:
    """The second stage, with torchvision's thresholds for training."""
    pool = MultiScaleRoIAlign(featmap_names=["0", "1", "2", "3"], output_size=7, sampling_ratio=2)
    heads = BoxHeads(
        pool,
        TwoMLPHead(config.width * pool.output_size[0] ** 2, config.head),
        FastRCNNPredictor(config.head, config.classes + 1),
        fg_iou_thresh=0.5,
        bg_iou_thresh=0.5,
        batch_size_per_image=config.rois,
        positive_fraction=0.25,
        bbox_reg_weights=None,
        score_thresh=config.score_threshold,
        nms_thresh=config.nms_threshold,
        detections_per_img=config.detections,
    )
    if not DECODERS[config.decoder]:
        heads.box_coder = CornerCoder()
    return heads


def image_transform(config: DetectorConfig) -> nn.Module:
    """Normalisation and resizing of images."""
    return GeneralizedRCNNTransform(config.min_size, config.max_size, _IMAGENET_MEAN, _IMAGENET_STD)
