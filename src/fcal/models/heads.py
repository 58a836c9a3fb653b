"""Last layers: features in, a law or a point out."""

import math

from torch import Tensor, nn
from torch.distributions import Normal

from fcal._checks import check_integer, check_number

_SMALLEST_SIGMA = 1e-3
_LARGEST = 1e30  # of a mean or sigma before training


class NormalHead(nn.Module):
    """Mean and standard deviation from the same features.

    Args:
        features: Number of features.
        outputs: Number of values predicted.
        centre: Mean before training.
        sigma: Standard deviation before training.
        floor: Smallest standard deviation, which keeps the likelihood bounded.

    Example:
        >>> head = NormalHead(8, 2, centre=0.5, sigma=0.1)
        >>> head(torch.zeros(4, 8)).stddev.shape
        torch.Size([4, 2])
    """

    def __init__(
        self, features: int, outputs: int, *, centre: float = 0.0, sigma: float = 1.0, floor: float = _SMALLEST_SIGMA
    ) -> None:
        super().__init__()
        _check_sizes(features, outputs, centre)
        self.floor = check_number("floor", floor, low=0.0, high=_LARGEST)
        above = check_number("sigma", sigma, low=0.0, high=_LARGEST) - self.floor
        if not above > 0:
            raise ValueError(f"expected `sigma` above its floor of {floor:g}, got {sigma:g}")
        self.mean = nn.Linear(features, outputs)
        self.spread = nn.Linear(features, outputs)
        nn.init.constant_(self.mean.bias, centre)
        nn.init.constant_(self.spread.bias, above + math.log(-math.expm1(-above)))  # softplus undone

    def forward(self, features: Tensor) -> Normal:
        """The predicted law. Shapes ``(N, features)`` to ``(N, outputs)``."""
        # Softplus and the floor keep sigma positive; torch's own check would read every value once more.
        return Normal(
            self.mean(features), nn.functional.softplus(self.spread(features)) + self.floor, validate_args=False
        )


class PointHead(nn.Module):
    """The mean alone: what a deterministic network predicts.

    Args:
        features: Number of features.
        outputs: Number of values predicted.
        centre: Mean before training.

    Example:
        >>> PointHead(8, 2, centre=0.5)(torch.zeros(1, 8)).tolist()
        [[0.5, 0.5]]
    """

    def __init__(self, features: int, outputs: int, *, centre: float = 0.0) -> None:
        super().__init__()
        _check_sizes(features, outputs, centre)
        self.mean = nn.Linear(features, outputs)
        nn.init.constant_(self.mean.bias, centre)

    def forward(self, features: Tensor) -> Tensor:
        """The predicted values. Shapes ``(N, features)`` to ``(N, outputs)``."""
        mean: Tensor = self.mean(features)
        return mean


def _check_sizes(features: int, outputs: int, centre: float) -> None:
    check_integer("features", features, at_least=1)
    check_integer("outputs", outputs, at_least=1)
    check_number("centre", centre, low=-_LARGEST, high=_LARGEST)
