"""Train a small regressor on a few noisy rows and show its error bars on new rows, before and after f-Cal."""

import argparse
import copy
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.distributions import Normal

import fcal
from fcal._checks import check_integer, check_number
from fcal._config import read_config
from fcal._files import atomic_path, provenance, writable_folder, write_json
from fcal._progress import ProgressBar
from fcal.losses import CombinedLoss, FCalLoss, TrimmedLoss
from fcal.models import FixedMean

LEVELS = (0.5, 0.683, 0.9, 0.95)
METHODS = {
    "usual": "usual training",
    "fcal": "f-Cal",
    "factor": "one factor on sigma",
    "usual_all": "usual training, all rows",
}


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
    df: int
    lam: float
    seeds: int

    def __post_init__(self) -> None:
        for name in ("train_rows", "calibration_rows", "test_rows"):
            check_integer(name, getattr(self, name), at_least=2, at_most=10_000_000)
        for name in ("train_steps", "tune_steps", "seeds", "df"):
            check_integer(name, getattr(self, name), at_least=1, at_most=1_000_000)
        check_integer("hidden", self.hidden, at_least=1, at_most=4096)
        for name in ("train_rate", "tune_rate"):
            check_number(name, getattr(self, name), low=1e-9, high=1.0)
        check_number("lam", self.lam, low=0.0, high=1.0)
        fcal.divergences.by_name(self.divergence)


@dataclass(frozen=True)
class Rows:
    """Inputs and noisy targets. Shapes ``(N, 1)``."""

    x: Tensor
    y: Tensor

    def part(self, start: int, stop: int) -> "Rows":
        return Rows(self.x[start:stop], self.y[start:stop])


def true_mean(x: Tensor) -> Tensor:
    return torch.sin(2 * x) + 0.3 * x


def true_sigma(x: Tensor) -> Tensor:
    return 0.05 + 0.35 * torch.sigmoid(2 * x)


def draw(count: int, generator: torch.Generator) -> Rows:
    x = 6 * torch.rand(count, 1, generator=generator) - 3
    return Rows(x, true_mean(x) + true_sigma(x) * torch.randn(count, 1, generator=generator))


