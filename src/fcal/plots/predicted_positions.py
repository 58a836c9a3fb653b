"""Images with a true position and predictions of it, read and checked once for every gallery."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcal.plots.styles import Rows, most_compared

Pair = tuple[float, float]

RADIUS = 2.0  # of ellipses, in sigma; they hold 1 - exp(-2) = 86 % where sigma is true
TRUTH_COLOUR = "#ffffff"
_COLOURS = ("#ff9d2e", "#35c4ff", "#ff8ad8")  # bright, for lines with a dark rim on any image


@dataclass(frozen=True)
class PredictedPosition:
    """An image, its true position and predictions; positions and sigmas are shares of its edge, y downwards.

    Attributes:
        image: Shape ``(H, W, 3)``.
        centre: The true position.
        label: The true position with its noise.
        sigma: Of that noise.
        predictions: By row of the benchmark, mean and sigma.
    """

    image: NDArray[np.uint8]
    centre: Pair
    label: Pair | None
    sigma: Pair | None
    predictions: Mapping[str, tuple[Pair, Pair]]


def read_gallery(entries: Sequence[Mapping[str, Any]]) -> list[PredictedPosition]:
    """Read images and predictions from the documents of a benchmark.

    Args:
        entries: Each with ``image`` (uint8, shape ``(H, W, 3)`` or ``(3, H, W)``), ``centre`` (the truth), where known
            ``label`` (the truth with its noise) and ``sigma`` (of that noise), and ``predictions``, by row
            ``{"mean": [x, y], "sigma": [x, y]}``. Positions and sigmas are shares of the edge, y downwards.

    Raises:
        ValueError: An entry lacks something, or has the wrong shape.

    Example:
        >>> image = np.zeros((3, 8, 8), dtype=np.uint8)
        >>> read_gallery([{"image": image, "centre": [0.5, 0.25]}])[0].image.shape
        (8, 8, 3)
    """
    return [_read(entry, f"gallery[{i}]") for i, entry in enumerate(entries)]


def gallery_colours(images: Sequence[PredictedPosition], methods: Sequence[str], rows: Rows) -> dict[str, str]:
    """Colours of the ellipses: of the rows named, at most three, or else of the two most compared ones."""
    known = dict.fromkeys(name for image in images for name in image.predictions)
    return dict(zip(methods or most_compared(rows, known), _COLOURS, strict=False))


def _read(entry: Mapping[str, Any], path: str) -> PredictedPosition:
    predictions = {
        name: (_pair(value.get("mean"), f"{path}.predictions.{name}.mean"), _sigma(value, f"{path}.predictions.{name}"))
        for name, value in (entry.get("predictions") or {}).items()
        if value is not None
    }
    return PredictedPosition(
        image=_pixels(entry.get("image"), f"{path}.image"),
        centre=_pair(entry.get("centre"), f"{path}.centre"),
        label=None if entry.get("label") is None else _pair(entry["label"], f"{path}.label"),
        sigma=None if entry.get("sigma") is None else _sigma(entry, path),
        predictions=predictions,
    )


def _pair(value: Any, path: str) -> Pair:
    array = np.asarray(value, dtype=np.float64) if value is not None else np.empty(0)
    if array.shape != (2,) or not np.isfinite(array).all():
        raise ValueError(f"expected `{path}` two finite numbers, got {str(value)[:60]}")
    return float(array[0]), float(array[1])


def _sigma(entry: Mapping[str, Any], path: str) -> Pair:
    pair = _pair(entry.get("sigma"), f"{path}.sigma")
    if min(pair) < 0:
        raise ValueError(f"expected `{path}.sigma` not negative, got {entry['sigma']}")
    return pair


def _pixels(image: Any, path: str) -> NDArray[np.uint8]:
    array = np.asarray(image)
    if array.ndim == 3 and array.shape[0] == 3 and array.shape[2] != 3:
        array = array.transpose(1, 2, 0)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
        raise ValueError(f"expected `{path}` uint8 of shape (H, W, 3) or (3, H, W), got {array.dtype} {array.shape}")
    return array
