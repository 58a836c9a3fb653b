"""Kinds of rows of every benchmark, each written once: what a method needs of a problem, and what it predicts.

A :class:`Problem` is one data set with one seed. A task's own class overrides the steps that it can do (train by an
objective, hold rows out, cross-fit, ...); a :class:`Method` names the one step it needs. Every method works in every
task whose problems have that step, and one that a user adds to ``METHODS`` appears in all of their tables.
"""

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from fcal import recalibration
from fcal.benchmarks.problem import HeldOut, Networks, Options, Prediction, Problem
from fcal.crossfitting import Bags, cv_plus
from fcal.models import mixture

if TYPE_CHECKING:
    from fcal.benchmarks.training_cells import Budget

_CENTRED = "conformal-centred"  # the only repair with an option that rows use


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A row of a table.

    Attributes:
        needs: The step of a problem that it is made from.
        reference: Whether it knows what no method may know: it is never ranked.
        version: Increase it when the same options give other numbers.

    Args:
        title: What people call it.
    """

    needs: ClassVar[str]
    reference: ClassVar[bool] = False
    version: ClassVar[int] = 1
    title: str

    @abstractmethod
    def predict(self, problem: Problem) -> Prediction:
        """Predict the test rows of a problem."""

    def relative_cost(self, budget: "Budget", rows: tuple[int, int], result: Mapping[str, Any]) -> float | None:
        """Rows times epochs of all trainings, choices included, relative to one training on all rows.

        Args:
            budget: How long networks train.
            rows: Numbers of rows to train on and of rows that methods with a held-out set hold out.
            result: Of its cell, which has the epochs that were chosen.

        Returns:
            None for a method that trains nothing.
        """
        del budget, rows, result
        return None

    def config(self) -> dict[str, Any]:
        """Everything about it that changes a number, as plain values: not its title."""
        options = {name: value for name, value in dataclasses.asdict(self).items() if name != "title"}
        own = type(self)
        shipped = own.__module__ == __name__
        kind = own.__name__ if shipped else f"{own.__module__}.{own.__qualname__}"
        return {"kind": kind, **options, **({"version": self.version} if self.version > 1 else {})}


@dataclass(frozen=True, kw_only=True)
class Oracle(Method):
    """The distribution that the targets were drawn from: the limit, on synthetic data."""

    needs = "truth"
    reference = True

    def predict(self, problem: Problem) -> Prediction:
        """Predict the true distribution."""
        return Prediction(dists=problem.truth())


@dataclass(frozen=True, kw_only=True)
class Stated(Method):
    """The noise that the makers of the data state."""

    needs = "stated"
    reference = True

    def predict(self, problem: Problem) -> Prediction:
        """Predict the stated distribution."""
        return Prediction(dists=problem.stated())


@dataclass(frozen=True, kw_only=True)
class Trained(Method):
    """A network trained by an objective.

    Args:
        title: What people call it.
        candidates: Options of its objective, best guess first; the problem chooses one by held-out rows. A method
            without a hyper-parameter has repetitions instead, so that all have equally many to choose from.
        plain: Objective of the training that it starts from.
        deterministic: Whether the network predicts points.
        monitor: Validation score that selects the epoch and the candidate: a proper one, the same for all.
        all_rows: Whether it also trains on the rows that it would choose by, as chosen without them.
    """

    needs = "trained"
    candidates: tuple[Options, ...]
    plain: str = "nll"
    deterministic: bool = False
    monitor: str = "nll"
    all_rows: bool = False

    def predict(self, problem: Problem) -> Prediction:
        """Predict with the chosen network."""
        return problem.trained(self)

    def relative_cost(self, budget: "Budget", rows: tuple[int, int], result: Mapping[str, Any]) -> float:
        """The plain training and all candidates; the chosen ones once more on all rows."""
        tuned = sum(not is_base(options) for options in self.candidates[: budget.candidates])
        cost = _cost_of_choice(tuned, budget, rows)
        return cost + sum(result["epochs"].values()) / budget.base_epochs if self.all_rows else cost


@dataclass(frozen=True, kw_only=True)
class HeadTrained(Trained):
    """A network without error bars, whose uncertainty head alone is then trained by an objective."""

    needs = "head_trained"

    def predict(self, problem: Problem) -> Prediction:
        """Predict by the network whose head was trained."""
        return problem.head_trained(self)


@dataclass(frozen=True, kw_only=True)
class Repaired(Method):
    """The network trained by likelihood, with a repair fitted to held-out rows.

    Args:
        title: What people call it.
        recalibrator: Its name in :mod:`fcal.recalibration`.
        moments: Whether the repaired distribution is reduced to a normal one of its mean and standard deviation.
    """

    needs = "held_out"
    recalibrator: str
    moments: bool = False

    def predict(self, problem: Problem) -> Prediction:
        """Fit the repair to the held-out rows of every part, and apply it to the test rows."""
        return _repaired(problem.held_out(), self.recalibrator, moments=self.moments)

    def relative_cost(self, budget: "Budget", rows: tuple[int, int], result: Mapping[str, Any]) -> float:
        """That of the network trained by likelihood."""
        del result
        return _cost_of_choice(budget.candidates - 1, budget, rows)


@dataclass(frozen=True, kw_only=True)
class CrossFitted(Method):
    """A network of all rows whose error bars are learnt from networks that have not seen the row.

    Args:
        title: What people call it.
        recalibrator: Its name in :mod:`fcal.recalibration`, fitted to held-out predictions. A task that has no
            held-out predictions of networks of error bars leaves those as they are.
        scales: Objective of networks of error bars, trained on held-out errors; None for the network's own.
        batch: Rows in a batch of that training; the task's own number where 0.
    """

    needs = "cross_fitted"
    recalibrator: str = "temperature"
    scales: Options | None = None
    batch: int = 0

    def predict(self, problem: Problem) -> Prediction:
        """Fit the repair to held-out predictions of every part, and apply it to the full network's."""
        return _repaired(problem.cross_fitted(self.scales, self.batch), self.recalibrator)

    def relative_cost(self, budget: "Budget", rows: tuple[int, int], result: Mapping[str, Any]) -> float:
        """The networks without each fold and of all rows, and as many networks of error bars."""
        del rows, result
        epochs = budget.base_epochs + (0 if self.scales is None else budget.scale_epochs)
        return budget.folds * epochs / budget.base_epochs


