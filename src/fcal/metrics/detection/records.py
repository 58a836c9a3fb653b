"""What a detector says of one image, and what is there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fcal._checks import check_values

_ASYMMETRY = 1e-6  # of a covariance, relative to its largest entry; files are rounded


@dataclass(frozen=True, kw_only=True, eq=False)
class Detections:
    """Detected boxes of one image, with the covariance of their corners.

    Args:
        boxes: Corners ``x1, y1, x2, y2`` in pixels. Shape ``(n, 4)``.
        covariances: Covariances of the corners in square pixels; a variance may be 0. Shape ``(n, 4, 4)``.
        scores: Probability of the label. Shape ``(n,)``.
        labels: Class numbers. Shape ``(n,)``, integers.
        label_probs: Probabilities of all classes, column k for class k. Shape ``(n, classes)``, or None: then the
            label has its score, and other classes nothing.

    Raises:
        ValueError: Shapes do not fit, values are not finite, scores are outside [0, 1], or a covariance is not
            symmetric and positive semi-definite; the message has the number of the first such detection.

    Example:
        >>> boxes, sigmas = torch.tensor([[0.0, 0.0, 10.0, 20.0]]), torch.full((1, 4), 2.0)
        >>> detections = Detections.of_sigmas(boxes, sigmas, scores=torch.tensor([0.9]), labels=torch.tensor([1]))
        >>> detections.covariances[0, 0]
        tensor([4., 0., 0., 0.])
    """

    boxes: Tensor
    covariances: Tensor
    scores: Tensor
    labels: Tensor
    label_probs: Tensor | None = None

    def __post_init__(self) -> None:
        count = _checked_boxes(self.boxes)
        _check_shape("covariances", self.covariances, (count, 4, 4))
        _check_shape("scores", self.scores, (count,))
        _check_labels(self.labels, count)
        _check_probabilities("scores", self.scores)
        _check_covariances(self.covariances)
        if self.label_probs is not None:
            _check_shape("label_probs", self.label_probs, (count, *self.label_probs.shape[1:2]))
            _check_probabilities("label_probs", self.label_probs)

    @classmethod
    def of_sigmas(
        cls, boxes: Tensor, sigmas: Tensor, *, scores: Tensor, labels: Tensor, label_probs: Tensor | None = None
    ) -> "Detections":
        """Detections whose corners are independent, with standard deviations ``sigmas`` of shape ``(n, 4)``."""
        _check_shape("sigmas", sigmas, (_checked_boxes(boxes), 4))
        check_values("sigmas", ">= 0", sigmas, sigmas >= 0)
        covariances = torch.diag_embed(sigmas.square())
        return cls(boxes=boxes, covariances=covariances, scores=scores, labels=labels, label_probs=label_probs)

    @classmethod
    def from_output(cls, output: Mapping[str, Any]) -> "Detections":
        """Detections from a dictionary of torchvision's names with ``"sigmas"`` or ``"covariances"`` added.

        Without either, the corners have no error bars: their variance is 0.
        """
        missing = [name for name in ("boxes", "scores", "labels") if name not in output]
        if missing:
            raise ValueError(f"expected `output` with {missing[0]!r}, got {', '.join(map(repr, output)) or 'nothing'}")
        rest = {name: output[name] for name in ("scores", "labels")} | {"label_probs": output.get("label_probs")}
        if "covariances" in output:
            return cls(boxes=output["boxes"], covariances=output["covariances"], **rest)
        return cls.of_sigmas(output["boxes"], output.get("sigmas", torch.zeros_like(output["boxes"])), **rest)

    @property
    def sigmas(self) -> Tensor:
        """Standard deviations of the corners. Shape ``(n, 4)``."""
        return self.covariances.diagonal(dim1=1, dim2=2).sqrt()

    def __len__(self) -> int:
        return len(self.boxes)


@dataclass(frozen=True, kw_only=True, eq=False)
class Truths:
    """Objects of one image.

    Args:
        boxes: Corners ``x1, y1, x2, y2`` in pixels, ``x1 < x2`` and ``y1 < y2``. Shape ``(m, 4)``.
        labels: Class numbers. Shape ``(m,)``, integers.
        image_size: Height and width of the image in pixels.
        masks: Pixels of each object, or None: then all pixels of its box. Shape ``(m, H, W)``, bool.
        ignored: Objects that are neither to be found nor a mistake to find (difficult, crowds, regions without
            labels); none if None. Shape ``(m,)``, bool.

    Raises:
        ValueError: Shapes do not fit, or a box is empty or not finite.

    Example:
        >>> truths = Truths(boxes=torch.tensor([[0.0, 0.0, 4.0, 2.0]]), labels=torch.tensor([3]), image_size=(10, 20))
        >>> len(truths), bool(truths.is_ignored.any())
        (1, False)
    """

    boxes: Tensor
    labels: Tensor
    image_size: tuple[int, int]
    masks: Tensor | None = None
    ignored: Tensor | None = None

    def __post_init__(self) -> None:
        count = _checked_boxes(self.boxes)
        sides = self.boxes[:, 2:] - self.boxes[:, :2]
        check_values("boxes", "with x1 < x2 and y1 < y2", sides, sides > 0)
        _check_labels(self.labels, count)
        if len(self.image_size) != 2 or min(self.image_size) < 1:
            raise ValueError(f"expected `image_size` of height and width >= 1, got {self.image_size!r}")
        for name, shape in (("masks", (count, *self.image_size)), ("ignored", (count,))):
            value = getattr(self, name)
            if value is not None:
                _check_shape(name, value, shape)
                if value.dtype != torch.bool:
                    raise TypeError(f"expected `{name}` of dtype torch.bool, got {value.dtype}")

    @property
    def is_ignored(self) -> Tensor:
        """Objects that do not count. Shape ``(m,)``, bool."""
        return torch.zeros(len(self), dtype=torch.bool) if self.ignored is None else self.ignored

    def __len__(self) -> int:
        return len(self.boxes)


def _checked_boxes(boxes: Any) -> int:
    """The number of boxes, whose shape and values are right."""
    if not isinstance(boxes, Tensor) or not boxes.is_floating_point():
        raise TypeError(
            f"expected `boxes` a floating torch.Tensor, got {getattr(boxes, 'dtype', type(boxes).__name__)}"
        )
    _check_shape("boxes", boxes, (*boxes.shape[:1], 4))
    check_values("boxes", "finite", boxes, boxes.isfinite())
    return len(boxes)


def _check_shape(name: str, value: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"expected `{name}` a torch.Tensor, got {type(value).__name__}")
    if value.shape != shape:
        raise ValueError(f"expected `{name}` of shape {shape}, got {tuple(value.shape)}")


def _check_labels(labels: Any, count: int) -> None:
    _check_shape("labels", labels, (count,))
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"expected `labels` of an integer dtype, got {labels.dtype}")
    check_values("labels", ">= 0", labels, labels >= 0)


def _check_probabilities(name: str, value: Tensor) -> None:
    check_values(name, "within [0, 1]", value, (value >= 0) & (value <= 1))


def _check_covariances(covariances: Tensor) -> None:
    """Refuse a covariance that is not finite, symmetric and positive semi-definite, up to the rounding of files."""
    if not len(covariances):
        return
    finite = covariances.isfinite().all((1, 2))
    exact = torch.where(finite[:, None, None], covariances, 0.0).double()
    slack = _ASYMMETRY * exact.abs().amax((1, 2))
    symmetric = (exact - exact.mT).abs().amax((1, 2)) <= slack
    semidefinite = torch.linalg.eigvalsh((exact + exact.mT) / 2)[:, 0] >= -slack
    for requirement, good in (
        ("of finite values", finite),
        ("with variances >= 0", (exact.diagonal(dim1=1, dim2=2) >= 0).all(1)),
        ("symmetric", symmetric),
        ("positive semi-definite", semidefinite),
    ):
        if not bool(good.all()):
            first = int((~good).nonzero()[0, 0])
            raise ValueError(
                f"expected `covariances` {requirement}, got detection {first} ({int((~good).sum())} of {len(good)})"
            )
