"""Trainings of the UCI benchmark: the networks that all rows of a table share, and those of single rows."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal

from fcal.benchmarks.problem import Failed
from fcal.benchmarks.trainings import WEIGHTS, seeded, training_cell
from fcal.benchmarks.uci.settings import NETWORKS, Schedule, Settings
from fcal.benchmarks.uci.splits import Splits, same_length, splits_of
from fcal.benchmarks.uci.stacked_training import Loss, Trace, in_shares, nll_sum, predicted, train
from fcal.models.ensembles import StackedMLP
from fcal.sweeps import Cell, Store, load_tensors, save_tensors

FIT = "uci-fit"
_VERSION = 1  # part of every address; increase it when the same config gives different numbers
Networks = Mapping[str, StackedMLP]


def fit_config(settings: Settings, dataset: str, network: str, *, digest: str) -> dict[str, Any]:
    """Address of the trainings by likelihood for one network and table with the fingerprint ``digest``."""
    return {
        "version": _VERSION,
        "dataset": dataset,
        "digest": digest,
        "network": network,
        "hidden": NETWORKS[network],
        "splits": settings.splits[network],
        "folds": settings.folds,
        "members": settings.members,
        "schedule": asdict(settings.schedule(dataset, network)),
        "seed": settings.seed,
    }


def fit_cell(config: Mapping[str, Any]) -> Cell:
    """The trainings of an address."""
    name = f"{config['dataset']} {config['network']}"
    return training_cell(FIT, config, affinity=name, label=f"{name}: networks")


def fit(config: Mapping[str, Any], data: str, store: Store) -> dict[str, Any]:
    """Train all networks of a table: weights at the chosen epochs become an artifact, the choice is the result."""
    splits = splits_in(config, data)
    schedule = Schedule(**config["schedule"])
    start = time.process_time()
    folds = fold_trace(splits, config["hidden"], schedule, seed=config["seed"])
    middle = time.process_time()
    members = member_trace(splits, config["hidden"], schedule, count=config["members"], seed=config["seed"])
    end = time.process_time()
    chosen, numbers = choose_epochs(splits, folds), splits.numbers
    networks = {  # those of the first fold come first among fold networks
        "nll": folds.at(chosen["nll"], numbers),
        "repaired": folds.at(chosen["repaired"], numbers),
        "nll_all": members.at(chosen["nll"], numbers),
        "full": members.at(chosen["folds"], numbers),
        "folds": folds.at(chosen["folds"].repeat(splits.folds)),
        "members": members.at(chosen["members"].repeat(config["members"])),
    }
    thetas = {name: network.theta.detach() for name, network in networks.items()}
    save_tensors(store.artifact(FIT, config, WEIGHTS), thetas)
    return {
        "status": "done",
        "epochs": folds.epochs,
        "chosen": {name: indices.tolist() for name, indices in chosen.items()},
        "fold_s": round(middle - start, 3),
        "member_s": round(end - middle, 3),
    }


def splits_in(config: Mapping[str, Any], data: str) -> Splits:
    """The standardised splits of an address."""
    return splits_of(data, config["dataset"], config["splits"], config["folds"], config["seed"])


def load_fit(config: Mapping[str, Any], features: int, store: Store) -> dict[str, StackedMLP]:
    """The networks of a finished training.

    Raises:
        FileNotFoundError: There are no weights, or they are damaged.
    """
    path = store.artifact(FIT, config, WEIGHTS)
    thetas = load_tensors(path)
    if thetas is None:
        raise FileNotFoundError(f"expected the weights of {fit_cell(config).name} in {path}")
    shape = StackedMLP(1, features, config["hidden"])
    return {name: shape.with_theta(theta) for name, theta in thetas.items()}


def fold_trace(splits: Splits, hidden: tuple[int, ...], schedule: Schedule, *, seed: int) -> Trace:
    """Networks trained without each fold, fold by fold: network ``fold * splits + split``."""
    start = StackedMLP(splits.folds * splits.count, splits.x.shape[-1], hidden, generator=_generator(1000 * seed + 1))
    rows = without_folds(splits)
    return train(start, splits.x, splits.y, rows, loss=nll_sum, schedule=schedule, seed=1000 * seed + 2)


def member_trace(splits: Splits, hidden: tuple[int, ...], schedule: Schedule, *, count: int, seed: int) -> Trace:
    """Networks trained on all rows: network ``member * splits + split``; single rows use the first member."""
    start = StackedMLP(count * splits.count, splits.x.shape[-1], hidden, generator=_generator(1000 * seed + 3))
    rows = splits.train.repeat(count, 1)
    return train(start, splits.x, splits.y, rows, loss=nll_sum, schedule=schedule, seed=1000 * seed + 4)


def without_folds(splits: Splits) -> Tensor:
    """Rows that each fold network is trained on."""
    return same_length(
        [splits.without_fold(split, fold) for fold in range(splits.folds) for split in range(splits.count)]
    )


def held_out_prediction(splits: Splits, folds: StackedMLP) -> Normal:
    """Prediction for every row, in the order of ``splits.train``, of the network that has not seen it. Standardised."""
    mean, sigma = torch.empty(splits.train.shape), torch.empty(splits.train.shape)
    for split in range(splits.count):
        for fold in range(splits.folds):
            member = torch.tensor([fold * splits.count + split])
            pred = predicted(folds.select(member), splits.x[split, None], splits.of_fold(split, fold)[None])
            held = splits.fold[split] == fold
            mean[split, held], sigma[split, held] = pred.loc[0], pred.scale[0]
    return Normal(mean, sigma)


def choose_epochs(splits: Splits, folds: Trace) -> dict[str, Tensor]:
    """Index of the best kept epoch of each split, by rows that the networks have not seen.

    Returns:
        ``nll``: by the likelihood of the held-out rows. ``repaired``: by the same after one factor on sigma, as in
        recalibrated rows. ``members``: by the likelihood of all folds. ``folds``: by the same after one factor.
    """
    target = splits.y.gather(1, splits.train)
    first, every = splits.fold == 0, torch.ones_like(splits.fold, dtype=torch.bool)
    criteria = {"nll": (first, False), "repaired": (first, True), "members": (every, False), "folds": (every, True)}
    scores: dict[str, list[Tensor]] = {name: [] for name in criteria}
    for index in range(len(folds.epochs)):
        pred = held_out_prediction(splits, folds.at(index))
        log_sigma = pred.scale.double().log()
        square = ((target - pred.loc) / pred.scale).double().square()
        for name, (rows, factor) in criteria.items():
            scores[name].append(_mean_nll(log_sigma, square, rows, factor=factor))
    return {name: torch.stack(by_epoch).argmin(0) for name, by_epoch in scores.items()}


def _mean_nll(log_sigma: Tensor, square: Tensor, rows: Tensor, *, factor: bool) -> Tensor:
    """Negative log-likelihood of masked rows of each split; with ``factor``, after the most likely factor on sigma."""
    count = rows.sum(1)
    level, spread = (log_sigma * rows).sum(1) / count, (square * rows).sum(1) / count
    return level + 0.5 * (spread.log() + 1) if factor else level + 0.5 * spread


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Networks chosen by held-out rows, for each split.

    Attributes:
        network: The chosen network of each split.
        epochs: Its epoch, 0 for a network that is not trained further.
        candidates: Index of its candidate.
    """

    network: StackedMLP
    epochs: list[int]
    candidates: list[int]


