"""A problem is one data set with one seed: the steps that methods are made from, and the score of a prediction."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.distributions import Distribution

from fcal.crossfitting import CrossFit
from fcal.sweeps import Cell, Store

if TYPE_CHECKING:
    from fcal.benchmarks.method_kinds import Method, OutOfBag, Trained

Options = Mapping[str, Any]  # of a training objective, with its name


class Failed(Exception):  # noqa: N818 - an outcome that tables show, not a mistake
    """A method has nothing to predict with: its training diverged."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a method predicts for the test rows of a problem.

    A problem may have several parts, such as the splits of a table, each with networks and test rows of its own.

    Attributes:
        dists: A distribution for each part; empty for a method that predicts none.
        means: Predicted means, for a method that predicts nothing else.
        intervals: Lower and upper ends by level, for a method that predicts intervals only.
        seconds: Processor time of the trainings and fits of one part; None where there are none.
        again: Predicts once more, so that it can be timed; None where nobody asks.
        details: Whatever else is worth keeping, as JSON.
        failure: Why the method counts as failed although it predicts something.
    """

    dists: Sequence[Distribution] = ()
    means: Sequence[Tensor] = ()
    intervals: Sequence[Mapping[float, tuple[Tensor, Tensor]]] = ()
    seconds: float | None = None
    again: Callable[[], object] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Folds:
    """Predictions of the networks without each fold, for intervals.

    Attributes:
        pred: For every row, the prediction of the network that has not seen it.
        target: Targets of these rows.
        fold: The fold of each row.
        on_test: Computes what the network without each fold predicts for the test rows.
    """

    pred: Distribution
    target: Tensor
    fold: Tensor
    on_test: Callable[[], Sequence[Distribution]]


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Predictions of one network: for rows it was not trained on, to fit a repair to, and for the test rows.

    Attributes:
        pred: Predictions for the held-out rows; None where there are none to fit a repair to.
        target: Targets of these rows.
        test: Predictions for the test rows.
        again: Computes ``test`` once more; None where nobody asks.
        folds: Those of a cross-fit.
    """

    pred: Distribution | None
    target: Tensor | None
    test: Distribution
    again: Callable[[], Distribution] | None = None
    folds: Folds | None = None

    @classmethod
    def of_crossfit(
        cls,
        crossfit: CrossFit,
        on_test: Callable[[Any], Distribution],
        again: Callable[[], Distribution] | None = None,
    ) -> "HeldOut":
        """Held-out predictions of :func:`fcal.crossfit`, as :meth:`fcal.crossfitting.CrossFit.calibrated` uses them.

        Args:
            crossfit: Its models.
            on_test: What a model predicts for the test rows.
            again: Computes the prediction of the full model once more.
        """
        pred = crossfit.levelled()
        folds = Folds(
            pred=crossfit.held_out,
            target=crossfit.target,
            fold=crossfit.fold,
            on_test=lambda: [on_test(model) for model in crossfit.without],
        )
        target = crossfit.targets_around(pred)
        return cls(pred=pred, target=target, test=on_test(crossfit.full), again=again, folds=folds)


@dataclass(frozen=True, kw_only=True)
class Networks:
    """Trained networks of a problem, by their predictions.

    Attributes:
        parts: One entry per part of the problem.
        seconds: Processor time of the trainings of one part; None where it is not known.
        details: Whatever else is worth keeping, as JSON.
    """

    parts: Sequence[HeldOut]
    seconds: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Members:
    """Networks of an ensemble, by their predictions for the test rows.

    Attributes:
        parts: For each part of the problem, the prediction of every member.
        seconds: Processor time of the trainings of one part.
        again: Computes ``parts`` once more; None where nobody asks.
        details: Whatever else is worth keeping, as JSON.
    """

    parts: Sequence[Sequence[Distribution]]
    seconds: float
    again: Callable[[], Sequence[Sequence[Distribution]]] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


class Problem(ABC):
    """One data set with one seed. A task overrides :meth:`score` and the steps that it can do.

    Attributes:
        store: Where finished trainings are kept.
        labels: Which table it belongs to, such as ``{"noise": "gamma"}``.
        name: What a progress bar calls it.
        levels: Levels of the intervals that it scores.
        bins: Number S of bins of its calibration errors.
        df: Number K of squared residuals in a sum q.
        n_test: Number of scalar test targets; counted by :func:`fcal.benchmarks.score` where 0.
        version: Part of every address; increase it when the same config gives other numbers.
    """

    store: Store
    labels: Mapping[str, str]
    name: str
    levels: tuple[float, ...] = (0.9,)
    bins: int = 20
    df: int = 75
    n_test: int = 0
    version: int = 1

    @abstractmethod
    def config(self, method: "Method") -> dict[str, Any]:
        """Everything about it that changes a method's numbers, as plain values: part of a row's address."""

    def resolved(self, method: "Method") -> "Method":
        """A method with what the settings decide of it, such as how many candidates it has."""
        return method

    def trainings(self, method: "Method") -> tuple[Cell, ...]:
        """Trainings that a method's row starts from, so that rows share them; none by default."""
        del method
        return ()

    @classmethod
    def train(cls, kind: str, config: Mapping[str, Any], store: Store) -> dict[str, Any]:
        """Compute a training that rows share: weights become an artifact, the rest is the result."""
        raise NotImplementedError(
            f"expected {cls.__name__} or its task to have `train` for cells {kind!r}, got neither"
        )

    @abstractmethod
    def score(self, method: "Method", prediction: Prediction) -> dict[str, Any]:
        """Columns (a list with a value per part) and further results that the table shows."""

    def truth(self) -> Sequence[Distribution]:
        """The distribution that the targets were drawn from."""
        raise NotImplementedError

    def stated(self) -> Sequence[Distribution]:
        """The noise that the makers of the data state."""
        raise NotImplementedError

    def trained(self, method: "Trained") -> Prediction:
        """Networks trained by a method's objective."""
        raise NotImplementedError

    def head_trained(self, method: "Trained") -> Prediction:
        """A network trained without error bars, whose uncertainty head alone is trained by a method's objective."""
        raise NotImplementedError

    def held_out(self) -> Networks:
        """Networks trained by likelihood, with held-out rows."""
        raise NotImplementedError

    def cross_fitted(self, scales: Options | None, batch: int) -> Networks:
        """Networks trained on all rows, with held-out predictions of networks trained without each fold.

        Args:
            scales: Objective of networks of error bars, trained on held-out errors; None for the networks' own. A task
                that trains none raises :class:`Failed`.
            batch: Rows in a batch of that training; the task's own number where 0.
        """
        raise NotImplementedError

    def out_of_bag(self, method: "OutOfBag") -> Networks:
        """Networks that each leave out some rows, as one ensemble, with predictions of the rows that they left out."""
        raise NotImplementedError

    def heads(self, method: "OutOfBag") -> Networks:
        """Like :meth:`out_of_bag`, with heads on a shared trunk instead of networks."""
        raise NotImplementedError

    def members(self, count: int) -> Members:
        """Several networks trained by likelihood on all rows."""
        raise NotImplementedError

    def held_out_members(self, count: int) -> Networks:
        """Several networks trained by likelihood as one ensemble, with its predictions of held-out rows."""
        raise NotImplementedError

    def point_members(self, count: int) -> Prediction:
        """The mean of several networks that predict points, trained on all rows."""
        raise NotImplementedError

    @classmethod
    def can(cls, step: str) -> bool:
        """Whether problems of this task have a step.

        Example:
            >>> Problem.can("truth")
            False
        """
        return getattr(cls, step, None) is not getattr(Problem, step, None)
