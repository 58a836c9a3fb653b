"""Faster R-CNN with error bars: images in, boxes whose corners are normal in pixels out."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal

from fcal._config import config_from
from fcal.models.detection.box_laws import LawHead
from fcal.models.detection.config import DetectorConfig
from fcal.models.detection.detector_weights import is_of_detector, load_detector
from fcal.models.detection.proposals import Candidates, ProposalSamples, checked_targets, object_weights
from fcal.models.detection.uncertainty import UncertaintyHead
from fcal.models.pretrained import read_weights, torchvision_models

if TYPE_CHECKING:
    from fcal.models.detection.components import Kept, Sampled

_SMOOTH_L1_BETA = 1 / 9  # as in torchvision


class FasterRCNN(nn.Module):
    """Torchvision's Faster R-CNN with a feature pyramid and, beside its box regression, the uncertainty of boxes.

    Module and parameter names are torchvision's, and so are proposals, scores, thresholds and suppression; the
    uncertainty head is a further layer on the features of the box head. Each corner is normal in pixels, also after
    resizing to the original image: standard deviations are multiplied by what boxes are. Clipping to the image moves
    the mean alone.

    Args:
        **options: Those of :class:`DetectorConfig`.

    Attributes:
        config: The options.

    Note:
        Of a whole Faster R-CNN of torchvision, backbone, pyramid, proposals and box head are loaded, the class scores
        if the number of classes is the same, and the box regression with ``decoder="torchvision"``. Otherwise the box
        regression is fitted anew, as offsets of corners mean something else.

        Ignored objects are no positives. Anchors and proposals that match no object, and more than half of whose area
        lies within one ignored box, are no negatives.

    Reference:
        Ren et al., "Faster R-CNN: towards real-time object detection with region proposal networks", 2015.
        Bhatt et al., "f-Cal: calibrated aleatoric uncertainty estimation from neural networks for robot perception",
        ICRA 2022, for the uncertainty head.

    Example:
        >>> sizes = {"min_size": 64, "max_size": 96, "width": 16, "head": 32, "proposals": 20}
        >>> network = FasterRCNN(classes=2, score_threshold=0.0, **sizes).eval()
        >>> found = network([torch.rand(3, 64, 96)])[0]
        >>> sorted(found)
        ['boxes', 'label_probs', 'labels', 'scores', 'sigmas']
        >>> found["boxes"].shape == found["sigmas"].shape
        True
    """

    pretrained_option = "weights"  # a finished run, which has all weights, is loaded without this file

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.config = config = config_from(options, DetectorConfig, source="model.options")
        torchvision_models()  # refuses to go on without torchvision
        from fcal.models.detection import components  # heavy

        weights = read_weights(config.backbone, config.weights) if config.weights else None
        of_detector = weights is not None and is_of_detector(weights)
        self.transform = components.image_transform(config)
        self.backbone = components.backbone_with_pyramid(config, None if of_detector else weights)
        self.rpn = components.region_proposals(config)
        self.roi_heads = components.box_heads(config)
        self.uncertainty_head = UncertaintyHead(
            config.head, config.classes + 1, bounds=config.bounds(), full_covariance=config.full_covariance
        )
        if weights is not None and of_detector:
            load_detector(self, weights, config)

    def forward(self, images: Sequence[Tensor], targets: Sequence[Mapping[str, Any]] | None = None) -> Any:
        """Detections, or in training mode torchvision's four losses.

        Args:
            images: Each of shape ``(3, H, W)``, floats within [0, 1]; sizes may differ.
            targets: Of each image ``"boxes"``, ``"labels"`` and perhaps ``"ignored"``; for losses only.

        Returns:
            Of each image a dictionary with ``"boxes"``, ``"labels"``, ``"scores"``, ``"sigmas"`` (standard deviations
            of the corners, shape ``(n, 4)``) and ``"label_probs"`` (background first), and with ``"covariances"`` if
            they are full; all in pixels of the image. In training mode a dictionary of losses.
        """
        if self.training:
            samples = self.proposal_samples(images, targets)
            law = self.box_law(samples.features, samples.proposals, samples.labels)
            return {**samples.losses, "loss_box_reg": self.box_loss(samples, law)}
        candidates = self.candidates(images)
        # Suppression depends on the means alone, so that the spread is computed of what it keeps.
        kept = self._kept(candidates, self.law_head().mean(candidates.features, candidates.proposals))
        rows, labels = _joined(kept)
        return _outputs(candidates, kept, self.box_law(candidates.features[rows], candidates.proposals[rows], labels))

    # Training.

    def proposal_samples(
        self, images: Sequence[Tensor], targets: Sequence[Mapping[str, Any]] | None, *, truths: bool = True
    ) -> ProposalSamples:
        """Sample proposals as for training, in any mode.

        Args:
            images: As for :meth:`forward`.
            targets: As for :meth:`forward`.
            truths: Add the true boxes to the proposals, as torchvision does in training.

        Raises:
            ValueError: A target is not as expected.
        """
        checked = checked_targets(images, targets, self.config.classes)
        batch, resized = self.transform(list(images), checked)
        counted = [_counted(target) for target in resized]
        maps = self.backbone(batch.tensors)
        proposals, losses = self.rpn.proposed(batch, maps, counted)
        sampled = self.roi_heads.sampled(proposals, counted, truths=truths)
        features = self._features(maps, [each.proposals for each in sampled], batch.image_sizes)
        labels = torch.cat([each.labels for each in sampled])
        logits = self.roi_heads.box_predictor.cls_score(features)
        losses["loss_classifier"] = F.cross_entropy(logits, labels, reduction="sum") / max(len(labels), 1)
        probs = logits.detach().softmax(-1)
        return _positive_samples(features, probs, sampled, counted, losses)

    def box_loss(self, samples: ProposalSamples, law: Distribution) -> Tensor:
        """Smooth L1 loss of the mean, on encoded offsets: the sum over positives per sampled proposal."""
        encode = self.roi_heads.box_coder.encode_single
        offsets, expected = encode(law.mean, samples.proposals), encode(samples.target, samples.proposals)
        total = F.smooth_l1_loss(offsets, expected, beta=_SMOOTH_L1_BETA, reduction="sum")
        return total / max(samples.sampled, 1)

    # The parts of inference, so that features can be cached.

    def law_head(self) -> LawHead:
        """The layers from features to distributions of boxes, with shared weights; copy it to fit it by itself."""
        regression = self.roi_heads.box_predictor.bbox_pred
        return LawHead(regression, self.uncertainty_head, self.roi_heads.box_coder, unit=self.config.unit)

    def box_law(self, features: Tensor, proposals: Tensor, labels: Tensor | None = None) -> Distribution:
        """Distributions of boxes in pixels of the resized images; see :class:`LawHead`."""
        law: Distribution = self.law_head()(features, proposals, labels)
        return law

    def candidates(self, images: Sequence[Tensor]) -> Candidates:
        """All proposals, with features and probabilities of classes."""
        batch, _ = self.transform(list(images))
        maps = self.backbone(batch.tensors)
        proposals, _ = self.rpn.proposed(batch, maps)
        features = self._features(maps, proposals, batch.image_sizes)
        return Candidates(
            features=features,
            proposals=torch.cat(proposals),
            label_probs=self.roi_heads.box_predictor.cls_score(features).softmax(-1),
            counts=tuple(len(each) for each in proposals),
            resized=tuple(batch.image_sizes),
            sizes=tuple((image.shape[-2], image.shape[-1]) for image in images),
        )

    def detections(self, candidates: Candidates, law: Distribution) -> list[dict[str, Tensor]]:
        """Detections from candidates and distributions of their boxes, which may be of another head.

        Args:
            candidates: Of :meth:`candidates`.
            law: Normal or multivariate normal distributions of all boxes, in pixels of the resized images: of all
                classes, or of one box per candidate for all classes. A mean of shape ``(n, 1 + classes, 4)`` or
                ``(n, 4)``.
        """
        classes, mean = candidates.label_probs.shape[1], law.mean
        per_class = mean.unsqueeze(1).expand(-1, classes, -1) if mean.dim() == 2 else mean
        if per_class.shape != (len(candidates.proposals), classes, 4):
            expected = (len(candidates.proposals), classes, 4)
            raise ValueError(f"expected `law` with a mean of shape {expected}, got {tuple(mean.shape)}")
        kept = self._kept(candidates, per_class)
        rows, labels = _joined(kept)
        return _outputs(candidates, kept, law, (rows,) if mean.dim() == 2 else (rows, labels))

    def _features(self, maps: Any, proposals: list[Tensor], sizes: list[tuple[int, int]]) -> Tensor:
        features: Tensor = self.roi_heads.box_head(self.roi_heads.box_roi_pool(maps, proposals, sizes))
        return features

    def _kept(self, candidates: Candidates, boxes: Tensor) -> "list[Kept]":
        kept: list[Kept] = self.roi_heads.kept(boxes, candidates.label_probs, candidates.counts, candidates.resized)
        return kept


def _counted(target: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Objects that count, their numbers among all, and the boxes of the ignored ones."""
    boxes, ignored = target["boxes"], target["ignored"]
    return {
        "boxes": boxes[~ignored],
        "labels": target["labels"][~ignored],
        "number": (~ignored).nonzero().squeeze(1),
        "ignored_boxes": boxes[ignored],
    }


