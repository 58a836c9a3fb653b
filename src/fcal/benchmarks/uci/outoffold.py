"""Rows that hold nothing out: a network of all rows, and error bars from networks that have not seen the row."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Normal

from fcal.benchmarks.uci.fits import held_out_prediction, without_folds
from fcal.benchmarks.uci.problems import Problem
from fcal.benchmarks.uci.training import Loss, Schedule, predicted, train
from fcal.crossfitting import levelled
from fcal.models.ensembles import StackedMLP
from fcal.recalibration import Recalibrator

_MOST_AT_ONCE = 20_000_000


@dataclass(frozen=True, kw_only=True)
class OutOfFold:
    """What out-of-fold rows are made from; standardised, shape ``(splits, rows)``.

    Attributes:
        held_out: What the network that has not seen a row says of it, in the order of ``task.train``.
        seen: What the network of all rows says of them.
        test: What it says of the rows to test on.
    """

    held_out: Normal
    seen: Normal
    test: Normal


def out_of_fold(task: Problem, networks: dict[str, StackedMLP]) -> OutOfFold:
    """Predictions of the fold networks and of the network of all rows."""
    splits = torch.arange(task.splits)
    return OutOfFold(
        held_out=held_out_prediction(task, networks["folds"]),
        seen=predicted(networks["full"], task.x, task.train, splits),
        test=predicted(networks["full"], task.x, task.test, splits),
    )


def of_split(pred: Normal, split: int) -> Normal:
    """One split's part."""
    return Normal(pred.loc[split], pred.scale[split])


def fitted(task: Problem, known: OutOfFold, split: int, repair: Recalibrator, *, level: bool = True) -> Recalibrator:
    """A repair of the network of all rows, fitted to held-out rows at that network's level, in original units."""
    held_out, seen = of_split(known.held_out, split), of_split(known.seen, split)
    moved = levelled(held_out, seen, task.fold[split]) if level else held_out
    assert isinstance(moved, Normal)
    return repair.fit(task.original(moved, split), task.raw[task.train[split]])


def with_sigmas(
    task: Problem, networks: dict[str, StackedMLP], known: OutOfFold, *, loss: Loss, schedule: Schedule, seed: int
) -> tuple[OutOfFold, list[int]]:
    r"""The same means with error bars of networks that were fitted to out-of-fold residuals.

    Copies of the network of all rows and of the fold networks train on; their targets are out-of-fold residuals,
    divided by the one factor that makes them 1 on average, so that they start at what one factor does. The copy of a
    fold network learns only from rows of the other folds: what it says of its own fold chooses the epoch, 0 included,
    and is what a last factor is fitted to.

    Args:
        task: The table.
        networks: Of the shared trainings.
        known: Their predictions.
        loss: Of a prediction around its center.
        schedule: Of the training.
        seed: Of the orders of rows.

    Returns:
        Predictions with other error bars, and the chosen epoch of each split.
    """
    target = task.y.gather(1, task.train)
    factor = ((target - known.held_out.loc) / known.held_out.scale).square().mean(1, keepdim=True).sqrt()
    center, scaled = torch.zeros_like(task.y), task.y.clone()
    center.scatter_(1, task.train, known.held_out.loc)
    scaled.scatter_(1, task.train, known.held_out.loc + (target - known.held_out.loc) / factor)
    splits = torch.arange(task.splits)
    rows, split = without_folds(task)
    traces = {
        name: train(
            networks[name].select(torch.arange(networks[name].members)),
            task.x,
            scaled,
            *where,
            loss=loss,
            schedule=schedule,
            seed=seed,
            center=center,
        )
        for name, where in (("folds", (rows, split)), ("full", (task.train, splits)))
    }
    kept = [known.held_out.scale] + [
        held_out_prediction(task, traces["folds"].at(place)).scale for place in range(len(traces["folds"].epochs))
    ]
    scores = torch.stack([_repaired_nll(sigma, target - known.held_out.loc) for sigma in kept])
    best = scores.argmin(0)
    epochs = [0, *traces["folds"].epochs]
    full = [
        networks["full"],
        *(traces["full"].at(place) for place in range(len(traces["full"].epochs))),
    ]
    chosen = networks["full"].with_theta(torch.stack([one.theta.detach() for one in full])[best, splits])

    def with_scale(pred: Normal, sigma: Tensor) -> Normal:
        return Normal(pred.loc, sigma * factor)

    return (
        OutOfFold(
            held_out=with_scale(known.held_out, torch.stack(kept)[best, splits]),
            seen=with_scale(known.seen, predicted(chosen, task.x, task.train, splits).scale),
            test=with_scale(known.test, predicted(chosen, task.x, task.test, splits).scale),
        ),
        [epochs[place] for place in best.tolist()],
    )


def _repaired_nll(sigma: Tensor, error: Tensor) -> Tensor:
    """Negative log-likelihood after the most likely factor, without its constant. Shape ``(splits,)``."""
    square = (error / sigma).double().square().mean(1)
    return sigma.double().log().mean(1) + 0.5 * square.log()


def cv_plus(residuals: Sequence[Tensor], means: Tensor, level: float) -> tuple[Tensor, Tensor]:
    r"""Intervals of CV+ (Barber et al. 2021), which hold new targets with probability at least :math:`1 - 2\alpha`.

    The upper end is the :math:`\lceil (1 - \alpha)(n + 1) \rceil`-th smallest of :math:`\hat\mu_{-k(i)}(x) + R_i` over
    all rows i, :math:`R_i` the absolute residual of a row by the network without its fold; the lower end mirrors it.
    Ends are found by halving, on sorted residuals of each fold, so that no matrix of all rows by all rows is needed.

    Args:
        residuals: For each fold, absolute residuals of its rows by the network that has not seen them.
        means: What each fold's network says of new rows. Shape ``(folds, m)``.
        level: Probability :math:`1 - \alpha`.

    Returns:
        Lower and upper ends, shape ``(m,)``; infinite where there are too few rows for the level.

    Example:
        >>> low, high = cv_plus([torch.tensor([1.0, 2.0, 3.0]).double()], torch.zeros(1, 1).double(), 0.5)
        >>> low, high
        (tensor([-2.], dtype=torch.float64), tensor([2.], dtype=torch.float64))
    """
    upper = _upper_end([part.sort().values for part in residuals], means, level)
    return -_upper_end([part.sort().values for part in residuals], -means, level), upper


def _upper_end(residuals: Sequence[Tensor], means: Tensor, level: float) -> Tensor:
    count = sum(len(part) for part in residuals)
    rank = -int(-(level * (count + 1) - 1e-9) // 1)
    if rank > count:
        return torch.full_like(means[0], torch.inf)
    low = means.min(0).values
    high = means.max(0).values + max(float(part[-1]) for part in residuals)
    for _ in range(64):
        middle = (low + high) / 2
        below = sum(
            torch.searchsorted(part, middle - mean, right=True) for part, mean in zip(residuals, means, strict=True)
        )
        enough = torch.as_tensor(below) >= rank
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high
