"""Pretrained weights of torchvision's networks: read from a file or downloaded, and copied into a network."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

COUNTER = "num_batches_tracked"  # absent from older files, and without effect on a network
_IMAGENET = "imagenet"
_CLASSIFIERS = ("classifier.", "fc.")


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Tensors of a network.

    Attributes:
        name: Name of the network in torchvision.
        source: Where they are from, for error messages.
        tensors: A state dict.
    """

    name: str
    source: str
    tensors: Mapping[str, Tensor]


def torchvision_models() -> Any:
    """``torchvision.models``; the error without torchvision says what to install."""
    try:
        from torchvision import models
    except ModuleNotFoundError as error:
        raise ImportError("expected torchvision for networks of images; pip install 'fcal[vision]'") from error
    return models


def read_weights(name: str, weights: str) -> Weights:
    """Read the weights of a network.

    Args:
        name: Name of the network in torchvision.
        weights: Path of a file that ``torch.save`` wrote, or ``"imagenet"`` to download those of torchvision.

    Raises:
        ValueError: The file holds no state dict.
        OSError: The weights cannot be read or downloaded.
    """
    if not isinstance(weights, str):
        raise TypeError(f"expected `weights` a string, got {type(weights).__name__}")
    if weights == _IMAGENET:
        return Weights(name=name, source=f"{_IMAGENET} weights", tensors=_downloaded(name))
    return Weights(name=name, source=weights, tensors=_read(Path(weights)))


def weights_of(name: str, folder: str | None) -> str:
    """The file with weights of a network in a folder of data, or, if it has none, those of torchvision.

    Args:
        name: Name of the network in torchvision.
        folder: It may have a folder ``weights_NAME``, without the underscores of the name, with a file ``*.pt``.

    Example:
        >>> weights_of("mobilenet_v2", None)
        'imagenet'
    """
    below = f"weights_{name.replace('_', '')}/*.pt"
    known = [] if folder is None else sorted(Path(folder).glob(below))
    return str(known[0]) if known else _IMAGENET


def copy_weights(network: nn.Module, weights: Weights, role: str) -> None:
    """Copy pretrained weights into a network of torchvision; its classifier is left as it is.

    Args:
        network: Its tensors may have other names than those of the weights if they are in the same order.
        weights: The weights, with or without a classifier.
        role: What the network is used as, for error messages.

    Raises:
        ValueError: The weights are of another network.
    """
    own, loaded = _without_classifier(network.state_dict()), _without_classifier(weights.tensors)
    if own.keys() == loaded.keys():
        loaded = {key: loaded[key] for key in own}
    _check_same_layout(f"{weights.source} of the {role} {weights.name!r}", own, loaded)
    with torch.no_grad():
        for parameter, tensor in zip(own.values(), loaded.values(), strict=True):
            parameter.copy_(tensor)


def _without_classifier(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        key: tensor for key, tensor in tensors.items() if not key.startswith(_CLASSIFIERS) and not key.endswith(COUNTER)
    }


def _check_same_layout(source: str, own: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> None:
    """Refuse the weights of another network at the first tensor that differs in shape or role."""
    for (key, expected), (other, tensor) in zip(own.items(), loaded.items(), strict=False):
        if tensor.shape != expected.shape or key.rpartition(".")[2] != other.rpartition(".")[2]:
            raise ValueError(
                f"expected {source} with {key} of shape {tuple(expected.shape)}, "
                f"got {other} of shape {tuple(tensor.shape)}"
            )
    if len(own) != len(loaded):
        raise ValueError(f"expected {source} with {len(own)} tensors, got {len(loaded)}")


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
            torchvision_models().get_model_weights(name).DEFAULT.get_state_dict(progress=False, check_hash=True)
        )
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise OSError(
            f"expected to download the weights 'imagenet' of {name!r}, got {reason}; pass the path of a file"
        ) from error
    return tensors
