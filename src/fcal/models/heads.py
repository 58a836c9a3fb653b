"""Last layers: features in, a law or a point out."""

import torch
from torch import Tensor, nn
from torch.distributions import Normal

_SMALLEST_SIGMA = 1e-3


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
        self.mean = nn.Linear(features, outputs)
        self.spread = nn.Linear(features, outputs)
        self.floor = floor
        nn.init.constant_(self.mean.bias, centre)
        with torch.no_grad():
            self.spread.bias.fill_(torch.tensor(sigma - floor).expm1().log())  # softplus undone

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
    """

    def __init__(self, features: int, outputs: int, *, centre: float = 0.0) -> None:
        super().__init__()
        self.mean = nn.Linear(features, outputs)
        nn.init.constant_(self.mean.bias, centre)

    def forward(self, features: Tensor) -> Tensor:
        """The predicted values. Shapes ``(N, features)`` to ``(N, outputs)``."""
        mean: Tensor = self.mean(features)
        return mean
