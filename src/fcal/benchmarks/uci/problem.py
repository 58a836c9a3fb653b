"""A UCI table with one network: the trainings that methods share, and the scores of a prediction."""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal

import fcal
from fcal.benchmarks import scoring
from fcal.benchmarks.method_kinds import CrossFitted, CVPlus, Ensemble, Method, OutOfBag, Trained
from fcal.benchmarks.problem import Folds, HeldOut, Members, Networks, Options, Prediction, Problem
from fcal.benchmarks.uci import bagging, trainings
from fcal.benchmarks.uci.settings import Schedule, Settings
from fcal.benchmarks.uci.splits import Splits
from fcal.benchmarks.uci.stacked_training import each_network, error_bar_loss, nll_each, predicted, squared_error_each
from fcal.benchmarks.uci.trainings import Choice, OutOfFold
from fcal.crossfitting import levelled
from fcal.models.ensembles import StackedMLP
from fcal.sweeps import Cell, Store

LEVELS = {"coverage_68": 0.68, "coverage": 0.9, "coverage_95": 0.95}  # of central intervals; width is that of 90 %
COLUMNS = ("rmse", "ll", "crps", "ece_z", "ece_q", *LEVELS, "width", "train_s")
DIGITS = 7  # significant digits that cells keep
_TUNING = ("tune_batch", "tune_rate", "shorten")


