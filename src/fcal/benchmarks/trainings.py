"""How networks are trained, stored and reloaded: every training is a cell, config in, weights out."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from statistics import fmean
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils.data import Subset

import fcal
from fcal._datasets import BatchConcat
from fcal.benchmarks.scoring import rounded
from fcal.crossfitting import Bags, CrossFit, OutOfBag, recentred
from fcal.models.predicting import Predicted, predict
from fcal.models.shared_trunk import SharedTrunk
from fcal.sweeps import Cell, Store, load_tensors, save_tensors
from fcal.training import Diverged, EachHead, FitConfig, ObjectiveConfig, Stages, fit, objective

WEIGHTS = ".safetensors"
Network = TypeVar("Network", bound=nn.Module)
Config = Mapping[str, Any]  # of a cell: plain values


def training_cell(
    kind: str, config: Config, *, needs: tuple[Cell, ...] = (), affinity: str | None = None, label: str = ""
) -> Cell:
    """A cell that stores weights in addition to its result."""
    return Cell(kind, config, needs=needs, artifacts=(WEIGHTS,), affinity=affinity, label=label)


def save_networks(store: Store, kind: str, config: Config, networks: Sequence[nn.Module]) -> None:
    """Write the weights of a training's networks into one file."""
    weights = {
        f"{number}.{name}": value
        for number, network in enumerate(networks)
        for name, value in network.state_dict().items()
    }
    save_tensors(store.artifact(kind, config, WEIGHTS), weights)


def load_networks(store: Store, kind: str, config: Config, new: Callable[[], Network], count: int = 1) -> list[Network]:
    """Load the weights of a training into new networks, in evaluation mode.

    Raises:
        FileNotFoundError: There are no weights, or they are damaged.
    """
    path = store.artifact(kind, config, WEIGHTS)
    weights = load_tensors(path)
    if weights is None:
        raise FileNotFoundError(f"expected the weights of {kind} in {path}")
    networks = [new() for _ in range(count)]
    for number, network in enumerate(networks):
        network.load_state_dict({name: weights[f"{number}.{name}"] for name in network.state_dict()})
    return [network.eval() for network in networks]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator, which initial weights and some objectives draw from, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def in_order(networks: Sequence[Network]) -> Callable[..., Network]:
    """Stands in for the function that trained networks: returns the stored ones, in the order of their training."""
    waiting = iter(networks)
    return lambda *_: next(waiting)


class Datasets(NamedTuple):
    """Rows of a problem.

    Attributes:
        train: To train on.
        validation: To choose by, and to fit repairs to; methods without a held-out set train on them too.
        test: To score.
        timed: Test rows on which prediction is timed; all if None.
        groups: Group of every row of :attr:`all`, such as its sequence: rows of a group are left out together. None for
            rows that are independent.
    """

    train: Any
    validation: Any
    test: Any
    timed: Any = None
    groups: Sequence[Any] | None = None

    @property
    def all(self) -> BatchConcat:
        """Rows to train on and rows to choose by."""
        return BatchConcat([self.train, self.validation])


