"""Out-of-bag ensembles: networks that each leave out some rows, predict together, and judge the rows they left out."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal
from torch.utils.data import Dataset, Subset

from fcal._checks import check_integer, check_number
from fcal._datasets import Batch, as_batch, get_batch
from fcal.crossfitting.fitting import (
    accepted_arguments,
    as_stages,
    check_distinct,
    check_lengths,
    check_stages,
    chosen_stages,
    diverged,
    held_out_score,
    job_of,
    run_fits,
)
from fcal.crossfitting.held_out import check_same_targets, counted, elementwise, is_finite
from fcal.crossfitting.judging import Judged, judged
from fcal.crossfitting.repairing import Calibrated, calibrated
from fcal.crossfitting.shown import ShownResult
from fcal.data.folds import left_out_rows
from fcal.distributions.family import law_of
from fcal.models.ensembles import Ensemble
from fcal.models.predicting import predict
from fcal.models.shared_trunk import SharedTrunk
from fcal.recalibration import Recalibrator

_ATTEMPTS = 3
_OTHER_SEEDS = 10**6  # from one attempt to the next
_FEWEST_TARGETS = 20
_ENOUGH_LEFT_OUT = 2200  # rows, of which 2,000 are different ones: their scale is known to about 2 %
_SMALLEST_SHARE, _LARGEST_SHARE = 0.1, 0.15  # of the rows, left out by each of as many networks as the cost


@dataclass(frozen=True, kw_only=True)
class Bags:
    """How many networks an out-of-bag ensemble has, and which rows they leave out.

    M networks that each leave out a share f of the rows cost M (1 - f) trainings on all rows; if m networks judge a
    row, M f / m of the rows are judged.

    Args:
        members: Number M of networks.
        leave_out: Share f of the rows that each of them leaves out.
        judges: Number m of networks that judge a row. With 1, a tenth of the judged rows, or more of few rows, is left
            out by two.

    Example:
        >>> Bags.of_cost(3, rows=10_000), Bags.of_cost(3, rows=1000)
        (Bags(members=3, leave_out=0.1, judges=1), Bags(members=4, leave_out=0.25, judges=1))
    """

    members: int = 4
    leave_out: float = 0.25
    judges: int = 1

    def __post_init__(self) -> None:
        check_integer("members", self.members, at_least=2, at_most=1000)
        check_number("leave_out", self.leave_out, low=1e-6, high=0.9)
        check_integer("judges", self.judges, at_least=1, at_most=min(3, self.members - 1))

    @classmethod
    def of_cost(cls, cost: int, rows: int) -> "Bags":
        """The design for a budget of trainings on all rows.

        Every row that a network leaves out makes it less accurate, but about 2,000 rows are needed to judge by. Where a
        tenth of the rows, or a little more, is enough for that, there are ``cost`` networks; otherwise one more, each
        of which leaves out one of ``cost + 1`` parts, so that nearly all rows are judged.
        """
        check_integer("cost", cost, at_least=1, at_most=999)
        share = max(_SMALLEST_SHARE, _ENOUGH_LEFT_OUT / (max(cost, 2) * rows))
        if share <= _LARGEST_SHARE and cost > 1:
            return cls(members=cost, leave_out=min(round(share, 3), 1 / cost))
        return cls(members=cost + 1, leave_out=1 / (cost + 1))

    @property
    def cost(self) -> float:
        """Cost in trainings on all rows."""
        return self.members * (1 - self.leave_out)


@dataclass(frozen=True, kw_only=True, repr=False)
class OutOfBag(ShownResult):
    """Networks that each left out some rows, and what they tell about these rows.

    Attributes:
        dataset: The training rows.
        bags: Number of networks and the rows that they leave out.
        members: The networks.
        left_out: True where a network left out a row. Shape ``(members, n)``.
        stages: Stage of its training that every network is taken from; 0 if ``fit`` returned one model each.
        retrained: Numbers of the networks that diverged and were trained again with another seed.
        judged: The judged rows as if all networks had left them out.
        valid_mask: Targets of the judged rows that count; None for all that are finite.
        shared: The network whose heads the members are; None for networks of their own.

    Example:
        See :func:`fcal.crossfit`.
    """

    dataset: Any
    bags: Bags
    members: tuple[Any, ...]
    left_out: Tensor
    stages: tuple[int, ...]
    retrained: tuple[int, ...]
    judged: Judged
    valid_mask: Tensor | None
    shared: SharedTrunk | None = None

    def __repr__(self) -> str:
        of = f"{len(self.members)} {'networks' if self.shared is None else 'heads'} at a cost of {self.bags.cost:g}"
        rows = f"{len(self.judged.rows)} of {self.left_out.shape[1]} rows judged"
        return f"OutOfBag({of}, {rows}; calibrated() is the model to use)"

    def _heading(self) -> str:
        of = "networks" if self.shared is None else "heads of one network"
        cost = f"at the cost of {self.bags.cost:g} trainings on all rows"
        return f"{len(self.members)} {of} {cost}; {len(self.judged.rows):,} of {self.left_out.shape[1]:,} rows judged"

    def _judged(self) -> tuple[Distribution, Tensor, Tensor | None]:
        return self.held_out, self.target, self.valid_mask

    @property
    def held_out(self) -> Distribution:
        """What the ensemble would predict for the judged rows if they were new."""
        return self.judged.pred

    @property
    def target(self) -> Tensor:
        """Targets of the judged rows, with errors as large as those of the ensemble."""
        return self.judged.target

    @property
    def ensemble(self) -> Ensemble:
        """All networks together, before recalibration."""
        members = self.members if self.shared is None else (self.shared,)
        return Ensemble(members, moments=isinstance(self.judged.pred, Normal))

    def calibrated(self, repair: str | Recalibrator = "auto") -> Calibrated:
        """All networks together, recalibrated on the rows that they left out.

        Args:
            repair: Name of a method of :mod:`fcal.recalibration`, or a recalibrator that is not fitted yet; ``"auto"``
                is that of :func:`fcal.crossfitting.usual_repair`. ``calibrated().repair`` shows it, and its ``wild``
                says how many rows were too far out to be followed.
        """
        return calibrated(self.ensemble.eval(), repair, self.held_out, self.target, self.valid_mask)


def out_of_bag(
    fit: Callable[..., Any],
    dataset: Any,
    target: Tensor,
    valid_mask: Tensor | None,
    *,
    bags: Bags,
    heads: bool,
    groups: Sequence[Any] | Tensor | None,
    seed: int,
    batch_size: int,
    workers: int,
) -> OutOfBag:
    """Train the networks of an ensemble, and judge the rows that they left out; see :func:`fcal.crossfit`.

    Args:
        fit: As for :func:`fcal.crossfit`.
        dataset: Its rows.
        target: Their targets.
        valid_mask: Targets that count; None for all that are finite.
        bags: Number of networks and the rows that they leave out.
        heads: Whether ``fit`` trains all of them at once, as heads of one trunk.
        groups: Group of each row.
        seed: Seed of the draw of rows, and of the networks if ``fit`` takes a seed.
        batch_size: Rows predicted at once.
        workers: Number of processes that train networks.
    """
    if not target.is_floating_point():
        raise TypeError(f"expected `dataset` with targets of a floating dtype, got {target.dtype}")
    left_out = left_out_rows(
        len(target), members=bags.members, share=bags.leave_out, judges=bags.judges, groups=groups, seed=seed
    )
    _check_enough(counted(target, valid_mask), left_out)
    shared: SharedTrunk | None = None
    retrained: list[int] = []
    if heads:
        shared, stage = _train_heads(fit, dataset, left_out, seed=seed, batch_size=batch_size)
        members, chosen = [shared.alone(number) for number in range(bags.members)], [stage] * bags.members
    else:
        stages, curves, retrained = _train(fit, dataset, left_out, seed=seed, batch_size=batch_size, workers=workers)
        chosen = chosen_stages(curves)
        members = [models[stage] for models, stage in zip(stages, chosen, strict=True)]
    preds = _predictions(members, dataset, target, batch_size)
    rows = judged(preds, left_out, target, valid_mask=valid_mask)
    return OutOfBag(
        dataset=dataset,
        bags=bags,
        members=tuple(members),
        left_out=left_out,
        stages=tuple(chosen),
        retrained=tuple(retrained),
        judged=rows,
        valid_mask=None if valid_mask is None else valid_mask[rows.rows],
        shared=shared,
    )


class RowsOfHeads(Dataset[Batch]):
    """Rows with a boolean entry ``"left_out"``, True for the heads that must not learn from them.

    Args:
        dataset: The rows.
        left_out: True where a head leaves out a row. Shape ``(heads, n)``.

    Example:
        >>> from fcal.crossfitting import RowsOfHeads
        >>> data = torch.utils.data.TensorDataset(torch.zeros(2, 1), torch.zeros(2, 1))
        >>> rows = RowsOfHeads(data, torch.tensor([[True, False], [False, False], [False, True]]))
        >>> rows.heads, rows.__getitems__([0])["left_out"].tolist()
        (3, [[True, False, False]])
    """

    def __init__(self, dataset: Any, left_out: Tensor) -> None:
        self.dataset, self.left_out = dataset, left_out.T.contiguous()

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.left_out.shape[1]

    def __len__(self) -> int:
        return len(self.left_out)

    def __getitem__(self, index: int) -> Batch:
        return {**as_batch(self.dataset[index]), "left_out": self.left_out[index]}

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Several rows, stacked."""
        return {**get_batch(self.dataset, indices), "left_out": self.left_out[list(indices)]}


