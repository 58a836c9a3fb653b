"""Train a small regressor under five kinds of noise, with right and wrong families, before and after f-Cal."""

import argparse
import copy
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Gamma, Laplace, MixtureSameFamily, Normal, StudentT
from torch.nn.functional import softplus

import fcal
from fcal._checks import check_integer, check_number
from fcal._config import read_config
from fcal._files import atomic_path, provenance, writable_folder, write_json

NOISES = {
    "gaussian": "Gaussian",
    "laplace": "Laplace",
    "student_t": "Student-t",
    "gamma": "Gamma",
    "mixture": "mixture",
}
STAGES = {
    "before": "likelihood",
    "after": "f-Cal",
    "shape": "sorted Wasserstein",
    "likelihood": "likelihood, all rows",
}
LEVELS = (0.683, 0.9, 0.95)
FARTHEST = 6.0  # edge of the histograms of z
BINS = 48
BINS_OF_X = 10  # in each of which the scale of z is measured
LEAST = 0.02  # smallest predicted scale

Noise = Callable[[Tensor], Distribution]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the experiment."""

    train_rows: int
    calibration_rows: int
    test_rows: int
    hidden: int
    train_steps: int
    train_rate: float
    tune_steps: int
    tune_rate: float
    divergence: str
    on: str
    df: int
    lam: float
    seeds: int

    def __post_init__(self) -> None:
        for name in ("train_rows", "calibration_rows"):
            check_integer(name, getattr(self, name), at_least=2, at_most=1_000_000)
        check_integer("test_rows", self.test_rows, at_least=100 * BINS_OF_X, at_most=1_000_000)
        for name in ("train_steps", "tune_steps", "seeds", "df"):
            check_integer(name, getattr(self, name), at_least=1, at_most=1_000_000)
        check_integer("hidden", self.hidden, at_least=1, at_most=4096)
        for name in ("train_rate", "tune_rate"):
            check_number(name, getattr(self, name), low=1e-9, high=1.0)
        check_number("lam", self.lam, low=0.0, high=1.0)
        fcal.FCalLoss(self.divergence, on=self.on, df=self.df)  # rejects unknown names


# The truth


def middle(x: Tensor) -> Tensor:
    return torch.sin(2 * x) + 0.3 * x


def spread(x: Tensor) -> Tensor:
    """Standard deviation of the noise, except Gamma noise, whose standard deviation is its mean divided by sqrt(2)."""
    return 0.1 + 0.5 * torch.sigmoid(1.5 * x)


def true_mixture(x: Tensor) -> Distribution:
    """Seven targets of ten near one value, three near another; ``middle`` is the mean and ``spread`` the sd."""
    weights = torch.tensor([0.7, 0.3]).expand(len(x), 2)
    m, s = middle(x).unsqueeze(-1), spread(x).unsqueeze(-1)
    return MixtureSameFamily(Categorical(weights), Normal(m + s * torch.tensor([-0.6, 1.4]), (0.4 * s).expand(-1, 2)))


TRUTHS: dict[str, Noise] = {
    "gaussian": lambda x: Normal(middle(x), spread(x)),
    "laplace": lambda x: Laplace(middle(x), spread(x) / math.sqrt(2)),
    "student_t": lambda x: StudentT(torch.full_like(x, 4.0), middle(x), spread(x) / math.sqrt(2)),
    "gamma": lambda x: Gamma(torch.full_like(x, 2.0), 2 / torch.exp(0.7 * middle(x))),
    "mixture": true_mixture,
}


@dataclass(frozen=True)
class Rows:
    """Inputs and noisy targets. Shapes ``(N,)``."""

    x: Tensor
    y: Tensor

    def part(self, start: int, stop: int) -> "Rows":
        return Rows(self.x[start:stop], self.y[start:stop])


def draw(noise: str, count: int, generator: torch.Generator) -> Rows:
    """Rows under a noise; the same generator gives all noises the same inputs and the same random numbers."""
    x = 6 * torch.rand(count, generator=generator) - 3
    uniform = torch.rand(count, generator=generator, dtype=torch.float64).clamp(min=1e-15)
    return Rows(x, fcal.distributions.quantile(TRUTHS[noise](x), uniform).to(x.dtype))


# The regressor: two outputs, which a head turns into a distribution, some with a learned shape


def positive(raw: Tensor) -> Tensor:
    return softplus(raw) + LEAST


class GaussianHead(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Distribution:
        return Normal(a, positive(b))


class LaplaceHead(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Distribution:
        return Laplace(a, positive(b))


class StudentTHead(nn.Module):
    """Degrees of freedom shared by all rows, above 1.5, so that the mean exists."""

    def __init__(self) -> None:
        super().__init__()
        self.raw_df = nn.Parameter(torch.tensor(3.0))

    def forward(self, a: Tensor, b: Tensor) -> Distribution:
        return StudentT((1.5 + softplus(self.raw_df)).expand_as(a), a, positive(b))


class GammaHead(nn.Module):
    """Mean and shape per row."""

    def forward(self, a: Tensor, b: Tensor) -> Distribution:
        return Gamma(positive(b), positive(b) / positive(a))


class MixtureHead(nn.Module):
    """Two normal components; all rows share their weights, and their locations and widths in units of the scale."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2))
        self.places = nn.Parameter(torch.tensor([-1.0, 1.0]))
        self.widths = nn.Parameter(torch.zeros(2))

    def forward(self, a: Tensor, b: Tensor) -> Distribution:
        a, scale = a.unsqueeze(-1), positive(b).unsqueeze(-1)
        components = Normal(a + scale * self.places, scale * positive(self.widths))
        return MixtureSameFamily(Categorical(logits=self.logits.expand(len(a), 2)), components)


