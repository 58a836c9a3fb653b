"""Wrong predictions, repaired by every method: scores on fresh data, also where calibration rows are spoilt."""

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.distributions import Distribution, Normal

import fcal
from fcal._checks import check_integer
from fcal._config import read_config
from fcal._files import atomic_path, provenance, writable_folder, write_json
from fcal.recalibration import (
    Affine,
    Conformal,
    GPBeta,
    Isotonic,
    Power,
    Recalibrator,
    ScaleAndShape,
    Temperature,
)

LEVELS = (0.5, 0.9, 0.95, 0.99)
SCORED = 2000  # fresh rows of the CRPS
SPOILT = 1000  # one calibration row in so many has an error of 100 to a million sigmas
NOISES = {
    "normal": "normal noise",
    "doubtful": "Student-t noise, 12 degrees of freedom",
    "heavy": "Student-t noise, 4 degrees of freedom",
}
DEGREES = {"doubtful": 12, "heavy": 4}
METHODS: dict[str, Callable[[], Recalibrator]] = {
    "temperature": Temperature,
    "scale-and-shape": ScaleAndShape,
    "affine": Affine,
    "isotonic": Isotonic,
    "conformal": Conformal,
    "gp-beta": GPBeta,
}
CONTAMINATED: dict[str, Callable[[], Recalibrator]] = {
    **METHODS,
    "power": Power,
    "conformal, centred": lambda: Conformal(centred=True),
}
ERRORS = {
    "quarter": "sigma x 1/4",
    "half": "sigma x 1/2",
    "double": "sigma x 2",
    "four": "sigma x 4",
    "biased": "mean off by 1.5 sigma",
    "wave": "sigma wrong by a wave",
}
SCALES = {"quarter": 0.25, "half": 0.5, "double": 2.0, "four": 4.0}
BIAS = 1.5
WAVE = 0.6  # log sigma is off by this times the sine of the mean


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the experiment."""

    calibration_rows: int
    fresh_rows: int
    seeds: int
    contaminated_seeds: int

    def __post_init__(self) -> None:
        check_integer("calibration_rows", self.calibration_rows, at_least=20, at_most=1_000_000)
        check_integer("fresh_rows", self.fresh_rows, at_least=100, at_most=1_000_000)
        check_integer("seeds", self.seeds, at_least=1, at_most=1000)
        check_integer("contaminated_seeds", self.contaminated_seeds, at_least=1, at_most=1000)


@dataclass(frozen=True)
class Sample:
    """True means and sigmas, and targets. Shapes ``(N,)``."""

    mean: Tensor
    sigma: Tensor
    target: Tensor

    def truth(self) -> Normal:
        return Normal(self.mean, self.sigma)

    def predicted(self, error: str) -> Normal:
        """Predictions with one of ``ERRORS``."""
        if error == "biased":
            return Normal(self.mean + BIAS * self.sigma, self.sigma)
        if error == "wave":
            return Normal(self.mean, self.sigma * torch.exp(WAVE * self.mean.sin()))
        return Normal(self.mean, SCALES[error] * self.sigma)


def draw(count: int, generator: torch.Generator, *, degrees: int | None = None) -> Sample:
    mean, spread, noise = (torch.randn(count, generator=generator) for _ in range(3))
    if degrees is not None:
        noise = noise / torch.randn(degrees, count, generator=generator).square().mean(0).sqrt()
    sigma = torch.exp(0.5 * spread)
    return Sample(3 * mean, sigma, 3 * mean + sigma * noise)


def spoilt(sample: Sample, generator: torch.Generator) -> Sample:
    """The same rows, of which one in a thousand has an error of 100 to a million sigmas, to either side."""
    count = max(len(sample.target) // SPOILT, 1)
    rows = torch.randperm(len(sample.target), generator=generator)[:count]
    sizes = 10 ** (2 + 4 * torch.rand(count, generator=generator)) * (1 - 2 * (torch.arange(count) % 2))
    target = sample.target.index_copy(0, rows, sample.mean[rows] + sizes * sample.sigma[rows])
    return Sample(sample.mean, sample.sigma, target)


def measured(pred: Distribution, target: Tensor) -> dict[str, float]:
    """Coverage of central intervals, and the mean negative log-likelihood."""
    size = fcal.standardize(pred, target).double().abs()
    edges = torch.special.ndtri(0.5 + torch.tensor(LEVELS, dtype=torch.float64) / 2)
    covered = ((size <= edge).double().mean().item() for edge in edges)
    coverage = {f"coverage_{level}": share for level, share in zip(LEVELS, covered, strict=True)}
    return coverage | {"nll": fcal.nll(pred, target).double().mean().item()}


def cell(config: Config, error: str, seed: int) -> dict[str, dict[str, float]]:
    """Numbers of every method on one draw of calibration and fresh rows, of no repair, and of the truth."""
    generator = torch.Generator().manual_seed(seed)
    calibration, fresh = draw(config.calibration_rows, generator), draw(config.fresh_rows, generator)
    numbers = {"before": measured(fresh.predicted(error), fresh.target)}
    for name, method in METHODS.items():
        fitted = method().fit(calibration.predicted(error), calibration.target)
        numbers[name] = measured(fitted.transform(fresh.predicted(error)), fresh.target)
    return numbers | {"truth": measured(fresh.truth(), fresh.target)}


def with_crps(repair: Recalibrator, fresh: Sample) -> dict[str, float]:
    """Numbers on fresh rows; the CRPS of some of them, as that of a beta map takes a quadrature."""
    few = Sample(*(values[:SCORED] for values in (fresh.mean, fresh.sigma, fresh.target)))
    crps = fcal.crps(repair.transform(few.predicted("half")), few.target).double().mean().item()
    return measured(repair.transform(fresh.predicted("half")), fresh.target) | {"crps": crps}


def contaminated_cell(config: Config, noise: str, seed: int) -> dict[str, dict[str, float]]:
    """Numbers of every method on clean fresh rows, fitted to clean rows (``clean_...``) and to spoilt ones."""
    generator = torch.Generator().manual_seed(seed)
    calibration, fresh = (
        draw(count, generator, degrees=DEGREES.get(noise)) for count in (config.calibration_rows, config.fresh_rows)
    )
    wild, numbers = spoilt(calibration, generator), {}
    for name, make in CONTAMINATED.items():
        clean, repair = (make().fit(rows.predicted("half"), rows.target) for rows in (calibration, wild))
        before, after = (with_crps(each, fresh) for each in (clean, repair))
        moved = {f"move_{key}": abs(after[key] - before[key]) for key in before}
        relative = {"move_crps": abs(after["crps"] / before["crps"] - 1)}
        left_out = 0 if repair.wild is None else repair.wild.count
        numbers[name] = after | moved | relative | {"left_out": float(left_out), "clean_nll": before["nll"]}
    return numbers


def summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds of every number."""
    columns = {name: [run[name] for run in runs] for name in runs[0]}
    return {name: {"mean": fmean(v), "sd": stdev(v) if len(v) > 1 else 0.0, "seeds": v} for name, v in columns.items()}


