"""Trainings of the sensor benchmark: networks that have not seen a fold of the stretches, each fold a cell."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._datasets import get_batch
from fcal.benchmarks.method_kinds import OutOfBag as OutOfBagMethod
from fcal.benchmarks.problem import Options
from fcal.benchmarks.sensors.networks import (
    AT_ONCE,
    Loss,
    StateNetwork,
    StateRows,
    likelihood,
    loss_of,
    optimize,
    predicted,
)
from fcal.benchmarks.sensors.readings import Readings
from fcal.benchmarks.sensors.settings import NORMAL, SensorTable, Settings
from fcal.benchmarks.trainings import in_order, load_networks, save_networks, seeded, training_cell
from fcal.crossfitting import CrossFit, OutOfBag, crossfit
from fcal.data.folds import fold_numbers
from fcal.selection import select_family
from fcal.sweeps import Cell, Store

FOLD, FIT, SCALES, BAGS = "sensors-fold", "sensors-fit", "sensors-scales", "sensors-bags"
VERSION = 1  # part of every address; increase it when the same config gives different numbers
TRAINING = ("rows", "folds", "inner_folds", "hidden", "steps", "rate", "batch", "seed")  # settings of a fold's networks
TUNING = ("tune_steps", "tune_rate", "tune_batch")  # settings of networks of error bars
_HELD_OUT = 5  # one of this many folds of the training stretches is held out for recalibration
_TO_CHOOSE = 3000  # approximate number of rows by which a family is chosen


def fold_of(readings: Readings, settings: Settings) -> Tensor:
    """The fold that each reading is tested in: whole stretches of time."""
    return fold_numbers(len(readings), settings.folds, groups=torch.from_numpy(readings.stretch), seed=settings.seed)


@dataclass(frozen=True, kw_only=True)
class Fold:
    """A fold of one table: rows to train on and rows to test on."""

    table: SensorTable
    settings: Settings
    readings: Readings
    number: int

    @cached_property
    def tested(self) -> Tensor:
        """True for the test rows."""
        return fold_of(self.readings, self.settings) == self.number

    @cached_property
    def rows(self) -> StateRows:
        """Training rows."""
        return self._all_rows.where(~self.tested)

    @cached_property
    def test(self) -> StateRows:
        """Test rows."""
        return self._all_rows.where(self.tested)

    @cached_property
    def groups(self) -> Tensor:
        """Stretch of each training row."""
        return torch.from_numpy(self.readings.stretch)[~self.tested]

    @cached_property
    def _all_rows(self) -> StateRows:
        state = self.readings.state
        names = [
            name
            for wanted in self.table.inputs
            for name in state
            if name == wanted or (wanted.endswith("*") and name.startswith(wanted[:-1]))
        ]
        inputs = torch.from_numpy(np.stack([state[name] for name in names], axis=1)).float()
        return StateRows(inputs, torch.from_numpy(self.readings.error).float())

    @cached_property
    def held(self) -> Tensor:
        """True for the training rows that are held out for recalibration."""
        return fold_numbers(len(self.rows), _HELD_OUT, groups=self.groups, seed=self.settings.seed) == 0

    def crossfit(self, fit: Callable[[Any], Any]) -> CrossFit:
        """Networks of all training rows and without each inner fold."""
        return crossfit(
            fit,
            self.rows,
            keep="full",
            folds=self.settings.inner_folds,
            groups=self.groups,
            seed=self.settings.seed,
            batch_size=AT_ONCE,
        )

    def bags(self, fit: Callable[..., Any], cost: int) -> OutOfBag:
        """Networks that each leave out some stretches of the training rows."""
        return crossfit(fit, self.rows, cost=cost, groups=self.groups, seed=self.settings.seed, batch_size=AT_ONCE)

    def network(self, batch: Mapping[str, Tensor], family: str, seed: int = 0) -> StateNetwork:
        """A network that is not trained, in the units of a batch."""
        hidden, corrects = self.settings.hidden, self.table.corrects
        with seeded(self.settings.seed + seed):
            return StateNetwork(batch["input"], batch["target"], hidden=hidden, family=family, corrects=corrects)

    def fit(self, rows: Any, family: str, loss: Loss = likelihood, seed: int = 0) -> StateNetwork:
        """A trained network; ``seed`` is that of one among several."""
        settings, batch = self.settings, get_batch(rows, list(range(len(rows))))
        network = self.network(batch, family, seed)
        steps, rate, size = settings.steps, settings.rate, settings.batch
        optimize(network, batch, loss, steps=steps, rate=rate, size=size, seed=settings.seed + seed)
        return network

    def load(self, store: Store, kind: str, config: Mapping[str, Any], families: Sequence[str]) -> list[StateNetwork]:
        """Networks of stored weights, each with its family."""
        waiting = iter(families)
        return load_networks(store, kind, config, lambda: self.network(self.rows[:2], next(waiting)), len(families))

    def on_test(self, model: Any) -> Distribution:
        """Predictions for the test rows."""
        return predicted(model, self.test)


@dataclass(frozen=True, kw_only=True)
class FoldNetworks:
    """Trained networks of a fold, all by likelihood.

    Attributes:
        family: Family that was chosen on the training rows.
        crossfit: Networks of that family, of all training rows and without each inner fold.
        held_out: Network of that family, trained without the rows held out for recalibration.
        by_family: Networks of all training rows, for every candidate and the normal family.
    """

    family: str
    crossfit: CrossFit
    held_out: StateNetwork
    by_family: Mapping[str, StateNetwork]


def fold_cell(config: Mapping[str, Any], number: int, name: str) -> Cell:
    """The trainings of one fold by likelihood; ``config`` is the address of its table."""
    fold_config = {"version": VERSION, **config, "fold": number}
    return training_cell(FOLD, fold_config, affinity=name, label=f"networks ({name}, fold {number})")


def fit_cell(fold: Cell, options: Options) -> Cell:
    """The training of a fold by another objective."""
    config = {"version": VERSION, "fold": fold.config, "objective": dict(options)}
    label = f"{options['name']} {fold.label}"
    return training_cell(FIT, config, needs=(fold,), affinity=fold.affinity, label=label)


def scales_cell(fold: Cell, options: Options, settings: Settings, batch: int) -> Cell:
    """The training of a fold's error bars on the errors of held-out rows."""
    config = {
        "version": VERSION,
        "fold": fold.config,
        "objective": {"df": settings.df, **options} if options["name"] == "fcal" else dict(options),
        "fit": {"steps": settings.tune_steps, "rate": settings.tune_rate, "size": batch or settings.tune_batch},
    }
    label = f"error bars by {options['name']}, {fold.label}"
    return training_cell(SCALES, config, needs=(fold,), affinity=fold.affinity, label=label)


