"""Cost of repaired predictions, as ratios to the unrepaired ones in one run, one thread, processor time.

``evaluate`` takes mean, sd, residual, NLL and CRPS of every row; quantiles and samples are timed by themselves.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch
from measuring import Row, main, rounds, timed
from rich.console import Console
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal, StudentT

import fcal
from fcal.distributions import Empirical, quantile
from fcal.recalibration import by_name

COUNT = 100_000
FITTED = 2_000
METHODS = ("temperature", "scale-and-shape", "isotonic", "conformal")
MOST = 20.0  # times the cost of the unrepaired prediction
ROUNDS = 3


class Laws:
    """Predictions of several families whose errors are 1.5 times as large as they say."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(count)
        mean, scale = 3 * torch.randn(count, generator=generator), 0.5 + torch.rand(count, generator=generator)
        self.target = mean + 1.5 * scale * torch.randn(count, generator=generator)
        members = mean[:, None] + 0.3 * torch.randn(count, 5, generator=generator)
        scales = scale[:, None] * (0.7 + 0.6 * torch.rand(count, 5, generator=generator))
        shape = 5 + 10 * torch.rand(count, generator=generator)
        few = count // 10
        samples = mean[:few, None] + scale[:few, None] * torch.randn(few, 30, generator=generator)
        self.laws: dict[str, Distribution] = {
            "normal": Normal(mean, scale),
            "mixture of 5": MixtureSameFamily(Categorical(logits=torch.zeros(count, 5)), Normal(members, scales)),
            "Student's t": StudentT(shape, mean, scale),
            "30 samples": Empirical(samples),
        }


def works(law: Distribution, target: Tensor) -> dict[str, Callable[[], object]]:
    """What users do with predictions."""
    return {
        "evaluate": lambda: fcal.evaluate(law, target),
        "quantile": lambda: quantile(law, 0.95),
        "sample": law.sample,
    }


def measure(shrink: int, console: Console) -> list[Row]:
    fitted, applied = Laws(max(FITTED // shrink, 300)), Laws(max(COUNT // shrink, 300))
    rows: list[Row] = []
    for name, law in applied.laws.items():
        console.print(name)
        target, known = applied.target[: len(law.mean)], fitted.laws[name]
        repairs = {m: by_name(m)().fit(known, fitted.target[: len(known.mean)]).transform(law) for m in METHODS}
        rows += _rows(name, works(law, target), {m: works(repaired, target) for m, repaired in repairs.items()}, target)
    return rows


def _rows(
    name: str,
    plain: dict[str, Callable[[], object]],
    repaired: dict[str, dict[str, Callable[[], object]]],
    target: Tensor,
) -> Iterator[Row]:
    for work, unrepaired in plain.items():
        steps = [unrepaired, *(own[work] for own in repaired.values())]
        seconds = rounds([partial(timed, step) for step in steps], ROUNDS)
        for method, own in zip(repaired, seconds[1:], strict=True):
            ratio = median(mine / theirs for mine, theirs in zip(own, seconds[0], strict=True))
            yield Row(
                work=f"{work} of {name}, {method}",
                count=len(target),
                against="the unrepaired prediction",
                ratio=ratio,
                unit="x the time",
                reach=f"<= {MOST:g}x the time",
                met=ratio <= MOST,
            )


def no_memory(*_: int) -> int:
    return 0


if __name__ == "__main__":
    sys.exit(main(__doc__, "repaired_laws", measure, no_memory))
