"""Tune the error bars of trained networks on other rows, and show what that does to the mean and to calibration."""

import argparse
import copy
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

import fcal
from fcal._checks import check_integer, check_number
from fcal._config import read_config
from fcal._files import atomic_path, provenance, writable_folder, write_json
from fcal._progress import ProgressBar
from fcal.data.uci import NAMES, read_uci
from fcal.losses import CombinedLoss, FCalLoss, NLLLoss, TrimmedLoss
from fcal.models import FixedMean
from fcal.recalibration import Temperature

METHODS = {
    "usual": "likelihood",
    "fcal_0.5": "f-Cal, `detach_mean`, lam 0.5",
    "fcal_0.1": "f-Cal, `detach_mean`, lam 0.1",
    "recipe": "**the recipe**: `FixedMean`",
    "head": "the recipe for sigma's head alone",
    "factor": "one factor on sigma",
}
SPOILT = {
    "usual": "likelihood",
    "fcal_0.1": "f-Cal, `detach_mean`, lam 0.1",
    "untrimmed": "the recipe without `TrimmedLoss`",
    "recipe": "**the recipe**",
    "trimmed_usual": "trimmed likelihood",
    "trimmed_recipe": "trimmed likelihood, then **the recipe**",
}
NUMBERS = ("rmse", "ece_q", "ece_z", "nll", "crps")
SHARE_OF_TABLE = 0.35  # rows to train on, and to tune on
SPOILT_ROWS = 1000  # one in so many is off, at least one
SPOILT_SIGMAS = 100.0
ALLOWED = 1.02  # RMSE relative to the likelihood's


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the experiment."""

    chosen_on: list[str]
    judged_on: list[str]
    rows: int
    test_rows: int
    hidden: int
    train_steps: int
    train_rate: float
    tune_steps: int
    tune_rate: float
    whole_rate: float
    seeds: int
    spoilt_seeds: int

    def __post_init__(self) -> None:
        for name in (*self.chosen_on, *self.judged_on):
            if name not in DRAWN and name not in NAMES:
                raise ValueError(f"expected data sets of {', '.join((*DRAWN, *NAMES))}, got {name!r}")
        for name in ("rows", "test_rows"):
            check_integer(name, getattr(self, name), at_least=100, at_most=1_000_000)
        for name in ("hidden", "train_steps", "tune_steps", "seeds", "spoilt_seeds"):
            check_integer(name, getattr(self, name), at_least=1, at_most=100_000)
        for name in ("train_rate", "tune_rate", "whole_rate"):
            check_number(name, getattr(self, name), low=1e-9, high=1.0)


# Data


@dataclass(frozen=True)
class Rows:
    """Inputs, shape ``(N, features)``, and targets, shape ``(N,)``."""

    x: Tensor
    y: Tensor

    def __getitem__(self, where: Tensor | slice) -> "Rows":
        return Rows(self.x[where], self.y[where])


def line(count: int, generator: torch.Generator) -> Rows:
    x = 6 * torch.rand(count, 1, generator=generator) - 3
    sigma = 0.05 + 0.35 * torch.sigmoid(2 * x[:, 0])
    return Rows(x, torch.sin(2 * x[:, 0]) + 0.3 * x[:, 0] + sigma * torch.randn(count, generator=generator))


def friedman(count: int, generator: torch.Generator) -> Rows:
    x = torch.rand(count, 5, generator=generator)
    mean = 2 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 4 * (x[:, 2] - 0.5).square() + 2 * x[:, 3] + x[:, 4]
    return Rows(x, mean + (0.1 + 0.6 * x[:, 0].square()) * torch.randn(count, generator=generator))


def waves(count: int, generator: torch.Generator) -> Rows:
    """Waves in two dimensions with noise of four degrees of freedom, heavier than the networks predict."""
    x = 2 * torch.rand(count, 2, generator=generator) - 1
    degrees = 4
    noise = torch.randn(count, generator=generator)
    noise = noise / torch.randn(degrees, count, generator=generator).square().mean(0).sqrt()
    return Rows(x, torch.sin(4 * x[:, 0]) * torch.cos(2 * x[:, 1]) + 0.2 * (1 + x[:, 1].square()) * noise)


DRAWN: dict[str, Callable[[int, torch.Generator], Rows]] = {"line": line, "friedman": friedman, "waves": waves}


@dataclass(frozen=True)
class Parts:
    """Rows to train on, others to tune on, and test rows, in units of the rows to train on."""

    train: Rows
    tune: Rows
    test: Rows


def parts_of(config: Config, name: str, table: Rows | None, seed: int) -> Parts:
    """Rows of a data set in a random order: drawn ones, or those of a table."""
    generator = torch.Generator().manual_seed(seed)
    count = config.rows
    if table is None:
        rows = DRAWN[name](2 * count + config.test_rows, generator)
    else:
        count = min(count, int(SHARE_OF_TABLE * len(table.y)))
        rows = table[torch.randperm(len(table.y), generator=generator)]
    train = rows[:count]
    centre, spread = train.x.mean(0), train.x.std(0).clamp(min=1e-6)
    middle, unit = train.y.mean(), train.y.std()
    scaled = Rows(((rows.x - centre) / spread).float(), ((rows.y - middle) / unit).float())
    return Parts(scaled[:count], scaled[count : 2 * count], scaled[2 * count : 2 * count + config.test_rows])


def spoilt(rows: Rows, sigma: float) -> Rows:
    """The same rows, but one in a thousand, at least one, is off by 100 sigmas."""
    count = max(len(rows.y) // SPOILT_ROWS, 1)
    return Rows(rows.x, torch.cat([rows.y[:count] + SPOILT_SIGMAS * sigma, rows.y[count:]]))


# Networks


class Regressor(nn.Module):
    """Two heads, for mean and sigma, on a shared trunk."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.mean, self.spread = nn.Linear(hidden, 1), nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Normal:
        shared = self.trunk(x)
        sigma = nn.functional.softplus(self.spread(shared)) + 1e-2
        return Normal(self.mean(shared).squeeze(-1), sigma.squeeze(-1))