def train_and_choose(
    splits: Splits,
    starts: tuple[StackedMLP, StackedMLP],
    losses: Sequence[Loss],
    *,
    score: Loss,
    schedule: Schedule,
    seed: int,
    all_rows: bool,
) -> Choice:
    """Train the networks of every split by several losses, and choose one and its epoch by held-out rows.

    Args:
        splits: Splits of the table.
        starts: Networks to start from: without the held-out rows, and on all rows.
        losses: Candidates.
        score: What is lowest on held-out rows for the chosen candidate and epoch.
        schedule: Schedule of the training.
        seed: Seed of the order of rows.
        all_rows: Whether the chosen networks are trained once more, on all rows.
    """
    count = len(losses)

    def trace_of(start: StackedMLP, rows: Tensor) -> Trace:
        with seeded(seed):  # MMD draws from the predictions
            return train(
                start.select(splits.numbers.repeat(count)),
                splits.x,
                splits.y,
                rows.repeat(count, 1),
                loss=in_shares(losses),
                schedule=schedule,
                seed=seed,
            )

    trace = trace_of(starts[0], splits.seen)
    index, candidate = _best_on_held_out(splits, trace, score)
    chosen = trace_of(starts[1], splits.train) if all_rows else trace
    return Choice(
        network=chosen.at(index, candidate * splits.count + splits.numbers),
        epochs=[trace.epochs[each] for each in index.tolist()],
        candidates=candidate.tolist(),
    )


