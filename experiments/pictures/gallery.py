"""Draw test images of a benchmark with what some rows predict of them, from stored weights.

``python experiments/pictures/gallery.py depth --rows nll,oob_auto --out gallery.png`` shows depth, sigma and |error| /
sigma; ``gallery.py detection`` boxes with the ellipses of their corners. Both need the weights that ``fcal benchmark``
left in its run. Only pictures of the street world and of blood cells are committed.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.figure import Figure

from fcal._files import atomic_path
from fcal.benchmarks import TASKS, preset
from fcal.benchmarks.depth.pictures import gallery as gallery_of_depth
from fcal.benchmarks.detection.pictures import gallery as gallery_of_boxes
from fcal.benchmarks.problem import Failed
from fcal.sweeps import Store

GALLERIES: dict[str, Callable[..., Figure]] = {"depth": gallery_of_depth, "detection": gallery_of_boxes}
DOTS_PER_INCH = 110


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=GALLERIES)
    parser.add_argument("--run", type=Path, help="folder of the benchmark (default runs/TASK)")
    parser.add_argument("--preset", default="street", help="preset that it was run with")
    parser.add_argument("--rows", default="oob_auto", help="rows to draw (default oob_auto), separated by commas")
    parser.add_argument("--frames", default="3", help="how many test images, or their numbers: 4,17,30")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", help="folder of the data, for presets of real images")
    parser.add_argument("--out", type=Path, required=True, help="file for the picture")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        numbers = [int(number) for number in options.frames.split(",")]
        figure = GALLERIES[options.task](
            preset(TASKS[options.task].load(), options.preset),
            Store((options.run or Path("runs") / options.task) / "cells"),
            options.rows.split(","),
            frames=numbers if len(numbers) > 1 else numbers[0],
            seed=options.seed,
            data=options.data,
        )
    except (ValueError, Failed) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    with atomic_path(options.out) as temporary:
        figure.savefig(temporary, dpi=DOTS_PER_INCH, metadata={"Software": None})
    sys.stdout.write(f"{options.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