def _positive_samples(
    features: Tensor,
    probs: Tensor,
    sampled: "list[Sampled]",
    targets: list[dict[str, Tensor]],
    losses: Mapping[str, Tensor],
) -> ProposalSamples:
    """The sampled proposals that match an object."""
    labels = torch.cat([each.labels for each in sampled])
    rows = (labels > 0).nonzero().squeeze(1)
    positive = [each.objects[each.labels > 0] for each in sampled]
    pairs = list(zip(positive, targets, strict=True))
    counts = torch.tensor([len(each) for each in positive], device=labels.device)
    image = torch.arange(len(sampled), device=labels.device).repeat_interleave(counts)
    number = torch.cat([target["number"][objects] for objects, target in pairs])
    return ProposalSamples(
        features=features[rows],
        proposals=torch.cat([each.proposals for each in sampled])[rows],
        labels=labels[rows],
        target=torch.cat([target["boxes"][objects] for objects, target in pairs]),
        image=image,
        object=number,
        weight=object_weights(image, number),
        score=probs[rows, labels[rows]],
        is_truth=torch.cat([each.is_truth for each in sampled])[rows],
        sampled=len(labels),
        losses=losses,
    )


def _joined(kept: "list[Kept]") -> tuple[Tensor, Tensor]:
    """Rows and classes of the detections of all images."""
    return torch.cat([each.rows for each in kept]), torch.cat([each.labels for each in kept])