class NetworkTrainings(ABC):
    """How the networks of a task are trained and found again; a task says where datasets and networks come from.

    A cell's config has ``data`` (with its ``seed``), ``network`` and what :func:`fcal.training.fit` needs, so that a
    worker process can train from it alone.

    Attributes:
        task: Name of the task, which kinds of cells begin with.
        version: Part of every address; increase it when the same config gives different numbers.
        channels_last: Memory format of images.
        predicted_at_once: Rows predicted in one batch.
        held_out_at_once: Likewise for the held-out rows of cross-fits.
        task_loss: Loss of the predicted values beside the likelihood or calibration loss of every objective; ``"nll"``
            for none. See :class:`fcal.training.ObjectiveConfig`.
    """

    task: ClassVar[str]
    version: ClassVar[int] = 1
    channels_last: ClassVar[bool] = False
    predicted_at_once: ClassVar[int] = 1000
    held_out_at_once: ClassVar[int] = 250
    task_loss: ClassVar[str] = "nll"

    @abstractmethod
    def datasets(self, data: Config) -> Datasets:
        """The rows of a data set: the same whenever it is called, in any process."""

    @abstractmethod
    def network(self, options: Config) -> nn.Module:
        """A network with new weights, drawn from torch's default generator."""

    def shared(self, options: Config, heads: int) -> SharedTrunk:
        """Networks with new weights that share their trunk; a task without such networks has no rows of heads."""
        raise NotImplementedError

    @abstractmethod
    def name_of(self, data: Config) -> str:
        """Name of a data set, for display."""

    @property
    def kinds(self) -> Mapping[str, Callable[[Config, Store], dict[str, Any]]]:
        """Kinds of cells, and how each is computed."""
        return {
            self.kind("fit"): self._fit,
            self.kind("crossfit"): self._crossfit,
            self.kind("scales"): self._scales,
            self.kind("bags"): partial(self._bags, "bags"),
            self.kind("heads"): partial(self._bags, "heads"),
        }

    def rows(self, data: Config) -> Datasets:
        """The rows of a data set; those of two are cached."""
        return _datasets(self, json.dumps(data, sort_keys=True))

    def kind(self, name: str) -> str:
        """Kind of the cells of a training: ``"fit"``, ``"crossfit"``, ``"scales"``, ``"bags"`` or ``"heads"``."""
        return f"{self.task}-{name}"

    def train(self, kind: str, config: Config, store: Store) -> dict[str, Any]:
        """Compute a training: weights become an artifact, the rest is the result."""
        if kind not in self.kinds:
            raise ValueError(f"expected `kind` one of {', '.join(map(repr, self.kinds))}, got {kind!r}")
        return self.kinds[kind](config, store)

    def finished(self, cell: Cell, store: Store) -> dict[str, Any]:
        """The result of a training, which runs now if its result or its weights are missing."""
        return dict(store.compute(cell, self.train))

    def fit_cell(self, config: Config) -> Cell:
        """The training of one network, with those that it starts from."""
        start, name = config["start"], self.name_of(config["data"])
        return training_cell(
            self.kind("fit"),
            config,
            needs=() if start is None else (self.fit_cell(start),),
            affinity=name,
            label=f"{config['objective']['name']} network ({name})",
        )

    def network_of(self, cell: Cell, store: Store) -> nn.Module:
        """The network of a training."""
        self.finished(cell, store)
        (network,) = load_networks(store, cell.kind, cell.config, lambda: self._new(cell.config))
        return network

    def crossfit_of(self, config: Config, store: Store, scales: Cell | None = None) -> CrossFit:
        """A cross-fit from stored weights, with the error bars of another training if ``scales`` is given."""
        count = config["folds"] + 1
        networks = load_networks(store, self.kind("crossfit"), config, lambda: self._new(config), count)
        crossfit = self._of_folds(in_order(networks), config)
        if scales is None:
            return crossfit
        error_bars = load_networks(store, scales.kind, scales.config, lambda: self._new(config), count)
        return crossfit.with_scales(in_order(error_bars))

    def predict(self, network: Any, rows: Any, *, at_once: int = 0) -> Predicted:
        """Predictions for every row (a distribution, or the values of a deterministic network) and the targets."""
        size = at_once or self.predicted_at_once
        return predict(network, rows, batch_size=size, channels_last=self.channels_last)

    def _new(self, config: Config, *, of_heads: bool = False) -> nn.Module:
        """The network of a config, with initial weights of its seed."""
        with seeded(config.get("weights_seed", config["data"]["seed"])):
            options = config["network"]
            network = self.shared(options, config["members"]) if of_heads else self.network(options)
        return network.to(memory_format=torch.channels_last) if self.channels_last else network

    def _fit(self, config: Config, store: Store) -> dict[str, Any]:
        """Train one network by one objective; the result has the history of its epochs."""
        rows, network = self.rows(config["data"]), self._new(config)
        if config["start"] is not None:
            start = self.fit_cell(config["start"])
            before = self.finished(start, store)
            if before["status"] == "failed":
                return before
            network = self.network_of(start, store)
        criterion = objective(ObjectiveConfig(**config["objective"]))
        train, validation = (rows.all, None) if config["all_images"] else (rows.train, rows.validation)
        started = time.process_time()  # other work on the machine does not count
        try:
            done = fit(network.train(), criterion, train, validation, FitConfig(**config["fit"]), progress=False)
        except Diverged as failure:
            return _failure(failure)
        save_networks(store, self.kind("fit"), config, [network])
        history = [rounded(line) for line in done.history]
        return {
            "status": "done",
            "history": history,
            "best_epoch": done.best_epoch,
            "best": history[done.best_epoch],
            "seconds": round(time.process_time() - started, 3),
        }

    def bags_of(self, cell: Cell, store: Store) -> OutOfBag:
        """An out-of-bag ensemble, of networks or of heads, from stored weights."""
        config, of_heads = cell.config, cell.kind == self.kind("heads")
        count = 1 if of_heads else config["members"]
        networks = load_networks(store, cell.kind, config, lambda: self._new(config, of_heads=of_heads), count)
        return self._of_bags(in_order(networks), config, of_heads=of_heads)

    def _crossfit(self, config: Config, store: Store) -> dict[str, Any]:
        """Train the networks of a cross-fit; the result has their epochs and errors."""
        start = time.process_time()
        try:
            crossfit = self._of_folds(self._stages(config), config)
        except Diverged as failure:
            return _failure(failure)
        seconds = time.process_time() - start
        save_networks(store, self.kind("crossfit"), config, (crossfit.full, *crossfit.without))
        held_out = _mean_squares(crossfit.held_out, crossfit.target)
        return {
            "status": "done",
            "seconds": round(seconds, 3),
            "epochs": [stage + 1 for stage in crossfit.stages],
            **self._errors(crossfit.without, held_out, crossfit.full, config),
        }

    def _bags(self, name: str, config: Config, store: Store) -> dict[str, Any]:
        """Train the networks of an out-of-bag ensemble; the result has their epochs and errors."""
        start, of_heads = time.process_time(), name == "heads"
        try:
            bags = self._of_bags(self._stages(config, of_heads=of_heads), config, of_heads=of_heads)
        except Diverged as failure:
            return _failure(failure)
        seconds = time.process_time() - start
        save_networks(store, self.kind(name), config, bags.members if bags.shared is None else [bags.shared])
        rows = self.rows(config["data"]).all
        held_out = [
            _mean_squares(*self.predict(member, Subset(rows, out.nonzero().squeeze(1).tolist()))[:2])
            for member, out in zip(bags.members, bags.left_out, strict=True)
        ]
        return {
            "status": "done",
            "seconds": round(seconds, 3),
            "epochs": [stage + 1 for stage in bags.stages],
            "retrained": list(bags.retrained),
            **self._errors(bags.members, _means(held_out), bags.ensemble, config),
        }

    def _stages(self, config: Config, *, of_heads: bool = False) -> Callable[..., list[nn.Module]]:
        """A function that trains a network and returns it after every epoch."""
        criterion, fit_config = objective(ObjectiveConfig(**config["objective"])), FitConfig(**config["fit"])

        def fit_on(rows: Any, seed: int) -> list[nn.Module]:
            number = 1000 * int(config["data"]["seed"]) + seed
            stages, network = Stages(), self._new({**config, "weights_seed": number}, of_heads=of_heads)
            own, loss = replace(fit_config, seed=number), EachHead(criterion) if of_heads else criterion
            fit(network, loss, rows, None, own, progress=False, callbacks=[stages])
            return stages.models

        return fit_on

    def _of_folds(self, fit_on: Callable[..., Any], config: Config) -> CrossFit:
        rows = self.rows(config["data"])
        return fcal.crossfit(
            fit_on,
            rows.all,
            keep="full",
            folds=config["folds"],
            groups=rows.groups,
            seed=config["data"]["seed"],
            batch_size=self.held_out_at_once,
        )

    def _of_bags(self, fit_on: Callable[..., Any], config: Config, *, of_heads: bool) -> OutOfBag:
        rows, design = self.rows(config["data"]), {name: config[name] for name in ("members", "leave_out", "judges")}
        return fcal.crossfit(
            fit_on,
            rows.all,
            bags=Bags(**design),
            heads=of_heads,
            groups=rows.groups,
            seed=config["data"]["seed"],
            batch_size=self.held_out_at_once,
        )

    def _errors(
        self, networks: Sequence[Any], held_out: tuple[float, float], whole: Any, config: Config
    ) -> dict[str, Any]:
        """Squared errors and z² of networks on rows they left out and on test rows, and of what is kept."""
        test = self.rows(config["data"]).test
        *single, kept = (_mean_squares(*self.predict(network, test)[:2]) for network in (*networks, whole))
        on_test = _means(single)
        return {
            name: {"held_out": held_out[index], "test": on_test[index], "full_test": kept[index]}
            for index, name in enumerate(("mse", "z2"))
        }

    def _scales(self, config: Config, store: Store) -> dict[str, Any]:
        """Train the networks of error bars of a cross-fit, on errors of held-out rows."""
        crossfit = self.crossfit_of(config["crossfit"], store)
        start = time.process_time()
        try:
            scaled = crossfit.with_scales(_fit_scales(config))
        except Diverged as failure:
            return _failure(failure)
        seconds = time.process_time() - start
        save_networks(store, self.kind("scales"), config, [model.scales for model in (scaled.full, *scaled.without)])
        return {"status": "done", "seconds": round(seconds, 3)}


