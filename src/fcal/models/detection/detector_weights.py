"""Weights of a whole Faster R-CNN of torchvision, loaded into a detector with error bars."""

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fcal.models.detection.config import BACKBONES, DECODERS, DetectorConfig
from fcal.models.pretrained import COUNTER, Weights, torchvision_models

_BODY = "backbone.body."
_CLASSES = "roi_heads.box_predictor.cls_score."
_REGRESSION = "roi_heads.box_predictor.bbox_pred."
_OWN = "uncertainty_head."


def is_of_detector(weights: Weights) -> bool:
    """Whether the weights are those of a detector, not of a backbone alone.

    Example:
        >>> is_of_detector(Weights(name="resnet18", source="file", tensors={"conv1.weight": torch.zeros(1)}))
        False
    """
    return any(key.startswith(_BODY) for key in weights.tensors)


def load_detector(model: nn.Module, weights: Weights, config: DetectorConfig) -> None:
    """Copy the weights of torchvision's detector into a model whose parameters have the same names.

    The class scores of another number of classes are left as they are, with a warning, and the box regression as well;
    the box regression is also left unless ``decoder`` is ``"torchvision"``.

    Raises:
        ValueError: The weights are of a detector with another backbone, or of other sizes.
    """
    _check_backbone(model, weights)
    left: tuple[str, ...] = (_OWN,) if DECODERS[config.decoder] else (_OWN, _REGRESSION)
    key = f"{_CLASSES}bias"
    if key in weights.tensors and (known := len(weights.tensors[key])) != config.classes + 1:
        warnings.warn(
            f"class scores and boxes start anew: {weights.source} has {known - 1} classes, the network "
            f"{config.classes}",
            stacklevel=4,
        )
        left = (_OWN, _REGRESSION, _CLASSES)
    tensors = weights.tensors.copy()  # type: ignore[attr-defined]  # keeps torch's versions of the modules
    for name in [name for name in tensors if name.startswith(left)]:
        del tensors[name]
    try:
        missing, unexpected = model.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        reason = " ".join(str(error).splitlines()[1].split())  # the first line names the class
        raise ValueError(f"expected {weights.source} of a detector of these sizes, got {reason}") from error
    missing = [name for name in missing if not name.startswith(left) and not name.endswith(COUNTER)]
    unexpected = [name for name in unexpected if not name.endswith(COUNTER)]
    for problem, names in (("without", missing), ("with", unexpected)):
        if names:
            raise ValueError(
                f"expected {weights.source} of a Faster R-CNN of torchvision, got one {problem} {names[0]}"
            )


def _check_backbone(model: nn.Module, weights: Weights) -> None:
    """Refuse the weights of another backbone by its name, if it is known."""
    own, loaded = _body(model.state_dict()), _body(weights.tensors)
    if own == loaded:
        return
    known = [name for name in BACKBONES.names() if _layout_of(name).items() >= loaded.items()]
    different = sorted(own.items() ^ loaded.items())[0][0]
    shown = f"the backbone {known[0]!r}" if known else f"another one, which differs in {different}"
    raise ValueError(
        f"expected {weights.source} of a detector with the backbone {weights.name!r}, got one with {shown}"
    )


def _body(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of the backbone."""
    return {
        key.removeprefix(_BODY): tuple(tensor.shape)
        for key, tensor in tensors.items()
        if key.startswith(_BODY) and not key.endswith(COUNTER)
    }


def _layout_of(name: str) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of a backbone by name, without memory for them."""
    with torch.device("meta"):
        network = torchvision_models().get_model(name, weights=None)
    part = BACKBONES[name].part
    layers = getattr(network, part) if part else network
    return {key: tuple(tensor.shape) for key, tensor in layers.state_dict().items()}
