"""A problem whose networks are trained by :func:`fcal.training.fit`, with every step that methods need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal import models
from fcal._datasets import get_batch
from fcal.benchmarks.method_kinds import (
    CrossFitted,
    CVPlus,
    Ensemble,
    Heads,
    HeldOutEnsemble,
    Method,
    OutOfBag,
    PointEnsemble,
    Repaired,
    Trained,
    is_base,
)
from fcal.benchmarks.methods import METHODS
from fcal.benchmarks.problem import Failed, HeldOut, Members, Networks, Options, Prediction, Problem
from fcal.benchmarks.scoring import milliseconds, score, shortened
from fcal.benchmarks.training_cells import Budget, TrainingCells
from fcal.benchmarks.trainings import Datasets, NetworkTrainings
from fcal.crossfitting import Bags
from fcal.sweeps import Cell, Store

_LOST = 1.0  # a candidate with twice the smooth L1 of the network it starts from has failed to train
_BASE = ("base_epochs", "base_rate", "base_batch")
_TRAINING = (*_BASE, "tune_epochs", "tune_rate", "tune_batch")
# Settings that the numbers of each step depend on.
_USED = {
    "truth": (),
    "stated": (),
    "trained": _TRAINING,
    "held_out": (*_TRAINING, "candidates"),
    "members": (*_TRAINING, "candidates"),
    "held_out_members": _BASE,
    "point_members": _BASE,
    "cross_fitted": (*_BASE, "folds"),
    "out_of_bag": _BASE,
    "heads": _BASE,
}
_USED_BY_SCALES = ("tune_rate", "tune_batch", "scale_epochs")
_ALL = tuple(field.name for field in fields(Budget) if field.name not in ("df", "bins"))


class NetworkProblem(Problem):
    """One data set with one seed, and the network that is trained on it.

    A task derives from it and says where rows and networks come from; all steps of methods but the true distribution
    are here, and predictions are scored by the usual columns.

    Attributes:
        source: Datasets and networks of the task.
        timed_repeats: How often prediction is repeated to time it; 0 for tasks without such a column.
        of_pictures: Results that pictures alone are made of, which are kept of the first seed.

    Args:
        budget: How long networks train.
        data: Address of the data set, with its ``seed``.
        network: Options of the network.
        store: Where finished trainings are kept.
    """

    source: ClassVar[NetworkTrainings]
    timed_repeats: ClassVar[int] = 0
    of_pictures: ClassVar[tuple[str, ...]] = ()

    def __init__(self, budget: Budget, data: Mapping[str, Any], network: Mapping[str, Any], store: Store) -> None:
        self.cells = TrainingCells(source=self.source, budget=budget, data=data, network=network)
        self.name, self.store = self.cells.name, store
        self.version, self.bins, self.df = self.source.version, budget.bins, budget.df

    @classmethod
    def train(cls, kind: str, config: Mapping[str, Any], store: Store) -> dict[str, Any]:
        """Train networks that rows share."""
        return cls.source.train(kind, config, store)

    def scored(self, pred: Distribution | Tensor) -> dict[str, Any]:
        """``columns`` by name of a prediction for the test rows, and further results; a task may score otherwise."""
        test = self.datasets.test
        batches = torch.arange(len(test)).split(self.source.predicted_at_once)  # inputs may be too large to keep
        target = torch.cat([get_batch(test, indices.tolist())["target"] for indices in batches])
        found = score(_prediction(pred), [target], bins=self.cells.budget.bins, df=self.cells.budget.df)
        return {**found, "columns": {name: values[0] for name, values in found["columns"].items()}}

    def score(self, method: Method, prediction: Prediction) -> dict[str, Any]:
        """The columns with times, and what pictures and further tables show."""
        del method
        scores = self.scored(prediction.dists[0] if prediction.dists else prediction.means[0])
        columns = {**scores["columns"]}
        columns["train_s"] = None if prediction.seconds is None else round(prediction.seconds, 3)
        if self.timed_repeats and prediction.again is not None:
            columns["predict_ms"] = milliseconds(prediction.again, len(self._timed), repeats=self.timed_repeats)
        result = {**scores, "columns": {name: [value] for name, value in columns.items()}, **prediction.details}
        pictured = self.cells.seed == 0  # the files of other seeds stay small
        return {name: value for name, value in result.items() if pictured or name not in self.of_pictures}

    @property
    def datasets(self) -> Datasets:
        """Its rows."""
        return self.source.rows(self.cells.data)

    @property
    def _timed(self) -> Any:
        return self.datasets.test if self.datasets.timed is None else self.datasets.timed

    def config(self, method: Method) -> dict[str, Any]:
        """Data, network, budget and the table's ``bins`` and ``df``."""
        names = ["df", "bins", *_USED.get(method.needs, _ALL)]  # a step of one's own may use any
        if isinstance(method, CrossFitted) and method.scales is not None:
            names += _USED_BY_SCALES
        used = {name: getattr(self.cells.budget, name) for name in names}
        network = self.cells.network if _USED.get(method.needs, _ALL) else {}
        return {"data": self.cells.data, "settings": {**network, **used}}

    def resolved(self, method: Method) -> Method:
        """As many candidates as the budget allows, and as many networks as the cost."""
        if isinstance(method, OutOfBag):
            return replace(method, bags=self._bags_of(method))
        if not isinstance(method, Trained):
            return method
        return replace(method, candidates=method.candidates[: self.cells.budget.candidates])

    @property
    def training_rows(self) -> int:
        """Number of rows to train on and to choose by; a task may know it without reading them."""
        return len(self.datasets.all)

    def trainings(self, method: Method) -> tuple[Cell, ...]:
        """Trainings that a row starts from."""
        if isinstance(method, CrossFitted) and method.scales is not None:
            return (self.cells.scales(method.scales, method.batch),)
        if isinstance(method, CrossFitted | CVPlus):
            return (self.cells.crossfit(),)
        if isinstance(method, OutOfBag):
            return (self._bags_cell(method),)
        if isinstance(method, HeldOutEnsemble):
            return tuple(self.cells.held_out_members(self._nll, method.members))
        if isinstance(method, PointEnsemble):
            return (self.cells.base(self._deterministic),)
        if isinstance(method, Ensemble):
            return (self.cells.base(self._nll),)
        if isinstance(method, Repaired):
            return tuple(self.cells.candidates(self._nll))
        return tuple(self.cells.candidates(method)) if isinstance(method, Trained) else ()

    @property
    def _nll(self) -> Trained:
        return self._trained_by("nll")

    @property
    def _deterministic(self) -> Trained:
        return self._trained_by("deterministic")

    def _trained_by(self, name: str) -> Trained:
        method = self.resolved(METHODS[name])
        assert isinstance(method, Trained)
        return method

    def trained(self, method: Trained) -> Prediction:
        """Train every candidate, and choose one by validation rows."""
        choice = self._choice(method)
        cell, seconds, details = choice.cell, choice.seconds, choice.details
        if method.all_rows:
            cell, seconds = self._on_all_rows(method, choice)
            details = {name: details[name] for name in ("chosen", "epochs")}
        else:  # the numbers of every candidate beside those of the chosen one: shown, never used
            for record, candidate in zip(details["candidates"], choice.cells, strict=True):
                diverged = record["status"] == "diverged"
                record["test"] = None if diverged else self.scored(self._on_test(self._network(candidate)))["columns"]
        network = self._network(cell)
        return replace(
            _prediction(self._on_test(network)),
            seconds=seconds,
            again=lambda: _moments(self.source.predict(network, self._timed).pred),
            details=details,
            failure=choice.failure,
        )

    def held_out(self) -> Networks:
        """The network trained by likelihood, and its predictions for the validation rows."""
        choice = self._choice(self._nll, "NLL: ")
        network, datasets = self._network(choice.cell), self.datasets
        held_out = self.source.predict(network, datasets.validation)
        part = HeldOut(
            pred=_distribution(held_out.pred),
            target=held_out.target,
            test=_distribution(self._on_test(network)),
            again=lambda: _distribution(self.source.predict(network, self._timed).pred),
        )
        return Networks(parts=[part], seconds=choice.seconds)

    def cross_fitted(self, scales: Options | None, batch: int) -> Networks:
        """Networks of all rows and without each fold."""
        base = self.cells.crossfit()
        result = self._done(base)
        seconds, cell = result["seconds"], None
        if scales is not None:
            cell = self.cells.scales(scales, batch)
            seconds += self._done(cell)["seconds"]
        crossfit, datasets = self.source.crossfit_of(base.config, self.store, cell), self.datasets

        def on(model: Any, dataset: Any) -> Distribution:
            return _distribution(self.source.predict(model, dataset, at_once=self.source.held_out_at_once).pred)

        part = HeldOut.of_crossfit(
            crossfit, lambda model: on(model, datasets.test), again=lambda: on(crossfit.full, self._timed)
        )
        crossfit_result = {name: value for name, value in result.items() if name != "status"}
        return Networks(parts=[part], seconds=seconds, details={"crossfit": crossfit_result})

    def out_of_bag(self, method: OutOfBag) -> Networks:
        """Networks that each leave out some rows, and what they say of these."""
        cell = self._bags_cell(method)
        result = self._done(cell)
        networks = self.source.bags_of(cell, self.store)
        part = HeldOut(
            pred=networks.held_out,
            target=networks.target,
            test=_distribution(self.source.predict(networks.ensemble, self.datasets.test).pred),
            again=lambda: _distribution(self.source.predict(networks.ensemble, self._timed).pred),
        )
        details = {name: result[name] for name in ("seconds", "epochs", "retrained", "mse", "z2")}
        judged = networks.judged
        details |= {name: shortened(getattr(judged, name)) for name in ("disagreement", "error_ratio", "sample_ratio")}
        return Networks(parts=[part], seconds=result["seconds"], details={"bags": details})

    def heads(self, method: OutOfBag) -> Networks:
        """Heads on a shared trunk that each leave out some rows, and what they say of these."""
        return self.out_of_bag(method)

    def _bags_cell(self, method: OutOfBag) -> Cell:
        cells = self.cells.heads if isinstance(method, Heads) else self.cells.bags
        return cells(method.objective, self._bags_of(method))

    def _bags_of(self, method: OutOfBag) -> Bags:
        """The design of a method; rows are counted only where it depends on their number."""
        return method.bags or method.bags_of(self.training_rows)

    @classmethod
    def can(cls, step: str) -> bool:
        """Whether problems of this task have a step; one with a shared trunk needs a network that has one."""
        if step == "heads" and type(cls.source).shared is NetworkTrainings.shared:
            return False
        return super().can(step)

    def members(self, count: int) -> Members:
        """Networks trained by likelihood on all rows, for as many epochs as were chosen by validation rows."""
        epochs = self._done(self.cells.base(self._nll), "NLL: ")["best_epoch"] + 1
        cells = self.cells.members(self._nll, count, stop_after=epochs)
        results = [self._done(cell) for cell in cells]
        networks, datasets = [self._network(cell) for cell in cells], self.datasets

        def on(dataset: Any) -> list[list[Distribution]]:
            return [[_distribution(self.source.predict(network, dataset).pred) for network in networks]]

        return Members(
            parts=on(datasets.test),
            seconds=sum(result["seconds"] for result in results),
            again=lambda: on(self._timed),
            details={"member_epochs": epochs},
        )

    def held_out_members(self, count: int) -> Networks:
        """Networks trained by likelihood, each for as many epochs as validation rows choose."""
        cells = self.cells.held_out_members(self._nll, count)
        results = [self._done(cell) for cell in cells]
        ensemble, datasets = models.Ensemble([self._network(cell) for cell in cells], moments=True), self.datasets
        held_out = self.source.predict(ensemble, datasets.validation)
        part = HeldOut(
            pred=_distribution(held_out.pred),
            target=held_out.target,
            test=_distribution(self.source.predict(ensemble, datasets.test).pred),
            again=lambda: _distribution(self.source.predict(ensemble, self._timed).pred),
        )
        return Networks(parts=[part], seconds=sum(result["seconds"] for result in results))

    def point_members(self, count: int) -> Prediction:
        """The mean of networks without error bars, trained for as many epochs as validation rows choose."""
        epochs = self._done(self.cells.base(self._deterministic))["best_epoch"] + 1
        cells = self.cells.members(self._deterministic, count, stop_after=epochs)
        results = [self._done(cell) for cell in cells]
        networks = [self._network(cell) for cell in cells]

        def on(dataset: Any) -> Tensor:
            return torch.stack([_points(self.source.predict(network, dataset).pred) for network in networks]).mean(0)

        return Prediction(
            means=[on(self.datasets.test)],
            seconds=sum(result["seconds"] for result in results),
            again=lambda: on(self._timed),
            details={"member_epochs": epochs},
        )

    def _network(self, cell: Cell) -> Any:
        return self.source.network_of(cell, self.store)

    def _on_test(self, network: Any) -> Distribution | Tensor:
        return self.source.predict(network, self.datasets.test).pred

    def _done(self, cell: Cell, prefix: str = "") -> dict[str, Any]:
        """The result of a training that must not fail."""
        result = self.source.finished(cell, self.store)
        if result["status"] == "failed":
            raise Failed(prefix + result["reason"])
        return result

    def _choice(self, method: Trained, prefix: str = "") -> "_Choice":
        """Train every candidate and choose one."""
        base = self._done(self.cells.base(method), prefix)
        cells = self.cells.candidates(method)
        results = [self.source.finished(cell, self.store) for cell in cells]
        records = [
            candidate_record(options, result, base) for options, result in zip(method.candidates, results, strict=True)
        ]
        index = chosen(records, by=method.monitor)
        if index is None:
            raise Failed(prefix + records[0]["reason"])
        tuned: dict[str, Any] = {"seconds": 0.0, "history": [], "best_epoch": -1}
        if not is_base(method.candidates[index]):
            tuned = results[index]
        details = {
            "candidates": records,
            "search_s": round(sum(result.get("seconds", 0.0) for result in results), 3),
            "chosen": index,
            "epochs": {"base": base["best_epoch"] + 1, "tune": tuned["best_epoch"] + 1},
            "history": {"base": base["history"], "tune": tuned["history"]},
        }
        return _Choice(
            cells=cells,
            index=index,
            seconds=base["seconds"] + tuned["seconds"],
            details=details,
            failure=records[index].get("reason", ""),
        )

    def _on_all_rows(self, method: Trained, choice: "_Choice") -> tuple[Cell, float]:
        """The chosen candidate trained on the validation rows too, for the epochs chosen before."""
        epochs, options = choice.details["epochs"], method.candidates[choice.index]
        base = cell = self.cells.base(method, stop_after=epochs["base"])
        if not is_base(options):
            cell = self.cells.tuned(method, options, start=base, stop_after=epochs["tune"])
        return cell, sum(self._done(each)["seconds"] for each in dict.fromkeys((base, cell)))


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """The candidates of a method, and the one that was chosen.

    Attributes:
        cells: Training of every candidate.
        index: Of the chosen one.
        seconds: Of its training with the one that it starts from.
        details: What the table shows of all.
        failure: Why even the chosen one counts as failed; empty where it does not.
    """

    cells: Sequence[Cell]
    index: int
    seconds: float
    details: dict[str, Any]
    failure: str

    @property
    def cell(self) -> Cell:
        """Training of the chosen candidate."""
        return self.cells[self.index]