def bags_cell(fold: Cell, method: OutOfBagMethod) -> Cell:
    """The training of a fold's out-of-bag ensemble."""
    config = {
        "version": VERSION,
        "fold": fold.config,
        "objective": dict(method.objective),
        "cost": method.cost,
    }
    label = f"out-of-bag ensemble, cost {method.cost}, {fold.label}"
    return training_cell(BAGS, config, needs=(fold,), affinity=fold.affinity, label=label)


def train(kind: str, config: Mapping[str, Any], store: Store, fold: Fold) -> dict[str, Any]:
    """Train networks of a fold: weights become an artifact, the family and the seconds are the result."""
    start = time.process_time()
    result: dict[str, Any] = {}
    if kind == FOLD:
        networks, result["family"] = _train_fold(fold)
    elif kind == FIT:
        family = store.get(FOLD, config["fold"])["family"]
        networks = [fold.fit(fold.rows, family, loss_of(config["objective"]))]
    elif kind == BAGS:
        family, loss = store.get(FOLD, config["fold"])["family"], loss_of(config["objective"])
        networks = list(fold.bags(lambda rows, seed: fold.fit(rows, family, loss, seed), config["cost"]).members)
        result["members"] = len(networks)
    else:
        networks = [_train_scales(config, fold, networks_of(config["fold"], store, fold).crossfit)]
    save_networks(store, kind, config, networks)
    return {**result, "seconds": round(time.process_time() - start, 3)}


