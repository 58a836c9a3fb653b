"""Draw the pictures that the documentation shows."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import bokeh_scenes
import crossfit_scene
import rooms
import street_scene
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.distributions import Normal

import fcal
from fcal import plots
from fcal._files import atomic_path, writable_folder
from fcal.metrics import Report, evaluate

ROWS, OTHER_ROWS = 20_000, 2_000
TOO_SMALL = 1.5  # an over-confident sigma is the true one divided by this
CAMERAS = {f"camera {k}": factor for k, factor in enumerate((1.0, 1.0, 1.4, 1.0, 1.0, 0.7, 1.0, 1.0, 1.2, 1.0))}
DOTS_PER_INCH = 110


def simulated(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """True sigma and errors. Shapes ``(rows,)``."""
    generator = torch.Generator().manual_seed(seed)
    sigma = (0.6 * torch.randn(rows, generator=generator) - 1).exp()
    return sigma, sigma * torch.randn(rows, generator=generator)


def report_of(factor: float | Tensor, group: Tensor | None = None) -> Report:
    """Report of predictions whose sigma is the true one times a factor."""
    sigma, error = simulated(ROWS, seed=1)
    return evaluate(Normal(torch.zeros_like(error), sigma * factor), error, group=group)


def repaired() -> Report:
    """Of over-confident predictions, after one factor on sigma that was fitted on other rows."""
    sigma, error = simulated(OTHER_ROWS, seed=2)
    z = fcal.standardize(Normal(torch.zeros_like(error), sigma / TOO_SMALL), error)
    return report_of(z.square().mean().sqrt().item() / TOO_SMALL)


def cameras() -> Figure:
    """Coverage of groups, some of which promise too much or too little."""
    which = torch.arange(ROWS) % len(CAMERAS)
    report = report_of(1 / torch.tensor(list(CAMERAS.values()))[which], group=which)
    named = {name: report.groups[str(k)] for k, name in enumerate(CAMERAS)}
    drawn = plots.coverage_by_group(replace(report, groups=named)).figure
    assert isinstance(drawn, Figure)
    return drawn


PICTURES: dict[str, Callable[[], Figure]] = {
    "didactic": plots.didactic,
    "rooms": rooms.draw,
    "overview_calibrated": lambda: plots.overview(report_of(1.0)),
    "overview_over_confident": lambda: plots.overview(report_of(1 / TOO_SMALL)),
    "before_after": lambda: plots.before_after(report_of(1 / TOO_SMALL), repaired()),
    "coverage_by_group": cameras,
    **bokeh_scenes.PICTURES,
    **crossfit_scene.PICTURES,
    **street_scene.PICTURES,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).parents[2] / "docs" / "pictures"
    parser.add_argument("--out", type=Path, default=default, help="folder for the pictures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        writable_folder(options.out)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for name, draw in PICTURES.items():
        with atomic_path(options.out / f"{name}.png") as temporary:
            draw().savefig(temporary, dpi=DOTS_PER_INCH)
        sys.stdout.write(f"{options.out / name}.png\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
