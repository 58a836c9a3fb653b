"""Datasets whose truth is known, and others by name."""

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor
from torch.utils.data import Dataset

from fcal._registry import Registry
from fcal.data.bokeh import Bokeh, BokehConfig, BokehSplits
from fcal.data.folds import fold_numbers, group_numbers

__all__ = [
    "Bokeh",
    "BokehConfig",
    "BokehSplits",
    "Splits",
    "by_name",
    "fold_numbers",
    "group_numbers",
    "names",
    "register",
]


class Splits(Protocol):
    """Data to train on, to choose by, and to report on."""

    @property
    def train(self) -> Dataset[Mapping[str, Tensor]]:
        """What the weights are fitted to."""

    @property
    def validation(self) -> Dataset[Mapping[str, Tensor]]:
        """What epochs, hyper-parameters and recalibrators are chosen by."""

    @property
    def test(self) -> Dataset[Mapping[str, Tensor]]:
        """What nothing is chosen by."""


_FACTORIES: Registry[Callable[..., Splits]] = Registry("data")
_FACTORIES.add("bokeh", BokehSplits.from_options)


def names() -> list[str]:
    """Every known kind of data.

    Example:
        >>> "bokeh" in names()
        True
    """
    return _FACTORIES.names()


def register(name: str, factory: Callable[..., Splits], *, replace: bool = False) -> None:
    """Make own data known by name, for configs and the command line.

    Args:
        name: What configs call it.
        factory: Keyword options in; an object with the attributes ``train``, ``validation`` and ``test`` out.
        replace: Whether the name may be taken already.
    """
    if not callable(factory):
        raise TypeError(f"expected `factory` to call with options, got {type(factory).__name__}")
    _FACTORIES.add(name, factory, replace=replace)


def by_name(name: str) -> Callable[..., Splits]:
    """The factory of a dataset; its signature lists the options.

    Raises:
        ValueError: No dataset has this name; the message lists the known ones.

    Example:
        >>> len(by_name("bokeh")(images=10, size=16).validation)
        2
    """
    return _FACTORIES[name]
