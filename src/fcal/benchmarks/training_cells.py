"""Which trainings a data set needs: the cell of each, its address, and what it starts from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fcal._checks import check_integer, check_number
from fcal.benchmarks.method_kinds import Trained, is_base
from fcal.benchmarks.problem import Options
from fcal.benchmarks.trainings import NetworkTrainings, training_cell
from fcal.crossfitting import Bags
from fcal.sweeps import Cell
from fcal.training import FitConfig, ObjectiveConfig
from fcal.training.objectives import options_of

_EPOCHS = ("base_epochs", "tune_epochs", "scale_epochs")
_REPETITION = 1000  # from one order of the rows to the next; seeds of a table are fewer


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long networks train; the settings of a task derive from it.

    Every method trains the same network for ``base_epochs`` by its plain loss (the likelihood; smooth L1 for the
    deterministic one) and then for ``tune_epochs`` by its own, once for each candidate. A method without a
    hyper-parameter has that first network as its first candidate.

    Args:
        base_epochs: Epochs by the plain loss.
        base_rate: Learning rate of that training.
        base_batch: Rows in a batch of that training.
        tune_epochs: Epochs by the method's own loss.
        tune_rate: Learning rate of that training.
        tune_batch: Rows in its batches; they are larger because calibration is a property of a batch.
        candidates: Number of hyper-parameters tried for each method.
        folds: Folds of the rows that cross-fit.
        scale_epochs: Epochs of networks of error bars, at ``tune_rate``.
        df: Number K of squared residuals in a sum q, in the losses and in the table.
        bins: Number S of bins of the table's ECE and MCE.
    """

    base_epochs: int = 12
    base_rate: float = 1e-3
    base_batch: int = 64
    tune_epochs: int = 5
    tune_rate: float = 3e-4
    tune_batch: int = 256
    candidates: int = 3
    folds: int = 3
    scale_epochs: int = 3
    df: int = 75
    bins: int = 20

    def __post_init__(self) -> None:
        for name in ("base_batch", "tune_batch", *_EPOCHS):
            check_integer(name, getattr(self, name), at_least=1, at_most=1_000_000)
        check_integer("folds", self.folds, at_least=2, at_most=1000)
        check_integer("candidates", self.candidates, at_least=1, at_most=3)
        check_integer("df", self.df, at_least=1, at_most=10_000)
        check_integer("bins", self.bins, at_least=2, at_most=10_000)
        for name in ("base_rate", "tune_rate"):
            check_number(name, getattr(self, name), low=1e-9, high=1.0)


