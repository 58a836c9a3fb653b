"""Encoders: networks of torchvision cut into five stages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch.nn.functional as F
from torch import Tensor, nn

from fcal._registry import Registry
from fcal.models.pretrained import copy_weights, read_weights, torchvision_models

STRIDE = 32  # pixels of the image per pixel of the last features


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """How to cut a network of torchvision into five stages, each of which halves the resolution.

    Attributes:
        stages: Function of the network to its stages.
        channels: Number of channels of the features of each stage.
    """

    stages: Callable[[Any], list[nn.Module]]
    channels: tuple[int, ...]


def _mobilenet_stages(network: Any) -> list[nn.Module]:
    layers = network.features
    return [layers[0:2], layers[2:4], layers[4:7], layers[7:14], layers[14:19]]


def _resnet_stages(network: Any) -> list[nn.Module]:
    stem = nn.Sequential(network.conv1, network.bn1, network.relu)
    return [stem, nn.Sequential(network.maxpool, network.layer1), network.layer2, network.layer3, network.layer4]


def _densenet_stages(network: Any) -> list[nn.Module]:
    layers = network.features
    return [layers[0:3], layers[3:4], layers[4:6], layers[6:8], layers[8:12]]


_BACKBONES: Registry[Backbone] = Registry("encoder")
_BACKBONES.add("mobilenet_v2", Backbone(stages=_mobilenet_stages, channels=(16, 24, 32, 96, 1280)))
_BACKBONES.add("resnet18", Backbone(stages=_resnet_stages, channels=(64, 64, 128, 256, 512)))
_BACKBONES.add("resnet50", Backbone(stages=_resnet_stages, channels=(64, 256, 512, 1024, 2048)))
_BACKBONES.add("resnet101", Backbone(stages=_resnet_stages, channels=(64, 256, 512, 1024, 2048)))
_BACKBONES.add("densenet121", Backbone(stages=_densenet_stages, channels=(64, 64, 128, 256, 1024)))
_BACKBONES.add("densenet161", Backbone(stages=_densenet_stages, channels=(96, 96, 192, 384, 2208)))


def encoder_names() -> list[str]:
    """Names of the encoders, which are those of torchvision.

    Example:
        >>> encoder_names()[:2]
        ['mobilenet_v2', 'resnet18']
    """
    return _BACKBONES.names()


_FROZEN: Registry[Callable[["Encoder"], list[nn.Module]]] = Registry("freeze")
_FROZEN.add(
    "batchnorm", lambda encoder: [m for m in encoder.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
)
_FROZEN.add("encoder", lambda encoder: [encoder.stages])


class Encoder(nn.Module):
    """Features of an image at 1/2, 1/4, 1/8, 1/16 and 1/32 of its resolution.

    The image is padded at its right and lower edge, by repeating the outermost pixels, to multiples of 32 pixels.

    Args:
        name: One of :func:`encoder_names`.
        weights: Path of a file of pretrained weights, ``"imagenet"`` to download those of torchvision, or an empty
            string for random weights. A file holds a state dict of the network, with or without its classifier, written
            by ``torch.save``. Its tensors may have other names if they are in the same order.
        freeze: ``"batchnorm"`` to keep statistics and weights of the batch-norm layers as they are, ``"encoder"`` to
            keep all of the encoder, an empty string to train everything.

    Attributes:
        channels: Number of channels at each resolution.

    Raises:
        ValueError: An unknown name, or a file with the weights of another encoder.
        OSError: The weights cannot be read or downloaded.

    Example:
        >>> encoder = Encoder("mobilenet_v2").eval()
        >>> [tuple(feature.shape) for feature in encoder(torch.zeros(1, 3, 40, 64))]
        [(1, 16, 32, 32), (1, 24, 16, 16), (1, 32, 8, 8), (1, 96, 4, 4), (1, 1280, 2, 2)]
    """

    stages: nn.ModuleList

    def __init__(self, name: str = "mobilenet_v2", *, weights: str = "", freeze: str = "") -> None:
        super().__init__()
        backbone = _BACKBONES[name]
        if freeze:
            _FROZEN[freeze]  # refuse an unknown name before weights are read
        network = torchvision_models().get_model(name, weights=None)
        if weights:
            copy_weights(network, read_weights(name, weights), "encoder")
        self.stages = nn.ModuleList(backbone.stages(network))
        self.channels = backbone.channels
        self.freeze = freeze
        for module in self._frozen():
            module.requires_grad_(False)

    def forward(self, image: Tensor) -> list[Tensor]:
        """Features of an image. Shape ``(B, 3, H, W)`` to ``(B, channels, h, w)`` at each resolution."""
        features, feature = [], padded(image)
        for stage in self.stages:
            feature = stage(feature)
            features.append(feature)
        return features

    def train(self, mode: bool = True) -> Self:
        """Set the training mode; frozen layers stay in evaluation mode."""
        super().train(mode)
        for module in self._frozen():
            module.eval()
        return self

    def _frozen(self) -> list[nn.Module]:
        """The layers that are not trained; looked up anew, because a wrapper may have replaced some."""
        return _FROZEN[self.freeze](self) if self.freeze else []


def padded(image: Tensor) -> Tensor:
    """The image, extended at its right and lower edge to multiples of 32 pixels.

    Example:
        >>> padded(torch.zeros(1, 3, 33, 64)).shape
        torch.Size([1, 3, 64, 64])
    """
    height, width = image.shape[-2:]
    right, below = -width % STRIDE, -height % STRIDE
    return F.pad(image, (0, right, 0, below), mode="replicate") if right or below else image
