"""Images with a true position and predictions of it, as plain data: read and checked once, for every gallery."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcal.plots.methods import method_order

Pair = tuple[float, float]

RADIUS = 2.0  # of ellipses, in sigma; they hold 1 - exp(-2) = 86 % where sigma is true
ON_IMAGES = ("#ff9d2e", "#35c4ff", "#ff8ad8")  # bright, for lines with a dark rim on any picture
_FAVOURITES = ("nll", "fcal_wass", "fcal_kl")


@dataclass(frozen=True)
class Shot:
    """An image and what is known and predicted of it; positions and sigmas are shares of its edge, y downwards.

    Attributes:
        image: Shape ``(H, W, 3)``.
        centre: The truth.
        label: The truth with its noise.
        sigma: Of that noise.
        predictions: By method, mean and sigma.
    """

    image: NDArray[np.uint8]
    centre: Pair
    label: Pair | None
    sigma: Pair | None
    predictions: Mapping[str, tuple[Pair, Pair]]


def read_shots(shots: Sequence[Mapping[str, Any]]) -> list[Shot]:
    """Read images and predictions as they come from a results file.

    Args:
        shots: Each with ``image`` (uint8, shape ``(H, W, 3)`` or ``(3, H, W)``), ``centre`` (the truth), where known
            ``label`` (the truth with its noise) and ``sigma`` (of that noise), and ``predictions``, by method
            ``{"mean": [x, y], "sigma": [x, y]}``. Positions and sigmas are shares of the edge, y downwards.

    Raises:
        ValueError: Something is missing or has the wrong shape; says what and where.

    Example:
        >>> image = np.zeros((3, 8, 8), dtype=np.uint8)
        >>> read_shots([{"image": image, "centre": [0.5, 0.25]}])[0].image.shape
        (8, 8, 3)
    """
    return [_shot(shot, f"gallery[{i}]") for i, shot in enumerate(shots)]


def _shot(shot: Mapping[str, Any], where: str) -> Shot:
    predictions = {}
    for method, given in (shot.get("predictions") or {}).items():
        if given is not None:
            place = f"{where}.predictions.{method}"
            predictions[method] = (_pair(given.get("mean"), f"{place}.mean"), _sigma(given.get("sigma"), place))
    label, sigma = shot.get("label"), shot.get("sigma")
    return Shot(
        image=_pixels(shot.get("image"), f"{where}.image"),
        centre=_pair(shot.get("centre"), f"{where}.centre"),
        label=None if label is None else _pair(label, f"{where}.label"),
        sigma=None if sigma is None else _sigma(sigma, where),
        predictions=predictions,
    )


def _pair(value: Any, name: str) -> Pair:
    array = np.asarray(value, dtype=np.float64) if value is not None else np.empty(0)
    if array.shape != (2,) or not np.isfinite(array).all():
        raise ValueError(f"expected `{name}` two finite numbers, got {str(value)[:60]}")
    return float(array[0]), float(array[1])


def _sigma(value: Any, place: str) -> Pair:
    pair = _pair(value, f"{place}.sigma")
    if min(pair) < 0:
        raise ValueError(f"expected `{place}.sigma` not negative, got {value}")
    return pair


def _pixels(image: Any, name: str) -> NDArray[np.uint8]:
    array = np.asarray(image)
    if array.ndim == 3 and array.shape[0] == 3 and array.shape[2] != 3:
        array = array.transpose(1, 2, 0)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
        raise ValueError(f"expected `{name}` uint8 of shape (H, W, 3) or (3, H, W), got {array.dtype} {array.shape}")
    return array


def usual_methods(shots: Sequence[Shot]) -> list[str]:
    """The two methods that are most often compared, or the first two that are there."""
    known = {method for shot in shots for method in shot.predictions}
    favourites = [method for method in _FAVOURITES if method in known]
    return (favourites if len(favourites) > 1 else sorted(known, key=method_order))[:2]