def _best_on_held_out(splits: Splits, trace: Trace, score: Loss) -> tuple[Tensor, Tensor]:
    """Index of the best kept epoch and of the best candidate of each split.

    Raises:
        Failed: All candidates of a split diverged.
    """
    count = trace.network.members // splits.count
    rows = splits.held_out.repeat(count, 1)
    target = splits.y.repeat(count, 1).gather(1, rows)
    scores = torch.stack(
        [score(predicted(trace.at(index), splits.x, rows), target) for index in range(len(trace.epochs))]
    )
    scores = scores.nan_to_num(torch.inf).reshape(-1, splits.count)
    if not bool(scores.isfinite().any(0).all()):
        raise Failed("all candidates diverged")
    best = scores.argmin(0)
    return best // count, best % count


@dataclass(frozen=True, kw_only=True)
class OutOfFold:
    """Predictions that out-of-fold rows use; standardised, shape ``(splits, rows)``.

    Attributes:
        held_out: For every row, by the network that has not seen it, in the order of ``splits.train``.
        seen: For these rows, by the network of all rows.
        test: For the test rows, by the network of all rows.
    """

    held_out: Normal
    seen: Normal
    test: Normal


def out_of_fold(splits: Splits, networks: Networks) -> OutOfFold:
    """Predictions of the fold networks and of the network of all rows."""
    return OutOfFold(
        held_out=held_out_prediction(splits, networks["folds"]),
        seen=predicted(networks["full"], splits.x, splits.train),
        test=predicted(networks["full"], splits.x, splits.test),
    )


def with_error_bars(
    splits: Splits, networks: Networks, preds: OutOfFold, *, loss: Loss, schedule: Schedule, seed: int
) -> tuple[OutOfFold, list[int]]:
    r"""The same means with error bars from networks trained on out-of-fold residuals.

    Copies of the network of all rows and of the fold networks are trained further. Their targets are out-of-fold
    residuals, divided by the one factor that makes them 1 on average, so that training starts from its result.
    The copy of a fold network learns only from rows of the other folds: its predictions for its own fold choose the
    epoch, 0 included, and are what a last factor is fitted to.

    Returns:
        Predictions with the new error bars, and the chosen epoch of each split.
    """
    error = splits.y.gather(1, splits.train) - preds.held_out.loc
    factor = (error / preds.held_out.scale).square().mean(1, keepdim=True).sqrt()
    center, target = torch.zeros_like(splits.y), splits.y.clone()
    center.scatter_(1, splits.train, preds.held_out.loc)
    target.scatter_(1, splits.train, preds.held_out.loc + error / factor)

    def trained(name: str, rows: Tensor) -> Trace:
        network = networks[name].with_theta(networks[name].theta.detach())
        with seeded(seed):
            return train(network, splits.x, target, rows, loss=loss, schedule=schedule, seed=seed, center=center)

    folds, full = trained("folds", without_folds(splits)), trained("full", splits.train)
    sigmas = [preds.held_out.scale] + [
        held_out_prediction(splits, folds.at(index)).scale for index in range(len(folds.epochs))
    ]
    best = torch.stack([_repaired_nll(sigma, error) for sigma in sigmas]).argmin(0)
    thetas = torch.cat([networks["full"].theta.detach()[None], full.thetas])
    chosen = networks["full"].with_theta(thetas[best, splits.numbers])

    def scaled(pred: Normal, sigma: Tensor) -> Normal:
        return Normal(pred.loc, sigma * factor)

    epochs = [0, *folds.epochs]
    return (
        OutOfFold(
            held_out=scaled(preds.held_out, torch.stack(sigmas)[best, splits.numbers]),
            seen=scaled(preds.seen, predicted(chosen, splits.x, splits.train).scale),
            test=scaled(preds.test, predicted(chosen, splits.x, splits.test).scale),
        ),
        [epochs[index] for index in best.tolist()],
    )


def _repaired_nll(sigma: Tensor, error: Tensor) -> Tensor:
    """Negative log-likelihood after the most likely factor, without its constant. Shape ``(splits,)``."""
    square = (error / sigma).double().square().mean(1)
    return sigma.double().log().mean(1) + 0.5 * square.log()


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