HEADS: dict[str, type[nn.Module]] = {
    "gaussian": GaussianHead,
    "laplace": LaplaceHead,
    "student_t": StudentTHead,
    "gamma": GammaHead,
    "mixture": MixtureHead,
}


class Regressor(nn.Module):
    """Two hidden layers and a head."""

    def __init__(self, family: str, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(1, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 2)
        )
        self.head = HEADS[family]()

    def forward(self, x: Tensor) -> Distribution:
        a, b = self.layers(x.unsqueeze(-1)).unbind(-1)
        pred: Distribution = self.head(a, b)
        return pred


# One cell: a noise, an assumed family, a seed


def assumable(noise: str) -> list[str]:
    """Families that can be assumed: Gamma only where all targets are positive."""
    return [family for family in NOISES if family != "gamma" or noise == "gamma"]


def pairs() -> Iterator[tuple[str, str]]:
    return ((noise, family) for noise in NOISES for family in assumable(noise))


def train(net: Regressor, loss: Callable[[Regressor], Tensor], *, steps: int, rate: float) -> Regressor:
    optimizer = torch.optim.Adam(net.parameters(), rate)
    slower = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)  # so that the last steps are small
    for _ in range(steps):
        optimizer.zero_grad()
        loss(net).backward()
        optimizer.step()
        slower.step()
    return net


def criteria(config: Config, family: str) -> dict[str, nn.Module]:
    """Second terms of the tuning loss. Gamma has no location to detach."""
    detach = family != "gamma"
    return {
        "after": fcal.FCalLoss(config.divergence, config.df, on=config.on, detach_mean=detach),
        "shape": fcal.FCalLoss("sorted_wasserstein", on="z", detach_mean=detach),
        "likelihood": fcal.losses.NLLLoss(),
    }


def fit(config: Config, family: str, rows: Rows, seed: int) -> dict[str, Regressor]:
    """The regressor after each stage; all later stages start from the first."""
    own, others = rows.part(0, config.train_rows), rows.part(config.train_rows, len(rows.x))
    likelihood = fcal.losses.NLLLoss()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = Regressor(family, config.hidden)
    train(net, lambda net: likelihood(net(own.x), own.y), steps=config.train_steps, rate=config.train_rate)

    def tuned(criterion: nn.Module) -> Regressor:
        def loss(net: Regressor) -> Tensor:
            first, second = likelihood(net(own.x), own.y), criterion(net(others.x), others.y)
            return (1 - config.lam) * first + config.lam * second

        return train(copy.deepcopy(net), loss, steps=config.tune_steps, rate=config.tune_rate)

    return {"before": net} | {name: tuned(criterion) for name, criterion in criteria(config, family).items()}


def kolmogorov(z: Tensor) -> float:
    """Largest distance between the empirical distribution function of z and that of N(0, 1)."""
    u = torch.special.ndtr(z.sort().values)
    steps = torch.arange(len(z) + 1, dtype=u.dtype) / len(z)
    return torch.maximum(steps[1:] - u, u - steps[:-1]).max().item()


