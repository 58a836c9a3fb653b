"""The trainings by likelihood that all rows of a table share: fold networks, and networks of all rows."""

import dataclasses
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal

from fcal.benchmarks.uci.problems import Problem, problem, same_length
from fcal.benchmarks.uci.settings import NETWORKS, Settings
from fcal.benchmarks.uci.training import Loss, Schedule, Trace, nll_sum, predicted, squared_error_sum, train
from fcal.data.uci import read_uci
from fcal.models.ensembles import StackedMLP
from fcal.sweeps import Cell, Store, load_tensors, save_tensors

KIND = "uci-fit"
VERSION = 1  # part of every address; to be raised when the same config would give other numbers
_WEIGHTS = ".safetensors"
_HELD_OUT = 0  # the fold that methods with a held-out set hold out


def fit_cell(settings: Settings, dataset: str, network: str, *, digest: str) -> Cell:
    """The trainings by likelihood for one table, of which ``digest`` is the fingerprint, and network."""
    config = {
        "version": VERSION,
        "dataset": dataset,
        "digest": digest,
        "network": network,
        "hidden": NETWORKS[network],
        "splits": settings.splits[network],
        "folds": settings.folds,
        "members": settings.members,
        "schedule": dataclasses.asdict(settings.schedule(dataset, network)),
        "seed": settings.seed,
    }
    return Cell(KIND, config, artifacts=(_WEIGHTS,), affinity=dataset, label=f"{dataset} {network}: networks")


@lru_cache(maxsize=2)
def problem_of(data: str, dataset: str, splits: int, folds: int, seed: int) -> Problem:
    """The table of a cell, standardised; two are kept in memory."""
    return problem(read_uci(data, dataset, splits=splits), folds=folds, seed=seed)


def fit(config: Mapping[str, Any], data: str, store: Store) -> dict[str, Any]:
    """Compute such a cell: weights at the chosen epochs become an artifact, the choice its result."""
    task = problem_of(data, config["dataset"], config["splits"], config["folds"], config["seed"])
    schedule = Schedule(**config["schedule"])
    start = time.process_time()
    folds = fold_trace(task, config["hidden"], schedule, seed=config["seed"])
    middle = time.process_time()
    members = member_trace(task, config["hidden"], schedule, count=config["members"], seed=config["seed"])
    end = time.process_time()
    chosen = choose(task, folds)
    save_tensors(store.artifact(KIND, config, _WEIGHTS), _networks(task, folds, members, chosen))
    return {
        "status": "done",
        "epochs": folds.epochs,
        "chosen": {name: places.tolist() for name, places in chosen.items()},
        "fold_s": round(middle - start, 3),
        "member_s": round(end - middle, 3),
    }


def fold_trace(task: Problem, hidden: tuple[int, ...], schedule: Schedule, *, seed: int, loss: Loss = nll_sum) -> Trace:
    """Networks trained without each fold, fold by fold: network ``fold * splits + split``."""
    start = StackedMLP(
        task.folds * task.splits, task.x.shape[-1], hidden, generator=torch.Generator().manual_seed(1000 * seed + 1)
    )
    rows, split = without_folds(task)
    return train(start, task.x, task.y, rows, split, loss=loss, schedule=schedule, seed=1000 * seed + 2)


def member_trace(task: Problem, hidden: tuple[int, ...], schedule: Schedule, *, count: int, seed: int) -> Trace:
    """Networks trained on all rows: network ``member * splits + split``; the first member is what rows are about."""
    start = StackedMLP(
        count * task.splits, task.x.shape[-1], hidden, generator=torch.Generator().manual_seed(1000 * seed + 3)
    )
    split = torch.arange(task.splits).repeat(count)
    rows = task.train.repeat(count, 1)
    return train(start, task.x, task.y, rows, split, loss=nll_sum, schedule=schedule, seed=1000 * seed + 4)


def deterministic_trace(task: Problem, hidden: tuple[int, ...], schedule: Schedule, *, seed: int) -> Trace:
    """Networks of the mean alone, without the rows that are held out."""
    start = StackedMLP(task.splits, task.x.shape[-1], hidden, generator=torch.Generator().manual_seed(1000 * seed + 5))
    rows = same_length([task.seen(split, _HELD_OUT) for split in range(task.splits)])
    split = torch.arange(task.splits)
    return train(start, task.x, task.y, rows, split, loss=squared_error_sum, schedule=schedule, seed=1000 * seed + 6)


