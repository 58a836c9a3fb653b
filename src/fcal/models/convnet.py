"""A small convolutional network for small images."""

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from fcal._checks import check_flag, check_integer, check_number
from fcal.models.heads import NormalHead, PointHead

_LAYERS = 3
_SHRINK = 2**_LAYERS
_LARGEST = 4096  # of every option
_MOST_WEIGHTS = 2**29  # 2 GB of them


class ConvNet(nn.Module):
    """Three convolutions, one hidden layer, and a head that predicts a normal law.

    Args:
        outputs: Number of values predicted.
        size: Pixels of an image's edge, a multiple of 8.
        width: Channels of the first convolution; every further one has twice as many.
        hidden: Units of the hidden layer.
        dropout: Share of hidden units left out in training.
        deterministic: Predict a tensor of values instead of a law.

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
            check_integer(name, value, at_least=1, at_most=_LARGEST)
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

    @property
    def uncertainty_head(self) -> nn.Module | None:
        """What predicts the standard deviation; None where the network predicts points."""
        return self.head.spread if isinstance(self.head, NormalHead) else None

    def forward(self, images: Tensor) -> Normal | Tensor:
        """Predict from images.

        Args:
            images: uint8 from 0 to 255, or floats from 0 to 1. Shape ``(N, 3, size, size)``.

        Returns:
            A law, or a tensor where the network is deterministic. Shape ``(N, outputs)``.
        """
        if not isinstance(images, Tensor):
            raise TypeError(f"expected `images` a torch.Tensor, got {type(images).__name__}")
        if images.dim() != 4 or images.shape[1:] != (3, self.size, self.size):
            expected = f"(N, 3, {self.size}, {self.size})"
            raise ValueError(f"expected `images` of shape {expected}, got {tuple(images.shape)}")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise TypeError(f"expected `images` of dtype uint8 or a floating one, got {images.dtype}")
        scaled = images.float().div(255) if images.dtype == torch.uint8 else images
        prediction: Normal | Tensor = self.head(self.trunk(scaled))
        return prediction


def _check_weights(size: int, width: int, hidden: int) -> None:
    """Refuse a network that no memory holds before its weights are drawn."""
    last = width * 2 ** (_LAYERS - 1)
    weights = last * (size // _SHRINK) ** 2 * hidden + 9 * (2 * width * width + 2 * width * last)
    if weights > _MOST_WEIGHTS:
        raise ValueError(
            f"expected `size`, `width` and `hidden` of at most {_MOST_WEIGHTS:,} weights together, got {weights:,}"
        )