def kolmogorov_of_perfect(count: int) -> float:
    """Expected distance for samples of N(0, 1), for many rows."""
    return math.sqrt(math.pi / 2) * math.log(2) / math.sqrt(count)


def scale_error_by_x(z: Tensor, x: Tensor) -> float:
    """Root mean square of the log of the scale of z in bins of x; 0 if sigma follows x."""
    bin_of_x = ((x + 3) / 6 * BINS_OF_X).long().clamp(0, BINS_OF_X - 1)
    logs = [0.5 * z[bin_of_x == k].square().mean().log().item() for k in range(BINS_OF_X)]
    return math.sqrt(fmean(value * value for value in logs))


def histogram(z: Tensor) -> list[int]:
    """Counts below the range, in equal bins, and above."""
    inner = torch.histc(z, BINS, -FARTHEST, FARTHEST).long().tolist()
    return [int((z < -FARTHEST).sum()), *inner, int((z > FARTHEST).sum())]


@torch.no_grad()
def measure(pred: Distribution, noise: str, test: Rows) -> dict[str, Any]:
    z = fcal.standardize(pred, test.y).to(torch.float64)
    reach = {level: math.sqrt(2) * torch.erfinv(torch.tensor(level)).item() for level in LEVELS}
    held = {f"coverage_{level}": (z.abs() <= reach[level]).double().mean().item() for level in LEVELS}
    return {
        "scale": z.square().mean().sqrt().item(),
        "bias": z.mean().item(),
        **held,
        "beyond_3": (z.abs() > 3).double().mean().item(),
        "ks": kolmogorov(z),
        "scale_error_by_x": scale_error_by_x(z, test.x),
        "nll": fcal.nll(pred, test.y).mean().item(),
        "crps": fcal.crps(pred, test.y).mean().item(),
        "rmse_to_truth": (pred.mean - TRUTHS[noise](test.x).mean).square().mean().sqrt().item(),
        "histogram": histogram(z),
    }


def cell(config: Config, noise: str, family: str, seed: int) -> dict[str, Any]:
    """Every stage of one regressor, and the oracle, on test rows."""
    generator = torch.Generator().manual_seed(seed)
    rows = draw(noise, config.train_rows + config.calibration_rows, generator)
    test = draw(noise, config.test_rows, generator)
    nets = fit(config, family, rows, seed)
    with torch.no_grad():
        stages = {stage: measure(net(test.x), noise, test) for stage, net in nets.items()}
    return {"oracle": measure(TRUTHS[noise](test.x), noise, test), **stages}


# Tables


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "scale": ("scale", lambda v: f"{v:.2f}"),
    "bias": ("mean z", lambda v: f"{v:.2f}"),
    "coverage_0.683": ("in 68.3 %", percent),
    "coverage_0.9": ("in 90 %", percent),
    "coverage_0.95": ("in 95 %", percent),
    "beyond_3": ("beyond 3", lambda v: f"{100 * v:.2f} %"),
    "ks": ("KS", lambda v: f"{v:.3f}"),
    "nll": ("NLL", lambda v: f"{v:.3f}"),
    "crps": ("CRPS", lambda v: f"{v:.3f}"),
    "rmse_to_truth": ("error of the mean", lambda v: f"{v:.2f}"),
}


def shown(summary: dict[str, Any], column: str) -> str:
    show = COLUMNS[column][1]
    return f"{show(summary[column]['mean'])} ± {show(summary[column]['sd'])}".replace(" % ±", " ±")


def right_and_gaussian(noise: str) -> list[str]:
    return list(dict.fromkeys([noise, "gaussian"]))


def main_table(document: dict[str, Any]) -> list[list[str]]:
    """Before and after f-Cal, with the right family and with the Gaussian."""
    perfect = kolmogorov_of_perfect(document["config"]["test_rows"])
    ideal = ["1", "0", "68.3 %", "90 %", "95 %", "0.27 %", f"{perfect:.3f}", "low", "low", "low"]
    lines = [["noise", "assumed", "trained by", *(title for title, _ in COLUMNS.values())]]
    lines.append(["should be", "", "", *ideal])
    for noise in NOISES:
        oracle = document["oracle"][noise]
        lines.append([NOISES[noise], "the truth", "", *(shown(oracle, column) for column in COLUMNS)])
        for family in right_and_gaussian(noise):
            for stage in ("before", "after"):
                summary = document["cells"][noise][family][stage]
                name = NOISES[family] + (", right" if family == noise else "")
                lines.append(["", name, STAGES[stage], *(shown(summary, column) for column in COLUMNS)])
    return lines


