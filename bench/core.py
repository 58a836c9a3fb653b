"""Speed and memory of the core, as ratios to what a user would use instead, measured in one run.

Every pair is timed in one process and one thread, in alternating blocks, forward + backward, float32; the ratio is that
of the medians. Distributions are built inside the timed region with torch's argument validation off.
"""

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from measuring import Row, extra_bytes, extra_bytes_in_fresh_process, main, medians
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.distributions import Normal
from torch.nn.functional import gaussian_nll_loss

import fcal


class Batch:
    """Parameters that require gradients, and targets."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.loc = torch.randn(count, generator=generator).requires_grad_()
        self.scale = (torch.rand(count, generator=generator) + 0.5).requires_grad_()
        self.target = torch.randn(count, generator=generator)

    def step(self, loss: Callable[["Batch"], Tensor]) -> float:
        """Seconds of one forward + backward pass; the optimizer step is not timed."""
        self.loc.grad = self.scale.grad = None
        started = time.perf_counter()
        loss(self).backward()
        return time.perf_counter() - started

    def pred(self) -> Normal:
        return Normal(self.loc, self.scale, validate_args=False)


Loss = Callable[[Batch], Tensor]

EXACT = fcal.FCalLoss()
COMBINED = fcal.losses.CombinedLoss(fcal.FCalLoss(), lam=0.5)


def exact(batch: Batch) -> Tensor:
    return EXACT(batch.pred(), batch.target)


def combined(batch: Batch) -> Tensor:
    return COMBINED(batch.pred(), batch.target)


def torch_nll(batch: Batch) -> Tensor:
    return gaussian_nll_loss(batch.loc, batch.target, batch.scale * batch.scale)


def squared_wasserstein(q: list[Tensor], df: int) -> Tensor:
    samples = torch.stack(q)
    mean, variance = samples.mean(), samples.var()
    return (mean - df) ** 2 + variance + 2 * df - 2 * (2 * df * variance) ** 0.5


def loop_of_draws(batch: Batch) -> Tensor:
    """The paper's algorithm: 100 draws of 75 residuals, one by one, with numpy."""
    residuals = (batch.target - batch.loc) / batch.scale
    source = np.random.default_rng(0)
    q = []
    for _ in range(100):
        indices = source.choice(len(residuals), size=75, replace=False)
        q.append((residuals[indices] ** 2).sum())
    return squared_wasserstein(q, 75)


def loop_of_samples(batch: Batch) -> Tensor:
    """The same with the settings and the sampler of the authors' class: 200 draws of 100 by ``random.sample``."""
    residuals = (batch.target - batch.loc) / batch.scale
    source = random.Random(0)
    q = [(residuals[source.sample(range(len(residuals)), 100)] ** 2).sum() for _ in range(200)]
    return squared_wasserstein(q, 100)


@dataclass(frozen=True)
class Comparison:
    work: str
    ours: Loss
    against: str
    theirs: Loss
    count: int
    repeats: int
    most: float | None = None  # ours / theirs must not exceed it
    least: float | None = None  # theirs / ours must reach it

    def row(self, shrink: int) -> Row:
        batch = Batch(max(self.count // shrink, 200))
        steps = [partial(batch.step, loss) for loss in (self.ours, self.theirs)]
        ours, theirs = medians(steps, [max(self.repeats // shrink, 1)] * 2)
        if self.most is not None:
            ratio, unit, reach = ours / theirs, "x the time", f"<= {self.most:g}x the time"
        else:
            ratio, unit, reach = theirs / ours, "x faster", f">= {self.least:g}x faster"
        return Row(
            work=self.work,
            count=len(batch.target),
            against=self.against,
            ratio=ratio,
            unit=unit,
            reach=reach,
            met=ratio <= self.most if self.most is not None else ratio >= (self.least or 0),
            ours_ms=1e3 * ours,
            theirs_ms=1e3 * theirs,
        )


NLL = "torch gaussian_nll_loss"
COMPARISONS = [
    Comparison("FCalLoss exact", exact, NLL, torch_nll, 1_000, 2000, most=2.0),
    Comparison("FCalLoss exact", exact, NLL, torch_nll, 1_000_000, 60, most=0.35),
    Comparison("FCalLoss exact", exact, NLL, torch_nll, 10_000_000, 12, most=0.4),
    Comparison("NLL + f-Cal as one objective", combined, NLL, torch_nll, 1_000_000, 60, most=0.6),
    Comparison(
        "FCalLoss exact", exact, "loop of draws, numpy choice, K=75, H=100", loop_of_draws, 100_000, 30, least=15
    ),
    Comparison(
        "FCalLoss exact", exact, "loop of draws, numpy choice, K=75, H=100", loop_of_draws, 1_000_000, 10, least=8
    ),
    Comparison(
        "FCalLoss exact", exact, "loop of random.sample, K=100, H=200", loop_of_samples, 1_000_000, 15, least=30
    ),
]


def peak_memory(count: int) -> Row:
    """Peak resident memory of a fresh process beyond its inputs, gradients included, in multiples of one input."""
    ratio = extra_bytes_in_fresh_process(__file__, "--memory-of", str(count)) / (4 * count)
    return Row(
        work="peak extra memory of FCalLoss exact, gradients included",
        count=count,
        against="bytes of one input",
        ratio=ratio,
        unit=" inputs",
        reach="<= 4 inputs",
        met=ratio <= 4,
    )


def measured_memory(count: int) -> int:
    Batch(1000).step(exact)  # loads every kernel
    batch = Batch(count)
    return extra_bytes(partial(batch.step, exact))


def measured(shrink: int, console: Console) -> list[Row]:
    work = track(COMPARISONS, description="comparing", console=console, disable=not console.is_terminal)
    rows = [comparison.row(shrink) for comparison in work]
    return [*rows, peak_memory(max(10_000_000 // shrink, 1000))]


if __name__ == "__main__":
    sys.exit(main(__doc__, "core", measured, measured_memory))
