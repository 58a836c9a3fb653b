"""Draw test frames of the depth benchmark with depth, sigma and |error| / sigma of some rows, from stored weights.

``python experiments/pictures/depth_gallery.py --run runs/depth --rows nll,oob_auto --out gallery.png`` needs the
weights that ``fcal benchmark depth`` left in the run. Only pictures of the street world are committed.
"""

import argparse
import sys
from pathlib import Path

import torch

from fcal._files import atomic_path
from fcal.benchmarks import preset
from fcal.benchmarks.depth.pictures import gallery
from fcal.benchmarks.depth.task import DEPTH
from fcal.benchmarks.problem import Failed
from fcal.sweeps import Store

DOTS_PER_INCH = 110


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/depth"), help="folder of the benchmark")
    parser.add_argument("--preset", default="street", help="preset that it was run with")
    parser.add_argument("--rows", default="oob_auto", help="rows to draw (default oob_auto), separated by commas")
    parser.add_argument("--frames", default="3", help="how many test frames, or their numbers: 4,17,30")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", help="folder of the data, for presets of real frames")
    parser.add_argument("--out", type=Path, required=True, help="file for the picture")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        numbers = [int(number) for number in options.frames.split(",")]
        figure = gallery(
            preset(DEPTH, options.preset),
            Store(options.run / "cells"),
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
