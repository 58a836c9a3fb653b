"""The pictures of the Bokeh page: contact sheets of its regimes, and the true sigma beside what labels do."""

from collections.abc import Callable

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import NDArray

from fcal.data import Bokeh, BokehConfig
from fcal.data.bokeh import REGIMES

SHEET_ROWS, SHEET_COLUMNS = 4, 6
SORTED = 11  # images of increasing sigma
BINS = 10
GAP = 4  # pixels between images
TRUTH, LABEL = "#ffffff", "#ffd21f"
COLOURS = {"paper-like": "#0072B2", "noise-dominated": "#C75500"}


def mosaic(images: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """Images side by side on white. Shape ``(N, 3, size, size)`` to ``(height, width, 3)``."""
    size = images.shape[-1]
    rows = -(-len(images) // columns)
    sheet = np.full((rows * (size + GAP) - GAP, columns * (size + GAP) - GAP, 3), 255, np.uint8)
    for image, (top, left) in zip(images, corners(len(images), columns, size), strict=True):
        sheet[top : top + size, left : left + size] = image.transpose(1, 2, 0)
    return sheet


def corners(count: int, columns: int, size: int) -> list[tuple[int, int]]:
    return [(k // columns * (size + GAP), k % columns * (size + GAP)) for k in range(count)]


def show(ax: Axes, batch: dict[str, NDArray[np.generic]], columns: int) -> NDArray[np.float64]:
    """Draw a mosaic; returns where the discs' centres are on it. Shape ``(N, 2)``."""
    images = batch["input"].astype(np.uint8)
    size = images.shape[-1]
    # A pixel's number is that of its middle: half a pixel to the left of our coordinates.
    ax.imshow(mosaic(images, columns), interpolation="nearest")
    ax.set_axis_off()
    offset = np.array([(left, top) for top, left in corners(len(images), columns, size)])
    return batch["truth"].astype(np.float64) * size - 0.5 + offset


def arrays(batch: dict[str, torch.Tensor]) -> dict[str, NDArray[np.generic]]:
    return {name: values.numpy() for name, values in batch.items()}


def contact_sheet() -> Figure:
    """Both regimes, with the true centre and the label of every image."""
    figure = Figure(figsize=(12, 4.7), layout="constrained")
    for ax, regime in zip(figure.subplots(1, 2), REGIMES.names(), strict=True):
        images = Bokeh("train", BokehConfig(noise="heteroscedastic", regime=regime))[: SHEET_ROWS * SHEET_COLUMNS]
        batch = arrays(dict(images))
        truth = show(ax, batch, SHEET_COLUMNS)
        label = (
            truth + (batch["target"].astype(np.float64) - batch["truth"].astype(np.float64)) * batch["input"].shape[-1]
        )
        ax.plot(*truth.T, "+", color=TRUTH, markersize=5, markeredgewidth=0.9, linestyle="none", label="true centre")
        dot = {"markersize": 3.2, "markeredgecolor": "#000000", "markeredgewidth": 0.4, "linestyle": "none"}
        ax.plot(*label.T, "o", color=LABEL, label="label", **dot)
        ax.set_title(regime, fontsize=11)
    legend = figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9)
    legend.get_frame().set(facecolor="#808080", edgecolor="none")
    for text in legend.get_texts():
        text.set_color("#ffffff")
    return figure


def true_sigma() -> Figure:
    """Images by increasing sigma, and the spread of labels where sigma is small and where it is large."""
    figure = Figure(figsize=(12, 6.6), layout="constrained")
    grid = figure.add_gridspec(3, 2, height_ratios=[1, 1, 2.4])
    for row, regime in enumerate(REGIMES.names()):
        sorted_images(figure.add_subplot(grid[row, :]), regime)
    spread, distance = figure.add_subplot(grid[2, 0]), figure.add_subplot(grid[2, 1])
    for regime in REGIMES.names():
        dataset = Bokeh("extra", BokehConfig(noise="heteroscedastic", regime=regime))
        batch = arrays(dict(dataset[:]))
        spread_by_sigma(spread, batch, regime)
        sigma_by_distance(distance, dataset, batch, regime)
    high = spread.get_xlim()[1]
    spread.plot([0, high], [0, high], color="#333333", linewidth=1, zorder=0, label="equal")
    spread.set(xlabel="true sigma", ylabel="standard deviation of label - truth", xlim=(0, high), ylim=(0, high))
    distance.set(xlabel="distance to the nearest distractor's centre", ylabel="true sigma", ylim=(0, None))
    spread.set_title(f"labels of 20,000 images in {BINS} bins of sigma, with 95 % intervals", fontsize=10)
    distance.set_title("sigma of 2,000 images, distance measured in the painted scene", fontsize=10)
    for ax in (spread, distance):
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=9)
    return figure


def sorted_images(ax: Axes, regime: str) -> None:
    """Images at equal steps of the rank of sigma, with a circle of two sigmas around the truth."""
    dataset = Bokeh("test", BokehConfig(noise="heteroscedastic", regime=regime))
    order = dataset[:]["sigma"][:, 0].argsort()
    chosen = order[torch.linspace(0, len(order) - 1, SORTED).long()]
    batch = arrays(dict(dataset.__getitems__(chosen.tolist())))
    size = batch["input"].shape[-1]
    truth = show(ax, batch, SORTED)
    for centre, sigma in zip(truth, batch["sigma"][:, 0].astype(float), strict=True):
        for colour, width in (("#000000", 2.0), (TRUTH, 1.0)):
            ax.add_patch(Circle(tuple(centre), 2 * sigma * size, fill=False, edgecolor=colour, linewidth=width))
    low, high = (100 * batch["sigma"][k, 0].astype(float) for k in (0, -1))
    ax.set_title(f"{regime}: circles of two sigmas; sigma from {low:.1f} to {high:.1f} % of the edge", fontsize=10)


def spread_by_sigma(ax: Axes, batch: dict[str, NDArray[np.generic]], regime: str) -> None:
    sigma = batch["sigma"][:, 0].astype(np.float64)
    errors = batch["target"].astype(np.float64) - batch["truth"].astype(np.float64)
    bins = np.array_split(np.argsort(sigma), BINS)
    true = [np.sqrt(np.mean(sigma[rows] ** 2)) for rows in bins]
    measured = [np.sqrt(np.mean(errors[rows] ** 2)) for rows in bins]
    # The sd of a standard deviation from n normal values is sigma / sqrt(2 n).
    margins = [1.96 * value / np.sqrt(2 * errors[rows].size) for value, rows in zip(measured, bins, strict=True)]
    ax.errorbar(true, measured, yerr=margins, fmt="o", markersize=4, capsize=2, color=COLOURS[regime], label=regime)


def sigma_by_distance(ax: Axes, dataset: Bokeh, batch: dict[str, NDArray[np.generic]], regime: str) -> None:
    discs, shown = dataset._scenes.discs, slice(2000)
    x, y, truth = discs.x[shown], discs.y[shown], batch["truth"][shown].astype(np.float64)
    unit = 16 * dataset.config.size
    is_red = (discs.colour[shown] == (7, 1, 1)).all(axis=-1)
    away = np.hypot(x / unit - truth[:, :1], y / unit - truth[:, 1:])
    nearest = np.where(is_red | (discs.radius[shown] < 0), np.inf, away).min(axis=1)
    ax.plot(nearest, batch["sigma"][shown, 0], ".", markersize=2.5, color=COLOURS[regime], label=regime)


PICTURES: dict[str, Callable[[], Figure]] = {"bokeh_sheet": contact_sheet, "bokeh_sigma": true_sigma}
