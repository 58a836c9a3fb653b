"""Straight lines fitted by least squares: models whose held-out residuals have a closed form."""

from functools import partial

import torch
from torch.distributions import Normal
from torch.utils.data import TensorDataset, default_collate

import fcal

full_crossfit = partial(fcal.crossfit, keep="full")


class Line(torch.nn.Module):
    """A line with one standard deviation."""

    def __init__(self, slope, offset, sigma):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.stack([slope, offset]))
        self.sigma = torch.nn.Parameter(sigma)

    def forward(self, x):
        return Normal(x * self.weights[0] + self.weights[1], self.sigma.expand(x.shape))


def fit_line(rows):
    x, y = default_collate([rows[i] for i in range(len(rows))])
    design = torch.cat([x, torch.ones_like(x)], dim=1)
    slope, offset = torch.linalg.lstsq(design, y).solution[:, 0]
    return Line(slope, offset, (y - slope * x - offset).square().mean().sqrt())


def noisy_line(rows=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 1, dtype=torch.float64, generator=generator)
    return TensorDataset(x, 2 * x + 1 + 0.5 * torch.randn(rows, 1, dtype=torch.float64, generator=generator))