def _train_heads(
    fit: Callable[..., Any], dataset: Any, left_out: Tensor, *, seed: int, batch_size: int
) -> tuple[SharedTrunk, int]:
    """A network whose heads left out rows, and the stage of its training with the best score on them.

    All heads share the trunk, and so the stage: rows have a part in the choice of their own judge, but only a small one
    among all rows.
    """
    stages = as_stages(job_of(fit, RowsOfHeads(dataset, left_out), seed=1000 * seed)())
    for model in stages:
        if not isinstance(model, SharedTrunk) or len(model.heads) != len(left_out):
            shown = f"{len(model.heads)} heads" if isinstance(model, SharedTrunk) else type(model).__name__
            raise TypeError(f"expected `fit` to return a SharedTrunk of {len(left_out)} heads, got {shown}")
    _check_scalars(dataset, stages[-1].alone(0))
    held_out = [Subset(dataset, out.nonzero().squeeze(1).tolist()) for out in left_out]
    curves = torch.tensor(
        [
            [held_out_score(model.alone(number), rows, batch_size) for model in stages]
            for number, rows in enumerate(held_out)
        ]
    )
    best = int(curves.sum(0).argmin())
    if not bool(curves[:, best].isfinite().all()):
        raise ValueError("expected a network that converges, got one whose heads diverged")
    return stages[best], best