def noise_of_coverage(config: Config, level: float) -> float:
    """Standard error of the mean coverage of a perfect method: calibration ranks and fresh rows, over the seeds."""
    per_row = 1 / (config.calibration_rows + 2) + 1 / config.fresh_rows
    return math.sqrt(level * (1 - level) * per_row / config.seeds)


def run(config: Config, console: Console) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for error in track(ERRORS, "repairing", console=console, disable=not console.is_terminal):
        runs = [cell(config, error, seed) for seed in range(config.seeds)]
        cells[error] = {name: summary([run[name] for run in runs]) for name in runs[0]}
    contaminated = {
        noise: [contaminated_cell(config, noise, seed) for seed in range(config.contaminated_seeds)]
        for noise in track(NOISES, "contaminating", console=console, disable=not console.is_terminal)
    }
    return {
        "config": asdict(config),
        "provenance": provenance(),
        "standard_error": {f"coverage_{level}": noise_of_coverage(config, level) for level in LEVELS},
        "cells": cells,
        "contamination": {
            noise: {
                name: summary([run[name] for run in runs]) | {"largest": _largest([run[name] for run in runs])}
                for name in CONTAMINATED
            }
            for noise, runs in contaminated.items()
        },
    }


def _largest(runs: list[dict[str, float]]) -> dict[str, float]:
    """The largest move of every number over the seeds."""
    return {name: max(run[name] for run in runs) for name in runs[0] if name.startswith("move_")}


