"""Networks that return a distribution, by name."""

from collections.abc import Callable
from typing import Any

from torch import nn

from fcal._registry import Registry
from fcal.models.convnet import ConvNet
from fcal.models.ensembles import Ensemble, mixture
from fcal.models.heads import NormalHead, PointHead
from fcal.models.predicting import Predicted, predict

__all__ = [
    "ConvNet",
    "Ensemble",
    "NormalHead",
    "PointHead",
    "Predicted",
    "by_name",
    "factory",
    "mixture",
    "names",
    "predict",
    "register",
]

_FACTORIES: Registry[Callable[..., nn.Module]] = Registry("model")
_FACTORIES.add("convnet", ConvNet)


def names() -> list[str]:
    """Every known network.

    Example:
        >>> "convnet" in names()
        True
    """
    return _FACTORIES.names()


def register(name: str, factory: Callable[..., nn.Module], *, replace: bool = False) -> None:
    """Make an own network known by name, for configs and the command line.

    Args:
        name: What configs call it.
        factory: Keyword options in, a network out.
        replace: Whether the name may be taken already.

    Example:
        >>> register("line", lambda slope=1: torch.nn.Linear(slope, 1), replace=True)
        >>> by_name("line", slope=3)
        Linear(in_features=3, out_features=1, bias=True)
    """
    if not callable(factory):
        raise TypeError(f"expected `factory` to call with options, got {type(factory).__name__}")
    _FACTORIES.add(name, factory, replace=replace)


def factory(name: str) -> Callable[..., nn.Module]:
    """What makes a network, whose signature tells the options.

    Raises:
        ValueError: It has no such name; the known ones are listed.

    Example:
        >>> factory("convnet").__name__
        'ConvNet'
    """
    return _FACTORIES[name]


def by_name(name: str, /, **options: Any) -> nn.Module:
    """A new network.

    Raises:
        ValueError: No network has this name; the known ones are listed.
    """
    return _FACTORIES[name](**options)
