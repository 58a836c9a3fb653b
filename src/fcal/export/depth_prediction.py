"""Depth and its standard deviation for single images, by the network of a finished run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal import recalibration
from fcal._checks import check_number
from fcal._config import config_from
from fcal.data import DepthView, StreetConfig
from fcal.data.depth_views import Placement, normalised, resized_image
from fcal.data.kitti_depth import KittiDepthConfig
from fcal.data.kitti_mini import KittiMiniConfig
from fcal.models.depth import BTS
from fcal.models.predicting import evaluating, in_format, prediction
from fcal.recalibration import Recalibrator
from fcal.training import Run
from fcal.training.run_folder import RECALIBRATOR

LARGEST = 2**16 - 1  # integer in a file of 16 bits


def _street_view(options: dict[str, Any]) -> DepthView:
    config = config_from(options, StreetConfig, source="data.options")
    return DepthView(size=(config.height, config.width), focal=config.focal)


def _kitti_view(kind: type[KittiDepthConfig] | type[KittiMiniConfig]) -> Callable[[dict[str, Any]], DepthView]:
    return lambda options: config_from(options, kind, source="data.options").views()[0]


# What networks see of an image, by the name of the data that they were trained on; all of it for other data.
_VIEWS: dict[str, Callable[[dict[str, Any]], DepthView]] = {
    "street": _street_view,
    "kitti-depth": _kitti_view(KittiDepthConfig),
    "kitti-mini": _kitti_view(KittiMiniConfig),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class DepthMaps:
    """Predicted depth of every pixel of an image.

    Attributes:
        depth: Mean of the predicted distribution in metres, NaN where the network does not see the pixel. Shape
            ``(H, W)``, float32.
        sigma: Its standard deviation, likewise.
        network_size: Height and width at which the network predicted.
    """

    depth: NDArray[np.float32]
    sigma: NDArray[np.float32]
    network_size: tuple[int, int]


class DepthPredictor:
    """Predicts the depth of every pixel of an image, at the size of the image.

    The image is resized to what the network was trained on, and every pixel of the image takes the prediction of the
    cell that its centre falls into. Predictions are not interpolated: a mean of two depths at an edge is the depth of
    nothing, and its sigma would not cover the error.

    Args:
        model: Takes images normalised by ImageNet's mean and standard deviation, shape ``(B, 3, H, W)``, and returns a
            distribution of batch shape ``(B, H, W)``.
        view: What it sees of an image; by default the whole image at its own size.
        recalibrator: Applied to its predictions.
        channels_last: Memory format of images.

    Example:
        >>> from torch.distributions import Normal
        >>> predictor = DepthPredictor(lambda x: Normal(10 + x[:, 0], 2.0), view=DepthView(size=(4, 6)))
        >>> maps = predictor(np.zeros((8, 12, 3), np.uint8))
        >>> maps.depth.shape, maps.sigma[0, 0], maps.network_size
        ((8, 12), np.float32(2.0), (4, 6))
    """

    def __init__(
        self,
        model: Callable[[Tensor], Any],
        *,
        view: DepthView | None = None,
        recalibrator: Recalibrator | None = None,
        channels_last: bool = False,
    ) -> None:
        self.model = model
        self.view = DepthView() if view is None else view
        self.recalibrator = recalibrator
        self._channels_last = channels_last

    @classmethod
    def of_run(cls, run: Run) -> "DepthPredictor":
        """The network of a run with its recalibrator, if it has one.

        Raises:
            ValueError: The recalibrator is damaged.
        """
        data, has_recalibrator = run.config.data, bool(run.config.recalibration.method)
        return cls(
            run.model,
            view=_VIEWS[data.name](data.options) if data.name in _VIEWS else None,
            recalibrator=recalibration.load(run.folder / RECALIBRATOR) if has_recalibrator else None,
            channels_last=run.config.fit.channels_last,
        )

    def __call__(self, image: NDArray[np.uint8], *, focal: float | None = None) -> DepthMaps:
        """Predict the depth of an image.

        Args:
            image: Colours. Shape ``(H, W, 3)``, uint8.
            focal: Focal length of the image in pixels. With it, the image is resized so that its focal length is that
                of the training images, which are cut out of the bottom centre; pixels outside are not predicted.
                Without it, the whole image is resized, and depth is right if the field of view is that of the training
                images.

        Raises:
            ValueError: The image does not fit what the network was trained on, or the network returns no distribution
                over depth.
        """
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            shown = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
            raise ValueError(f"expected `image` an array uint8 of shape (H, W, 3), got {shown}")
        placement = self._placement((image.shape[0], image.shape[1]), focal)
        inputs = normalised(resized_image(torch.from_numpy(np.ascontiguousarray(image)), placement)[None])
        with evaluating(self.model), torch.no_grad():
            pred = self._checked(prediction(self.model, in_format(inputs, self._channels_last)), placement)
            if self.recalibrator is not None:
                pred = self.recalibrator.transform(pred)
            depth, sigma = pred.mean[0], pred.stddev[0]
        cells = placement.cells(torch.arange(image.shape[0] * image.shape[1]), image.shape[1])
        return DepthMaps(
            depth=_at_cells(depth, cells, image.shape),
            sigma=_at_cells(sigma, cells, image.shape),
            network_size=placement.shape,
        )

    def _placement(self, shape: tuple[int, int], focal: float | None) -> Placement:
        if focal is None:
            return replace(self.view, focal=None).placement(shape, 1.0)
        check_number("focal", focal, low=1.0, high=1e5)
        if self.view.focal is None:
            raise ValueError(f"expected no `focal` for a network of images of any focal length, got {focal:g}")
        return self.view.placement(shape, focal)

    def _checked(self, pred: Distribution | Tensor, placement: Placement) -> Distribution:
        if not isinstance(pred, Distribution):
            raise ValueError("expected a network that predicts a distribution, got one that predicts depth alone")
        if pred.batch_shape + pred.event_shape != (1, *placement.shape):
            expected, actual = (1, *placement.shape), tuple(pred.batch_shape + pred.event_shape)
            raise ValueError(f"expected a network that predicts depth of shape {expected}, got {actual}")
        return pred


def _at_cells(values: Tensor, cells: Tensor, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Values of the cells of pixels, NaN for pixels without one. Shape ``(H, W)``."""
    taken = values.float().reshape(-1)[cells.clamp(min=0)]
    return torch.where(cells >= 0, taken, torch.nan).reshape(shape[:2]).numpy()


def predicts_depth(run: Run) -> bool:
    """Whether the network of a run predicts the depth of images: by its architecture, or by the data it has seen."""
    is_depth_network = isinstance(run.model, nn.Module) and any(isinstance(part, BTS) for part in run.model.modules())
    return is_depth_network or run.config.data.name in _VIEWS


def as_16_bits(values: NDArray[np.floating[Any]], unit: float) -> tuple[NDArray[np.uint16], int]:
    """Positive numbers as integers of 16 bits, and how many of them are too large for that.

    Args:
        values: NaN where there is none.
        unit: Integers per unit of the numbers.

    Returns:
        Integers, 0 where there is no number, and the count of those that are cut off at the largest integer.

    Example:
        >>> as_16_bits(np.array([1.5, np.nan, 300.0]), 256)
        (array([  384,     0, 65535], dtype=uint16), 1)
    """
    scaled = np.rint(values.astype(np.float64) * unit)
    whole = np.where(np.isnan(scaled), 0.0, np.clip(scaled, 1, LARGEST))
    return whole.astype(np.uint16), int(np.count_nonzero(scaled > LARGEST))
