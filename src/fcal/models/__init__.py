"""Networks that return a distribution, and their registry."""

from collections.abc import Callable

from torch import nn

from fcal._registry import Registry
from fcal.models import depth, detection
from fcal.models.ensembles import Ensemble, mixture
from fcal.models.networks import ConvNet, NormalHead, PointHead
from fcal.models.predicting import Predicted, predict
from fcal.models.scale_networks import FixedMean, WithScales
from fcal.models.shared_trunk import SharedTrunk

__all__ = [
    "ConvNet",
    "Ensemble",
    "FixedMean",
    "NormalHead",
    "PointHead",
    "Predicted",
    "SharedTrunk",
    "WithScales",
    "by_name",
    "depth",
    "detection",
    "mixture",
    "names",
    "predict",
    "register",
]

_FACTORIES: Registry[Callable[..., nn.Module]] = Registry("model")
_FACTORIES.add("convnet", ConvNet)
_FACTORIES.add("bts", depth.BTS)
_FACTORIES.add("faster-rcnn", detection.FasterRCNN)


def names() -> list[str]:
    """Names of the registered networks.

    Example:
        >>> "convnet" in names()
        True
    """
    return _FACTORIES.names()


def register(name: str, factory: Callable[..., nn.Module], *, replace: bool = False) -> None:
    """Register a network for configs and the command line.

    Args:
        name: Name in configs.
        factory: Function of keyword options that returns a network.
        replace: Replace an existing entry of this name.

    Example:
        >>> register("line", lambda slope=1: torch.nn.Linear(slope, 1), replace=True)
        >>> by_name("line")(slope=3)
        Linear(in_features=3, out_features=1, bias=True)
    """
    if not callable(factory):
        raise TypeError(f"expected `factory` to call with options, got {type(factory).__name__}")
    _FACTORIES.add(name, factory, replace=replace)


def by_name(name: str) -> Callable[..., nn.Module]:
    """The factory of a network; its signature lists the options.

    Raises:
        ValueError: No network has this name; the message lists the known ones.

    Example:
        >>> by_name("convnet").__name__
        'ConvNet'
    """
    return _FACTORIES[name]
