"""From features of proposals to distributions of the corners of boxes in pixels."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal, Normal

from fcal._registry import Registry
from fcal.models.detection.corners import offset_pixels
from fcal.models.detection.uncertainty import CORNERS, UncertaintyHead

UNITS: Registry[Callable[[Tensor], Tensor]] = Registry("unit")  # pixels of a unit of sigma, per proposal and corner
UNITS.add("proposal", offset_pixels)
UNITS.add("pixel", torch.ones_like)


class LawHead(nn.Module):
    """The last layers of a detector: the mean and the spread of boxes, from features of proposals.

    The corners are normal in pixels: the mean is a decoded box, and the standard deviation is that of the uncertainty
    head times the pixels of its unit, which depend on the proposal alone. A copy is a small network for cached
    features, without the trunk.

    Args:
        regression: Layer from features to offsets, four per class.
        uncertainty: Layer from features to the spread of every class.
        coder: Has ``encode_single`` and ``decode_single``: :class:`CornerCoder`, or torchvision's ``BoxCoder``.
        unit: Unit of the spread: ``"proposal"``, a tenth of the proposal's width or height, or ``"pixel"``.

    Example:
        >>> from fcal.models.detection import CornerCoder, LawHead, UncertaintyHead
        >>> head = LawHead(torch.nn.Linear(8, 3 * 4), UncertaintyHead(8, 3), CornerCoder())
        >>> proposals = torch.tensor([[0.0, 0.0, 10.0, 20.0], [5.0, 5.0, 9.0, 9.0]])
        >>> head(torch.zeros(2, 8), proposals, torch.tensor([1, 2])).batch_shape
        torch.Size([2, 4])
        >>> head(torch.zeros(2, 8), proposals).batch_shape  # of all classes
        torch.Size([2, 3, 4])
    """

    def __init__(
        self, regression: nn.Linear, uncertainty: UncertaintyHead, coder: Any, *, unit: str = "proposal"
    ) -> None:
        super().__init__()
        self.regression = regression
        self.uncertainty = uncertainty
        self.coder = coder
        self.unit = unit
        self._unit_pixels = UNITS[unit]

    def mean(self, features: Tensor, proposals: Tensor) -> Tensor:
        """Boxes of all classes. Shapes ``(n, features)`` and ``(n, 4)`` to ``(n, classes, 4)``."""
        offsets: Tensor = self.regression(features)
        offsets = offsets.to(torch.promote_types(offsets.dtype, torch.float32))
        boxes: Tensor = self.coder.decode_single(offsets, proposals)
        return boxes.reshape(len(features), self.uncertainty.classes, CORNERS)

    def forward(self, features: Tensor, proposals: Tensor, labels: Tensor | None = None) -> Distribution:
        """Distributions of boxes in the pixels of the proposals.

        Args:
            features: Features of proposals. Shape ``(n, features)``.
            proposals: Corners of proposals. Shape ``(n, 4)``.
            labels: The class of each box, or None for boxes of all classes. Shape ``(n,)``.

        Returns:
            A ``Normal`` of batch shape ``(n, 4)``, or a ``MultivariateNormal`` of batch shape ``(n,)`` if the
            covariance is full; of ``(n, classes, 4)`` and ``(n, classes)`` without labels.
        """
        mean, outputs = self.mean(features, proposals), self.uncertainty(features)
        pixels = self._unit_pixels(proposals).unsqueeze(1)
        if labels is not None:
            rows = torch.arange(len(labels), device=labels.device)
            mean, outputs, pixels = mean[rows, labels], outputs[rows, labels], pixels.squeeze(1)
            self.uncertainty.watch(self.uncertainty.sigmas(outputs))
        if not self.uncertainty.full_covariance:
            return Normal(mean, self.uncertainty.sigmas(outputs) * pixels, validate_args=False)
        factors = self.uncertainty.factors(outputs) * pixels.unsqueeze(-1)
        return MultivariateNormal(mean, scale_tril=factors, validate_args=False)
