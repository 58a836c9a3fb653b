"""Datasets with known noise, images with depth or boxes, assignment to folds, and the registry of datasets."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch.utils.data import Dataset

from fcal._registry import Registry
from fcal.data.bokeh import Bokeh, BokehConfig, BokehSplits
from fcal.data.depth_frames import DepthFrame, DepthFrames, DepthSplits, DepthTruth, FrameSplits
from fcal.data.depth_views import DepthView
from fcal.data.detection import by_name as detection_format
from fcal.data.folds import fold_numbers, group_numbers
from fcal.data.kitti_depth import kitti_depth, kitti_depth_splits
from fcal.data.kitti_mini import kitti_mini, kitti_mini_splits
from fcal.data.street import StreetConfig, StreetDepth, StreetSplits

__all__ = [
    "Bokeh",
    "BokehConfig",
    "BokehSplits",
    "DepthFrame",
    "DepthFrames",
    "DepthSplits",
    "DepthTruth",
    "DepthView",
    "FrameSplits",
    "Splits",
    "StreetConfig",
    "StreetDepth",
    "StreetSplits",
    "by_name",
    "fold_numbers",
    "group_numbers",
    "kitti_depth",
    "kitti_mini",
    "names",
    "register",
]


class Splits(Protocol):
    """Training, validation and test data."""

    @property
    def train(self) -> Dataset[Mapping[str, Any]]:
        """Data that the weights are fitted to."""

    @property
    def validation(self) -> Dataset[Mapping[str, Any]]:
        """Data for choosing epochs, hyper-parameters and recalibrators."""

    @property
    def test(self) -> Dataset[Mapping[str, Any]]:
        """Data for the report only."""


_FACTORIES: Registry[Callable[..., Splits]] = Registry("data")
_FACTORIES.add("bokeh", BokehSplits.from_options)
_FACTORIES.add("kitti-depth", kitti_depth_splits)
_FACTORIES.add("kitti-mini", kitti_mini_splits)
_FACTORIES.add("street", StreetSplits.from_options)
_FACTORIES.add("kitti-object", detection_format("kitti"))
for _name in ("cityscapes", "coco", "voc"):
    _FACTORIES.add(_name, detection_format(_name))
_FACTORIES.add("street-detection", detection_format("street"))


def names() -> list[str]:
    """Names of the registered datasets.

    Example:
        >>> "bokeh" in names()
        True
    """
    return _FACTORIES.names()


def register(name: str, factory: Callable[..., Splits], *, replace: bool = False) -> None:
    """Register a dataset for configs and the command line.

    Args:
        name: Name in configs.
        factory: Function of keyword options that returns an object with ``train``, ``validation`` and ``test``.
        replace: Replace an existing entry of this name.
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