# Tables


def coverage_table(document: dict[str, Any]) -> list[list[str]]:
    """Coverage of the 50, 90, 95 and 99 % intervals, in per cent; bold where off by more than three standard errors."""

    def shown(error: str, name: str) -> str:
        return " / ".join(_percent(document, error, name, level) for level in LEVELS)

    rows = ([title, *(shown(error, name) for name in ("before", *METHODS))] for error, title in ERRORS.items())
    return [["predictions", "before", *METHODS], *rows]


def _percent(document: dict[str, Any], error: str, name: str, level: float) -> str:
    key = f"coverage_{level}"
    value = document["cells"][error][name][key]["mean"]
    text = f"{100 * value:.1f}"
    return f"**{text}**" if abs(value - level) > 3 * document["standard_error"][key] else text


def score_table(document: dict[str, Any]) -> list[list[str]]:
    """Negative log-likelihood beyond that of the truth, in nats per row."""

    def excess(error: str, name: str) -> str:
        cells = document["cells"][error]
        return f"{cells[name]['nll']['mean'] - cells['truth']['nll']['mean']:+.3f}"

    rows = ([title, *(excess(error, name) for name in ("before", *METHODS))] for error, title in ERRORS.items())
    return [["predictions", "before", *METHODS], *rows]


def contamination_table(document: dict[str, Any]) -> list[list[str]]:
    """For each method: the largest moves over seeds, and the scores that remain, by noise."""
    header = ["noise", "method", "coverage of 50 / 90 / 95 % moves by at most", "CRPS by at most", "CRPS", "NLL"]
    rows = []
    for noise, title in NOISES.items():
        for name, numbers in document["contamination"][noise].items():
            moves = " / ".join(f"{numbers['largest'][f'move_coverage_{level}']:.4f}" for level in LEVELS[:3])
            scores = [f"{numbers['crps']['mean']:.4f}", f"{numbers['nll']['mean']:.3f}"]
            rows.append([title, name, moves, f"{100 * numbers['largest']['move_crps']:.3f} %", *scores])
    return [header, *rows]


def as_markdown(lines: list[list[str]]) -> str:
    header, *body = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *body)) + "\n"


def tables(document: dict[str, Any]) -> dict[str, str]:
    """Every table as a file's name and its Markdown."""
    return {
        "coverage.md": as_markdown(coverage_table(document)),
        "nll.md": as_markdown(score_table(document)),
        "contamination.md": as_markdown(contamination_table(document)),
    }


def write(document: dict[str, Any], out: Path) -> None:
    for name, text in tables(document).items():
        with atomic_path(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    write_json(out / "results.json", document)


def as_terminal(lines: list[list[str]], title: str) -> Table:
    header, *body = lines
    table = Table(title=title)
    for name in header:
        table.add_column(name)
    for line in body:
        table.add_row(*(text.replace("*", "") for text in line))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.toml"))
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json and tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        config = read_config(options.config, Config)
        writable_folder(options.out)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    document = run(config, Console(stderr=True))
    write(document, options.out)
    Console().print(as_terminal(coverage_table(document), "coverage of 50 / 90 / 95 / 99 % intervals, in percent"))
    sys.stdout.write(f"numbers: {options.out / 'results.json'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