@dataclass(frozen=True, kw_only=True)
class CVPlus(Method):
    """CV+ intervals from the networks without each fold.

    Args:
        title: What people call it.
        scaled: Whether errors are in units of the predicted standard deviation.
    """

    needs = "cross_fitted"
    scaled: bool = True

    def predict(self, problem: Problem) -> Prediction:
        """Intervals for the test rows."""
        networks = problem.cross_fitted(None, 0)
        return Prediction(
            means=[part.test.mean for part in networks.parts],
            intervals=[self._intervals(part, problem.levels) for part in networks.parts],
            seconds=networks.seconds,
            details=networks.details,
        )

    def relative_cost(self, budget: "Budget", rows: tuple[int, int], result: Mapping[str, Any]) -> float:
        """The networks without each fold and of all rows."""
        del rows, result
        return float(budget.folds)

    def _intervals(self, part: HeldOut, levels: Sequence[float]) -> dict[float, tuple[Tensor, Tensor]]:
        if part.folds is None:
            raise ValueError("expected `cross_fitted` with the predictions of every fold (HeldOut.folds), got none")
        folds = part.folds
        held_out, *preds = (folds.pred, *folds.on_test())
        if not self.scaled:
            held_out, *preds = (_of_unit_scale(pred) for pred in (held_out, *preds))
        return {level: cv_plus(held_out, folds.target, folds.fold, preds, level=level) for level in levels}


@dataclass(frozen=True, kw_only=True)
class Ensemble(Method):
    """The mixture of several networks trained by likelihood on all rows.

    Args:
        title: What people call it.
        members: How many networks.
    """

    needs = "members"
    members: int = 5

    def predict(self, problem: Problem) -> Prediction:
        """The mixture of all members."""
        members = problem.members(self.members)

        def again() -> list[tuple[Tensor, Tensor]]:
            parts = members.parts if members.again is None else members.again()
            return [(dist.mean, dist.stddev) for dist in map(mixture, map(list, parts))]

        dists = [mixture(list(part)) for part in members.parts]
        return Prediction(dists=dists, seconds=members.seconds, again=again, details=members.details)

    def relative_cost(self, budget: "Budget", rows: tuple[int, int], result: Mapping[str, Any]) -> float | None:
        """All members, and the network that chose their epochs."""
        return _cost_of_members(self.members, budget, rows, result)


@dataclass(frozen=True, kw_only=True)
class HeldOutEnsemble(Method):
    """Several networks trained by likelihood, with a repair of their mixture fitted to held-out rows.

    Args:
        title: What people call it.
        recalibrator: Its name in :mod:`fcal.recalibration`.
        members: How many networks.
    """

    needs = "held_out_members"
    recalibrator: str
    members: int

    def predict(self, problem: Problem) -> Prediction:
        """Fit the repair to the held-out rows, and apply it to the test rows."""
        return _repaired(problem.held_out_members(self.members), self.recalibrator)

    def relative_cost(self, budget: "Budget", rows: tuple[int, int], result: Mapping[str, Any]) -> float:
        """All members."""
        del budget, result
        return self.members * rows[0] / sum(rows)