def without_folds(task: Problem) -> tuple[Tensor, Tensor]:
    """Rows and splits of all fold networks."""
    pairs = [(split, fold) for fold in range(task.folds) for split in range(task.splits)]
    return same_length([task.seen(*pair) for pair in pairs]), torch.tensor([split for split, _ in pairs])


def held_out_prediction(task: Problem, folds: StackedMLP) -> Normal:
    """What the network that has not seen a row says of it, standardised. Shape ``(splits, n_train)``.

    In the order of ``task.train``.
    """
    mean, sigma = torch.empty(task.train.shape), torch.empty(task.train.shape)
    for split in range(task.splits):
        for fold in range(task.folds):
            member = torch.tensor([fold * task.splits + split])
            rows = task.held_out(split, fold)[None]
            pred = predicted(folds.select(member), task.x, rows, torch.tensor([split]))
            held = task.fold[split] == fold
            mean[split, held], sigma[split, held] = pred.loc[0], pred.scale[0]
    return Normal(mean, sigma)


def choose(task: Problem, folds: Trace) -> dict[str, Tensor]:
    """Which of the kept epochs is best for each split, by rows that the networks have not seen.

    Returns:
        ``nll``: by the likelihood of the held-out rows. ``repaired``: by the same after one factor on sigma, which is
        what a repaired row is judged by. ``members``: by the likelihood of all folds. ``folds``: by the same after one
        factor.
    """
    scores: dict[str, list[Tensor]] = {"nll": [], "repaired": [], "members": [], "folds": []}
    target = task.y.gather(1, task.train)
    alone = task.fold == _HELD_OUT
    for place in range(len(folds.epochs)):
        pred = held_out_prediction(task, folds.at(place))
        log_sigma = pred.scale.double().log()
        square = ((target - pred.loc) / pred.scale).double().square()
        for name, rows, factor in (
            ("nll", alone, False),
            ("repaired", alone, True),
            ("members", torch.ones_like(alone), False),
            ("folds", torch.ones_like(alone), True),
        ):
            scores[name].append(_mean_nll(log_sigma, square, rows, factor=factor))
    return {name: torch.stack(each).argmin(0) for name, each in scores.items()}


def _mean_nll(log_sigma: Tensor, square: Tensor, rows: Tensor, *, factor: bool) -> Tensor:
    """Negative log-likelihood of some rows of each split, where so after the most likely factor on sigma."""
    count = rows.sum(1)
    level, spread = (log_sigma * rows).sum(1) / count, (square * rows).sum(1) / count
    return level + 0.5 * (spread.log() + 1) if factor else level + 0.5 * spread


def _networks(task: Problem, folds: Trace, members: Trace, chosen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters of all networks that rows are made of."""
    splits = torch.arange(task.splits)
    by_fold = chosen["folds"].repeat(task.folds)
    count = members.network.members // task.splits
    held_out = _HELD_OUT * task.splits + splits
    return {
        "nll": folds.thetas[chosen["nll"], held_out],
        "repaired": folds.thetas[chosen["repaired"], held_out],
        "nll_all": members.thetas[chosen["nll"], splits],
        "full": members.thetas[chosen["folds"], splits],
        "folds": folds.thetas[by_fold, torch.arange(len(by_fold))],
        "members": members.thetas[chosen["members"].repeat(count), torch.arange(count * task.splits)],
    }


def networks_of(cell: Cell, task: Problem, store: Store) -> dict[str, StackedMLP]:
    """The networks of a finished cell."""
    thetas = load_tensors(store.artifact(KIND, cell.config, _WEIGHTS))
    if thetas is None:
        raise FileNotFoundError(f"expected the weights of {cell.name} in {store.artifact(KIND, cell.config, _WEIGHTS)}")
    shape = StackedMLP(1, task.x.shape[-1], cell.config["hidden"])
    return {name: shape.with_theta(theta) for name, theta in thetas.items()}
