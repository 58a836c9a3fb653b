"""Encoders: networks of torchvision cut into five stages, and their pretrained weights."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fcal._registry import Registry

STRIDE = 32  # pixels of the image per pixel of the last features
_IMAGENET = "imagenet"
_CLASSIFIERS = ("classifier.", "fc.")
_COUNTER = "num_batches_tracked"  # absent from older files, and without effect on the network


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
        network = _torchvision().get_model(name, weights=None)
        if weights:
            _load_weights(network, name, weights)
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


def _torchvision() -> Any:
    try:
        from torchvision import models
    except ModuleNotFoundError as error:
        raise ImportError("expected torchvision for depth networks; pip install 'fcal[vision]'") from error
    return models


# Pretrained weights.


def _load_weights(network: nn.Module, name: str, weights: str) -> None:
    """Copy pretrained weights into a network of torchvision; its classifier is left as it is."""
    if not isinstance(weights, str):
        raise TypeError(f"expected `weights` a string, got {type(weights).__name__}")
    source = f"{_IMAGENET} weights" if weights == _IMAGENET else weights
    tensors = _downloaded(name) if weights == _IMAGENET else _read(Path(weights))
    own, loaded = _without_classifier(network.state_dict()), _without_classifier(tensors)
    if own.keys() == loaded.keys():
        loaded = {key: loaded[key] for key in own}
    _check_same_layout(source, name, own, loaded)
    with torch.no_grad():
        for parameter, tensor in zip(own.values(), loaded.values(), strict=True):
            parameter.copy_(tensor)


def _without_classifier(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        key: tensor
        for key, tensor in tensors.items()
        if not key.startswith(_CLASSIFIERS) and not key.endswith(_COUNTER)
    }


def _check_same_layout(source: str, name: str, own: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> None:
    """Refuse the weights of another network at the first tensor that differs in shape or role."""
    for (key, expected), (other, tensor) in zip(own.items(), loaded.items(), strict=False):
        if tensor.shape != expected.shape or key.rpartition(".")[2] != other.rpartition(".")[2]:
            raise ValueError(
                f"expected {source} of the encoder {name!r} with {key} of shape {tuple(expected.shape)}, "
                f"got {other} of shape {tuple(tensor.shape)}"
            )
    if len(own) != len(loaded):
        raise ValueError(f"expected {source} of the encoder {name!r} with {len(own)} tensors, got {len(loaded)}")


def _read(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"expected `weights` a file or 'imagenet', got {os.fspath(path)!r}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # by the first bytes, torch takes one of several readers, which fail differently
        raise ValueError(f"expected {path} a state dict written by torch.save, got a file that is not one") from error
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise ValueError(f"expected {path} a state dict of tensors, got a file with {type(content).__name__}")
    return content


def _downloaded(name: str) -> Mapping[str, Tensor]:
    try:
        tensors: Mapping[str, Tensor] = (
            _torchvision().get_model_weights(name).DEFAULT.get_state_dict(progress=False, check_hash=True)
        )
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise OSError(
            f"expected to download the weights 'imagenet' of {name!r}, got {reason}; pass the path of a file"
        ) from error
    return tensors