@dataclass(frozen=True, kw_only=True)
class PointEnsemble(Method):
    """The mean of several networks without error bars: how accurate an ensemble can be.

    Args:
        title: What people call it.
        members: How many networks.
    """

    needs = "point_members"
    members: int

    def predict(self, problem: Problem) -> Prediction:
        """The mean of all members."""
        return problem.point_members(self.members)

    def relative_cost(self, budget: "Budget", rows: tuple[int, int], result: Mapping[str, Any]) -> float | None:
        """All members, and the network that chose their epochs."""
        return _cost_of_members(self.members, budget, rows, result)


@dataclass(frozen=True, kw_only=True)
class OutOfBag(Method):
    """Networks that each leave out some rows, predict together, and are repaired by the rows they left out.

    Args:
        title: What people call it.
        recalibrator: Its name in :mod:`fcal.recalibration`; by default that of :func:`fcal.crossfit`.
        objective: By which the networks are trained.
        cost: In trainings on all rows, at most.
        bags: How many networks, and which rows they leave out; decided by the cost and the number of rows if None.
    """

    needs = "out_of_bag"
    version = 2
    recalibrator: str = "scale-and-shape"
    objective: Options
    cost: int = 3
    bags: Bags | None = None

    def bags_of(self, rows: int) -> Bags:
        """The design for a number of rows to train on."""
        return self.bags or Bags.of_cost(self.cost, rows)

    def predict(self, problem: Problem) -> Prediction:
        """Fit the repair to the rows that were left out, and apply it to the ensemble's predictions."""
        return _repaired(problem.out_of_bag(self), self.recalibrator)

    def relative_cost(self, budget: "Budget", rows: tuple[int, int], result: Mapping[str, Any]) -> float:
        """All members, for the whole schedule."""
        del budget, result
        return self.bags_of(sum(rows)).cost


@dataclass(frozen=True, kw_only=True)
class Heads(OutOfBag):
    """An out-of-bag ensemble of heads on one trunk, which has seen all rows: one training instead of several."""

    needs = "heads"
    version = 1

    def predict(self, problem: Problem) -> Prediction:
        """Fit the repair to the rows that heads left out, and apply it to their joint predictions."""
        return _repaired(problem.heads(self), self.recalibrator)

    def relative_cost(self, budget: "Budget", rows: tuple[int, int], result: Mapping[str, Any]) -> float:
        """One training for the whole schedule; what further heads cost depends on the network."""
        del budget, rows, result
        return 1.0


def _cost_of_choice(tuned: int, budget: "Budget", rows: tuple[int, int]) -> float:
    """A plain training and as many candidates that go on from it, without the held-out rows."""
    return rows[0] / sum(rows) * (1 + tuned * budget.tune_epochs / budget.base_epochs)


def _cost_of_members(members: int, budget: "Budget", rows: tuple[int, int], result: Mapping[str, Any]) -> float | None:
    """Members trained on all rows for as many epochs as a training without the held-out rows chose."""
    epochs = result.get("member_epochs")
    return None if epochs is None else rows[0] / sum(rows) + members * epochs / budget.base_epochs


def is_base(candidate: Options) -> bool:
    """Whether a candidate is the network that the others start from."""
    return candidate.get("repetition") == 0


def _of_unit_scale(pred: Distribution) -> Distribution:
    return Normal(pred.mean, torch.ones_like(pred.mean))


def _repaired(networks: Networks, recalibrator: str, *, moments: bool = False) -> Prediction:
    """A repair for every part, fitted to its held-out predictions."""
    start = time.process_time()
    repairs: list[recalibration.Recalibrator | None] = []
    for part in networks.parts:
        if part.pred is None or not recalibrator:
            repairs.append(None)
        else:
            assert part.target is not None
            repairs.append(_repair_of(recalibrator).fit(part.pred, part.target))
    seconds = (time.process_time() - start) / len(networks.parts)

    def repaired(repair: recalibration.Recalibrator | None, test: Distribution) -> Distribution:
        dist = test if repair is None else repair.transform(test)
        return Normal(dist.mean, dist.stddev) if moments else dist

    def again() -> list[tuple[Tensor, Tensor]]:
        dists = [
            repaired(repair, part.test if part.again is None else part.again())
            for part, repair in zip(networks.parts, repairs, strict=True)
        ]
        return [(dist.mean, dist.stddev) for dist in dists]  # a repaired distribution computes them only when asked

    return Prediction(
        dists=[repaired(repair, part.test) for part, repair in zip(networks.parts, repairs, strict=True)],
        seconds=None if networks.seconds is None else networks.seconds + seconds,
        again=again,
        details={**networks.details, "recalibrators": [repr(repair) for repair in repairs if repair is not None]},
    )


def _repair_of(recalibrator: str) -> recalibration.Recalibrator:
    """A repair that is not fitted yet."""
    return recalibration.Conformal(centred=True) if recalibrator == _CENTRED else recalibration.by_name(recalibrator)()