@dataclass(frozen=True, kw_only=True)
class TrainingCells:
    """Every training of one data set.

    Args:
        source: Datasets and networks of the task.
        budget: How long networks train.
        data: Address of the data set, with its ``seed``.
        network: Options of the network.
    """

    source: NetworkTrainings
    budget: Budget
    data: Mapping[str, Any]
    network: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the data set."""
        return self.source.name_of(self.data)

    @property
    def seed(self) -> int:
        """Seed of the data set."""
        return int(self.data["seed"])

    def base(self, method: Trained, *, stop_after: int = 0) -> Cell:
        """The training by the plain loss; with ``stop_after``, only this many epochs, on all rows."""
        fit = FitConfig(
            epochs=self.budget.base_epochs,
            stop_after=stop_after,
            batch_size=self.budget.base_batch,
            learning_rate=self.budget.base_rate,
            monitor=method.monitor,
            seed=self.seed,
        )
        return self._fit(method, {"name": method.plain}, fit, start=None)

    def tuned(self, method: Trained, candidate: Options, *, start: Cell, stop_after: int = 0) -> Cell:
        """The training of one candidate, from the weights of another cell; see :meth:`base` for ``stop_after``."""
        fit = FitConfig(
            epochs=self.budget.tune_epochs,
            stop_after=stop_after,
            batch_size=self.budget.tune_batch,
            learning_rate=self.budget.tune_rate,
            monitor=method.monitor,
            seed=self.seed + _REPETITION * candidate.get("repetition", 0),
            trained=candidate.get("trained", "full"),
        )
        own = {name: value for name, value in candidate.items() if name not in ("repetition", "trained")}
        if own["name"] == "fcal":
            own.setdefault("df", self.budget.df)
        return self._fit(method, own, fit, start=start)

    def candidates(self, method: Trained) -> list[Cell]:
        """A method's own training, once for every candidate."""
        base = self.base(method)
        return [
            base if is_base(candidate) else self.tuned(method, candidate, start=base) for candidate in method.candidates
        ]

    def members(self, nll: Trained, count: int, *, stop_after: int) -> list[Cell]:
        """Trainings by likelihood on all rows, with other initial weights and orders of the rows."""
        first = self.base(nll, stop_after=stop_after)
        return [first, *(self._again(first, number) for number in range(1, count))]

    def held_out_members(self, nll: Trained, count: int) -> list[Cell]:
        """Trainings by likelihood without the validation rows, which choose the epoch of each."""
        first = self.base(nll)
        return [first, *(self._again(first, number) for number in range(1, count))]

    def _again(self, first: Cell, number: int) -> Cell:
        """A training with other initial weights and another order of the rows."""
        seed = self.seed + number * _REPETITION
        config = {**first.config, "weights_seed": seed, "fit": {**first.config["fit"], "seed": seed}}
        return self.source.fit_cell(config)

    def crossfit(self) -> Cell:
        """Networks of all rows and without each fold, by likelihood."""
        return self._left_out("crossfit", {"name": "nll"}, {"folds": self.budget.folds}, "cross-fit")

    def bags(self, objective: Options, bags: Bags) -> Cell:
        """Networks of an out-of-bag ensemble."""
        return self._left_out("bags", objective, asdict(bags), f"out-of-bag ensemble of {bags.members}")

    def heads(self, objective: Options, bags: Bags) -> Cell:
        """The network of an out-of-bag ensemble of heads."""
        return self._left_out("heads", objective, asdict(bags), f"shared trunk with {bags.members} heads")

    def _left_out(self, name: str, objective: Options, design: Options, label: str) -> Cell:
        """Networks that leave out rows, with the schedule of all others; these rows choose their epochs."""
        fit = FitConfig(
            epochs=self.budget.base_epochs,
            batch_size=self.budget.base_batch,
            learning_rate=self.budget.base_rate,
            channels_last=self.source.channels_last,
            seed=self.seed,
        )
        config = {
            "version": self.source.version,
            "data": self.data,
            "network": self.network,
            "objective": _objective_address(objective, self.source.task_loss),
            "fit": asdict(fit),
            **design,
        }
        label = f"{label} ({self.name})"
        return training_cell(self.source.kind(name), config, affinity=self.name, label=label)

    def scales(self, scales: Options, batch: int) -> Cell:
        """Networks of error bars, trained on the errors of held-out rows."""
        base = self.crossfit()
        fit = FitConfig(
            epochs=self.budget.scale_epochs,
            batch_size=batch or self.budget.tune_batch,
            learning_rate=self.budget.tune_rate,
            channels_last=self.source.channels_last,
            seed=self.seed,
        )
        config = {
            "version": self.source.version,
            "crossfit": base.config,
            "objective": _objective_address(scales, self.source.task_loss),
            "fit": asdict(fit),
        }
        kind, label = self.source.kind("scales"), f"error bars by {scales['name']} of the {base.label}"
        return training_cell(kind, config, needs=(base,), affinity=self.name, label=label)

    def _fit(self, method: Trained, own: Options, fit: FitConfig, *, start: Cell | None) -> Cell:
        config = {
            "version": self.source.version,
            "data": self.data,
            "network": {**self.network, "deterministic": method.deterministic},
            "objective": _objective_address(own, self.source.task_loss),
            "fit": asdict(replace(fit, channels_last=self.source.channels_last)),
            "all_images": fit.stop_after > 0,
            "start": None if start is None else start.config,
        }
        return self.source.fit_cell(config)


def _objective_address(options: Options, task_loss: str) -> dict[str, Any]:
    """Address of an objective beside a task loss, without the options that have no effect if there is one stratum."""
    address = options_of(ObjectiveConfig(**{"task": task_loss, **options}))
    if address["strata"] == 1:
        del address["strata"], address["by"]
    return address