def _outputs(
    candidates: Candidates, kept: "list[Kept]", law: Distribution, index: tuple[Tensor, ...] = ()
) -> list[dict[str, Tensor]]:
    """Dictionaries of detections, with boxes and their spread in pixels of the images.

    ``law`` is that of the detections, or ``index`` selects it from a larger one.
    """
    counts = [len(each.rows) for each in kept]
    sigmas = law.stddev[index].split(counts)
    factors = law.scale_tril[index].split(counts) if isinstance(law, MultivariateNormal) else None
    outputs = []
    for image, each in enumerate(kept):
        probs = candidates.label_probs[each.rows]
        scale = _resizing(candidates.resized[image], candidates.sizes[image], probs)
        output = {
            "boxes": each.boxes * scale,
            "labels": each.labels,
            "scores": probs.gather(1, each.labels.unsqueeze(1)).squeeze(1),
            "sigmas": sigmas[image] * scale,
            "label_probs": probs,
        }
        if factors is not None:
            scaled = factors[image] * scale.unsqueeze(-1)
            output["covariances"] = scaled @ scaled.mT
        outputs.append(output)
    return outputs


def _resizing(resized: tuple[int, int], size: tuple[int, int], like: Tensor) -> Tensor:
    """Pixels of the image per pixel of the resized one, for each corner coordinate. Shape ``(4,)``."""
    (resized_height, resized_width), (height, width) = resized, size
    before = torch.tensor([resized_width, resized_height] * 2, dtype=like.dtype, device=like.device)
    return torch.tensor([width, height] * 2, dtype=like.dtype, device=like.device) / before
