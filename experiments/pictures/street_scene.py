"""The street world: images, true depth, the sigma of what is measured, and what is measured."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fcal.data.street import StreetConfig, StreetFrame, street_frame

STREETS = StreetConfig(frames=2000, height=188, width=621)
FRAMES = (728, 869, 633)  # by day, in the evening, under an overcast sky
SKY, NOTHING = "#dddddd", "#ffffff"
PANELS: dict[str, tuple[Callable[[StreetFrame], NDArray[np.float32]], str, tuple[float, float], str]] = {
    "true depth": (lambda frame: np.where(np.isinf(frame.depth), np.nan, frame.depth), "viridis_r", (3, 80), SKY),
    "true sigma": (lambda frame: np.where(np.isinf(frame.depth), np.nan, frame.sigma), "magma", (0.1, 10), SKY),
    "measured depth": (lambda frame: thickened(frame.measured), "viridis_r", (3, 80), NOTHING),
}


def thickened(measured: NDArray[np.float32]) -> NDArray[np.float32]:
    """Measurements repeated in the row below: single pixels are lost in a small picture."""
    above = np.concatenate([measured[:1], measured[:-1]])
    return np.where(np.isnan(measured), above, measured)


def street() -> Figure:
    """Three frames, one per column."""
    figure = Figure(figsize=(12, 5.4), layout="constrained")
    axes = figure.subplots(1 + len(PANELS), len(FRAMES))
    frames = [street_frame(STREETS, index) for index in FRAMES]
    for ax, frame in zip(axes[0], frames, strict=True):
        ax.imshow(frame.image)
    axes[0, 0].set_ylabel("image")
    for row, (name, (values, colours, limits, missing)) in zip(axes[1:], PANELS.items(), strict=True):
        for ax, frame in zip(row, frames, strict=True):
            ax.set_facecolor(missing)
            drawn = ax.imshow(values(frame), cmap=colours, norm=LogNorm(*limits), interpolation="nearest")
        row[0].set_ylabel(name)
        bar = figure.colorbar(drawn, ax=list(row), label="m", pad=0.01, aspect=12)
        bar.set_ticks([tick for tick in (0.1, 0.3, 1, 3, 10, 30, 80) if limits[0] <= tick <= limits[1]], minor=False)
        bar.ax.yaxis.set_major_formatter("{x:g}")
        bar.ax.minorticks_off()
    for ax in axes.ravel():
        _bare(ax)
    return figure


def _bare(ax: Axes) -> None:
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


PICTURES: dict[str, Callable[[], Figure]] = {"street": street}
