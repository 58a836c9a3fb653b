"""The errors of one sensor, given part of the state: steps for methods, and scores of their predictions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from statistics import stdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution, Normal

import fcal
from fcal.benchmarks.method_kinds import CrossFitted, Method, OutOfBag, Trained
from fcal.benchmarks.problem import Failed, HeldOut, Networks, Options, Prediction, Problem
from fcal.benchmarks.sensors import trainings
from fcal.benchmarks.sensors.networks import predicted
from fcal.benchmarks.sensors.readings import Readings, readings_of
from fcal.benchmarks.sensors.settings import NORMAL, SensorTable, Settings
from fcal.benchmarks.sensors.spreads import in_double, measured_spreads, predicted_spreads
from fcal.benchmarks.sensors.trainings import Fold, FoldNetworks
from fcal.crossfitting import WithScales
from fcal.distributions.functional import cat
from fcal.selection import select_family
from fcal.sweeps import Cell, Store

FACTS = "sensors-facts"
_STATED = ("sensor", "axis", "edges", "robust")  # fields of a table that change a number of the stated noise
_LEARNT = (*_STATED, "inputs", "corrects", "families")  # and of networks: neither names nor the source's numbers
_LEVEL = 0.9  # of the column `coverage`
_TO_CHOOSE = 5000  # approximate number of rows by which families are compared


class SensorsProblem(Problem):
    """One table; its parts are the folds of the stretches of time. ``data`` may be None if nothing is computed."""

    def __init__(
        self, table: SensorTable, settings: Settings, store: Store, *, checksum: str, data: str | None, name: str = ""
    ) -> None:
        self.table, self.settings, self.store = table, settings, store
        self.checksum, self.data, self.name = checksum, data, name or table.sensor
        self.labels = {"name": self.name}
        self.levels = (_LEVEL,)

    def config(self, method: Method) -> dict[str, Any]:
        """Data, table, folds, network, budget, and the table's bins and sums."""
        names = ["df", "bins"]
        if method.needs == "stated":
            return self._address(["rows", "folds", "seed", *names], _STATED)
        tuned = isinstance(method, CrossFitted) and method.scales is not None
        return self._address([*trainings.TRAINING, *names, *(trainings.TUNING if tuned else ())])

    def _address(self, settings: Sequence[str], fields: Sequence[str] = _LEARNT) -> dict[str, Any]:
        return {
            "data": self.checksum,
            "table": {name: getattr(self.table, name) for name in fields},
            "settings": {name: getattr(self.settings, name) for name in settings},
        }

    def resolved(self, method: Method) -> Method:
        """The method with its first candidate only, so that nothing is chosen by test rows."""
        return replace(method, candidates=method.candidates[:1]) if isinstance(method, Trained) else method

    def trainings(self, method: Method) -> tuple[Cell, ...]:
        """The networks of every fold, and further trainings of the method."""
        if method.needs == "stated":
            return ()
        return (*self.fold_cells, *self._own_cells(method))

    @property
    def fold_cells(self) -> tuple[Cell, ...]:
        """Trainings by likelihood, fold by fold."""
        config = self._address(trainings.TRAINING)
        return tuple(trainings.fold_cell(config, number, self.name) for number in range(self.settings.folds))

    def _own_cells(self, method: Method) -> list[Cell]:
        """Trainings of one method alone, fold by fold."""
        if isinstance(method, OutOfBag):
            return [trainings.bags_cell(cell, method) for cell in self.fold_cells]
        if isinstance(method, CrossFitted) and method.scales is not None:
            return self._scales_cells(method.scales, method.batch)
        if not isinstance(method, Trained) or method.deterministic or method.candidates[0]["name"] == "nll":
            return []
        options = {name: value for name, value in method.candidates[0].items() if name != "repetition"}
        return [trainings.fit_cell(cell, options) for cell in self.fold_cells]

    def _scales_cells(self, scales: Options, batch: int) -> list[Cell]:
        return [trainings.scales_cell(cell, scales, self.settings, batch) for cell in self.fold_cells]

    def facts_cell(self) -> Cell:
        """Facts of the table's data, which depend on no method."""
        config = {"version": trainings.VERSION, **self._address(trainings.TRAINING)}
        return Cell(FACTS, config, needs=self.fold_cells, affinity=self.name, label=f"facts ({self.name})")

    @property
    def readings(self) -> Readings:
        """All readings of the sensor."""
        assert self.data is not None, "readings need the data"
        return readings_of(self.data, self.table.sensor, self.settings.rows, self.checksum)

    @cached_property
    def test_rows(self) -> list[Tensor]:
        """Indices of the test readings of every fold."""
        tested = trainings.fold_of(self.readings, self.settings)
        return [(tested == number).nonzero().squeeze(1) for number in range(self.settings.folds)]

    def fold(self, number: int) -> Fold:
        """Rows of a fold."""
        return Fold(table=self.table, settings=self.settings, readings=self.readings, number=number)

    def _of_test(self, values: NDArray[Any]) -> list[Tensor]:
        """Values of the test readings of every fold."""
        return [torch.from_numpy(values)[rows] for rows in self.test_rows]

    def stated(self) -> list[Distribution]:
        """Normal distributions around the known model with the stated standard deviation."""
        return [Normal(torch.zeros_like(sd), sd) for sd in self._of_test(self.readings.stated)]

    def trained(self, method: Trained) -> Prediction:
        """Networks of all training rows."""
        if method.deterministic:
            raise Failed("networks of this benchmark predict distributions")
        own, dists = self._own_cells(method), []
        for fold, networks in self._trained_folds():
            network = trainings.network_of(own[fold.number], self.store, fold) if own else networks.crossfit.full
            dists.append(fold.on_test(network))
        return Prediction(dists=dists, seconds=self._seconds(own or self.fold_cells))

    def held_out(self) -> Networks:
        """Networks trained without a fifth of the stretches, and their predictions for these."""
        parts = []
        for fold, networks in self._trained_folds():
            held = fold.rows.where(fold.held)
            pred = predicted(networks.held_out, held)
            parts.append(HeldOut(pred=pred, target=held.errors, test=fold.on_test(networks.held_out)))
        return Networks(parts=parts, seconds=self._seconds(self.fold_cells))

    def cross_fitted(self, scales: Options | None, batch: int) -> Networks:
        """Networks of all training rows, with held-out predictions; with ``scales``, error bars replace the latter."""
        cells = [] if scales is None else self._scales_cells(scales, batch)
        parts = []
        for fold, networks in self._trained_folds():
            if scales is None:
                parts.append(HeldOut.of_crossfit(networks.crossfit, fold.on_test))
                continue
            error_bars = trainings.network_of(cells[fold.number], self.store, fold)
            test = fold.on_test(WithScales(networks.crossfit.full, error_bars))
            parts.append(HeldOut(pred=None, target=None, test=test))
        return Networks(parts=parts, seconds=self._seconds([*self.fold_cells, *cells]))

    def out_of_bag(self, method: OutOfBag) -> Networks:
        """Networks that each leave out some stretches, and what they say of these."""
        cells, parts = self._own_cells(method), []
        for number, cell in enumerate(cells):
            fold = self.fold(number)
            bags = trainings.bags_of(cell, self.store, fold)
            parts.append(HeldOut(pred=bags.held_out, target=bags.target, test=fold.on_test(bags.ensemble)))
        return Networks(parts=parts, seconds=self._seconds(cells))

    def _trained_folds(self) -> Iterator[tuple[Fold, FoldNetworks]]:
        for number, cell in enumerate(self.fold_cells):
            fold = self.fold(number)
            yield fold, trainings.networks_of(cell.config, self.store, fold)

    def _seconds(self, cells: Sequence[Cell]) -> float:
        """Processor time of trainings, for one fold."""
        seconds = [self.store.get(cell.kind, cell.config)["seconds"] for cell in cells]
        return float(sum(seconds)) / self.settings.folds

    def score(self, method: Method, prediction: Prediction) -> dict[str, Any]:
        """Columns of every fold and of all test rows together, the verdict, and the learnt standard deviations."""
        del method
        prediction = replace(prediction, dists=[in_double(dist) for dist in prediction.dists])
        errors, tracks = self._of_test(self.readings.error), self._of_test(self.readings.track)
        parts = [
            {"track": track, **_by_row(prediction, part, error)}
            for part, (error, track) in enumerate(zip(errors, tracks, strict=True))
        ]
        together = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        by_fold = [self._columns(part)[0] for part in parts]
        overall, report = self._columns(together)
        columns = {name: [of_fold[name] for of_fold in by_fold] for name in overall}
        scores = {
            "columns": columns,
            "overall": {name: {"mean": value, "sd": stdev(columns[name])} for name, value in overall.items()},
        }
        if not report:
            return scores
        return {
            **scores,
            "verdict": report["verdict"],
            "conclusive": report["conclusive"],
            "verdict_reason": report["reason"],
            "scale": report["scale"],
            "shift": report["shift"],
            "covered": report["coverage"],
            "floors": {name: report[f"{name}_floor"] for name in ("ece_z", "ece_q")},
            "learnt": predicted_spreads(self.table, self.readings, prediction.dists, self.test_rows),
        }

    def _columns(self, by_row: Mapping[str, Tensor]) -> tuple[dict[str, float], dict[str, Any]]:
        """Columns of rows, and the report of their residuals, with tracks as clusters; empty for intervals."""
        rmse = float(by_row["square"].mean().sqrt())
        if "covered" in by_row:
            return {"rmse": rmse, "coverage": float(by_row["covered"].mean())}, {}
        z, df, bins = by_row["z"], self.settings.df, self.settings.bins
        standard = Normal(torch.zeros_like(z), 1.0)
        report = fcal.evaluate(standard, z, df=df, bins=bins, cluster=by_row["track"]).as_dict()
        columns = {
            "rmse": rmse,
            "ll": float(by_row["ll"].mean()),
            "crps": float(by_row["crps"].mean()),
            "ece_z": report["ece_z"],
            "ece_q": report["ece_q"],
            "coverage": report["coverage"][str(_LEVEL)],
            "z2": float(z.square().mean()),
        }
        return columns, report

    def facts(self) -> dict[str, Any]:
        """Facts of the table's data: sizes, stated and measured standard deviations, the family of the noise."""
        readings = self.readings
        return {
            "unit": readings.unit,
            "n_test": len(readings),
            "clusters": len(np.unique(readings.track)),
            "stretches": len(np.unique(readings.stretch)),
            **measured_spreads(self.table, readings),
            "family": self._family(),
        }

    def _family(self) -> dict[str, Any]:
        """The family that fits errors of held-out normal networks best, and the likelihood of networks of every family.

        Readings of a track count as one, as in the verdicts; a second, more conservative verdict counts all readings
        of a stretch as one. All readings are used if networks of several families are trained, otherwise about 5000,
        which is faster.
        """
        folds = list(self._trained_folds())
        by_family = {
            family: [in_double(fold.on_test(networks.by_family[family])) for fold, networks in folds]
            for family in self.table.families
        }
        errors, rows = self._of_test(self.readings.error), len(self.readings)
        step = 1 if len(self.table.families) > 1 else -(-rows // _TO_CHOOSE)
        normal = cat(by_family[NORMAL])
        assert isinstance(normal, Distribution)
        by_track, by_stretch = (
            select_family(
                normal,
                torch.cat(errors),
                groups=torch.cat(self._of_test(groups)),
                valid_mask=torch.arange(rows) % step == 0,
                folds=self.settings.folds,
                seed=self.settings.seed,
            )
            for groups in (self.readings.track, self.readings.stretch)
        )
        log_likelihoods = {
            family: torch.cat([-fcal.nll(dist, error) for dist, error in zip(dists, errors, strict=True)])
            for family, dists in by_family.items()
        }
        return {
            "chosen": [networks.family for _, networks in folds],
            "named": by_track.family,
            "verdict": by_track.verdict,
            "ranking": [asdict(candidate) for candidate in by_track.ranking],
            "by_stretches": {"named": by_stretch.family, "verdict": by_stretch.verdict},
            "log_likelihood": {family: float(values.mean()) for family, values in log_likelihoods.items()},
        }


def _by_row(prediction: Prediction, part: int, errors: Tensor) -> dict[str, Tensor]:
    """What the columns of a distribution, or of an interval, are means of."""
    if not prediction.dists:
        low, high = prediction.intervals[part][_LEVEL]
        covered = ((low <= errors) & (errors <= high)).double()
        return {"square": (errors - prediction.means[part]).square(), "covered": covered}
    pred = prediction.dists[part]
    return {
        "square": (errors - pred.mean).square(),
        "ll": -fcal.nll(pred, errors),
        "crps": fcal.crps(pred, errors),
        "z": fcal.standardize(pred, errors),
    }
