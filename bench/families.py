"""Speed and memory of the families: FCalLoss, forward + backward, as a multiple of Normal through the same call.

One process, one thread, float32, every parameter with a gradient; the families take turns with Normal in alternating
blocks. Distributions are built inside the timed region with torch's argument validation off.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from measuring import Row, extra_bytes, extra_bytes_in_fresh_process, main, medians
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.distributions import (
    Beta,
    Categorical,
    Cauchy,
    Distribution,
    Exponential,
    FisherSnedecor,
    Gamma,
    GeneralizedPareto,
    Gumbel,
    HalfNormal,
    InverseGamma,
    Laplace,
    LogNormal,
    MixtureSameFamily,
    Normal,
    StudentT,
    Uniform,
    Weibull,
)

import fcal
from fcal.distributions import AsymmetricLaplace, Logistic, TruncatedNormal

LOSS = fcal.FCalLoss()
COMPONENTS = 5
MEGABYTES = 1e6
SOURCE = torch.Generator().manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=SOURCE)


def uniform(low: float, high: float, *shape: int) -> Tensor:
    return low + (high - low) * torch.rand(*shape, generator=SOURCE)


def mixture(logits: Tensor, loc: Tensor, scale: Tensor) -> Distribution:
    weights = Categorical(logits=logits, validate_args=False)
    return MixtureSameFamily(weights, Normal(loc, scale, validate_args=False), validate_args=False)


class Case(NamedTuple):
    """A family: how to build it, its parameters and targets for n elements, and the bar on its ratio, if any."""

    name: str
    build: Callable[..., Distribution]
    parameters: Callable[[int], list[Tensor]]
    targets: Callable[[int], Tensor]
    most: float | None = None
    with_memory: bool = False


def location_scale(n: int) -> list[Tensor]:
    return [normal(n), uniform(0.5, 1.5, n)]


def positive(n: int) -> Tensor:
    return normal(n).exp()


def within_one(n: int) -> Tensor:
    return normal(n).sigmoid()


def shapes(low: float, high: float, count: int, n: int) -> list[Tensor]:
    return [uniform(low, high, n) for _ in range(count)]


def plain(kind: type[Distribution]) -> Callable[..., Distribution]:
    return partial(kind, validate_args=False)


def components(n: int) -> list[Tensor]:
    return [normal(n, COMPONENTS), uniform(0.5, 1.5, n, COMPONENTS)]


CASES = [
    Case("Normal", plain(Normal), location_scale, normal),
    Case("Laplace", plain(Laplace), location_scale, normal, most=3, with_memory=True),
    Case(
        "StudentT, df 2 to 30",
        plain(StudentT),
        lambda n: [uniform(2, 30, n), *location_scale(n)],
        normal,
        most=60,
        with_memory=True,
    ),
    Case(
        "Gamma, shape 0.5 to 6",
        plain(Gamma),
        lambda n: [uniform(0.5, 6, n), uniform(0.5, 1.5, n)],
        positive,
        most=60,
        with_memory=True,
    ),
    Case("Beta, shapes 0.5 to 6", plain(Beta), partial(shapes, 0.5, 6, 2), within_one, with_memory=True),
    Case(
        "MixtureSameFamily, 5 Normal",
        mixture,
        lambda n: [normal(n, COMPONENTS), *components(n)],
        normal,
        most=25,
        with_memory=True,
    ),
    Case(
        "MixtureSameFamily, 5 Normal, weights fixed",
        lambda loc, scale: mixture(torch.zeros(COMPONENTS), loc, scale),
        components,
        normal,
        most=25,
        with_memory=True,
    ),
    Case("InverseGamma, shape 0.5 to 6", plain(InverseGamma), partial(shapes, 0.5, 6, 2), positive),
    Case("FisherSnedecor, df 1 to 12", plain(FisherSnedecor), partial(shapes, 1, 12, 2), positive),
    Case(
        "GeneralizedPareto, index 0.1 to 0.5",
        plain(GeneralizedPareto),
        lambda n: [-uniform(0, 1, n), uniform(0.5, 1.5, n), uniform(0.1, 0.5, n)],
        positive,
    ),
    Case(
        "AsymmetricLaplace",
        plain(AsymmetricLaplace),
        lambda n: [*location_scale(n), uniform(0.5, 2, n)],
        normal,
    ),
    Case(
        "TruncatedNormal",
        plain(TruncatedNormal),
        lambda n: [*location_scale(n), -uniform(0, 1, n), 1 + uniform(0, 1, n)],
        within_one,
    ),
    Case("Logistic", plain(Logistic), location_scale, normal),
    Case("Cauchy", plain(Cauchy), location_scale, normal),
    Case("Gumbel", plain(Gumbel), location_scale, normal),
    Case("LogNormal", plain(LogNormal), location_scale, positive),
    Case("Weibull", plain(Weibull), partial(shapes, 0.5, 2, 2), positive),
    Case("Exponential", plain(Exponential), partial(shapes, 0.5, 2, 1), positive),
    Case("HalfNormal", plain(HalfNormal), partial(shapes, 0.5, 2, 1), positive),
    Case("Uniform", plain(Uniform), lambda n: [-uniform(0, 1, n), 1 + uniform(0, 1, n)], within_one),
]


class Batch:
    """Parameters that require gradients, and targets, of one case."""

    def __init__(self, case: Case, count: int) -> None:
        self.case = case
        self.parameters = [p.requires_grad_() for p in case.parameters(count)]
        self.target = case.targets(count)

    def step(self) -> float:
        """Seconds of one forward + backward pass."""
        for parameter in self.parameters:
            parameter.grad = None
        started = time.perf_counter()
        LOSS(self.case.build(*self.parameters), self.target).backward()
        return time.perf_counter() - started


def weights_row(count: int, repeats: int) -> Row:
    """Seconds that torch needs to normalise the weights of a mixture, forward + backward, before any loss."""
    logits = normal(count, COMPONENTS).requires_grad_()

    def step() -> float:
        logits.grad = None
        started = time.perf_counter()
        Categorical(logits=logits, validate_args=False).logits.sum().backward()
        return time.perf_counter() - started

    ours, theirs = medians([step, Batch(CASES[0], count).step], [repeats, 5 * repeats])
    return Row(
        work=f"torch's Categorical of {COMPONENTS} alone",
        count=count,
        against="Normal",
        ratio=ours / theirs,
        unit="x the time",
        reach="none",
        met=True,
        ours_ms=1e3 * ours,
        theirs_ms=1e3 * theirs,
    )


def time_row(case: Case, count: int, repeats: int) -> Row:
    ours, theirs = medians([Batch(case, count).step, Batch(CASES[0], count).step], [repeats, 5 * repeats])
    return Row(
        work=case.name,
        count=count,
        against="Normal",
        ratio=ours / theirs,
        unit="x the time",
        reach="none" if case.most is None else f"<= {case.most:g}x the time",
        met=case.most is None or ours / theirs <= case.most,
        ours_ms=1e3 * ours,
        theirs_ms=1e3 * theirs,
    )


def memory_row(index: int, count: int) -> Row:
    used = extra_bytes_in_fresh_process(__file__, "--memory-of", str(index), str(count)) / MEGABYTES
    return Row(
        work=f"peak extra memory of {CASES[index].name}, gradients included",
        count=count,
        against="bound",
        ratio=used,
        unit=" MB",
        reach="< 1000 MB",
        met=used < 1000,
    )


def measured_memory(index: int, count: int) -> int:
    Batch(CASES[index], 1000).step()  # loads every kernel
    return extra_bytes(Batch(CASES[index], count).step)


def measured(shrink: int, console: Console) -> list[Row]:
    cases = track(CASES[1:], description="families", console=console, disable=not console.is_terminal)
    count, repeats = max(1_000_000 // shrink, 200), max(25 // shrink, 5)
    rows = [time_row(case, count, repeats) for case in cases]
    watched = [index for index, case in enumerate(CASES) if case.with_memory]
    return [
        *rows,
        weights_row(count, repeats),
        *(memory_row(index, max(10_000_000 // shrink, 1000)) for index in watched),
    ]


if __name__ == "__main__":
    sys.exit(main(__doc__, "families", measured, measured_memory))
