"""The rows of every benchmark, each written once: what a method needs of a problem, and what it predicts.

A :class:`Problem` is one data set with one seed. A task's own class overrides the steps that it can do (train by an
objective, hold rows out, cross-fit, ...); a :class:`Method` names the one step it needs. Every method works in every
task whose problems have that step, and one that a user adds to ``METHODS`` appears in all of their tables.
"""

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from fcal import recalibration
from fcal._registry import Registry
from fcal.benchmarks.problem import HeldOut, Networks, Options, Prediction, Problem
from fcal.crossfitting import Bags, cv_plus, usual_repair
from fcal.models import mixture
from fcal.plots.styles import RowStyle

if TYPE_CHECKING:
    from fcal.benchmarks.training_cells import Budget

RECOMMENDED = "oob_auto"  # what fcal.crossfit does by default
_CENTRED = "conformal-centred"  # the only repair with an option that rows use
ALL_ROWS = "_all"  # suffix of the row of a method that also trains on the rows that others hold out


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
        cost = _cost_of_choice(self, budget, rows)
        return cost + sum(result["epochs"].values()) / budget.base_epochs if self.all_rows else cost


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
        return _cost_of_choice(METHODS["nll"], budget, rows)


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
        recalibrator: Its name in :mod:`fcal.recalibration`, or ``"auto"`` for the default of :func:`fcal.crossfit`.
        objective: By which the networks are trained.
        cost: In trainings on all rows, at most.
        bags: How many networks, and which rows they leave out; decided by the cost and the number of rows if None.
    """

    needs = "out_of_bag"
    version = 2
    recalibrator: str = "auto"
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


def _cost_of_choice(method: Method, budget: "Budget", rows: tuple[int, int]) -> float:
    """A plain training and all candidates that go on from it, without the held-out rows."""
    assert isinstance(method, Trained)
    tuned = sum(not is_base(options) for options in method.candidates[: budget.candidates])
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
            repairs.append(_repair_of(recalibrator, part.pred, part.target).fit(part.pred, part.target))
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


def _repair_of(recalibrator: str, pred: Distribution, target: Tensor) -> recalibration.Recalibrator:
    """A repair that is not fitted yet."""
    if recalibrator == "auto":
        return usual_repair(pred, target)
    if recalibrator == _CENTRED:
        return recalibration.Conformal(centred=True)
    return recalibration.by_name(recalibrator)()


def _repeated(name: str) -> tuple[Options, ...]:
    return tuple({"name": name, "repetition": repetition} for repetition in range(3))


def _weighted(name: str, *weights: float, **options: Any) -> tuple[Options, ...]:
    return tuple({"name": name, "lam": lam, **options} for lam in weights)


_BETA_NLL = {"name": "beta-nll", "beta": 0.5}
_FCAL_SCALES = {"name": "fcal", "divergence": "kl", "lam": 0.3, "df": 20}
_FCAL_BATCH = 512  # each of eight strata must hold many times df residuals

METHODS: Registry[Method] = Registry("method")
METHODS.add("stated", Stated(title="stated noise"))
METHODS.add("oracle", Oracle(title="oracle (knows the noise)"))
METHODS.add(
    "deterministic",
    Trained(
        title="deterministic", plain="smooth-l1", candidates=_repeated("smooth-l1"), deterministic=True, monitor="l1"
    ),
)
METHODS.add("nll", Trained(title="NLL", candidates=_repeated("nll")))
METHODS.add(
    "calibration_loss",
    Trained(
        title="calibration loss",
        candidates=_weighted("calibration-loss", 0.1, 1.0, 10.0, form="additive", on="variance"),
    ),
)
METHODS.add(
    "beta_nll",
    Trained(title="beta-NLL", candidates=tuple({"name": "beta-nll", "beta": beta} for beta in (0.5, 0.25, 1.0))),
)
METHODS.add("mmd", Trained(title="MMD", candidates=_weighted("mmd", 1.0, 10.0, 0.1, form="additive")))
METHODS.add("pce_kde", Trained(title="PCE-KDE", candidates=_weighted("pce-kde", 0.2, 0.05, 0.5)))
METHODS.add("temperature", Repaired(title="temperature", recalibrator="temperature"))
METHODS.add("isotonic", Repaired(title="isotonic", recalibrator="isotonic"))
METHODS.add("isotonic_moments", Repaired(title="isotonic, mean and sd", recalibrator="isotonic", moments=True))
METHODS.add("gp_beta", Repaired(title="GP-Beta", recalibrator="gp-beta"))
METHODS.add("conformal", Repaired(title="conformal", recalibrator="conformal"))
METHODS.add("fcal_kl", Trained(title="f-Cal-KL", candidates=_weighted("fcal", 0.02, 0.005, 0.1, divergence="kl")))
METHODS.add(
    "fcal_wass", Trained(title="f-Cal-Wass", candidates=_weighted("fcal", 0.02, 0.005, 0.1, divergence="wasserstein"))
)
METHODS.add("ensemble", Ensemble(title="ensemble of 5"))
METHODS.add("ensemble_3", Ensemble(title="ensemble of 3", members=3))
for _count in (3, 5):
    for _name in ("temperature", "conformal"):
        METHODS.add(
            f"ensemble_{_count}_{_name}",
            HeldOutEnsemble(title=f"ensemble of {_count}, {_name}", recalibrator=_name, members=_count),
        )
METHODS.add("deterministic_3", PointEnsemble(title="deterministic, ensemble of 3", members=3))
METHODS.add("deterministic_5", PointEnsemble(title="deterministic, ensemble of 5", members=5))
METHODS.add("oob_auto", OutOfBag(title="out-of-bag ensemble", objective=_BETA_NLL))
METHODS.add("oob_auto_5", OutOfBag(title="out-of-bag ensemble, cost 5", objective=_BETA_NLL, cost=5))
METHODS.add(
    "oob_temperature",
    OutOfBag(title="out-of-bag ensemble, one factor", recalibrator="temperature", objective=_BETA_NLL),
)
METHODS.add(
    "oob_conformal",
    OutOfBag(title="out-of-bag ensemble, conformal", recalibrator="conformal-centred", objective=_BETA_NLL),
)
METHODS.add(
    "oob_power", OutOfBag(title="out-of-bag ensemble, power of sigma", recalibrator="power", objective=_BETA_NLL)
)
METHODS.add("oob_nll", OutOfBag(title="out-of-bag ensemble by NLL", objective={"name": "nll"}))
METHODS.add(
    "oob_mse",
    OutOfBag(title="out-of-bag ensemble, mean by squared error", objective={"name": "beta-nll", "beta": 1.0}),
)
METHODS.add("oof_temperature", CrossFitted(title="out-of-fold temperature"))
METHODS.add("oof_nll", CrossFitted(title="out-of-fold NLL", scales={"name": "nll"}))
METHODS.add("oof_fcal", CrossFitted(title="out-of-fold f-Cal", scales=_FCAL_SCALES, batch=_FCAL_BATCH))
METHODS.add(
    "oof_fcal_strata",
    CrossFitted(title="out-of-fold f-Cal, 8 strata", scales={**_FCAL_SCALES, "strata": 8}, batch=_FCAL_BATCH),
)
METHODS.add("oof_conformal", CrossFitted(title="out-of-fold conformal", recalibrator="conformal"))
METHODS.add(
    "oof_nll_conformal",
    CrossFitted(title="out-of-fold NLL, conformal", recalibrator="conformal", scales={"name": "nll"}),
)
METHODS.add("cv_plus", CVPlus(title="CV+"))
METHODS.add("cv_plus_absolute", CVPlus(title="CV+ of absolute errors", scaled=False))

_SHIPPED = frozenset(METHODS.names())
_HIGHLIGHTED = ("fcal_wass", "nll", "fcal_kl", "temperature", "calibration_loss")  # most often compared
_ALL_ROWS_NOTE = (
    "Rows “..._all”, or “all data”, are also trained on the held-out data, which the others choose by and post-hoc "
    "methods are fitted on: every method has then seen as many."
)


def added() -> list[str]:
    """Names of the methods that users have added."""
    return [name for name in METHODS.names() if name not in _SHIPPED]


def method_of(row: str, changes: Mapping[str, Mapping[str, Any]] | None = None) -> Method:
    """The method of a row.

    Args:
        row: Name of a method, or of one that trains with :data:`ALL_ROWS` behind it.
        changes: What a task sets otherwise, by method.

    Raises:
        ValueError: It is unknown; the known ones are listed.

    Example:
        >>> method_of("nll").title, method_of("nll_all").all_rows
        ('NLL', True)
    """
    base = row.removesuffix(ALL_ROWS)
    whole = row not in METHODS.names() and base in METHODS.names() and isinstance(METHODS[base], Trained)
    name = base if whole else row
    options = {**(changes or {}).get(name, {}), **({"all_rows": True} if whole else {})}
    method = METHODS[name]
    if not isinstance(method, Method):
        raise TypeError(f"expected `method` {name!r} an instance of fcal.benchmarks.Method, got {method!r:.60}")
    return dataclasses.replace(method, **options)


def row_styles(rows: Iterable[str]) -> dict[str, RowStyle]:
    """How rows are presented in tables and pictures.

    Example:
        >>> row_styles(["nll_all"])["nll_all"].full_title
        'NLL, all data'
    """
    ranks = {name: rank for rank, name in enumerate(_HIGHLIGHTED)}
    styles = {}
    for row in rows:
        method = method_of(row)
        all_rows = isinstance(method, Trained) and method.all_rows
        styles[row] = RowStyle(
            method.title,
            variant="all data" if all_rows else "",
            footnote=_ALL_ROWS_NOTE if all_rows else "",
            highlight=ranks.get(row),
            reference=method.reference,
        )
    return styles
