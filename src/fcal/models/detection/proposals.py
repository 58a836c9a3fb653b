"""Proposals of a batch: the positive ones that a detector is trained on, and all candidates for detections."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fcal._checks import check_values


@dataclass(frozen=True, kw_only=True, eq=False)
class ProposalSamples:
    """The positive sampled proposals of a batch, all images one after another.

    Boxes are in pixels of the resized images, where the network predicts them.

    Attributes:
        features: Outputs of the box head's hidden layers. Shape ``(p, features)``.
        proposals: Corners of the proposals. Shape ``(p, 4)``.
        labels: Classes of their objects. Shape ``(p,)``.
        target: True boxes of their objects. Shape ``(p, 4)``.
        image: Number of the image within the batch. Shape ``(p,)``.
        object: Number of the object within the targets of its image. Shape ``(p,)``.
        weight: 1 / number of the sampled proposals of the same object, so that every object counts once. Shape
            ``(p,)``.
        score: Predicted probability of the class of the object, a constant for autograd. Shape ``(p,)``.
        is_truth: Whether a proposal is a true box that was added to the proposals. Shape ``(p,)``, bool.
        sampled: Number of sampled proposals, background included.
        losses: Torchvision's losses but that of the boxes: ``loss_objectness``, ``loss_rpn_box_reg`` and
            ``loss_classifier``.
    """

    features: Tensor
    proposals: Tensor
    labels: Tensor
    target: Tensor
    image: Tensor
    object: Tensor
    weight: Tensor
    score: Tensor
    is_truth: Tensor
    sampled: int
    losses: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> "ProposalSamples":
        """Some of the proposals, with the weights of these alone. Shape ``(n,)``."""
        taken: dict[str, Any] = {name: value[rows] for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **taken | {"weight": object_weights(taken["image"], taken["object"])})

    def proposed(self) -> "ProposalSamples":
        """The proposals of the network itself.

        The network need not move true boxes to be right, so that they would look better than any detection.
        """
        return self.take((~self.is_truth).nonzero().squeeze(1))

    def best_of_objects(self) -> Tensor:
        """Index of the proposal of every object with the highest score: close to what suppression keeps.

        Shape ``(objects,)``.
        """
        order = self.score.argsort(descending=True, stable=True)
        numbers, _ = object_numbers(self.image[order], self.object[order])
        by_object = numbers.argsort(stable=True)  # within an object from best to worst
        is_first = torch.ones_like(numbers, dtype=torch.bool)
        is_first[1:] = numbers[by_object][1:] != numbers[by_object][:-1]
        return order[by_object][is_first]


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """All proposals of a batch, all images one after another, before suppression.

    Attributes:
        features: Outputs of the box head's hidden layers. Shape ``(n, features)``.
        proposals: Corners of the proposals, in pixels of the resized images. Shape ``(n, 4)``.
        label_probs: Probabilities of the classes, background first. Shape ``(n, 1 + classes)``.
        counts: Number of proposals of each image.
        resized: Height and width of each image after resizing.
        sizes: Height and width of each image.
    """

    features: Tensor
    proposals: Tensor
    label_probs: Tensor
    counts: tuple[int, ...]
    resized: tuple[tuple[int, int], ...]
    sizes: tuple[tuple[int, int], ...]


def object_numbers(image: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """A number for the object of every proposal, and how many proposals each object has.

    Example:
        >>> object_numbers(torch.tensor([0, 0, 1]), torch.tensor([5, 5, 5]))
        (tensor([0, 0, 1]), tensor([2, 1]))
    """
    pairs = torch.stack([image, index], dim=1)
    _, numbers, counts = pairs.unique(dim=0, return_inverse=True, return_counts=True)
    return numbers, counts


def object_weights(image: Tensor, index: Tensor) -> Tensor:
    """1 / number of the proposals of the same object, for every proposal.

    Example:
        >>> object_weights(torch.tensor([0, 0, 1]), torch.tensor([5, 5, 5]))
        tensor([0.5000, 0.5000, 1.0000])
    """
    numbers, counts = object_numbers(image, index)
    return 1.0 / counts[numbers]


def checked_targets(images: Sequence[Tensor], targets: Any, classes: int) -> list[dict[str, Tensor]]:
    """Targets with boxes, labels and ``ignored``, False where the targets have no such entry.

    Raises:
        ValueError: An entry is missing, has another length, or an object that counts has an empty box or an unknown
            class.
    """
    if not isinstance(targets, Sequence) or len(targets) != len(images):
        shown = len(targets) if isinstance(targets, Sequence) else type(targets).__name__
        raise ValueError(f"expected `targets` a list of {len(images)} mappings, one per image, got {shown}")
    return [_checked(target, image, classes) for image, target in zip(images, targets, strict=True)]


def _checked(target: Any, image: Tensor, classes: int) -> dict[str, Tensor]:
    missing = [name for name in ("boxes", "labels") if not isinstance(target, Mapping) or name not in target]
    if missing:
        raise ValueError(f"expected `targets` with {missing[0]!r}, got {', '.join(map(repr, target)) or 'nothing'}")
    boxes, labels = target["boxes"], target["labels"]
    ignored = target.get("ignored", torch.zeros(len(boxes), dtype=torch.bool, device=labels.device))
    for name, value, shape in (("boxes", boxes, (len(boxes), 4)), ("labels", labels, (len(boxes),))):
        if value.shape != shape:
            raise ValueError(f"expected `targets` with {name!r} of shape {shape}, got {tuple(value.shape)}")
    if ignored.shape != labels.shape or ignored.dtype != torch.bool:
        shown = f"{ignored.dtype} of shape {tuple(ignored.shape)}"
        raise ValueError(f"expected `targets` with 'ignored' a torch.bool of shape {tuple(labels.shape)}, got {shown}")
    sides = boxes[~ignored, 2:] - boxes[~ignored, :2]
    check_values("boxes", "with x1 < x2 and y1 < y2", sides, sides > 0)
    check_values("labels", f"within [1, {classes}]", labels, ignored | ((labels >= 1) & (labels <= classes)))
    return {"boxes": boxes.to(image.dtype), "labels": labels.to(torch.int64), "ignored": ignored}
