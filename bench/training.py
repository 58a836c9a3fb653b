"""Cost of the training harness over a plain loop, and of error bars over none.

Epochs of the 3-layer ConvNet on Bokeh images of 64 x 64 in batches of 64, one process, one thread. The plain loop is
written as by hand: permute, fetch, zero, forward, backward, step, add up the loss. A step lasts from one call
of the objective to the next, on both sides, so loading, bookkeeping and hooks count and set-up does not.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from measuring import BLOCKS, Row, main, medians
from rich.console import Console
from torch import Tensor, nn

from fcal._datasets import Batch
from fcal.data import Bokeh, BokehConfig
from fcal.models import ConvNet
from fcal.training import FitConfig, ObjectiveConfig, fit, objective
from fcal.training.objectives import Terms

BATCH = 64
STEPS = 12  # of one run


class Clocked:
    """An objective that records when it is called."""

    def __init__(self, config: ObjectiveConfig) -> None:
        self.of = objective(config)
        self.times: list[float] = []

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        self.times.append(time.perf_counter())
        return self.of(model, batch)

    def steps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


Loop = Callable[[nn.Module, Clocked, Bokeh], None]


def plain_loop(model: nn.Module, of: Clocked, data: Bokeh, *, fused: bool | None = None) -> None:
    """The loop that the harness replaces."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=fused)
    model.train()
    total = 0.0
    for indices in torch.randperm(len(data)).split(BATCH):
        batch = data.__getitems__(indices.tolist())
        optimizer.zero_grad()
        loss = torch.stack(list(of(model, batch).values())).sum()
        loss.backward()
        optimizer.step()
        total += loss.item()


def harness(model: nn.Module, of: Clocked, data: Bokeh) -> None:
    config = FitConfig(epochs=1, batch_size=BATCH, learning_rate=1e-4, schedule="constant")
    fit(model, of, data, None, config, progress=False)


def step_seconds(loop: Loop, config: ObjectiveConfig, data: Bokeh) -> list[float]:
    of = Clocked(config)
    torch.manual_seed(0)
    loop(ConvNet(), of, data)
    return of.steps()


def overhead_rows(name: str, config: ObjectiveConfig, data: Bokeh, repeats: int) -> list[Row]:
    """All loops alternate, so that they have the same noise and, from the first run on, the same allocator."""
    loops: tuple[Loop, ...] = (harness, plain_loop, partial(plain_loop, fused=True))
    times: list[list[float]] = [[] for _ in loops]
    for _ in range(BLOCKS * repeats):
        for own, loop in zip(times, loops, strict=True):
            own.extend(step_seconds(loop, config, data))
    ours, plain, fused = map(median, times)
    work = f"a training step by fit(), {name}"
    return [
        overhead_row(work, "plain PyTorch loop", ours, plain),
        overhead_row(work, "the same, its optimizer fused as in fit()", ours, fused),
    ]


def overhead_row(work: str, against: str, ours: float, theirs: float) -> Row:
    return Row(
        work=work,
        count=BATCH,
        against=against,
        ratio=100 * (ours / theirs - 1),
        unit=" % more",
        reach="<= 5 % more",
        met=ours / theirs <= 1.05,
        ours_ms=1e3 * ours,
        theirs_ms=1e3 * theirs,
    )


def predicting(deterministic: bool, images: Tensor) -> Callable[[], float]:
    torch.manual_seed(0)
    model = ConvNet(deterministic=deterministic).eval()

    def step() -> float:
        started = time.perf_counter()
        with torch.inference_mode():
            pred = model(images)
            _ = pred if deterministic else (pred.mean, pred.stddev)
        return time.perf_counter() - started

    return step


def inference_row(images: Tensor, repeats: int) -> Row:
    ours, theirs = medians([predicting(False, images), predicting(True, images)], [repeats, repeats])
    return Row(
        work=f"inference with error bars, {'one image' if len(images) == 1 else 'a batch'}",
        count=len(images),
        against="the same network without",
        ratio=ours / theirs,
        unit="x as long",
        reach="<= 1.05x as long",
        met=ours / theirs <= 1.05,
        ours_ms=1e3 * ours,
        theirs_ms=1e3 * theirs,
    )


def measure(shrink: int, console: Console) -> list[Row]:
    images = max(BATCH * STEPS // shrink, 2 * BATCH)
    data = Bokeh("train", BokehConfig(images=images * 5 // 3, extra=0))
    repeats = max(4 // shrink, 1)
    rows: list[Row] = []
    for name, config in (("likelihood", ObjectiveConfig()), ("f-Cal", ObjectiveConfig(name="fcal"))):
        console.print(name)
        rows += overhead_rows(name, config, data, repeats)
    console.print("inference")
    batch = data.__getitems__(list(range(BATCH)))["input"]
    return [*rows, inference_row(batch, max(200 // shrink, 10)), inference_row(batch[:1], max(2000 // shrink, 10))]


def no_memory(*_: int) -> int:
    return 0


if __name__ == "__main__":
    sys.exit(main(__doc__, "training", measure, no_memory))
