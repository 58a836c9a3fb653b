"""Cost of a calibration loss when the depth network is trained.

Training steps (forward, backward, Adam) of BTS with MobileNetV2 and both decoders, on images of 64 x 208 of which a
quarter of the pixels have a target, one process, one thread. The baseline is SiLog written by hand, plus the mean of
sigma: the cheapest loss that trains both decoders. Without it autograd skips the backward pass of the uncertainty
decoder; the last row, which has no bar, shows what that pass costs.
"""

import math
import sys
import time

import torch
from measuring import Row, Step, main, medians
from rich.console import Console
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal._datasets import Batch
from fcal.models.depth import BTS
from fcal.training import ObjectiveConfig, objective
from fcal.training.objectives import Objective, Terms

BATCH, HEIGHT, WIDTH = 16, 64, 208
DENSITY = 0.25
REPEATS = 15
LAM = 0.1
COMPOSED = {
    "SiLog + f-Cal (Wasserstein)": {"name": "fcal"},
    "SiLog + f-Cal (KL)": {"name": "fcal", "divergence": "kl"},
    "SiLog + f-Cal of 10 000 drawn pixels": {"name": "fcal", "pixels": 10_000},
    "SiLog + likelihood": {"name": "nll"},
}


def sparse_batch(images: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    target = 2 + 60 * torch.rand(images, HEIGHT, WIDTH, generator=generator)
    target[torch.rand(images, HEIGHT, WIDTH, generator=generator) > DENSITY] = math.nan
    pictures = torch.randn(images, 3, HEIGHT, WIDTH, generator=generator)
    return {"input": pictures.contiguous(memory_format=torch.channels_last), "target": target}


def silog_by_hand(model: nn.Module, batch: Batch) -> Terms:
    return {"silog": plain_silog(model(batch["input"]), batch["target"])}


def silog_and_sigma_by_hand(model: nn.Module, batch: Batch) -> Terms:
    pred = model(batch["input"])
    return {"silog": plain_silog(pred, batch["target"]), "sigma": 1e-3 * pred.stddev.mean()}


def plain_silog(pred: Distribution, target: Tensor) -> Tensor:
    known = ~target.isnan()
    gap = pred.mean[known].log() - target[known].log()
    return 10 * (gap.square().mean() - 0.85 * gap.mean().square()).sqrt()


def training(of: Objective, batch: Batch) -> Step:
    torch.manual_seed(0)
    network = BTS().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-5, fused=True)

    def step() -> float:
        started = time.perf_counter()
        optimizer.zero_grad()
        loss: Tensor = torch.stack(list(of(network, batch).values())).sum()
        loss.backward()
        optimizer.step()
        return time.perf_counter() - started

    return step


def row(work: str, against: str, ours: float, theirs: float, *, largest: float | None = 1.05) -> Row:
    return Row(
        work=work,
        count=BATCH * HEIGHT * WIDTH,
        against=against,
        ratio=ours / theirs,
        unit="x as long",
        reach="none" if largest is None else f"<= {largest:g}x as long",
        met=largest is None or ours / theirs <= largest,
        ours_ms=1e3 * ours,
        theirs_ms=1e3 * theirs,
    )


def measure(shrink: int, console: Console) -> list[Row]:
    console.print("training steps")
    batch = sparse_batch(max(BATCH // shrink, 1))
    objectives: list[Objective] = [silog_by_hand, silog_and_sigma_by_hand]
    for options in COMPOSED.values():
        config = ObjectiveConfig(task="silog", form="additive", lam=LAM, **options)  # type: ignore[arg-type]
        objectives.append(objective(config))
    steps = [training(each, batch) for each in objectives]
    depth_alone, both, *ours = medians(steps, [max(REPEATS // shrink, 1)] * len(steps))
    rows = [
        row(work, "SiLog and the mean of sigma", seconds, both) for work, seconds in zip(COMPOSED, ours, strict=True)
    ]
    decoder = row("training both decoders", "SiLog, which trains the depth decoder", both, depth_alone, largest=None)
    return [*rows, decoder]


def no_memory(*_: int) -> int:
    return 0


if __name__ == "__main__":
    sys.exit(main(__doc__, "depth", measure, no_memory))
