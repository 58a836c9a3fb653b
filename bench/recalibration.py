"""Speed of recalibration, as ratios to netcal, and the likelihood that both reach on new data.

Normal predictions whose sigma is half of the true one (in one case also wrong by a wave), N = 2000 rows to fit and as
many to recalibrate, one process, one thread. Both return what a user needs of a recalibrated prediction: netcal density
and CDF on 512 points (its only output, from which mean, sd and quantiles are sums); ours mean, sd, five quantiles and
the CDF at the target, and in a second row the density and CDF on the same number of points.

NLL of netcal is computed from its grid in its favour: the density between the two points around a target, by linear
interpolation; beyond the grid, where netcal gives no density at all, the density of the outermost point.
netcal is installed only by the extra ``bench``.
"""

import contextlib
import io
import logging
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measuring import Row, faster, main, medians
from rich.console import Console
from torch import Tensor
from torch.distributions import Distribution, Normal

import fcal
from fcal.recalibration import GPBeta, Isotonic, Recalibrator

COUNT = 2000
POINTS = 512
WRONG = 0.5  # factor on sigma
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


class Data:
    """Rows to fit and fresh rows; sigma is wrong by a factor that may depend on the input."""

    def __init__(self, count: int, *, wavy: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(0)
        self.fit, self.fresh = (self._rows(count, generator, wavy) for _ in range(2))

    @staticmethod
    def _rows(count: int, generator: torch.Generator, wavy: float) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread, noise = (torch.randn(count, generator=generator) for _ in range(3))
        sigma = torch.exp(0.5 * spread)
        target = 3 * mean + sigma * noise
        return 3 * mean, WRONG * sigma * torch.exp(wavy * torch.sin(3 * mean)), target


def prediction(rows: tuple[Tensor, Tensor, Tensor]) -> Normal:
    return Normal(rows[0], rows[1], validate_args=False)


def ours(kind: Callable[[], Recalibrator], data: Data) -> Distribution:
    """Fit, transform, and what users usually need of the predictions."""
    law = kind().fit(prediction(data.fit), data.fit[2]).transform(prediction(data.fresh))
    _ = law.mean, law.stddev, law.cdf(data.fresh[2]), law.icdf(torch.tensor(LEVELS).unsqueeze(-1))
    return law


def ours_on_grid(kind: Callable[[], Recalibrator], data: Data) -> Distribution:
    """Fit, transform, and the density and CDF on as many points as netcal returns."""
    law = kind().fit(prediction(data.fit), data.fit[2]).transform(prediction(data.fresh))
    low, high = (fcal.distributions.quantile(law, p) for p in (1e-7, 1 - 1e-7))
    grid = low + (high - low) * torch.linspace(0, 1, POINTS).unsqueeze(-1)
    _ = law.log_prob(grid).exp(), law.cdf(grid)
    return law


def theirs(kind: Callable[[], Any], data: Data) -> tuple[Any, Any, Any]:
    """The same with netcal: points, density and CDF. Shapes ``(512, N, 1)``."""
    fit, fresh = ([part.double().numpy() for part in rows] for rows in (data.fit, data.fresh))
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        method = kind()
        method.fit((fit[0], fit[1]), fit[2])
        result: tuple[Any, Any, Any] = method.transform((fresh[0], fresh[1]), POINTS)
    return result


def nll_on_grid(result: tuple[Any, Any, Any], target: Tensor) -> float:
    """Mean negative log-likelihood from a density on a grid; see the top of this file."""
    points, density = result[0][..., 0], result[1][..., 0]
    y = target.double().numpy()
    values = [np.interp(y[i], points[:, i], density[:, i]) for i in range(len(y))]
    return float(-np.log(np.maximum(values, 1e-300)).mean())


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def likelihood_row(work: str, against: str, mine: float, other: float, count: int) -> Row:
    return Row(
        work=f"{work}: NLL on fresh rows, {mine:.3f}",
        count=count,
        against=f"{against}: {other:.3f}",
        ratio=mine - other,
        unit=" nats more",
        reach="<= 0 nats more",
        met=mine <= other,
    )


def isotonic_rows(data: Data, count: int, shrink: int) -> list[Row]:
    from netcal.regression import IsotonicRegression

    name = "netcal IsotonicRegression"
    steps = [
        lambda: timed(lambda: ours(Isotonic, data)),
        lambda: timed(lambda: ours_on_grid(Isotonic, data)),
        lambda: timed(lambda: theirs(IsotonicRegression, data)),
    ]
    mine, on_grid, other = medians(steps, [max(50 // shrink, 5), 5, 5])
    score = fcal.nll(ours(Isotonic, data), data.fresh[2]).mean().item()
    return [
        faster("Isotonic, fit + transform, moments and quantiles", count, name, (mine, other), 100),
        faster("Isotonic, fit + transform, density and CDF on 512 points", count, name, (on_grid, other), 1),
        likelihood_row("Isotonic", name, score, nll_on_grid(theirs(IsotonicRegression, data), data.fresh[2]), count),
    ]


def gp_rows(data: Data, problem: str, count: int, shrink: int) -> list[Row]:
    from netcal.regression import GPBeta as NetcalGPBeta

    logging.disable(logging.INFO)  # of pyro
    name = f"netcal GPBeta, its defaults{', fewer epochs' if shrink > 1 else ''}"
    epochs = max(200 // shrink, 1)
    ours(lambda: GPBeta(steps=2), data)  # imports gpytorch
    mine = min(timed(lambda: ours(GPBeta, data)) for _ in range(2))
    results: list[Any] = []
    torch.manual_seed(0)  # netcal draws from torch's own state
    other = timed(lambda: results.append(theirs(lambda: NetcalGPBeta(n_epochs=epochs), data)))
    score = fcal.nll(ours(GPBeta, data), data.fresh[2]).mean().item()
    return [
        faster(f"GPBeta, fit + transform, moments and quantiles, {problem}", count, name, (mine, other), 10),
        likelihood_row(f"GPBeta, {problem}", name, score, nll_on_grid(results[0], data.fresh[2]), count),
    ]


def measure(shrink: int, console: Console) -> list[Row]:
    try:
        import netcal.regression  # noqa: F401
    except ImportError:
        sys.stderr.write("expected netcal for this comparison; pip install 'fcal[bench]'\n")
        raise SystemExit(2) from None
    count = max(COUNT // shrink, 100)
    console.print("isotonic")
    rows = isotonic_rows(Data(count), count, shrink)
    console.print("GP-Beta, for which netcal takes minutes")
    rows += gp_rows(Data(count), "sigma x 1/2", count, shrink)
    return rows + gp_rows(Data(count, wavy=0.6), "sigma wrong by a wave", count, shrink)


def no_memory(*_: int) -> int:
    return 0


if __name__ == "__main__":
    sys.exit(main(__doc__, "recalibration", measure, no_memory))