def _seen_scores(
    dataset: Any, left_out: Tensor, stages: Sequence[Sequence[Any]], curves: Sequence[Sequence[float]], batch_size: int
) -> Tensor:
    """Score of every network, at its best stage, on the rows it has seen, most of which it shares with the others.

    The rows that networks left out are different ones, and a group may be much noisier than another. Shape ``(m, 1)``.
    """
    scores = []
    for models, curve, out in zip(stages, curves, left_out, strict=True):
        best = min(range(len(curve)), key=curve.__getitem__)
        seen = Subset(dataset, (~out).nonzero().squeeze(1).tolist())
        scores.append([held_out_score(models[best], seen, batch_size) if math.isfinite(curve[best]) else math.inf])
    return torch.tensor(scores)


def _check_scalars(dataset: Any, models: Any) -> None:
    """Refuse what is no model of scalars, as soon as the first one is trained."""
    check_stages(dataset, models)
    pred = elementwise(predict(as_stages(models)[-1], Subset(dataset, [0])).pred)
    law = law_of(pred)
    if pred.event_shape or law.family.component is not None:
        raise ValueError(
            f"expected `fit` to return models of scalars and no mixtures, got {law.name}; pass keep='full'"
        )


def _predictions(members: Sequence[Any], dataset: Any, target: Tensor, batch_size: int) -> list[Distribution]:
    """Predictions of every network for all rows: of one family, finite, and in the order of the targets."""
    predicted = [predict(member, dataset, batch_size=batch_size) for member in members]
    for each in predicted:
        check_same_targets(each.target.to(target.device), target)
    preds = [elementwise(each.pred) for each in predicted]
    names = list(dict.fromkeys(law_of(pred).name for pred in preds))
    if len(names) > 1:
        raise ValueError(f"expected `fit` to return models of one family, got {' and '.join(names)}")
    broken = [str(number) for number, pred in enumerate(preds) if not is_finite(pred)]
    if broken:
        raise ValueError(f"expected networks with finite predictions, got others of number {', '.join(broken)}")
    return preds


def _check_enough(counts: Tensor, left_out: Tensor) -> None:
    """Refuse a design with too few targets to judge by, before anything is trained."""
    has_target = counts.reshape(len(counts), -1)
    targets = int(has_target[left_out.any(0)].sum())
    if targets < _FEWEST_TARGETS:
        raise ValueError(f"expected at least {_FEWEST_TARGETS} targets in rows that are left out, got {targets}")
    for number, out in enumerate(left_out):
        if not bool(has_target[out].any()):
            raise ValueError(f"expected `dataset` with targets for every network to judge, got none for {number}")


def _train(
    fit: Callable[..., Any], dataset: Any, left_out: Tensor, *, seed: int, batch_size: int, workers: int
) -> tuple[list[list[Any]], Tensor, list[int]]:
    """Stages of every network, their scores on the rows it left out, and the networks that were trained twice."""
    retrained: list[int] = []
    stages: list[list[Any]] = [[] for _ in left_out]
    curves: list[list[float]] = [[] for _ in left_out]
    numbers = list(range(len(left_out)))
    for attempt in range(_ATTEMPTS):
        jobs = [
            job_of(
                fit,
                Subset(dataset, (~left_out[number]).nonzero().squeeze(1).tolist()),
                seed=1000 * seed + number + _OTHER_SEEDS * attempt,
                held_out=None,
                fold_models=(),
            )
            for number in numbers
        ]
        trained = run_fits(jobs, workers=workers, check=partial(_check_scalars, dataset))
        for number, models in zip(numbers, trained, strict=True):
            stages[number] = as_stages(models)
            held_out = Subset(dataset, left_out[number].nonzero().squeeze(1).tolist())
            curves[number] = [held_out_score(model, held_out, batch_size) for model in stages[number]]
        check_lengths(stages)
        check_distinct([model for models in stages for model in models])
        numbers = diverged(_seen_scores(dataset, left_out, stages, curves, batch_size))
        if not numbers:
            return stages, torch.tensor(curves), sorted(set(retrained))
        if "seed" not in accepted_arguments(fit):
            break
        retrained += numbers
    shown = f"{len(numbers)} of {len(left_out)} that diverged: number {', '.join(map(str, numbers))}"
    remedy = "" if retrained else "; with an argument `seed`, `fit` is called again for them"
    raise ValueError(f"expected networks that all converge, got {shown}{remedy}")