def excess(document: dict[str, Any], noise: str, family: str, stage: str) -> float:
    """Excess of the mean negative log-likelihood over that of the oracle."""
    cell = document["cells"][noise][family][stage]
    return cell["nll"]["mean"] - document["oracle"][noise]["nll"]["mean"]


def matrix(document: dict[str, Any], stage: str) -> list[list[str]]:
    """KS and excess NLL of every family under every noise."""
    lines = [["noise", *(f"as {title}" for title in NOISES.values())]]
    for noise in NOISES:
        line = [NOISES[noise]]
        for family in NOISES:
            if family not in assumable(noise):
                line.append("-")
                continue
            ks = document["cells"][noise][family][stage]["ks"]["mean"]
            text = f"{ks:.3f}, {excess(document, noise, family, stage):+.2f}"
            line.append(f"**{text}**" if family == noise else text)
        lines.append(line)
    return lines


def stages_table(document: dict[str, Any]) -> list[list[str]]:
    """Second terms compared, with the right family and with the Gaussian."""
    lines = [["noise", "assumed", *(f"{title}" for title in STAGES.values())]]
    for noise in NOISES:
        for family in right_and_gaussian(noise):
            texts = []
            for stage in STAGES:
                cell = document["cells"][noise][family][stage]
                means = (cell["scale"]["mean"], cell["ks"]["mean"], cell["scale_error_by_x"]["mean"])
                texts.append("{:.2f}, {:.3f}, {:.2f}, {:+.2f}".format(*means, excess(document, noise, family, stage)))
            lines.append([NOISES[noise], NOISES[family], *texts])
    return lines


def as_markdown(lines: list[list[str]]) -> str:
    header, *body = lines
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *body)) + "\n"


def tables(document: dict[str, Any]) -> dict[str, str]:
    """File name and Markdown of every table."""
    return {
        "table.md": as_markdown(main_table(document)),
        "matrix_before.md": as_markdown(matrix(document, "before")),
        "matrix_after.md": as_markdown(matrix(document, "after")),
        "second_terms.md": as_markdown(stages_table(document)),
    }


def as_terminal(lines: list[list[str]], title: str) -> Table:
    header, *body = lines
    table = Table(title=title)
    for name in header:
        table.add_column(name)
    for line in body:
        table.add_row(*(text.replace("*", "") for text in line))
    return table


# Pictures

EDGES = torch.linspace(-FARTHEST, FARTHEST, BINS + 1, dtype=torch.float64)
COLOURS = {"before": "#fdae6b", "after": "#6baed6"}


def normal_density(at: Tensor) -> Tensor:
    return torch.exp(-0.5 * at.square()) / math.sqrt(2 * math.pi)


def density(counts: list[int]) -> Tensor:
    """Density of z in the bins, relative to all rows, also those outside the bins."""
    return torch.tensor(counts[1:-1], dtype=torch.float64) / (sum(counts) * 2 * FARTHEST / BINS)


def panel(ax: Axes, summary: dict[str, Any], stage: str) -> None:
    ax.stairs(density(summary["histogram"]).numpy(), EDGES.numpy(), fill=True, color=COLOURS[stage])
    line = torch.linspace(-4.5, 4.5, 181)
    ax.plot(line, normal_density(line), color="black", lw=1.2)
    text = f"scale {summary['scale']['mean']:.2f}\nKS {summary['ks']['mean']:.3f}"
    ax.text(0.03, 0.95, text, transform=ax.transAxes, va="top", fontsize=9)
    ax.set(xlim=(-4.5, 4.5), ylim=(0, 0.68), yticks=[], xticks=[-4, -2, 0, 2, 4])


