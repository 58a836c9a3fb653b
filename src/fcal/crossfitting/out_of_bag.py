"""Out-of-bag ensembles: networks that each leave out some rows, predict together, and judge the rows they left out."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily, Normal
from torch.utils.data import Subset

from fcal._checks import check_integer, check_number
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
from fcal.crossfitting.held_out import as_distribution, counted
from fcal.crossfitting.recentering import has_location
from fcal.crossfitting.repairing import Calibrated, calibrated
from fcal.data.folds import TWICE, left_out_rows
from fcal.distributions.family import law_of
from fcal.distributions.functional import index_select
from fcal.models.ensembles import Ensemble, mixture
from fcal.models.predicting import predict
from fcal.recalibration import Recalibrator

_WILD = 20.0  # robust standard deviations: no sum follows a row that is farther out, as in fcal.recalibration
_SMALLEST_RATIO = 0.25  # of the squared errors: beyond it, disagreement is no correction any more
_STEPS = 60
_ATTEMPTS = 3
_FEWEST_TARGETS = 20
_ENOUGH_JUDGED = 2000  # rows: their scale is known to about 2 %
_SMALLEST_SHARE, _LARGEST_SHARE = 0.1, 0.15  # of the rows, left out by each of as many networks as the cost


@dataclass(frozen=True, kw_only=True)
class Bags:
    """How many networks an out-of-bag ensemble has, and which rows they leave out.

    M networks that each leave out a share f of the rows cost M (1 - f) trainings on all rows; if m networks judge a
    row, M f / m of the rows are judged.

    Args:
        members: Number M of networks.
        leave_out: Share f of the rows that each of them leaves out.
        judges: Number m of networks that judge a row. With 1, a tenth of the judged rows is left out by two.

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
        share = max(_SMALLEST_SHARE, _ENOUGH_JUDGED * (1 + TWICE) / (max(cost, 2) * rows))
        if share <= _LARGEST_SHARE and cost > 1:
            return cls(members=cost, leave_out=round(share, 3))
        return cls(members=cost + 1, leave_out=1 / (cost + 1))

    @property
    def cost(self) -> float:
        """Cost in trainings on all rows."""
        return self.members * (1 - self.leave_out)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Rows of an out-of-bag ensemble as if it had not seen them.

    Attributes:
        rows: Indices of the judged rows. Shape ``(j,)``.
        pred: What the whole ensemble would predict for them if they were new.
        target: Their targets, with errors as large as those of the whole ensemble.
        disagreement: Variance of the networks' means on rows that they have not seen, relative to that of all networks
            on the same rows, most of which have seen them; NaN where no row is left out by two networks.
        error_ratio: Size of the errors of the whole ensemble relative to those of the judging networks.
    """

    rows: Tensor
    pred: Distribution
    target: Tensor
    disagreement: float
    error_ratio: float


def judged(
    preds: Sequence[Distribution], left_out: Tensor, target: Tensor, *, valid_mask: Tensor | None = None
) -> Judged:
    r"""Predictions and errors for rows as if all networks had left them out, from the few that did.

    Row i is judged by the mean of :math:`m_i` networks, new rows by that of all M. If :math:`V` is the variance of the
    networks' means on rows that they have not seen, the squared error of m networks exceeds that of M networks by
    :math:`V (1/m - 1/M)` in expectation, and the variance of their mixture,
    :math:`\overline{s^2} + V (1 - 1/m)`, is smaller by as much. So the ensemble would predict the variance

    .. math:: \sigma_i^2 = \overline{s_i^2} + V_i\, (1 - 1/M)

    and the errors of the judging networks are multiplied by

    .. math:: \sqrt{c / (c + g_i)}, \qquad g_i = V_i\, (1/m_i - 1/M) / \sigma_i^2

    where c, the mean of the squared errors of the ensemble in units of :math:`\sigma_i^2`, solves
    :math:`\overline{z_i^2 / (c + g_i)} = 1`. The variance between few networks is a very noisy estimate of
    :math:`V_i`. Here it is that of all M networks on row i, times one ratio for all rows: the variance between networks
    that left a row out relative to that between all networks, pooled over the rows that two or more left out.

    Args:
        preds: For each network, its predictions for all rows.
        left_out: True where a network left out a row. Shape ``(members, n)``.
        target: Targets of all rows, NaN where missing. Shape ``(n, ...)``.
        valid_mask: True where a target counts; shaped like ``target`` or its rows.

    Returns:
        The judged rows. The predicted distribution is the normal one with the moments of the mixture. Predictions
        without a location in the unit of the target, such as LogNormal ones, remain mixtures of the judging networks,
        without any correction.

    Example:
        >>> preds = [Normal(torch.full((4,), mean), torch.ones(4)) for mean in (0.0, 2.0)]
        >>> left_out = torch.tensor([[True, True, False, False], [False, False, True, True]])
        >>> judged(preds, left_out, torch.tensor([3.0, -3.0, 5.0, -1.0])).pred.scale  # the root of 1 + 2 (1 - 1 / 2)
        tensor([1.4142, 1.4142, 1.4142, 1.4142])
    """
    rows = left_out.any(0).nonzero().squeeze(1)
    out = left_out[:, rows]
    preds = [as_distribution(index_select(pred, rows)) for pred in preds]
    target = target[rows]
    counts = counted(target, None if valid_mask is None else valid_mask[rows])
    if not has_normal_moments(preds):
        pred = _weighted_mixture(preds, out)
        return Judged(rows=rows, pred=pred, target=target, disagreement=math.nan, error_ratio=1.0)
    moments = _Moments.of(preds, out)
    error = target.to(moments.center) - moments.center
    tame = counts & _tame(error / moments.spread.sqrt()) & _tame((moments.overall / moments.spread).sqrt())
    ratio = moments.disagreement(tame)
    disagreement = moments.overall * (1.0 if math.isnan(ratio) else ratio)
    variance = moments.spread + disagreement * (1 - 1 / len(preds))
    excess = disagreement * (1 / moments.count - 1 / len(preds)) / variance
    shrink = _shrinking(error.square() / variance, excess, tame)
    dtype = preds[0].mean.dtype
    sizes = (error.square() / variance)[tame]
    kept = float(((shrink.square()[tame] * sizes).mean() / sizes.mean()).sqrt()) if bool(sizes.any()) else 1.0
    return Judged(
        rows=rows,
        pred=Normal(moments.center.to(dtype), variance.sqrt().to(dtype)),
        target=torch.where(target.isfinite(), moments.center + shrink * error, target.to(error)).to(dtype),
        disagreement=ratio,
        error_ratio=kept,
    )


def has_normal_moments(preds: Sequence[Distribution]) -> bool:
    """Whether the mixture of predictions is summarised by its mean and variance: a real line, and finite moments."""
    return all(has_location(pred) and not pred.event_shape for pred in preds) and all(
        bool(value.isfinite().all()) for pred in preds for value in (pred.mean, pred.variance)
    )


@dataclass(frozen=True)
class _Moments:
    """Moments of the judging networks' predictions; float64, shape of the targets of the judged rows.

    Attributes:
        count: Number m of networks that judge the row.
        center: Mean of their means.
        spread: Mean of their variances.
        within: Unbiased variance of their means; 0 for one network.
        overall: Unbiased variance of the means of all networks.
    """

    count: Tensor
    center: Tensor
    spread: Tensor
    within: Tensor
    overall: Tensor

    @classmethod
    def of(cls, preds: Sequence[Distribution], out: Tensor) -> "_Moments":
        means = torch.stack([pred.mean.double() for pred in preds])
        variances = torch.stack([pred.variance.double() for pred in preds])
        weight = out.to(means.device).double().reshape(out.shape + (1,) * (means.dim() - 2)).expand(means.shape)
        count = weight.sum(0)
        center = (weight * means).sum(0) / count
        squares = (weight * (means - center).square()).sum(0)
        return cls(
            count=count,
            center=center,
            spread=(weight * variances).sum(0) / count,
            within=squares / (count - 1).clamp(min=1),
            overall=means.var(0),
        )

    def disagreement(self, tame: Tensor) -> float:
        """Variance between networks that left a row out, relative to that between all; pooled."""
        rows = tame & (self.count > 1)
        within, overall = ((values / self.spread)[rows].sum() for values in (self.within, self.overall))
        return float(within / overall) if bool(rows.any()) and float(overall) > 0 else math.nan


def _tame(values: Tensor) -> Tensor:
    """Mask of values that are not far beyond all others."""
    finite = values[values.isfinite()]
    if not len(finite):
        return values.isfinite()
    middle = finite.median()
    spread = 1.4826 * (finite - middle).abs().median()
    return values.isfinite() & ((values - middle).abs() <= _WILD * spread) if bool(spread > 0) else values.isfinite()


def _shrinking(square: Tensor, excess: Tensor, tame: Tensor) -> Tensor:
    """Factor of every error; ``c`` is the root of a function that falls from its lower bound on."""
    sizes, gaps = square[tame], excess[tame]
    mean = float(sizes.mean()) if len(sizes) else 0.0
    if mean <= 0:
        return torch.ones_like(square)
    low, high = _SMALLEST_RATIO * mean, mean
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if float((sizes / (middle + gaps)).mean()) > 1 else (low, middle)
    return (high / (high + excess)).sqrt()


def _weighted_mixture(preds: Sequence[Distribution], out: Tensor) -> MixtureSameFamily:
    """Mixture of the networks that left out each row."""
    whole = mixture(preds)
    weights = out.T.to(whole.mean.device, whole.mean.dtype)
    shape = whole.component_distribution.batch_shape
    weights = weights.reshape(len(weights), *(1,) * (len(shape) - 2), -1).expand(shape)
    return MixtureSameFamily(torch.distributions.Categorical(weights), whole.component_distribution)


# The networks themselves: their training, the choice of a stage, and the result.


@dataclass(frozen=True, kw_only=True)
class OutOfBag:
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
        return Ensemble(self.members, moments=isinstance(self.judged.pred, Normal))

    def calibrated(self, repair: str | Recalibrator = "auto") -> Calibrated:
        """All networks together, recalibrated on the rows that they left out.

        Args:
            repair: Name of a method of :mod:`fcal.recalibration`, or a recalibrator that is not fitted yet. ``"auto"``
                keeps the ensemble's median and repairs scale and shape, ``Conformal(centred=True)``, where there are at
                least 200 scalar targets, and only the scale, ``Temperature()``, otherwise. Neither follows wild rows;
                ``calibrated().repair.wild`` says how many were met, and how far out.
        """
        return calibrated(self.ensemble, repair, self.held_out, self.target, self.valid_mask)


def out_of_bag(
    fit: Callable[..., Any],
    dataset: Any,
    target: Tensor,
    valid_mask: Tensor | None,
    *,
    bags: Bags,
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
        groups: Group of each row.
        seed: Seed of the draw of rows, and of the networks if ``fit`` takes a seed.
        batch_size: Rows predicted at once.
        workers: Number of processes that train networks.
    """
    left_out = left_out_rows(
        len(target), members=bags.members, share=bags.leave_out, judges=bags.judges, groups=groups, seed=seed
    )
    _check_enough(counted(target, valid_mask), left_out)
    stages, curves, retrained = _train(fit, dataset, left_out, seed=seed, batch_size=batch_size, workers=workers)
    chosen = chosen_stages(curves)
    members = [models[stage] for models, stage in zip(stages, chosen, strict=True)]
    predicted = [predict(member, dataset, batch_size=batch_size) for member in members]
    names = list(dict.fromkeys(law_of(as_distribution(each.pred)).name for each in predicted))
    if len(names) > 1:
        raise ValueError(f"expected `fit` to return models of one family, got {' and '.join(names)}")
    rows = judged([as_distribution(each.pred) for each in predicted], left_out, target, valid_mask=valid_mask)
    return OutOfBag(
        dataset=dataset,
        bags=bags,
        members=tuple(members),
        left_out=left_out,
        stages=tuple(chosen),
        retrained=tuple(retrained),
        judged=rows,
        valid_mask=None if valid_mask is None else valid_mask[rows.rows],
    )


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
                seed=1000 * seed + 100 * attempt + number,
                held_out=None,
                fold_models=(),
            )
            for number in numbers
        ]
        trained = run_fits(jobs, workers=workers, check=partial(check_stages, dataset))
        for number, models in zip(numbers, trained, strict=True):
            stages[number] = as_stages(models)
            held_out = Subset(dataset, left_out[number].nonzero().squeeze(1).tolist())
            curves[number] = [held_out_score(model, held_out, batch_size) for model in stages[number]]
        check_lengths(stages)
        check_distinct([model for models in stages for model in models])
        numbers = diverged(torch.tensor(curves))
        if not numbers:
            return stages, torch.tensor(curves), sorted(set(retrained))
        if "seed" not in accepted_arguments(fit):
            break
        retrained += numbers
    shown = f"{len(numbers)} of {len(left_out)} that diverged: number {', '.join(map(str, numbers))}"
    remedy = "" if retrained else "; with an argument `seed`, `fit` is called again for them"
    raise ValueError(f"expected networks that all converge, got {shown}{remedy}")
