"""Speed of stacked networks: a training step of many small networks at once, against a loop of plain ones.

As many networks as twenty splits with five folds have, each of 8 features, 50 hidden units, a mean and a sigma, on 32
rows of its own, by likelihood with AdamW. Both use the same rows; the loop has a module and an optimiser for
each network, as one would write it by hand. Times are processor times: other work on the machine does not count.
"""

import sys
import time
from collections.abc import Callable

import torch
from measuring import Row, faster, main, medians
from rich.console import Console
from torch import Tensor, nn

from fcal.benchmarks.uci.stacked_training import nll_sum
from fcal.models.ensembles import StackedMLP

FEATURES, ROWS = 8, 32
Step = Callable[[], float]


def stacked_step(networks: StackedMLP, x: Tensor, y: Tensor) -> Step:
    optimizer = torch.optim.AdamW(networks.parameters(), lr=1e-3, fused=True)

    def step() -> float:
        started = time.process_time()
        optimizer.zero_grad()
        nll_sum(networks(x), y).backward()
        optimizer.step()
        return time.process_time() - started

    return step


def looped_step(networks: StackedMLP, x: Tensor, y: Tensor) -> Step:
    plain = [networks.alone(member) for member in range(networks.members)]
    optimizers = [torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True) for network in plain]

    def step() -> float:
        started = time.process_time()
        for network, optimizer, rows, target in zip(plain, optimizers, x, y, strict=True):
            optimizer.zero_grad()
            mean, spread = network(rows).unbind(-1)
            sigma = nn.functional.softplus(spread) + networks.floor
            (sigma.log() + 0.5 * ((target - mean) / sigma).square()).mean().backward()
            optimizer.step()
        return time.process_time() - started

    return step


def measure(shrink: int, console: Console) -> list[Row]:
    rows = []
    for hidden in ((50,), (64, 64)):
        members = max(100 // shrink, 2)
        console.print(f"{members} networks of {hidden}")
        networks = StackedMLP(members, FEATURES, hidden)
        x, y = torch.randn(members, ROWS, FEATURES), torch.randn(members, ROWS)
        repeats = max(50 // shrink, 5)
        seconds = medians([stacked_step(networks, x, y), looped_step(networks, x, y)], [repeats, repeats])
        name = " x ".join(map(str, hidden))
        work = f"a training step of stacked networks, hidden units {name}"
        rows.append(faster(work, members, "a loop of plain ones", (seconds[0], seconds[1]), 5.0))
    return rows


def no_memory(*_: int) -> int:
    return 0


if __name__ == "__main__":
    sys.exit(main(__doc__, "stacked", measure, no_memory))
