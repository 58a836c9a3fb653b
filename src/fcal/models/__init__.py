"""Networks that return a distribution, by name."""

from collections.abc import Callable

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
