"""Out-of-bag ensembles of the UCI benchmark: networks of all splits train together, each without some of its rows."""

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal

from fcal.benchmarks.method_kinds import OutOfBag
from fcal.benchmarks.problem import HeldOut
from fcal.benchmarks.trainings import WEIGHTS, training_cell
from fcal.benchmarks.uci.settings import Schedule
from fcal.benchmarks.uci.splits import Splits, same_length
from fcal.benchmarks.uci.stacked_training import Trace, beta_nll_sum, predicted, train
from fcal.crossfitting import Bags, chosen_stages, judged, scaled_nll
from fcal.data.folds import left_out_rows
from fcal.models.ensembles import StackedMLP, normal_of_mixture
from fcal.sweeps import Cell, Store, load_tensors, save_tensors

BAGS = "uci-bags"
_VERSION = 1  # part of every address; increase it when the same config gives different numbers


def bags_cell(fit: Mapping[str, Any], method: OutOfBag) -> Cell:
    """The training of an ensemble, by the address of the plain trainings of the same table."""
    shared = {name: value for name, value in fit.items() if name not in ("folds", "members")}
    config = {"bags_version": _VERSION, **shared, "objective": dict(method.objective), "cost": method.cost}
    name = f"{fit['dataset']} {fit['network']}"
    return training_cell(BAGS, config, affinity=name, label=f"{name}: out-of-bag ensemble, cost {method.cost}")


def fit_bags(config: Mapping[str, Any], splits: Splits, store: Store) -> dict[str, Any]:
    """Train the networks of all splits: weights at the chosen epochs become an artifact, the choice is the result."""
    start = time.process_time()
    left_out = left_out_of(config, splits)
    count, members = splits.count, len(left_out[0])
    generator = torch.Generator().manual_seed(1000 * config["seed"] + 11)
    networks = StackedMLP(members * count, splits.x.shape[-1], config["hidden"], generator=generator)
    rows = [splits.train[split][~left_out[split][member]] for member in range(members) for split in range(count)]
    trace = train(
        networks,
        splits.x,
        splits.y,
        same_length(rows),
        loss=beta_nll_sum(float(config["objective"].get("beta", 0.0))),
        schedule=Schedule(**config["schedule"]),
        seed=1000 * config["seed"] + 12,
    )
    chosen = _chosen(splits, trace, left_out)
    theta = trace.at(chosen.T.reshape(-1)).theta.detach()
    save_tensors(store.artifact(BAGS, config, WEIGHTS), {"members": theta})
    return {
        "status": "done",
        "members": members,
        "leave_out": bags_of(config, splits).leave_out,
        "epochs": [[trace.epochs[index] for index in by_member] for by_member in chosen.tolist()],
        "seconds": round(time.process_time() - start, 3),
    }


def bags_of(config: Mapping[str, Any], splits: Splits) -> Bags:
    """The design for a table."""
    return Bags.of_cost(config["cost"], splits.train.shape[1])


def left_out_of(config: Mapping[str, Any], splits: Splits) -> list[Tensor]:
    """For every split, the rows that each network leaves out, as positions in ``splits.train``."""
    bags, rows = bags_of(config, splits), splits.train.shape[1]
    return [
        left_out_rows(rows, members=bags.members, share=bags.leave_out, seed=config["seed"] + split)
        for split in range(splits.count)
    ]


def _chosen(splits: Splits, trace: Trace, left_out: list[Tensor]) -> Tensor:
    """Index of the epoch of each network, by the rows that the others of its split left out. Shape ``(splits, m)``."""
    curves = torch.empty(splits.count, len(left_out[0]), len(trace.epochs))
    for index in range(len(trace.epochs)):
        preds = predicted(trace.at(index), splits.x, splits.train.repeat(len(left_out[0]), 1))
        for split, member, pred in _by_split(preds, splits):
            out = left_out[split][member]
            target = splits.y[split][splits.train[split][out]]
            curves[split, member, index] = scaled_nll(Normal(pred.loc[out], pred.scale[out]), target)
    return torch.tensor([chosen_stages(by_member) for by_member in curves])


def parts_of(cell: Cell, splits: Splits, store: Store) -> list[HeldOut]:
    """Judged rows and test predictions of every split, in original units.

    Raises:
        FileNotFoundError: There are no weights, or they are damaged.
    """
    thetas = load_tensors(store.artifact(BAGS, cell.config, WEIGHTS))
    if thetas is None:
        raise FileNotFoundError(f"expected the weights of {cell.name}")
    members = len(thetas["members"]) // splits.count
    shape = StackedMLP(1, splits.x.shape[-1], cell.config["hidden"])
    networks, left_out = shape.with_theta(thetas["members"]), left_out_of(cell.config, splits)
    seen: list[list[Normal]] = [[] for _ in range(splits.count)]
    test: list[list[Normal]] = [[] for _ in range(splits.count)]
    for preds, rows in ((seen, splits.train), (test, splits.test)):
        for split, _, pred in _by_split(predicted(networks, splits.x, rows.repeat(members, 1)), splits):
            preds[split].append(splits.original(pred, split))
    parts = []
    for split in range(splits.count):
        out = judged(seen[split], left_out[split], splits.raw[splits.train[split]])
        parts.append(HeldOut(pred=out.pred, target=out.target, test=normal_of_mixture(test[split])))
    return parts


def _by_split(preds: Normal, splits: Splits) -> list[tuple[int, int, Normal]]:
    """Split, member and predictions of each stacked network, ``member * splits + split``."""
    return [
        (number % splits.count, number // splits.count, Normal(mean, sigma))
        for number, (mean, sigma) in enumerate(zip(preds.loc, preds.scale, strict=True))
    ]