class Regressor(nn.Module):
    """Two hidden layers; predicts a normal distribution."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.factor = 1.0
        self.layers = nn.Sequential(
            nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 2)
        )

    def forward(self, x: Tensor) -> Normal:
        mean, raw = self.layers(x).chunk(2, dim=-1)
        return Normal(mean, self.factor * (nn.functional.softplus(raw) + 1e-2))


def train(
    net: nn.Module, loss: Callable[[nn.Module], Tensor], *, steps: int, rate: float, tick: Callable[[], None]
) -> None:
    optimizer = torch.optim.Adam(net.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(net).backward()
        optimizer.step()
        tick()


@dataclass(frozen=True)
class Fitted:
    """The networks of a seed, the rows they were trained and calibrated on, and test rows."""

    nets: dict[str, nn.Module]
    trained_on: Rows
    calibrated_on: Rows
    test: Rows


def fit(config: Config, seed: int, tick: Callable[[], None]) -> Fitted:
    generator = torch.Generator().manual_seed(seed)
    rows = draw(config.train_rows + config.calibration_rows, generator)
    test = draw(config.test_rows, generator)
    mine, others = rows.part(0, config.train_rows), rows.part(config.train_rows, len(rows.x))

    def usual(data: Rows) -> Regressor:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = Regressor(config.hidden)
        likelihood = lambda net: fcal.nll(net(data.x), data.y).mean()  # noqa: E731
        train(net, likelihood, steps=config.train_steps, rate=config.train_rate, tick=tick)
        return net

    start = usual(mine)
    nets: dict[str, nn.Module] = {"usual": start}
    nets["fcal"] = FixedMean(nets["usual"])
    terms = CombinedLoss(FCalLoss(config.divergence, config.df), lam=config.lam, warmup_steps=config.tune_steps)
    criterion = TrimmedLoss(terms)
    recipe = lambda net: criterion(net(others.x), others.y)  # noqa: E731
    train(nets["fcal"], recipe, steps=config.tune_steps, rate=config.tune_rate, tick=tick)
    with torch.no_grad():
        factor = fcal.standardize(nets["usual"](others.x), others.y).square().mean().sqrt().item()
    scaled = copy.deepcopy(start)
    scaled.factor = factor
    nets["factor"] = scaled
    nets["usual_all"] = usual(rows)
    return Fitted(nets, mine, others, test)


@torch.no_grad()
def measure(net: nn.Module, test: Rows) -> dict[str, float]:
    pred = net(test.x)
    z = fcal.standardize(pred, test.y)
    reach = {level: math.sqrt(2) * torch.erfinv(torch.tensor(level)).item() for level in LEVELS}
    coverage = {f"coverage_{level}": (z.abs() <= reach[level]).float().mean().item() for level in LEVELS}
    return {
        **coverage,
        "mean_z2": z.square().mean().item(),
        "nll": fcal.nll(pred, test.y).mean().item(),
        "crps": fcal.crps(pred, test.y).mean().item(),
        "rmse_to_truth": (pred.mean - true_mean(test.x)).square().mean().sqrt().item(),
    }


def summarised(rows: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: {"mean": fmean(v), "sd": stdev(v) if len(v) > 1 else 0.0} for name, v in columns.items()}


COLUMNS: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "coverage_0.683": ("within 1 sigma", "68.3 %", lambda v: f"{100 * v:.1f} %"),
    "coverage_0.95": ("within 1.96 sigma", "95 %", lambda v: f"{100 * v:.1f} %"),
    "mean_z2": ("mean z²", "1", lambda v: f"{v:.2f}"),
    "nll": ("NLL", "low", lambda v: f"{v:.3f}"),
    "crps": ("CRPS", "low", lambda v: f"{v:.4f}"),
    "rmse_to_truth": ("error of the mean", "low", lambda v: f"{v:.3f}"),
}


def cells(document: dict[str, Any]) -> list[list[str]]:
    """The table as text: a header, the ideal values, and a line per method."""
    lines = [["on new data", *(title for title, _, _ in COLUMNS.values())]]
    lines.append(["should be", *(ideal for _, ideal, _ in COLUMNS.values())])
    for method, title in METHODS.items():
        row = document["methods"][method]
        lines.append(
            [title, *(f"{show(row[c]['mean'])} ± {show(row[c]['sd'])}" for c, (_, _, show) in COLUMNS.items())]
        )
    return lines


def as_markdown(document: dict[str, Any]) -> str:
    header, *body = cells(document)
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *body)) + "\n"


def as_terminal(document: dict[str, Any]) -> Table:
    header, *body = cells(document)
    shown = Table(title=f"mean ± sd over {document['config']['seeds']} seeds")
    for name in header:
        shown.add_column(name)
    for line in body:
        shown.add_row(*line)
    return shown


def band(ax: Axes, net: nn.Module, fitted: Fitted, title: str) -> None:
    x = torch.linspace(-3, 3, 400).unsqueeze(1)
    with torch.no_grad():
        pred = net(x)
    line, mean, sigma = x.squeeze(), pred.mean.squeeze(), pred.stddev.squeeze()
    ax.fill_between(line, mean - 2 * sigma, mean + 2 * sigma, color="#c6dbef", label="±2 sigma", lw=0)
    ax.fill_between(line, mean - sigma, mean + sigma, color="#6baed6", label="±1 sigma", lw=0)
    ax.plot(fitted.test.x[:400], fitted.test.y[:400], ".", color="0.5", ms=2, label="new data")
    ax.plot(fitted.trained_on.x, fitted.trained_on.y, ".", color="#d94801", ms=4, label="trained on")
    ax.plot(line, mean, color="#08306b", lw=1.2, label="predicted mean")
    ax.plot(line, true_mean(x).squeeze(), color="black", lw=1, ls="--", label="true mean")
    held = measure(net, fitted.test)["coverage_0.683"]
    ax.set(title=f"{title}\n±1 sigma holds {100 * held:.0f} % of new data (should: 68 %)", xlabel="x", ylim=(-2.2, 3.0))


def coverage_curve(ax: Axes, net: nn.Module, test: Rows, label: str, colour: str) -> None:
    nominal = torch.linspace(0.01, 0.99, 99)
    with torch.no_grad():
        z = fcal.standardize(net(test.x), test.y).abs().flatten()
    held = (z.unsqueeze(0) <= math.sqrt(2) * torch.erfinv(nominal).unsqueeze(1)).float().mean(1)
    ax.plot(nominal, held, color=colour, label=label)


def picture(fitted: Fitted) -> Figure:
    figure = Figure(figsize=(13, 4.4), layout="constrained")
    before, after, curves = figure.subplots(1, 3, width_ratios=(1.2, 1.2, 1))
    band(before, fitted.nets["usual"], fitted, "before: usual training")
    band(after, fitted.nets["fcal"], fitted, "after: f-Cal on other rows")
    rows = fitted.calibrated_on
    after.plot(rows.x, rows.y, "x", color="#238b45", ms=3.5, mew=0.8, label="calibrated on")
    before.set_ylabel("y")
    for ax in (before, after):
        ax.legend(loc="upper left", fontsize=7, ncols=2)
    curves.plot([0, 1], [0, 1], color="0.6", lw=1, ls="--")
    for method, colour in (("usual", "#d94801"), ("fcal", "#2171b5"), ("factor", "#238b45"), ("usual_all", "#6a51a3")):
        coverage_curve(curves, fitted.nets[method], fitted.test, METHODS[method], colour)
    curves.text(0.97, 0.05, "over-confident", ha="right", color="0.4")
    curves.text(0.03, 0.92, "under-confident", color="0.4")
    curves.set(xlabel="promised", ylabel="held", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    curves.set_title("central intervals on new data\n(first of the seeds)")
    curves.legend(loc=(0.02, 0.58), fontsize=7)
    return figure


def run(config: Config) -> tuple[dict[str, Any], Figure]:
    results: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
    total = config.seeds * (2 * config.train_steps + config.tune_steps)
    figure: Figure | None = None
    with ProgressBar("training", total=total, unit="steps") as progress:
        for seed in range(config.seeds):
            fitted = fit(config, seed, progress.advance)
            for method in METHODS:
                results[method].append(measure(fitted.nets[method], fitted.test))
            figure = figure or picture(fitted)
    assert figure is not None
    document = {
        "config": asdict(config),
        "seeds": list(range(config.seeds)),
        "provenance": provenance(),
        "methods": {method: summarised(rows) for method, rows in results.items()},
        "per_seed": results,
    }
    return document, figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.toml"))
    parser.add_argument("--out", type=Path, required=True, help="folder for result.json, table.md and picture.png")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        config = read_config(options.config, Config)
        writable_folder(options.out)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    document, figure = run(config)
    with mpl.rc_context({"savefig.dpi": 110}), atomic_path(options.out / "picture.png") as temporary:
        figure.savefig(temporary)
    with atomic_path(options.out / "table.md") as temporary:
        temporary.write_text(as_markdown(document), encoding="utf-8")
    write_json(options.out / "result.json", document)
    console = Console()
    console.print(as_terminal(document))
    sys.stdout.write(f"picture: {options.out / 'picture.png'}\nnumbers: {options.out / 'result.json'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