def grid_of(count: int) -> tuple[int, int]:
    """Number S of bins and K of squared residuals in a sum for a number of test rows: 20 and 75, or fewer for few rows.

    Example:
        >>> grid_of(31), grid_of(160), grid_of(4573)
        ((5, 5), (10, 20), (20, 75))
    """
    return min(20, max(5, count // 15)), min(75, max(5, count // 8))


class UCIProblem(Problem):
    """One table and network; its parts are the splits of the table, which train together.

    Args:
        fit: Address of the trainings by likelihood.
        settings: Budget of further trainings.
        store: Where finished trainings are kept.
        data: Folder of the tables; None if nothing is computed.
    """

    levels = tuple(LEVELS.values())

    def __init__(self, fit: Mapping[str, Any], settings: Settings, store: Store, data: str | None = None) -> None:
        self.fit, self.settings, self.store, self.data = dict(fit), settings, store, data
        self.labels = {name: fit[name] for name in ("dataset", "network")}
        self.name = " ".join(self.labels.values())

    @cached_property
    def splits(self) -> Splits:
        """Its standardised splits."""
        assert self.data is not None
        return trainings.splits_in(self.fit, self.data)

    @cached_property
    def networks(self) -> Mapping[str, StackedMLP]:
        """Networks of the shared training, by name."""
        return trainings.load_fit(self.fit, self.splits.x.shape[-1], self.store)

    def config(self, method: Method) -> dict[str, Any]:
        """Table, splits, network and its training, and the settings of a further training where there is one."""
        if isinstance(method, Trained) and method.deterministic:
            return {"fit": {name: value for name, value in self.fit.items() if name != "members"}}
        tunes = isinstance(method, Trained) and not _is_likelihood(method)
        if tunes or (isinstance(method, CrossFitted) and method.scales is not None):
            return {"fit": self.fit, "settings": {name: getattr(self.settings, name) for name in _TUNING}}
        return {"fit": self.fit}

    def resolved(self, method: Method) -> Method:
        """The method with the candidates and members of the settings, and their weight of f-Cal if it has none."""
        if isinstance(method, Trained):
            return replace(method, candidates=method.candidates[: self.settings.candidates])
        if isinstance(method, Ensemble):
            return replace(method, members=min(method.members, self.settings.members))
        if isinstance(method, CrossFitted) and method.scales is not None and method.scales["name"] == "fcal":
            return replace(method, scales={"lam": self.settings.lam, **method.scales})
        return method

    def trainings(self, method: Method) -> tuple[Cell, ...]:
        """The trainings by likelihood, which all but the deterministic network and out-of-bag ensembles start from."""
        if isinstance(method, OutOfBag):
            return (bagging.bags_cell(self.fit, method),)
        alone = isinstance(method, Trained) and method.deterministic
        return () if alone else (trainings.fit_cell(self.fit),)

    def trained(self, method: Trained) -> Prediction:
        """Train every candidate, and choose one for each split by held-out rows."""
        if not method.deterministic and _is_likelihood(method):
            name, seconds = ("nll_all", self._member_s) if method.all_rows else ("nll", self._fold_s)
            return Prediction(dists=self._on_test(self.networks[name]), seconds=seconds)
        start = time.process_time()
        choice = self._choice(method)
        preds = self._on_test(choice.network)
        seconds = (time.process_time() - start) / self.splits.count
        if method.deterministic:
            means = [pred.mean for pred in preds]
            return Prediction(means=means, seconds=seconds, details={"epochs": choice.epochs})
        candidates = [
            {"options": dict(options), "chosen": choice.candidates.count(index)}
            for index, options in enumerate(method.candidates)
        ]
        return Prediction(
            dists=preds,
            seconds=(self._member_s if method.all_rows else self._fold_s) + seconds / len(candidates),
            details={"epochs": choice.epochs, "candidates": candidates},
        )

    def _choice(self, method: Trained) -> Choice:
        if method.deterministic:
            generator = torch.Generator().manual_seed(self._seed + 5)
            features, hidden = self.splits.x.shape[-1], self.fit["hidden"]
            start = StackedMLP(self.splits.count, features, hidden, generator=generator)
            return trainings.train_and_choose(
                self.splits,
                (start, start),
                [lambda pred, target: squared_error_each(pred, target).sum()],
                score=squared_error_each,
                schedule=Schedule(**self.fit["schedule"]),
                seed=self._seed + 6,
                all_rows=method.all_rows,
            )
        return trainings.train_and_choose(
            self.splits,
            (self.networks["nll"], self.networks["nll_all"]),
            [each_network(options) for options in method.candidates],
            score=nll_each,
            schedule=self.settings.tuning(self.splits.seen.shape[1]),
            seed=self._seed + 7,
            all_rows=method.all_rows,
        )

    def held_out(self) -> Networks:
        """Networks whose epoch is chosen by the held-out rows, and their predictions for these rows."""
        splits, network = self.splits, self.networks["repaired"]
        preds = predicted(network, splits.x, splits.held_out)
        parts = []
        for split, test in enumerate(self._on_test(network)):
            rows = splits.of_fold(split)
            pred = Normal(preds.loc[split, : len(rows)], preds.scale[split, : len(rows)])
            parts.append(HeldOut(pred=splits.original(pred, split), target=splits.raw[rows], test=test))
        return Networks(parts=parts, seconds=self._fold_s)

    def cross_fitted(self, scales: Options | None, batch: int) -> Networks:
        """Networks of all rows and without each fold; with ``scales``, separate networks predict the error bars."""
        start, details = time.process_time(), {}
        preds = trainings.out_of_fold(self.splits, self.networks)
        if scales is not None:
            preds, details["epochs"] = trainings.with_error_bars(
                self.splits,
                self.networks,
                preds,
                loss=error_bar_loss(scales),
                schedule=self.settings.tuning(self.splits.train.shape[1], batch),
                seed=self._seed + 8,
            )
        seconds = (time.process_time() - start) / self.splits.count
        return Networks(
            parts=[self._fold_part(preds, split) for split in range(self.splits.count)],
            seconds=self._fold_s * self.splits.folds + self._member_s + seconds,
            details=details,
        )

    def _fold_part(self, preds: OutOfFold, split: int) -> HeldOut:
        splits = self.splits
        held_out, seen, test = (_of_split(pred, split) for pred in (preds.held_out, preds.seen, preds.test))
        moved, target = levelled(held_out, seen, splits.fold[split]), splits.raw[splits.train[split]]
        assert isinstance(moved, Normal)

        def by_fold() -> list[Normal]:
            networks = self.networks["folds"].select(torch.arange(splits.folds) * splits.count + split)
            rows = splits.test[split].expand(splits.folds, -1)
            pred = splits.original(predicted(networks, splits.x[split, None], rows), split)
            return [_of_split(pred, fold) for fold in range(splits.folds)]

        return HeldOut(
            pred=splits.original(moved, split),
            target=target,
            test=splits.original(test, split),
            folds=Folds(pred=splits.original(held_out, split), target=target, fold=splits.fold[split], on_test=by_fold),
        )

    def out_of_bag(self, method: OutOfBag) -> Networks:
        """Networks that each leave out some rows, and what they say of these."""
        cell = bagging.bags_cell(self.fit, method)
        result = self.store.compute(cell, lambda _, config, store: bagging.fit_bags(config, self.splits, store))
        return Networks(
            parts=bagging.parts_of(cell, self.splits, self.store),
            seconds=result["seconds"] / self.splits.count,
            details={"bags": {name: result[name] for name in ("members", "leave_out", "epochs")}},
        )

    def members(self, count: int) -> Members:
        """Networks of all rows, whose epoch is chosen by all folds."""
        splits = self.splits
        networks = self.networks["members"].select(torch.arange(count * splits.count))
        preds = predicted(networks, splits.x, splits.test.repeat(count, 1))
        parts = [
            [splits.original(_of_split(preds, member * splits.count + split), split) for member in range(count)]
            for split in range(splits.count)
        ]
        return Members(parts=parts, seconds=self._member_s * count)

    def score(self, method: Method, prediction: Prediction) -> dict[str, Any]:
        """Every column by split, and calibration errors of the residuals of all splits together."""
        if isinstance(method, CVPlus):
            prediction = replace(prediction, means=())  # CV+ consists of fold networks: no single network has its mean
        return scored(prediction, [self.splits.raw[rows] for rows in self.splits.test])

    @cached_property
    def _trained(self) -> Mapping[str, Any]:
        """Result of the shared training: seconds and chosen epochs."""
        return dict(self.store.get(trainings.FIT, self.fit))

    @property
    def _fold_s(self) -> float:
        """Seconds of one fold network."""
        return float(self._trained["fold_s"]) / (self.splits.count * self.splits.folds)

    @property
    def _member_s(self) -> float:
        """Seconds of one network of all rows."""
        return float(self._trained["member_s"]) / (self.splits.count * self.fit["members"])

    @property
    def _seed(self) -> int:
        return 1000 * int(self.fit["seed"])

    def _on_test(self, network: StackedMLP) -> list[Normal]:
        """Predictions for the test rows of every split in original units."""
        pred = predicted(network, self.splits.x, self.splits.test)
        return [self.splits.original(_of_split(pred, split), split) for split in range(self.splits.count)]


def scored(prediction: Prediction, targets: list[Tensor]) -> dict[str, Any]:
    """Columns of a prediction, with a value for each split, None where undefined.

    Args:
        prediction: In original units.
        targets: Targets of the test rows of each split.

    Returns:
        ``columns``; ``pooled``: ECE of the residuals of all splits, for a method that predicts distributions; and the
        details of the prediction.
    """
    bins, df = grid_of(len(targets[0]))
    scores = scoring.score(prediction, targets, bins=bins, df=df, levels=LEVELS, digits=DIGITS)
    missing = [None] * len(targets)
    result: dict[str, Any] = {"columns": {name: scores["columns"].get(name, missing) for name in COLUMNS}}
    if prediction.dists:
        pairs = zip(prediction.dists, targets, strict=True)
        z = torch.cat([fcal.standardize(dist, target).double() for dist, target in pairs])
        bins, df = grid_of(len(z))
        report = scoring.standard_report(z, bins=bins, df=df)
        errors = scoring.rounded({"ece_z": report.ece_z, "ece_q": report.ece_q}, DIGITS)
        result["pooled"] = {"n": len(z), "bins": bins, "df": df, **errors}
    return {**result, **prediction.details}


def _is_likelihood(method: Trained) -> bool:
    """Whether its only loss is the likelihood, by which all networks are trained."""
    return all(options["name"] == "nll" for options in method.candidates)


def _of_split(pred: Normal, split: int) -> Normal:
    return Normal(pred.loc[split], pred.scale[split])
