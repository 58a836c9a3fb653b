"""A network, data and a config that train in a fraction of a second."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.utils.data import TensorDataset

from fcal import data, models


class Net(nn.Module):
    """Features with dropout, a head for mean and spread."""

    def __init__(self, hidden: int = 8, *, deterministic: bool = False) -> None:
        super().__init__()
        self.deterministic = deterministic
        self.trunk = nn.Sequential(nn.Linear(1, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Normal | Tensor:
        mean, spread = self.head(self.trunk(x)).split(1, dim=-1)
        return mean if self.deterministic else Normal(mean, nn.functional.softplus(spread) + 1e-3)


class Waves:
    """Sine waves with noise of a known size."""

    def __init__(self, rows: int = 120, noise: float = 0.2) -> None:
        self.train, self.validation, self.test = (wave(rows // (1 + (i > 0)), noise, seed=i) for i in range(3))


def wave(rows: int, noise: float = 0.2, *, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(rows, 1, generator=generator) - 1
    return TensorDataset(x, torch.sin(3 * x) + noise * torch.randn(rows, 1, generator=generator))


def net(seed: int = 0, **options: Any) -> Net:
    torch.manual_seed(seed)
    return Net(**options)


def register() -> None:
    """Register them, as a plugin does."""
    models.register("toy", Net, replace=True)
    data.register("waves", Waves, replace=True)


CONFIG = """
seed = 3

[data]
name = "waves"

[model]
name = "toy"

[fit]
epochs = 3
batch_size = 16
learning_rate = 0.01
"""
