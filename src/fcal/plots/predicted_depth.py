"""Pictures of predicted depth: image, depth, sigma, and errors in units of sigma."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from numpy.typing import NDArray

from fcal.plots.captions import shortened
from fcal.plots.matplotlib_renderer import Picture, log_ticks, new_picture

Map = NDArray[np.floating[Any]]

_TAILS = (0.5, 99.5)  # percentiles at which the colours of a logarithmic map end
_NARROWEST = 1.5  # ratio of the ends
_LARGEST_RATIO = 4.0  # |error| / sigma
_UNKNOWN = "#dddddd"
_WIDTHS = (8.0, 5.0, 4.2)  # inches of a column, of one, two, and more
_LOWEST_ROW, _HIGHEST_ROW = 0.9, 5.0  # inches; labels need some
_MARGIN = 1.1  # inches, for labels and colour bars
_LONGEST_TITLE = 60
_FADED = 0.35  # of the image behind sparse errors
_DOTS = 330  # columns of an image above which single pixels would be lost in a picture


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictedDepth:
    """One frame with its predicted depth.

    Args:
        image: Colours. Shape ``(H, W, 3)``, uint8.
        depth: Predicted depth in metres, NaN where there is none. Shape ``(H, W)``.
        sigma: Its predicted standard deviation, likewise.
        target: Measured depth, NaN where there is none. Shape ``(H, W)``; None if nothing was measured.
        title: Heading of its column.

    Raises:
        ValueError: Shapes do not fit.

    Example:
        >>> flat = np.full((2, 3), 10.0)
        >>> frame = PredictedDepth(image=np.zeros((2, 3, 3), np.uint8), depth=flat, sigma=flat / 5, target=flat + 1)
        >>> frame.error_ratio.max()
        np.float64(0.5)
    """

    image: NDArray[np.uint8]
    depth: Map
    sigma: Map
    target: Map | None = None
    title: str = ""

    def __post_init__(self) -> None:
        shape = self.image.shape
        if self.image.dtype != np.uint8 or len(shape) != 3 or shape[2] != 3 or 0 in shape:
            raise ValueError(f"expected `image` uint8 of shape (H, W, 3), got {self.image.dtype} {shape}")
        for name in ("depth", "sigma", "target"):
            values = getattr(self, name)
            if values is not None and values.shape != shape[:2]:
                raise ValueError(f"expected `{name}` of the shape of the image, {shape[:2]}, got {values.shape}")

    @property
    def error_ratio(self) -> Map | None:
        """Size of the error in units of sigma, NaN where nothing was measured."""
        return None if self.target is None else np.abs(self.target - self.depth) / self.sigma


class _Row(NamedTuple):
    """A row of a gallery: what it shows of a frame, and its colours."""

    name: str
    values: Callable[[PredictedDepth], Map | None]
    colours: str
    unit: str


_DEPTH = _Row("depth", lambda frame: frame.depth, "viridis_r", "m")
_SIGMA = _Row("sigma", lambda frame: frame.sigma, "magma", "m")
_RATIO = _Row("|error| / sigma", lambda frame: frame.error_ratio, "turbo", "")


def depth_gallery(frames: Sequence[PredictedDepth]) -> matplotlib.figure.Figure:
    """Frames side by side: image, predicted depth, predicted sigma and, where depth was measured, abs(error) / sigma.

    Colours of a row mean the same in all columns. Where sigma is true and errors are normal, two thirds of the ratios
    in the last row are below 1, and one in twenty is above 2.

    Args:
        frames: One per column. The last row is left out if no frame has targets.

    Returns:
        A figure outside of pyplot.

    Raises:
        ValueError: There is no frame.
    """
    if not frames:
        raise ValueError("expected `frames` with at least one, got none")
    rows = [_DEPTH, _SIGMA] + ([_RATIO] if any(frame.target is not None for frame in frames) else [])
    aspect = max(frame.image.shape[0] / frame.image.shape[1] for frame in frames)
    width = min(_WIDTHS[min(len(frames), len(_WIDTHS)) - 1], _HIGHEST_ROW / aspect)
    height = max(width * aspect, _LOWEST_ROW) + 0.08
    picture = new_picture(width * len(frames) + _MARGIN, (1 + len(rows)) * height + 0.4)
    picture.set_layout_engine("compressed")  # for axes whose aspect is fixed
    axes = picture.subplots(1 + len(rows), len(frames), squeeze=False)
    for ax, frame in zip(axes[0], frames, strict=True):
        ax.imshow(frame.image, interpolation="nearest")
        ax.set_title(shortened(frame.title, _LONGEST_TITLE), fontsize=9, parse_math=False)
    axes[0, 0].set_ylabel("image", fontsize=9)
    for line, row in zip(axes[1:], rows, strict=True):
        _draw_row(picture, line, row, frames)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    return picture


def _draw_row(picture: Picture, axes: Sequence[Axes], row: _Row, frames: Sequence[PredictedDepth]) -> None:
    maps = [row.values(frame) for frame in frames]
    is_ratio = row is _RATIO
    scale = Normalize(0.0, _LARGEST_RATIO) if is_ratio else _logarithmic(maps)
    for ax, frame, values in zip(axes, frames, maps, strict=True):
        if is_ratio:
            ax.imshow(frame.image.mean(2), cmap="gray", vmin=0, vmax=255, alpha=_FADED, interpolation="nearest")
            values = None if values is None else _thickened(values)
        if values is not None:
            ax.set_facecolor("none" if is_ratio else _UNKNOWN)
            drawn = ax.imshow(values, cmap=row.colours, norm=scale, interpolation="nearest")
    axes[0].set_ylabel(row.name, fontsize=9)
    bar = picture.colorbar(
        drawn, ax=list(axes), label=row.unit, pad=0.01, aspect=12, extend="max" if is_ratio else "both"
    )
    bar.ax.tick_params(labelsize=8)
    if not is_ratio:
        log_ticks(bar.ax.yaxis)
        bar.ax.minorticks_off()


def _logarithmic(maps: Sequence[Map | None]) -> LogNorm:
    """Colours for positive numbers of all maps but the smallest and the largest ones."""
    known = [values[np.isfinite(values) & (values > 0)] for values in maps if values is not None]
    values = np.concatenate(known)
    low, high = np.percentile(values, _TAILS) if values.size else (1.0, 1.0)
    widening = max(_NARROWEST / (high / low), 1.0) ** 0.5
    return LogNorm(low / widening, high * widening)


def _thickened(values: Map) -> Map:
    """Numbers at single pixels of a large image, repeated around each; of several, the largest."""
    radius = values.shape[1] // _DOTS
    if not radius:
        return values
    padded = np.pad(values, radius, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2 * radius + 1, 2 * radius + 1))
    thick = np.fmax.reduce(windows, axis=(2, 3))
    return np.where(np.isnan(values), thick, values)