def histograms(document: dict[str, Any]) -> Figure:
    """Rows are noises; columns are the right family before and after, then the Gaussian."""
    figure = Figure(figsize=(10.5, 11), layout="constrained")
    axes = figure.subplots(len(NOISES), 4, sharex=True, sharey=True)
    titles = [
        "right family,\nbefore",
        "right family,\nafter f-Cal",
        "Gaussian assumed,\nbefore",
        "Gaussian assumed,\nafter f-Cal",
    ]
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title, fontsize=11)
    for line, noise in zip(axes, NOISES, strict=True):
        line[0].set_ylabel(f"{NOISES[noise]} noise", fontsize=11)
        for ax, (family, stage) in zip(line, ((f, s) for f in (noise, "gaussian") for s in COLOURS), strict=True):
            panel(ax, document["cells"][noise][family][stage], stage)
    for ax in axes[-1]:
        ax.set_xlabel("z on new data")
    for ax in axes[0, 2:]:
        ax.text(0.97, 0.95, "the same", transform=ax.transAxes, va="top", ha="right", fontsize=9, style="italic")
    return figure


def tails(document: dict[str, Any]) -> Figure:
    """Density after f-Cal on a logarithmic scale, for the right family and the Gaussian."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    line = torch.linspace(-FARTHEST, FARTHEST, 241)
    axes = figure.subplots(1, len(NOISES), sharex=True, sharey=True)
    for ax, noise in zip(axes, NOISES, strict=True):
        ax.plot(line, normal_density(line), color="black", lw=1.2, label="N(0, 1)")
        for family, colour, name in ((noise, "#2171b5", "right"), ("gaussian", "#d94801", "Gaussian")):
            if family == noise and name == "Gaussian":
                continue
            heights = density(document["cells"][noise][family]["after"]["histogram"]).numpy()
            ax.stairs(heights, EDGES.numpy(), color=colour, lw=1.4, label=f"assumed: {name}", baseline=None)
        ax.set(yscale="log", ylim=(1e-5, 1.5), xlim=(-FARTHEST, FARTHEST), xticks=[-6, -3, 0, 3, 6])
        ax.set(xlabel="z", title=f"{NOISES[noise]} noise")
    axes[0].set_ylabel("density on new data")
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


# The run


def summarised(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds; counts are summed."""
    summary: dict[str, Any] = {}
    for name in runs[0]:
        values = [run[name] for run in runs]
        if name == "histogram":
            summary[name] = [sum(counts) for counts in zip(*values, strict=True)]
        else:
            summary[name] = {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else 0.0, "seeds": values}
    return summary


def finished(path: Path, config: Config) -> dict[str, Any] | None:
    """Cell of an interrupted run with the same settings, or None."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document["stages"] if document.get("config") == asdict(config) else None


def run(config: Config, folder: Path, console: Console) -> dict[str, Any]:
    """All cells; each is saved in ``folder`` until the results are written."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {pair: [] for pair in pairs()}
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=len(cells) * config.seeds)
        for seed in range(config.seeds):
            for noise, family in cells:
                path = folder / f"{noise}-{family}-{seed}.json"
                stages = finished(path, config)
                if stages is None:
                    stages = cell(config, noise, family, seed)
                    write_json(path, {"config": asdict(config), "stages": stages})
                cells[noise, family].append(stages)
                progress.advance(task)

    def stage_of(noise: str, family: str, stage: str) -> dict[str, Any]:
        return summarised([stages[stage] for stages in cells[noise, family]])

    return {
        "config": asdict(config),
        "provenance": provenance(),
        "ks_of_perfect_calibration": kolmogorov_of_perfect(config.test_rows),
        "oracle": {noise: stage_of(noise, noise, "oracle") for noise in NOISES},
        "cells": {
            noise: {family: {stage: stage_of(noise, family, stage) for stage in STAGES} for family in assumable(noise)}
            for noise in NOISES
        },
    }


def write(document: dict[str, Any], out: Path) -> None:
    for name, text in tables(document).items():
        with atomic_path(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    with mpl.rc_context({"savefig.dpi": 80}):
        for name, figure in (("histograms.png", histograms(document)), ("tails.png", tails(document))):
            with atomic_path(out / name) as temporary:
                figure.savefig(temporary)
    write_json(out / "results.json", document)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.toml"))
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json, tables and pictures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        config = read_config(options.config, Config)
        writable_folder(options.out)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    kept = options.out / "cells"
    document = run(config, kept, Console(stderr=True))
    write(document, options.out)
    for path in kept.glob("*.json"):
        path.unlink()
    kept.rmdir()
    console = Console()
    for stage in ("before", "after"):
        title = f"{stage}: KS, NLL beyond that of the truth; mean of {config.seeds} seeds"
        console.print(as_terminal(matrix(document, stage), title))
    sys.stdout.write(f"numbers: {options.out / 'results.json'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
