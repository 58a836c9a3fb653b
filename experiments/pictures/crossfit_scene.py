"""A network that knows its training rows too well, and an out-of-bag ensemble of such networks."""

import copy
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.distributions import Normal
from torch.utils.data import TensorDataset

import fcal

ROWS, NEW_ROWS = 120, 20_000
STAGES, STEPS, RATE = 9, 100, 3e-3
_MANY = 1000  # rows, for which narrow bars are smooth
_GREY, _BLUE, _ORANGE = "0.45", "#1f77b4", "#d95f02"


def waves(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """A wave whose noise grows to the right."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(rows, 1, generator=generator) - 1
    return x, torch.sin(4 * x) + sigma_at(x) * torch.randn(rows, 1, generator=generator)


def sigma_at(x: Tensor) -> Tensor:
    """The noise."""
    return 0.15 + 0.2 * (x + 1) / 2


class Net(nn.Module):
    """Two hidden layers, mean and sd."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, x: Tensor) -> Normal:
        mean, spread = self.layers(4 * x).split(1, dim=-1)
        return Normal(mean, nn.functional.softplus(spread) + 1e-2)


def fit(rows: Any, seed: int = 0) -> list[Net]:
    """A network trained by likelihood for far too long, after each of several stages."""
    x, y = (torch.stack(column) for column in zip(*(rows[i] for i in range(len(rows))), strict=True))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    stages = []
    for _ in range(STAGES):
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = -net(x).log_prob(y).mean()
            loss.backward()
            optimizer.step()
        stages.append(copy.deepcopy(net).eval())
    return stages


def crossfit_picture() -> Figure:
    """Data and error bars, then residuals of rows seen, of new rows, and of new rows by the out-of-bag ensemble."""
    seen, new = waves(ROWS, seed=1), waves(NEW_ROWS, seed=2)
    network, ensemble = fit(TensorDataset(*seen))[-1], fcal.crossfit(fit, TensorDataset(*seen)).calibrated()
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.4), width_ratios=(1.5, 1, 1, 1), layout="constrained")
    with torch.no_grad():
        _draw_bars(axes[0], seen, network, ensemble)
        for axis, title, model, rows in (
            (axes[1], "one network, rows it saw", network, seen),
            (axes[2], "one network, new rows", network, new),
            (axes[3], "out-of-bag ensemble, new rows", ensemble, new),
        ):
            _draw_residuals(axis, title, fcal.standardize(model(rows[0]), rows[1]))
    return figure


def _draw_bars(axis: Axes, rows: tuple[Tensor, Tensor], network: Any, ensemble: Any) -> None:
    x = torch.linspace(-1, 1, 400).unsqueeze(1)
    for law, colour, label in ((ensemble(x), _ORANGE, "out-of-bag ensemble"), (network(x), _BLUE, "one network")):
        low, high = (law.mean - 2 * law.stddev)[:, 0], (law.mean + 2 * law.stddev)[:, 0]
        axis.fill_between(x[:, 0], low, high, color=colour, alpha=0.3, linewidth=0, label=f"± 2 sd, {label}")
        axis.plot(x[:, 0], law.mean[:, 0], color=colour, linewidth=1.2)
    axis.plot(x[:, 0], torch.sin(4 * x[:, 0]), color="black", linewidth=0.8, linestyle="--", label="truth")
    axis.plot(rows[0][:, 0], rows[1][:, 0], ".", color=_GREY, markersize=4)
    axis.legend(fontsize="x-small", loc="lower right")
    axis.set(
        title=f"{len(rows[0])} rows", xlabel="input", ylabel="target", ylim=(-2.6, 2.0), xticks=(-1, -0.5, 0, 0.5, 1)
    )


def _draw_residuals(axis: Axes, title: str, z: Tensor) -> None:
    grid = np.linspace(-5, 5, 201)
    edges = np.linspace(-5, 5, 41 if len(z) > _MANY else 21)
    axis.hist(z.flatten().clamp(-5, 5), bins=edges.tolist(), density=True, color=_GREY, alpha=0.6)
    axis.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color="black", linewidth=1)
    inside = (z.abs() <= 1).double().mean()
    note = f"mean of z² {z.square().mean():.2f}\n{inside:.0%} within 1 sd"
    axis.text(0.03, 0.97, note, transform=axis.transAxes, va="top", fontsize="small")
    axis.set_title(title, fontsize="medium")
    axis.set(xlabel="z = (target - mean) / sd", ylim=(0, 0.62), yticks=[])


PICTURES = {"crossfit": crossfit_picture}