def _failure(diverged: Diverged) -> dict[str, Any]:
    """The result of a training that diverged; before its first step, the network or the data are wrong."""
    if not diverged.step:
        raise diverged
    return {"status": "failed", "reason": str(diverged)}


@lru_cache(maxsize=2)
def _datasets(source: NetworkTrainings, data: str) -> Datasets:
    return source.datasets(json.loads(data))


def _fit_scales(config: Config) -> Callable[[Any, nn.Module], nn.Module]:
    """A function that trains a network by an objective, with its predictions recentred on the center of each row."""
    criterion, fit_config = objective(ObjectiveConfig(**config["objective"])), FitConfig(**config["fit"])

    def around_center(model: nn.Module, batch: Mapping[str, Any]) -> Mapping[str, Tensor]:
        return criterion(lambda inputs: recentred(model(inputs), batch["center"]), batch)  # type: ignore[arg-type]

    def fit_scales(rows: Any, start: nn.Module) -> nn.Module:
        fit(start, around_center, rows, None, fit_config, progress=False)
        return start.eval()

    return fit_scales


def _means(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Mean of the first and of the second numbers."""
    first, second = zip(*pairs, strict=True)
    return fmean(first), fmean(second)


def _mean_squares(pred: Distribution | Tensor, target: Tensor) -> tuple[float, float]:
    assert isinstance(pred, Distribution)
    error = target.double() - pred.mean.double()
    return float(error.square().nanmean()), float((error / pred.stddev.double()).square().nanmean())
