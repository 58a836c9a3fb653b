"""The uncertainty head of a detector: bounded variances of the corners of boxes, or their covariance."""

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fcal._checks import check_flag, check_integer, check_number, is_tracing

CORNERS = 4
_INITIAL = 0.02  # position of the variance between its bounds before training: 1 of [0, 50]
_LARGEST_RATIO = 5.0  # of entries of a row of the factor of the correlations: correlations up to 0.98
_AT_CAP = 0.99  # share of the largest variance
_MOST_AT_CAP = 0.01  # share of sigmas
_FEWEST_WATCHED = 1000  # sigmas


@dataclass(frozen=True, kw_only=True)
class VarianceBounds:
    r"""A generalised sigmoid from any real number to a variance.

    .. math:: \sigma^2 = \epsilon + \alpha + \frac{\beta - \alpha}{1 + e^{-\eta x}}

    Attributes:
        alpha: Smallest variance :math:`\alpha`, before the floor.
        beta: Largest variance :math:`\beta`, before the floor.
        eta: Slope :math:`\eta`: far below the largest variance, its logarithm grows by this per unit.
        floor: :math:`\epsilon > 0`, which keeps the likelihood bounded where :math:`\alpha = 0`.

    Example:
        >>> VarianceBounds(floor=0.001).variance(torch.tensor([-1e9, 0.0, 1e9]))
        tensor([1.0000e-03, 2.5001e+01, 5.0001e+01])
    """

    alpha: float = 0.0
    beta: float = 50.0
    eta: float = 0.15
    floor: float = 1e-4

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, low=0.0, high=1e12)
        check_number("eta", self.eta, low=1e-6, high=1e6)
        check_number("floor", self.floor, low=1e-12, high=1e12)
        check_number("beta", self.beta, low=0.0, high=1e12)
        if not self.beta > self.alpha:
            raise ValueError(f"expected `beta` above `alpha` = {self.alpha:g}, got {self.beta:g}")

    def variance(self, x: Tensor) -> Tensor:
        """Variances of any real numbers."""
        return self.floor + self.alpha + (self.beta - self.alpha) * (self.eta * x).sigmoid()

    def is_at_cap(self, variance: Tensor) -> Tensor:
        """Whether a variance is within 1 % of the largest one."""
        return variance - self.floor > _AT_CAP * self.beta

    def start(self) -> float:
        """The number whose variance is a fiftieth of the way from the smallest to the largest."""
        return math.log(_INITIAL / (1 - _INITIAL)) / self.eta


class UncertaintyHead(nn.Module):
    r"""Fully connected layer from features of proposals to the spread of the corners of a box of every class.

    With a full covariance, the layer also predicts six numbers per box, from which the rows of a triangular matrix with
    rows of length 1 are made: the Cholesky factor of the correlations. The variances have the same bounds either way,
    and correlations stay within :math:`\pm 0.98`.

    Args:
        features: Number of features.
        classes: Number of classes, background included; its box is predicted, too, and not used.
        bounds: Bounds of the variance.
        full_covariance: Predict correlations of the corners.

    Note:
        Warns once when, of the first 1000 or more sigmas that are used, over 1 % are at the largest variance.

    Example:
        >>> head = UncertaintyHead(8, 3)
        >>> head.sigmas(head(torch.zeros(5, 8))).mean().item()  # before training
        1.0000...
    """

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        bounds: VarianceBounds | None = None,
        full_covariance: bool = False,
    ) -> None:
        super().__init__()
        self.classes = check_integer("classes", classes, at_least=1)
        self.bounds = VarianceBounds() if bounds is None else bounds
        self.full_covariance = check_flag("full_covariance", full_covariance)
        below = CORNERS * (CORNERS - 1) // 2 if full_covariance else 0
        self.spread = nn.Linear(features, classes * (CORNERS + below))
        with torch.no_grad():
            bias = self.spread.bias.view(classes, -1)
            bias[:, :CORNERS] = self.bounds.start()
            bias[:, CORNERS:] = 0.0  # uncorrelated
            self.spread.weight.view(classes, -1, features)[:, CORNERS:] = 0.0
        self._watched = self._at_cap = 0
        self._has_warned = False

    def forward(self, features: Tensor) -> Tensor:
        """Unbounded numbers, for :meth:`sigmas` and :meth:`factors`, in float32 or better.

        Args:
            features: Shape ``(n, features)``.

        Returns:
            Four numbers per class, ten if the covariance is full. Shape ``(n, classes, 4 or 10)``.
        """
        outputs: Tensor = self.spread(features)
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        return outputs.reshape(len(features), self.classes, outputs.shape[1] // self.classes)

    def sigmas(self, outputs: Tensor) -> Tensor:
        """Standard deviations. Shape ``(..., 4 or 10)`` to ``(..., 4)``."""
        return self.bounds.variance(outputs[..., :CORNERS]).sqrt()

    def factors(self, outputs: Tensor) -> Tensor:
        """Cholesky factors of the covariances. Shape ``(..., 4 or 10)`` to ``(..., 4, 4)``."""
        sigmas = self.sigmas(outputs)
        if not self.full_covariance:
            return torch.diag_embed(sigmas)
        # Of the same slope as the logarithm of the variance: steps of an optimizer move both alike.
        return sigmas.unsqueeze(-1) * _unit_rows(self.bounds.eta * outputs[..., CORNERS:])

    def watch(self, sigmas: Tensor) -> None:
        """Count sigmas that are used, and warn if too many are at the largest variance."""
        if self._has_warned or is_tracing():
            return
        self._watched += sigmas.numel()
        self._at_cap += int(self.bounds.is_at_cap(sigmas.detach().square()).sum())
        if self._watched >= _FEWEST_WATCHED and self._at_cap > _MOST_AT_CAP * self._watched:
            self._has_warned = True
            warnings.warn(
                f"{self._at_cap} of {self._watched} predicted variances are at the largest one, "
                f"{self.bounds.beta:g}: raise `beta`",
                stacklevel=2,
            )

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"{self.bounds}, full_covariance={self.full_covariance}"


def _unit_rows(ratios: Tensor) -> Tensor:
    """Triangular matrices with rows of length 1. Shape ``(..., 6)`` to ``(..., 4, 4)``."""
    rows, columns = torch.tril_indices(CORNERS, CORNERS, offset=-1, device=ratios.device)
    scaled = ratios / _LARGEST_RATIO
    bounded = ratios / (1 + scaled.abs())  # approaches its limits slowly, so that gradients lead back from them
    eye = torch.eye(CORNERS, dtype=ratios.dtype, device=ratios.device)
    matrices = eye.expand(*ratios.shape[:-1], CORNERS, CORNERS).clone()
    matrices[..., rows, columns] = bounded
    return matrices / matrices.norm(dim=-1, keepdim=True)
