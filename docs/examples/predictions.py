"""Write val.csv and test.csv beside this file: predictions of a small network that was trained on few rows."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributions import Normal

import fcal
from fcal._files import atomic_path


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = 6 * torch.rand(count, 1, generator=generator) - 3
    sigma = 0.05 + 0.35 * torch.sigmoid(2 * x)
    return x, torch.sin(2 * x) + 0.3 * x + sigma * torch.randn(count, 1, generator=generator)


def predicted(layers: nn.Module, x: Tensor) -> Normal:
    mean, raw = layers(x).chunk(2, dim=-1)
    return Normal(mean, nn.functional.softplus(raw) + 1e-2)


def trained(x: Tensor, y: Tensor) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(layers.parameters(), 5e-3)
    for _ in range(1500):
        optimizer.zero_grad()
        fcal.nll(predicted(layers, x), y).mean().backward()
        optimizer.step()
    return layers


@torch.no_grad()
def write(path: Path, layers: nn.Module, x: Tensor, y: Tensor) -> None:
    pred = predicted(layers, x)
    columns = zip(pred.mean[:, 0].tolist(), pred.stddev[:, 0].tolist(), y[:, 0].tolist(), x[:, 0].tolist(), strict=True)
    lines = [f"{m:.4f},{s:.4f},{t:.4f},{'left' if place < 0 else 'right'}" for m, s, t, place in columns]
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join(["mean,std,target,side", *lines]) + "\n")


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    layers = trained(*draw(200, generator))
    folder = Path(__file__).parent
    write(folder / "val.csv", layers, *draw(1000, generator))
    write(folder / "test.csv", layers, *draw(2000, generator))
