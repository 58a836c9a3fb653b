"""A Bokeh data set with one seed: the trainings that methods share, and the numbers of a prediction."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor
from torch.distributions import Distribution

from fcal._datasets import BatchConcat
from fcal.benchmarks.bokeh import trainings
from fcal.benchmarks.bokeh.scoring import LEVEL, by_sigma, gallery, interval, other_grids, scored
from fcal.benchmarks.bokeh.settings import Settings
from fcal.benchmarks.methods import METHODS, CrossFitted, CVPlus, Ensemble, Method, Repaired, Trained
from fcal.benchmarks.problem import Failed, HeldOut, Members, Networks, Options, Prediction, Problem
from fcal.benchmarks.scoring import (
    central_interval,
    milliseconds,
)
from fcal.crossfitting import CrossFit
from fcal.data import Bokeh, BokehConfig, BokehSplits, label_noise
from fcal.models import predict
from fcal.sweeps import Cell, Store

_FOR_PICTURES = ("curves", "gallery", "history")

_TRAINING = ("base_epochs", "base_rate", "base_batch", "tune_epochs", "tune_rate", "tune_batch")
# Settings that the numbers of each step depend on.
_USED = {
    "truth": (),
    "trained": _TRAINING,
    "held_out": (*_TRAINING, "candidates"),
    "members": (*_TRAINING, "candidates"),
    "cross_fitted": ("base_rate", "base_batch", "folds", "early_epochs", "fold_epochs"),
}
_USED_BY_SCALES = ("tune_rate", "tune_batch", "scale_epochs")


class BokehProblem(Problem):
    """One table's data with one seed.

    Args:
        settings: Network and budget.
        data: Images and labels.
        store: Where finished trainings are kept.
    """

    def __init__(self, settings: Settings, data: BokehConfig, store: Store) -> None:
        self.settings, self.data, self.store = settings, data, store
        self.labels = {"noise": data.noise, "regime": data.regime}
        self.name = trainings.name_of(data)
        self.levels = (LEVEL,)

    @property
    def splits(self) -> BokehSplits:
        """Its images."""
        return trainings.splits_of(**asdict(self.data))

    def config(self, method: Method) -> dict[str, Any]:
        """Data, network, budget and the table's bins and sums."""
        names = ["df", "bins", *_USED[method.needs]]
        if isinstance(method, CrossFitted) and method.scales is not None:
            names += _USED_BY_SCALES
        used = {name: getattr(self.settings, name) for name in names}
        network = {} if method.needs == "truth" else self.settings.network
        return {"data": asdict(self.data), "settings": {**network, **used}}

    def resolved(self, method: Method) -> Method:
        """As many candidates as the settings say."""
        if not isinstance(method, Trained):
            return method
        return replace(method, candidates=method.candidates[: self.settings.candidates])

    def trainings(self, method: Method) -> tuple[Cell, ...]:
        """Trainings that a row starts from."""
        settings, data = self.settings, self.data
        if isinstance(method, CrossFitted) and method.scales is not None:
            return (trainings.scales_cell(settings, data, method.scales, method.batch),)
        if isinstance(method, CrossFitted | CVPlus):
            return (trainings.crossfit_cell(settings, data),)
        if isinstance(method, Repaired | Ensemble):
            return tuple(trainings.candidate_cells(settings, data, self._nll))
        return tuple(trainings.candidate_cells(settings, data, method)) if isinstance(method, Trained) else ()

    @property
    def _nll(self) -> Trained:
        nll = self.resolved(METHODS["nll"])
        assert isinstance(nll, Trained)
        return nll

    def truth(self) -> list[Distribution]:
        """The noise of the labels around the true centres."""
        test = self._test()
        truth, sigma = test["truth"].double(), test["sigma"].double()
        return [label_noise.NOISES[self.data.noise](truth, sigma, self.data.shape)]

    def trained(self, method: Trained) -> Prediction:
        """Train every candidate, and choose one by validation images."""
        choice = self._choice(method)
        cell, details = choice.cell, choice.details
        if method.all_rows:
            cell, seconds = self._on_all_images(method, choice)
            details = {name: details[name] for name in ("chosen", "epochs")}
        else:
            seconds = choice.seconds
            for record, candidate in zip(details["candidates"], choice.cells, strict=True):
                record["test"] = None if record["status"] == "diverged" else self._test_columns(candidate)
        network = trainings.network_of(cell, self.store)
        pred = self._on_test(network)
        return Prediction(
            **({"dists": [pred]} if isinstance(pred, Distribution) else {"means": [pred]}),
            seconds=seconds,
            again=lambda: _moments(trainings.predicted(network, self.splits.test)),
            details=details,
            failure=choice.failure,
        )

    def held_out(self) -> Networks:
        """The network trained by likelihood, and its predictions for the validation images."""
        choice = self._choice(self._nll, "NLL: ")
        network, splits = trainings.network_of(choice.cell, self.store), self.splits
        part = HeldOut(
            pred=_distribution(trainings.predicted(network, splits.validation)),
            target=trainings.targets_of(splits.validation)["target"],
            test=_distribution(self._on_test(network)),
            again=lambda: _distribution(trainings.predicted(network, splits.test)),
        )
        return Networks(parts=[part], seconds=choice.seconds)

    def cross_fitted(self, scales: Options | None, batch: int) -> Networks:
        """Networks of all images and without each fold, from a common early checkpoint."""
        base = trainings.crossfit_cell(self.settings, self.data)
        result = trainings.finished(base, self.store)
        seconds, cell = result["seconds"], None
        if scales is not None:
            cell = trainings.scales_cell(self.settings, self.data, scales, batch)
            seconds += trainings.finished(cell, self.store)["seconds"]
        crossfit = trainings.crossfit_of(base.config, self.store, cell)
        return Networks(parts=[self._fold_part(crossfit)], seconds=seconds, details={"crossfit": result})

    def _fold_part(self, crossfit: CrossFit) -> HeldOut:
        images, at_once = BatchConcat([self.splits.test, self.splits.extra]), trainings.HELD_OUT_AT_ONCE

        def on(model: Any, dataset: Any) -> Distribution:
            return _distribution(predict(model, dataset, batch_size=at_once, channels_last=True).pred)

        return HeldOut.of_crossfit(
            crossfit, lambda model: on(model, images), again=lambda: on(crossfit.full, self.splits.test)
        )

    def members(self, count: int) -> Members:
        """Networks trained by likelihood on all images, for as many epochs as were chosen by validation images."""
        epochs = self._choice(self._nll, "NLL: ").details["epochs"]["base"]
        cells = trainings.member_cells(self.settings, self.data, self._nll, count, stop_after=epochs)
        results = [self._done(cell) for cell in cells]
        networks = [trainings.network_of(cell, self.store) for cell in cells]

        def on(images: Bokeh | BatchConcat) -> list[list[Distribution]]:
            return [[_distribution(trainings.predicted(network, images)) for network in networks]]

        return Members(
            parts=on(BatchConcat([self.splits.test, self.splits.extra])),
            seconds=sum(result["seconds"] for result in results),
            again=lambda: on(self.splits.test),
        )

    def score(self, method: Method, prediction: Prediction) -> dict[str, Any]:
        """The columns, and what pictures and further tables show."""
        pred = prediction.dists[0] if prediction.dists else prediction.means[0]
        scores = scored(pred, self._test(), bins=self.settings.bins, df=self.settings.df)
        columns = scores["columns"]
        columns["train_s"] = None if prediction.seconds is None else round(prediction.seconds, 3)
        if prediction.again is not None:
            columns["predict_ms"] = milliseconds(prediction.again, len(self.splits.test))
        scores |= {"columns": {name: [value] for name, value in columns.items()}, "gallery": gallery(pred)}
        if isinstance(pred, Distribution):
            scores |= {"grids": other_grids(pred, self._test()["target"]), "interval": self._interval(pred)}
        if prediction.intervals:
            scores["interval"] = interval(prediction.intervals[0][LEVEL], self._test()["target"])
        if isinstance(method, CrossFitted) and isinstance(pred, Distribution):
            scores["strata"] = by_sigma(pred, self._test()["target"], bins=self.settings.bins, df=self.settings.df)
        result = {**scores, **prediction.details}
        pictured = self.data.seed == 0  # pictures are of the first seed; the other files stay small
        return {name: value for name, value in result.items() if pictured or name not in _FOR_PICTURES}

    def _interval(self, pred: Distribution) -> dict[str, Any]:
        return interval(central_interval(pred, LEVEL), self._test()["target"])

    def _test(self) -> dict[str, Tensor]:
        return trainings.targets_of(self.splits.test, self.splits.extra)

    def _on_test(self, network: Any) -> Distribution | Tensor:
        return trainings.predicted(network, BatchConcat([self.splits.test, self.splits.extra]))

    def _test_columns(self, cell: Cell) -> dict[str, Any]:
        """The numbers of a candidate beside those of the chosen one: shown, never used."""
        pred = self._on_test(trainings.network_of(cell, self.store))
        columns: dict[str, Any] = scored(pred, self._test(), bins=self.settings.bins, df=self.settings.df)["columns"]
        return columns

    def _done(self, cell: Cell, prefix: str = "") -> dict[str, Any]:
        """The result of a training that must not fail."""
        result = trainings.finished(cell, self.store)
        if result["status"] == "failed":
            raise Failed(prefix + result["reason"])
        return result

    def _choice(self, method: Trained, prefix: str = "") -> "_Choice":
        """Train every candidate and choose one."""
        base = self._done(trainings.base_cell(self.settings, self.data, method), prefix)
        cells = trainings.candidate_cells(self.settings, self.data, method)
        results = [trainings.finished(cell, self.store) for cell in cells]
        records = [
            trainings.candidate_record(options, result, base)
            for options, result in zip(method.candidates, results, strict=True)
        ]
        index = trainings.chosen(records, by=method.monitor)
        if index is None:
            raise Failed(prefix + records[0]["reason"])
        is_base = trainings.is_base(method.candidates[index])
        tuned: dict[str, Any] = {"seconds": 0.0, "history": [], "best_epoch": -1} if is_base else results[index]
        details = {
            "candidates": records,
            "search_s": round(sum(result.get("seconds", 0.0) for result in results), 3),
            "chosen": index,
            "epochs": {"base": base["best_epoch"] + 1, "tune": tuned["best_epoch"] + 1},
            "history": {"base": base["history"], "tune": tuned["history"]},
        }
        return _Choice(cells, index, base["seconds"] + tuned["seconds"], details, records[index].get("reason", ""))

    def _on_all_images(self, method: Trained, choice: "_Choice") -> tuple[Cell, float]:
        """The chosen candidate trained on the validation images too, for the epochs chosen before."""
        epochs, options = choice.details["epochs"], method.candidates[choice.index]
        base = trainings.base_cell(self.settings, self.data, method, stop_after=epochs["base"])
        cell = base
        if not trainings.is_base(options):
            cell = trainings.tuned_cell(
                self.settings, self.data, method, options, start=base, stop_after=epochs["tune"]
            )
        return cell, sum(self._done(each)["seconds"] for each in dict.fromkeys((base, cell)))


class _Choice:
    """The candidates of a method, and the one that was chosen.

    Args:
        cells: Training of every candidate.
        index: Of the chosen one.
        seconds: Of its training with the one that it starts from.
        details: What the table shows of all.
        failure: Why even the chosen one counts as failed; empty where it does not.
    """

    def __init__(
        self, cells: Sequence[Cell], index: int, seconds: float, details: dict[str, Any], failure: str
    ) -> None:
        self.cells, self.index, self.seconds, self.details, self.failure = cells, index, seconds, details, failure

    @property
    def cell(self) -> Cell:
        """Training of the chosen candidate."""
        return self.cells[self.index]


def _distribution(pred: Distribution | Tensor) -> Distribution:
    assert isinstance(pred, Distribution)
    return pred


def _moments(pred: Distribution | Tensor) -> object:
    """What a user of a prediction needs at least; a repaired distribution computes it only when asked."""
    return (pred.mean, pred.stddev) if isinstance(pred, Distribution) else pred
