"""Networks that predict a normal distribution: the heads and a small convolutional network."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from fcal._checks import check_flag, check_integer, check_number
from fcal.models.shared_trunk import SharedTrunk

_SMALLEST_SIGMA = 1e-3
_LARGEST_INITIAL = 1e30  # mean or sigma before training
_LAYERS = 3
_OF_CONVOLUTIONS = 2 * _LAYERS + 1  # convolutions with their activations, and the flattening
_SHRINK = 2**_LAYERS
_LARGEST_OPTION = 4096
_MOST_WEIGHTS = 2**29  # 2 GB


class NormalHead(nn.Module):
    """Linear layers for the mean and the standard deviation of a normal distribution.

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
        self.floor = check_number("floor", floor, low=0.0, high=_LARGEST_INITIAL)
        above = check_number("sigma", sigma, low=0.0, high=_LARGEST_INITIAL) - self.floor
        if not above > 0:
            raise ValueError(f"expected `sigma` above its floor of {floor:g}, got {sigma:g}")
        self.mean = nn.Linear(features, outputs)
        self.spread = nn.Linear(features, outputs)
        nn.init.constant_(self.mean.bias, centre)
        nn.init.constant_(self.spread.bias, above + math.log(-math.expm1(-above)))  # inverse of softplus

    def forward(self, features: Tensor) -> Normal:
        """Predict a distribution. Shapes ``(N, features)`` to ``(N, outputs)``."""
        # Softplus and the floor keep sigma positive: torch's validation would only cost a pass over the values.
        return Normal(
            self.mean(features), nn.functional.softplus(self.spread(features)) + self.floor, validate_args=False
        )


class PointHead(nn.Module):
    """Linear layer for the mean alone, for deterministic networks.

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
        """Predict values. Shapes ``(N, features)`` to ``(N, outputs)``."""
        mean: Tensor = self.mean(features)
        return mean


def _check_sizes(features: int, outputs: int, centre: float) -> None:
    check_integer("features", features, at_least=1)
    check_integer("outputs", outputs, at_least=1)
    check_number("centre", centre, low=-_LARGEST_INITIAL, high=_LARGEST_INITIAL)


class ConvNet(nn.Module):
    """Three convolutions, one hidden layer, and a head that predicts a normal distribution.

    Args:
        outputs: Number of values predicted.
        size: Width and height of the images in pixels, a multiple of 8.
        width: Channels of the first convolution; each further convolution doubles them.
        hidden: Units of the hidden layer.
        dropout: Dropout probability of the hidden units.
        deterministic: Predict a tensor of values instead of a distribution.

    Example:
        >>> images = torch.zeros(5, 3, 16, 16, dtype=torch.uint8)
        >>> ConvNet(size=16)(images).mean.shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        *,
        outputs: int = 2,
        size: int = 64,
        width: int = 16,
        hidden: int = 128,
        dropout: float = 0.0,
        deterministic: bool = False,
    ) -> None:
        super().__init__()
        for name, value in (("outputs", outputs), ("size", size), ("width", width), ("hidden", hidden)):
            check_integer(name, value, at_least=1, at_most=_LARGEST_OPTION)
        if size % _SHRINK:
            raise ValueError(f"expected `size` a multiple of {_SHRINK}, got {size}")
        check_number("dropout", dropout, low=0.0, high=0.99)
        check_flag("deterministic", deterministic)
        _check_weights(size, width, hidden)
        self.size = size
        last = width * 2 ** (_LAYERS - 1)
        self.trunk = nn.Sequential(
            nn.Conv2d(3, width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, last, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(last * (size // _SHRINK) ** 2, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.head: nn.Module = (
            PointHead(hidden, outputs, centre=0.5)
            if deterministic
            else NormalHead(hidden, outputs, centre=0.5, sigma=0.1)
        )

    @classmethod
    def with_heads(cls, heads: int, **options: Any) -> SharedTrunk:
        """Networks that share their convolutions; each has a hidden layer and a head of its own.

        Example:
            >>> len(ConvNet.with_heads(3, size=16)(torch.zeros(5, 3, 16, 16)))
            3
        """
        networks = [cls(**options) for _ in range(check_integer("heads", heads, at_least=2, at_most=1000))]
        return SharedTrunk(
            nn.Sequential(_Scaled(networks[0].size), networks[0].trunk[:_OF_CONVOLUTIONS]),
            [nn.Sequential(network.trunk[_OF_CONVOLUTIONS:], network.head) for network in networks],
        )

    @property
    def uncertainty_head(self) -> nn.Module | None:
        """The layer that predicts the standard deviation; None if the network is deterministic."""
        return self.head.spread if isinstance(self.head, NormalHead) else None

    def forward(self, images: Tensor) -> Normal | Tensor:
        """Predict from images.

        Args:
            images: uint8 in [0, 255], or floats in [0, 1]. Shape ``(N, 3, size, size)``.

        Returns:
            A distribution, or a tensor if the network is deterministic. Shape ``(N, outputs)``.
        """
        prediction: Normal | Tensor = self.head(self.trunk(_scaled(images, self.size)))
        return prediction


class _Scaled(nn.Module):
    """Images as floats in [0, 1]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        return _scaled(images, self.size)


def _scaled(images: Tensor, size: int) -> Tensor:
    """Images as floats in [0, 1]; those of another shape or type are refused."""
    if not isinstance(images, Tensor):
        raise TypeError(f"expected `images` a torch.Tensor, got {type(images).__name__}")
    if images.dim() != 4 or images.shape[1:] != (3, size, size):
        raise ValueError(f"expected `images` of shape (N, 3, {size}, {size}), got {tuple(images.shape)}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise TypeError(f"expected `images` of dtype uint8 or a floating one, got {images.dtype}")
    return images.float().div(255) if images.dtype == torch.uint8 else images


def _check_weights(size: int, width: int, hidden: int) -> None:
    """Reject a network that is too large for memory before its weights are allocated."""
    last = width * 2 ** (_LAYERS - 1)
    weights = last * (size // _SHRINK) ** 2 * hidden + 9 * (2 * width * width + 2 * width * last)
    if weights > _MOST_WEIGHTS:
        raise ValueError(
            f"expected `size`, `width` and `hidden` of at most {_MOST_WEIGHTS:,} weights together, got {weights:,}"
        )
