"""Speed of Bokeh's images, as ratios to a loop over Pillow's ImageDraw, and their memory.

Painting: both implementations get the same arrays of discs and return the same array of images, channels first;
Pillow's loop reads the discs of an image at once, and draws them without antialiasing, like ours.
Whole dataset: ours draws random scenes, images and labels; Pillow's loop is what one would write by
hand, a few calls of numpy's generator for every image, and the simplest noise.
"""

import sys

import numpy as np
from measuring import Row, extra_bytes, extra_bytes_in_fresh_process, faster, main, medians, timed
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from rich.console import Console

from fcal.data import Bokeh, BokehConfig
from fcal.data.bokeh import REGIMES
from fcal.data.discs import GRID, Discs, render

COUNT = 2000
EXTRA = 20_000  # images of the pool whose memory is measured
STEP = 36  # of a level of colour
RED = (7 * STEP, STEP, STEP)


def by_pillow(discs: Discs, size: int) -> NDArray[np.uint8]:
    """Paint with Pillow, image by image and ellipse by ellipse."""
    images = np.empty((len(discs), 3, size, size), np.uint8)
    x, y, radius = (field / GRID for field in (discs.x, discs.y, discs.radius))
    boxes = np.stack([x - radius, y - radius, x + radius, y + radius], axis=-1)
    exists, colours, grounds = discs.radius >= 0, STEP * discs.colour, STEP * discs.background
    for i, there in enumerate(exists):
        picture = Image.new("RGB", (size, size), tuple(grounds[i].tolist()))
        draw = ImageDraw.Draw(picture)
        for box, colour in zip(boxes[i, there].tolist(), colours[i, there].tolist(), strict=True):
            draw.ellipse(box, fill=tuple(colour))
        images[i] = np.asarray(picture).transpose(2, 0, 1)
    return images


def dataset_by_pillow(config: BokehConfig, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """A dataset of the same kind, image by image."""
    generator, regime = np.random.default_rng(seed), REGIMES[config.regime]
    size, red_radius = config.size, config.radius * config.size
    images = np.empty((config.extra, 3, size, size), np.uint8)
    targets = np.empty((config.extra, 2))
    for i in range(config.extra):
        others = int(generator.integers(regime.fewest, regime.most + 1))
        centres = generator.uniform(0, size, (others, 2)).tolist()
        radii = generator.uniform(regime.smallest * size, regime.largest * size, others).tolist()
        colours = (STEP * generator.integers((0, 2, 2), (4, 8, 8), (others, 3))).tolist()
        x, y = generator.uniform(red_radius, size - red_radius, 2).tolist()
        position = int(generator.integers(others + 1))
        ground = STEP * int(generator.integers(3))
        picture = Image.new("RGB", (size, size), (ground, ground, ground))
        draw = ImageDraw.Draw(picture)
        shapes = [
            (*centre, radius, tuple(colour)) for centre, radius, colour in zip(centres, radii, colours, strict=True)
        ]
        for left, top, radius, colour in [*shapes[:position], (x, y, red_radius, RED), *shapes[position:]]:
            draw.ellipse((left - radius, top - radius, left + radius, top + radius), fill=colour)
        images[i] = np.asarray(picture).transpose(2, 0, 1)
        targets[i] = np.array([x, y]) / size + regime.sigma * generator.standard_normal(2)
    return images, targets


def painting(regime: str, count: int) -> Row:
    config = BokehConfig(regime=regime, extra=count)
    discs = Bokeh("extra", config)._scenes.discs
    steps = [lambda: timed(lambda: render(discs, config.size)), lambda: timed(lambda: by_pillow(discs, config.size))]
    ours, theirs = medians(steps, [25, 15])
    return faster(f"painting, {regime}, 64 x 64", count, "Pillow, a loop over ImageDraw", (ours, theirs), 3)


def whole_dataset(count: int) -> Row:
    config = BokehConfig(extra=count)
    steps = [
        lambda: timed(lambda: Bokeh("extra", config)[0]),
        lambda: timed(lambda: dataset_by_pillow(config, seed=0)),
    ]
    ours, theirs = medians(steps, [25, 10])
    return faster("dataset: scenes, images, labels", count, "Pillow, a loop over images", (ours, theirs), 3)


def memory(count: int) -> Row:
    extra = extra_bytes_in_fresh_process(__file__, "--memory-of", str(count))
    share = extra / (count * 3 * BokehConfig().size ** 2)
    return Row(
        work="dataset, peak memory",
        count=count,
        against="its images as bytes",
        ratio=share,
        unit="x as much",
        reach="<= 1.5x as much",
        met=share <= 1.5,
    )


def memory_of(count: int) -> int:
    Bokeh("extra", BokehConfig(extra=10))[0]  # imports and first calls
    return extra_bytes(lambda: Bokeh("extra", BokehConfig(extra=count))[0])


def measured(shrink: int, console: Console) -> list[Row]:
    count = max(COUNT // shrink, 10)
    rows = []
    for regime in REGIMES.names():
        console.print(f"painting, {regime} ...")
        rows.append(painting(regime, count))
    console.print("whole dataset ...")
    return [*rows, whole_dataset(count), memory(max(EXTRA // shrink, 10))]


if __name__ == "__main__":
    sys.exit(main(__doc__, "data", measured, memory_of))
