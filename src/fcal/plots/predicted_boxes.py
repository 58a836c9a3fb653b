"""Pictures of detected boxes: the image, the boxes, and ellipses of their corners."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, Rectangle
from numpy.typing import NDArray

from fcal._checks import check_integer
from fcal.plots.captions import shortened
from fcal.plots.matplotlib_renderer import PALETTE, new_picture

Boxes = NDArray[np.floating[Any]]
RADIUS = 2.0  # sigmas of the ellipses, which hold 86.5 % of the corners if the error bars are true
_WIDTH = 6.2  # inches of an image
_CAPTION = 0.35  # inches above an image
_LONGEST_TITLE = 70


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictedBoxes:
    """One image with detected boxes.

    Args:
        image: Colours. Shape ``(H, W, 3)``, uint8.
        boxes: Corners ``x1, y1, x2, y2`` of detected boxes in pixels. Shape ``(n, 4)``.
        sigmas: Their standard deviations. Shape ``(n, 4)``.
        truths: Corners of the objects that are there. Shape ``(m, 4)``; None if not known.
        title: Heading of the image.

    Raises:
        ValueError: Shapes do not fit, or a standard deviation is negative.

    Example:
        >>> boxes = np.array([[2.0, 2.0, 8.0, 6.0]])
        >>> PredictedBoxes(image=np.zeros((9, 12, 3), np.uint8), boxes=boxes, sigmas=boxes / 10).inside
        nan
    """

    image: NDArray[np.uint8]
    boxes: Boxes
    sigmas: Boxes
    truths: Boxes | None = None
    title: str = ""

    def __post_init__(self) -> None:
        shape = self.image.shape
        if self.image.dtype != np.uint8 or len(shape) != 3 or shape[2] != 3 or 0 in shape:
            raise ValueError(f"expected `image` uint8 of shape (H, W, 3), got {self.image.dtype} {shape}")
        for name, expected in (("boxes", self.boxes.shape[:1]), ("sigmas", self.boxes.shape[:1]), ("truths", None)):
            values = getattr(self, name)
            if values is None:
                continue
            if values.ndim != 2 or values.shape[1] != 4 or (expected is not None and values.shape[:1] != expected):
                raise ValueError(f"expected `{name}` of shape (n, 4), got {values.shape}")
        if (self.sigmas < 0).any():
            raise ValueError(f"expected `sigmas` >= 0, got {self.sigmas.min():g}")

    @property
    def inside(self) -> float:
        """Share of the corners of boxes within the ellipse around that of the nearest object; NaN without any."""
        if self.truths is None or not len(self.boxes) or not len(self.truths):
            return float("nan")
        gaps = self.truths[None] - self.boxes[:, None]
        nearest = gaps[np.arange(len(self.boxes)), np.square(gaps).sum(2).argmin(1)]
        ratios = np.square(nearest / np.maximum(self.sigmas, 1e-12)).reshape(-1, 2, 2).sum(2)
        return float((ratios <= RADIUS**2).mean())


def box_gallery(frames: Sequence[PredictedBoxes], *, columns: int = 2) -> Figure:
    """Images side by side with detected boxes, ellipses of two sigma around two of their corners, and the truth.

    Where error bars are true, 86.5 % of the ellipses hold the corner of the object.

    Args:
        frames: Images, row by row.
        columns: Images in a row.

    Returns:
        A figure, outside of pyplot.

    Example:
        >>> boxes = np.array([[2.0, 2.0, 8.0, 6.0]])
        >>> frame = PredictedBoxes(image=np.zeros((9, 12, 3), np.uint8), boxes=boxes, sigmas=boxes / 10, title="NLL")
        >>> len(box_gallery([frame, frame, frame]).axes)
        4
    """
    if not frames:
        raise ValueError("expected `frames` with at least one, got none")
    columns = min(check_integer("columns", columns, at_least=1, at_most=20), len(frames))
    rows = -(-len(frames) // columns)
    height, width = frames[0].image.shape[:2]
    figure = new_picture(_WIDTH * columns, rows * (_WIDTH * height / width + _CAPTION))
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes:
        ax.set_axis_off()
    for ax, frame in zip(axes, frames, strict=False):
        _draw(ax, frame)
    return figure


def _draw(ax: Axes, frame: PredictedBoxes) -> None:
    ax.imshow(frame.image, interpolation="nearest")
    ax.set_title(shortened(frame.title, _LONGEST_TITLE), fontsize=9, loc="left")
    for box in () if frame.truths is None else frame.truths:
        ax.add_patch(_rectangle(box, color="white", lw=1.0, ls=":"))
    for box, sigmas in zip(frame.boxes, frame.sigmas, strict=True):
        ax.add_patch(_rectangle(box, color=PALETTE["second"], lw=1.2))
        for corner in (slice(0, 2), slice(2, 4)):
            size = 2 * RADIUS * sigmas[corner]
            ax.add_patch(Ellipse(tuple(box[corner]), *size, fill=False, color=PALETTE["fourth"], lw=1.0))
    height, width = frame.image.shape[:2]
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)


def _rectangle(box: Boxes, **style: Any) -> Rectangle:
    x1, y1, x2, y2 = box
    return Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, **style)