Model = Callable[[Tensor], Distribution]


def likelihood(pred: Distribution, target: Tensor) -> Tensor:
    """The loss that users have."""
    return -pred.log_prob(target).mean()


def train(network: nn.Module, loss: Callable[[nn.Module], Tensor], *, steps: int, rate: float) -> None:
    optimizer = torch.optim.Adam(network.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(network).backward()
        optimizer.step()


def usual(config: Config, rows: Rows, seed: int, criterion: Callable[..., Tensor]) -> Regressor:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = Regressor(rows.x.shape[1], config.hidden)
    steps, rate = config.train_steps, config.train_rate
    train(network, lambda net: criterion(net(rows.x), rows.y), steps=steps, rate=rate)
    return network


def both_terms(config: Config, start: Regressor, parts: Parts, lam: float) -> Regressor:
    """The likelihood of the rows to train on and f-Cal of the others, all weights trained."""
    network, criterion = copy.deepcopy(start), FCalLoss("kl", df=75, detach_mean=True)

    def loss(net: nn.Module) -> Tensor:
        of_mean = likelihood(net(parts.train.x), parts.train.y)
        return (1 - lam) * of_mean + lam * criterion(net(parts.tune.x), parts.tune.y)

    train(network, loss, steps=config.tune_steps, rate=config.whole_rate)
    return network


def recipe(
    config: Config, network: nn.Module, parts: Parts, *, trimmed: bool = True, rate: float | None = None
) -> nn.Module:
    """The recommended loss on the rows to tune on; the network is trained in place."""
    criterion: nn.Module = CombinedLoss(warmup_steps=config.tune_steps)
    criterion = TrimmedLoss(criterion) if trimmed else criterion
    train(
        network,
        lambda net: criterion(net(parts.tune.x), parts.tune.y),
        steps=config.tune_steps,
        rate=rate or config.tune_rate,
    )
    return network


def head_alone(network: Regressor) -> Regressor:
    network = copy.deepcopy(network).requires_grad_(False)
    network.spread.requires_grad_(True)
    return network


def with_factor(network: Regressor, parts: Parts) -> Model:
    with torch.no_grad():
        factor = Temperature().fit(network(parts.tune.x), parts.tune.y)
    return lambda x: factor.transform(network(x))


# Numbers


@torch.no_grad()
def measure(model: Model, test: Rows) -> dict[str, float]:
    report = fcal.evaluate(model(test.x), test.y).as_dict()
    return {name: report[name] for name in NUMBERS} | {"scale": report["scale"]["value"]}


def clean_cell(config: Config, parts: Parts, seed: int) -> dict[str, dict[str, float]]:
    """Numbers of every method on test rows; tuning steps are timed."""
    start = usual(config, parts.train, seed, likelihood)
    makers: dict[str, Callable[[], Model]] = {
        "usual": lambda: start,
        "fcal_0.5": lambda: both_terms(config, start, parts, 0.5),
        "fcal_0.1": lambda: both_terms(config, start, parts, 0.1),
        "recipe": lambda: recipe(config, FixedMean(start), parts),
        "head": lambda: recipe(config, head_alone(start), parts, rate=config.whole_rate),
        "factor": lambda: with_factor(start, parts),
    }
    numbers = {}
    for name, make in makers.items():
        began = time.process_time()
        model = make()
        seconds = time.process_time() - began
        numbers[name] = measure(model, parts.test) | {"seconds": seconds}
    return numbers


def spoilt_cell(config: Config, parts: Parts, seed: int, sigma: float) -> dict[str, dict[str, float]]:
    """Numbers on clean test rows of methods whose rows to train and to tune on are spoilt."""
    wild = Parts(spoilt(parts.train, sigma), spoilt(parts.tune, -sigma), parts.test)
    start = usual(config, wild.train, seed, likelihood)
    trimmed = usual(config, wild.train, seed, TrimmedLoss(NLLLoss()))
    models: dict[str, Model] = {
        "usual": start,
        "fcal_0.1": both_terms(config, start, wild, 0.1),
        "untrimmed": recipe(config, FixedMean(start), wild, trimmed=False),
        "recipe": recipe(config, FixedMean(start), wild),
        "trimmed_usual": trimmed,
        "trimmed_recipe": recipe(config, FixedMean(trimmed), wild),
    }
    return {name: measure(model, parts.test) for name, model in models.items()}


def by_method(cells: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Numbers of every method, a list over seeds each."""
    return {name: {key: [cell[name][key] for cell in cells] for key in cells[0][name]} for name in cells[0]}


def run(config: Config, data: Path, out: Path) -> dict[str, Any]:
    """Results of all data sets; ``out`` has those that are finished, and an interrupted run goes on after them."""
    document: dict[str, Any] = {"config": asdict(config), "provenance": provenance(), "clean": {}, "spoilt": {}}
    if out.exists() and (earlier := json.loads(out.read_text(encoding="utf-8")))["config"] == document["config"]:
        document = earlier
    names = [name for name in (*config.judged_on, *config.chosen_on) if name not in document["clean"]]
    with ProgressBar("training", total=len(names) * config.seeds, unit="networks") as progress:
        for name in names:
            table = None if name in DRAWN else read_uci(data, name, splits=1)
            rows = None if table is None else Rows(table.x, table.y)
            cells, wild = [], []
            for seed in range(config.seeds):
                parts = parts_of(config, name, rows, seed)
                cells.append(clean_cell(config, parts, seed))
                if seed < config.spoilt_seeds:
                    wild.append(spoilt_cell(config, parts, seed, cells[-1]["usual"]["rmse"]))
                progress.advance()
            document["clean"][name], document["spoilt"][name] = by_method(cells), by_method(wild)
            write_json(out, document)
    return document


# Tables


def ratios(document: dict[str, Any], method: str, name: str, *, part: str = "clean") -> list[float]:
    """RMSE relative to the likelihood's, for every seed."""
    own, reference = document[part][name][method]["rmse"], document[part][name]["usual"]["rmse"]
    return [a / b for a, b in zip(own, reference, strict=True)]


def judged(document: dict[str, Any]) -> list[str]:
    """The finished data sets that the recipe was not chosen on."""
    return [name for name in document["clean"] if name not in document["config"]["chosen_on"]]


def mean_of(document: dict[str, Any], method: str, name: str, key: str, *, part: str = "clean") -> float:
    return fmean(document[part][name][method][key])


def summary(document: dict[str, Any], methods: dict[str, str], *, part: str = "clean") -> list[list[str]]:
    """A line per method: means over the data sets that were not chosen on, and the worst of all their RMSE."""
    names = judged(document)
    lines = [["", "RMSE / likelihood's, worst", "mean", "ECE(q)", "ECE(z)", "NLL", "CRPS"]]
    for method, title in methods.items():
        worst = [ratio for name in names for ratio in ratios(document, method, name, part=part)]
        means = {key: fmean(mean_of(document, method, name, key, part=part) for name in names) for key in NUMBERS}
        shown = [f"{max(worst):.2f}", f"{fmean(worst):.3f}", f"{means['ece_q']:.3f}", f"{means['ece_z']:.4f}"]
        lines.append([title, *shown, f"{means['nll']:.3f}", f"{means['crps']:.4f}"])
    return lines


def by_data_set(document: dict[str, Any]) -> list[list[str]]:
    """A line per data set: worst RMSE of the ways to train, and their calibration errors."""
    shown = ("fcal_0.5", "fcal_0.1", "recipe")
    names = {"fcal_0.5": "lam 0.5", "fcal_0.1": "lam 0.1", "recipe": "recipe", "usual": "likelihood"}
    header = ["data", *(f"worst RMSE: {names[m]}" for m in shown)]
    header += [f"ECE(q): {names[m]}" for m in ("usual", "fcal_0.1", "recipe")]
    header += [f"CRPS: {names[m]}" for m in ("usual", "fcal_0.1", "recipe")]
    lines = [header]
    for name in document["clean"]:
        worst = [f"{max(ratios(document, method, name)):.3f}" for method in shown]
        numbers = [
            f"{mean_of(document, method, name, key):.3f}"
            for key in ("ece_q", "crps")
            for method in ("usual", "fcal_0.1", "recipe")
        ]
        chosen = " (chosen on)" if name in document["config"]["chosen_on"] else ""
        lines.append([name + chosen, *worst, *numbers])
    return lines


def as_markdown(lines: list[list[str]]) -> str:
    header, *body = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *body)) + "\n"


def tables(document: dict[str, Any]) -> dict[str, str]:
    """The pages' tables by the name of their file."""
    return {
        "summary.md": as_markdown(summary(document, METHODS)),
        "data_sets.md": as_markdown(by_data_set(document)),
        "spoilt.md": as_markdown(summary(document, SPOILT, part="spoilt")),
    }


def verdict(document: dict[str, Any]) -> str:
    names = judged(document)
    seeds = [max(ratios(document, "recipe", name)) <= ALLOWED for name in names]
    better = [mean_of(document, "recipe", n, "ece_q") <= mean_of(document, "fcal_0.1", n, "ece_q") for n in names]
    return (
        f"RMSE at most {ALLOWED} of the likelihood's with every seed on {sum(seeds)} of {len(names)} data sets; "
        f"ECE(q) at most that of lam 0.1 on {sum(better)} of them\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.toml"))
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FCAL_DATA", "../shared/data")))
    parser.add_argument("--out", type=Path, required=True, help="folder for result.json and the tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        config = read_config(options.config, Config)
        writable_folder(options.out)
        document = run(config, options.data, options.out / "result.json")
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for name, text in tables(document).items():
        with atomic_path(options.out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{text}\n")
    sys.stdout.write(verdict(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
