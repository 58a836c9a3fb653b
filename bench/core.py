"""Speed and memory of the core, as ratios in one run against what a user would pick instead.

Every pair is timed in one process and one thread, in alternating blocks, forward + backward, float32; the ratio is that
of the medians. Distributions are built inside the timed region with torch's argument validation off.
"""

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.distributions import Normal
from torch.nn.functional import gaussian_nll_loss

import fcal
from fcal._checks import check_integer
from fcal._files import atomic_path, provenance, write_json


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table; ``reach`` is the bar that ``ratio`` should meet."""

    work: str
    count: int
    against: str
    ratio: float
    reach: str
    met: bool
    ours_ms: float | None = None
    theirs_ms: float | None = None


class Batch:
    """Parameters that require gradients, and targets."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.loc = torch.randn(count, generator=generator).requires_grad_()
        self.scale = (torch.rand(count, generator=generator) + 0.5).requires_grad_()
        self.target = torch.randn(count, generator=generator)

    def step(self, loss: Callable[["Batch"], Tensor]) -> float:
        """Seconds of one forward + backward pass; what an optimizer does between two of them is not timed."""
        self.loc.grad = self.scale.grad = None
        started = time.perf_counter()
        loss(self).backward()
        return time.perf_counter() - started

    def pred(self) -> Normal:
        return Normal(self.loc, self.scale, validate_args=False)


Loss = Callable[[Batch], Tensor]
BLOCKS = 5

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
    """The paper's algorithm: 100 draws of 75 residuals, one by one, by numpy."""
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


def medians(batch: Batch, losses: list[Loss], repeats: int) -> list[float]:
    """Median seconds of each loss; they take turns in short blocks, so that both meet the same noise, caches warm."""
    times: list[list[float]] = [[] for _ in losses]
    for _ in range(BLOCKS):
        for own, loss in zip(times, losses, strict=True):
            batch.step(loss)  # warms caches and allocator after the other loss
            own.extend(batch.step(loss) for _ in range(max(repeats // BLOCKS, 1)))
    return [statistics.median(own) for own in times]


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
        ours, theirs = medians(batch, [self.ours, self.theirs], max(self.repeats // shrink, 1))
        if self.most is not None:
            ratio, reach, met = ours / theirs, f"<= {self.most:g}x the time", ours / theirs <= self.most
        else:
            assert self.least is not None
            ratio, reach, met = theirs / ours, f">= {self.least:g}x faster", theirs / ours >= self.least
        return Row(
            work=self.work,
            count=len(batch.target),
            against=self.against,
            ratio=ratio,
            reach=reach,
            met=met,
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
    """Peak of the resident memory of a fresh process beyond its inputs, gradients included, in inputs."""
    run = subprocess.run(
        [sys.executable, __file__, "--memory-of", str(count)], capture_output=True, text=True, check=True
    )
    ratio = float(run.stdout)
    return Row(
        work="peak extra memory of FCalLoss exact, gradients included",
        count=count,
        against="bytes of one input",
        ratio=ratio,
        reach="<= 4 inputs",
        met=ratio <= 4,
    )


def measured_memory(count: int) -> float:
    torch.set_num_threads(1)
    Batch(1000).step(exact)  # loads every kernel
    batch = Batch(count)
    before = status_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    batch.step(exact)
    return (status_kib("VmHWM") - before) * 1024 / (4 * count)


def status_kib(name: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0])


def table(rows: list[Row]) -> Table:
    printed = Table(title="forward + backward, float32, one thread; ratio of medians in one run")
    for name, side in (
        ("work", "left"),
        ("N", "right"),
        ("against", "left"),
        ("measured", "right"),
        ("our bar", "left"),
    ):
        printed.add_column(name, justify=side)  # type: ignore[arg-type]
    for row in rows:
        style = "green" if row.met else "red"
        printed.add_row(row.work, f"{row.count:.0e}", row.against, f"[{style}]{shown(row)}[/]", row.reach)
    return printed


def shown(row: Row) -> str:
    if row.ours_ms is None:
        return f"{row.ratio:.2f} inputs"
    return f"{row.ratio:.1f}x faster" if "faster" in row.reach else f"{row.ratio:.2f}x the time"


def as_markdown(rows: list[Row]) -> str:
    lines = ["| work | N | against | measured | our bar |", "|---|---|---|---|---|"]
    for row in rows:
        met = "" if row.met else ", missed"
        lines.append(f"| {row.work} | {row.count:.0e} | {row.against} | {shown(row)} | {row.reach}{met} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/core.json"), help="where the JSON goes")
    parser.add_argument("--shrink", type=int, default=1, help="divide sizes and repeats by this, to try the script out")
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of is not None:
        sys.stdout.write(f"{measured_memory(options.memory_of)}\n")
        return 0
    try:
        check_integer("--shrink", options.shrink, at_least=1, at_most=10_000)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        if options.out.is_dir():
            raise ValueError(f"expected `--out` a file, got the folder {options.out}")
        with tempfile.TemporaryFile(dir=options.out.parent):
            pass  # a folder that cannot be written to is refused now, not after the timing
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    torch.set_num_threads(1)
    console = Console(stderr=True)
    rows = [
        comparison.row(options.shrink)
        for comparison in track(COMPARISONS, description="comparing", console=console, disable=not console.is_terminal)
    ]
    rows.append(peak_memory(max(10_000_000 // options.shrink, 1000)))
    write_json(
        options.out,
        {"provenance": provenance(), "threads": 1, "shrink": options.shrink, "rows": [asdict(row) for row in rows]},
    )
    with atomic_path(options.out.with_suffix(".md")) as temporary:
        temporary.write_text(as_markdown(rows), encoding="utf-8")
    Console().print(table(rows))
    sys.stdout.write(f"written to {options.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