def candidate_record(options: Options, result: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Record of a candidate, for the choice among candidates.

    Args:
        options: Its hyper-parameters.
        result: Its training.
        base: The training that it started from.
    """
    if result["status"] == "failed":
        return {"options": dict(options), "status": "diverged", "reason": result["reason"]}
    best = result["best"]
    lost = best["validation/l1"] / base["best"]["validation/l1"] - 1
    record = {
        "options": dict(options),
        "status": "done",
        "epoch": result["best_epoch"] + 1,
        "l1": best["validation/l1"],
        "accuracy_lost": round(lost, 4),
        "nll": best.get("validation/nll"),
        "ece_q": best.get("validation/ece_q"),
    }
    if lost > _LOST:
        record |= {"status": "failed", "reason": f"smooth L1 on validation rose by {lost:.0%}"}
    return record


def chosen(candidates: Sequence[Mapping[str, Any]], *, by: str) -> int | None:
    """Index of the chosen candidate; None if none could be trained.

    A proper score on validation rows chooses the epoch of a training and the candidate of a method, the same for
    every method. ECE is not a proper score: chosen by it, a method is rewarded for losing its mean.

    Args:
        candidates: Records of :func:`candidate_record`.
        by: Score that the chosen candidate minimizes.

    Example:
        >>> plain, better = {"status": "done", "nll": 1.0}, {"status": "done", "nll": 0.8}
        >>> chosen([plain, better, {"status": "diverged"}], by="nll")
        1
    """
    for allowed in (("done",), ("done", "failed")):
        indices = [index for index, record in enumerate(candidates) if record["status"] in allowed]
        if indices:
            return min(indices, key=lambda index: candidates[index][by])
    return None


def _prediction(pred: Distribution | Tensor) -> Prediction:
    return Prediction(dists=[pred]) if isinstance(pred, Distribution) else Prediction(means=[pred])


def _distribution(pred: Distribution | Tensor) -> Distribution:
    assert isinstance(pred, Distribution)
    return pred


def _points(pred: Distribution | Tensor) -> Tensor:
    assert isinstance(pred, Tensor)
    return pred


def _moments(pred: Distribution | Tensor) -> object:
    """What a user of a prediction needs at least; a repaired distribution computes it only when asked."""
    return (pred.mean, pred.stddev) if isinstance(pred, Distribution) else pred