def _train_fold(fold: Fold) -> tuple[list[StateNetwork], str]:
    """Networks in the order in which :func:`networks_of` reads them, and the family that was chosen."""
    crossfits = {NORMAL: fold.crossfit(lambda rows: fold.fit(rows, NORMAL))}
    family = _choose_family(fold, crossfits[NORMAL])
    if family != NORMAL:
        crossfits[family] = fold.crossfit(lambda rows: fold.fit(rows, family))
    networks = [network for crossfit in crossfits.values() for network in (crossfit.full, *crossfit.without)]
    networks.append(fold.fit(fold.rows.where(~fold.held), family))
    networks += [fold.fit(fold.rows, other) for other in _further(fold, family)]
    return networks, family


def _further(fold: Fold, family: str) -> list[str]:
    """Other candidates, whose networks are trained only for comparison."""
    return [other for other in fold.table.families if other not in (NORMAL, family)]


def _choose_family(fold: Fold, normal: CrossFit) -> str:
    """The best family by the held-out errors of the training rows."""
    families = fold.table.families
    if len(families) == 1:
        return families[0]
    step = -(-len(fold.groups) // _TO_CHOOSE)
    selection = select_family(
        normal.held_out,
        normal.target,
        groups=fold.groups,
        families=families,
        valid_mask=torch.arange(len(fold.groups)) % step == 0,
        folds=fold.settings.inner_folds,
        seed=fold.settings.seed,
    )
    return selection.ranking[0].family


def _train_scales(config: Mapping[str, Any], fold: Fold, base: CrossFit) -> StateNetwork:
    """One network of error bars, from the weights of the full network."""

    def fit_scales(rows: Any, start: StateNetwork) -> StateNetwork:
        batch = get_batch(rows, list(range(len(rows))))
        optimize(start, batch, loss_of(config["objective"]), **config["fit"], seed=fold.settings.seed)
        return start

    scales: StateNetwork = base.with_scales(fit_scales, nested=False).full.scales
    return scales


def networks_of(config: Mapping[str, Any], store: Store, fold: Fold) -> FoldNetworks:
    """The networks of a fold, from stored weights."""
    result = store.get(FOLD, config)
    assert result is not None, "the fold has not been trained"
    family, models = result["family"], fold.settings.inner_folds + 1
    crossfitted, further = dict.fromkeys([NORMAL, family]), _further(fold, family)
    families = [*(name for name in crossfitted for _ in range(models)), family, *further]
    networks = iter(fold.load(store, FOLD, config, families))
    of_crossfits = {name: list(islice(networks, models)) for name in crossfitted}
    held_out = next(networks)
    full = {name: of_crossfit[0] for name, of_crossfit in of_crossfits.items()}
    return FoldNetworks(
        family=family,
        crossfit=fold.crossfit(in_order(of_crossfits[family])),
        held_out=held_out,
        by_family=full | dict(zip(further, networks, strict=True)),
    )


def bags_of(cell: Cell, store: Store, fold: Fold) -> OutOfBag:
    """The out-of-bag ensemble of a fold, from stored weights."""
    family, members = store.get(FOLD, cell.config["fold"])["family"], store.get(BAGS, cell.config)["members"]
    return fold.bags(in_order(fold.load(store, BAGS, cell.config, [family] * members)), cell.config["cost"])


def network_of(cell: Cell, store: Store, fold: Fold) -> StateNetwork:
    """The network of a training of a fold by another objective, or of its error bars."""
    family = store.get(FOLD, cell.config["fold"])["family"]
    (network,) = fold.load(store, cell.kind, cell.config, [family])
    return network
