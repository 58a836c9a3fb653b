"""The cross-fitting procedure and its result."""

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_flag, check_integer
from fcal._datasets import get_batch, length_of
from fcal._registry import Registry
from fcal.crossfitting.fitting import check_distinct, run_fits, train_models, training_rows
from fcal.crossfitting.held_out import (
    as_distribution,
    check_same_targets,
    counted,
    cross_predictions,
    cv_plus,
    error_ratio,
    expand_mask,
    levelled,
)
from fcal.crossfitting.out_of_bag import Bags, OutOfBag, out_of_bag
from fcal.crossfitting.recentering import Centered
from fcal.crossfitting.repairing import Calibrated, calibrated
from fcal.crossfitting.shown import ShownResult
from fcal.data.folds import fold_numbers
from fcal.distributions.functional import location_of
from fcal.models.predicting import evaluating, predict
from fcal.models.scale_networks import WithScales
from fcal.recalibration import Recalibrator

FitScales = Callable[[Any, Any], Any]

_COST = 3
_FOLDS = 4
_KEEP: Registry[bool] = Registry("keep")  # whether all models are kept
_KEEP.add("ensemble", True)
_KEEP.add("full", False)


@overload
def crossfit(
    fit: Callable[..., Any],
    dataset: Any,
    *,
    keep: Literal["full"],
    folds: int | None = None,
    groups: Sequence[Any] | Tensor | None = None,
    seed: int = 0,
    correct: bool = True,
    batch_size: int = 256,
    workers: int = 1,
) -> "CrossFit": ...


@overload
def crossfit(
    fit: Callable[..., Any],
    dataset: Any,
    *,
    keep: Literal["ensemble"] = "ensemble",
    folds: int | None = None,
    cost: int | None = None,
    bags: Bags | None = None,
    heads: bool = False,
    groups: Sequence[Any] | Tensor | None = None,
    seed: int = 0,
    batch_size: int = 256,
    workers: int = 1,
) -> OutOfBag: ...


def crossfit(
    fit: Callable[..., Any],
    dataset: Any,
    *,
    keep: str = "ensemble",
    folds: int | None = None,
    cost: int | None = None,
    bags: Bags | None = None,
    heads: bool = False,
    groups: Sequence[Any] | Tensor | None = None,
    seed: int = 0,
    correct: bool = True,
    batch_size: int = 256,
    workers: int = 1,
) -> "OutOfBag | CrossFit":
    """Train models that have not seen some of the rows, and calibrate error bars on these rows.

    A model's errors on its training rows are too small, and so are error bars calibrated on them. Held-out rows show
    the true errors, but a model trained without them is worse. Here every model leaves out other rows, so that nearly
    all rows are judged by a model that has not seen them, and no row is lost.

    By default all models are kept, as an ensemble (:func:`fcal.crossfitting.judged` explains how few of its members can
    judge a row for all of them). ``keep="full"`` keeps one model of all rows: it costs one more training, a prediction
    costs one call instead of several, and its mean and calibration are not as good.

    Args:
        fit: ``fit(rows)`` returns a new model trained on ``rows``, a subset of ``dataset``. A model is a network, or
            anything callable with inputs, and returns a distribution. If ``fit`` has an argument ``seed``, it gets
            another number for every model. It may return a list: the model after each stage of its training, such as
            each epoch. The stage of every model is then chosen by the likelihood, after one factor on all scales, of
            the rows that the *other* models left out. For ``keep="full"``, ``fit`` may have arguments ``held_out``, the
            rows of the fold, for example to stop at the best epoch (None for the model of all rows), and
            ``fold_models``, which the model of all rows gets so that it can be trained as long as they were (empty for
            the fold models themselves).
        dataset: Has a length; its items are tuples ``(input, target)`` or mappings with ``"input"``, ``"target"`` and
            optionally ``"valid_mask"``, in the same order in every pass.
        keep: ``"ensemble"`` or ``"full"``.
        folds: Number k of parts of the rows, of which every model leaves out one. An ensemble has k models and costs
            k - 1 trainings on all rows; one model of all rows costs k, and 4 is the default.
        cost: Cost of an ensemble at most; 3 by default. It determines the number of models and the rows that they leave
            out; see :meth:`fcal.crossfitting.Bags.of_cost`.
        bags: These two, instead of ``folds`` or ``cost``.
        heads: For a network that is too large to be trained several times: ``fit`` is called once, with all rows, whose
            batches have an entry ``"left_out"`` (shape ``(rows, heads)``; the rows have a number ``heads``), and
            returns a :class:`fcal.models.SharedTrunk`, or its stages. The trunk has seen every row, so judged rows are
            not quite new, and error bars are a little too small; see docs/crossfitting.md for how much.
        groups: Group of each row; the rows of a group, such as frames of one sequence, are held out together.
        seed: Seed of the draw of folds.
        correct: For ``keep="full"``: reduce the errors of held-out rows a little, because the models that made them saw
            fewer rows; see :func:`fcal.crossfitting.error_ratio`. Models that start from one that has seen all rows
            know a little about the held-out rows, which compensates for it: pass False in that case.
        batch_size: Rows predicted at once.
        workers: Number of processes that train models.

    Returns:
        The models and their predictions; ``calibrated()`` returns the model to use.

    Raises:
        TypeError: The dataset has no length, or ``fit`` does not return a model of distributions.
        ValueError: There are fewer rows or groups than folds, a fold has no targets, the rows are in another order in
            another pass, ``fit`` returns the same model twice, or a model of an ensemble diverged.

    Example:
        >>> from torch.distributions import Normal
        >>> y = torch.arange(40.0).remainder(2).mul(2).add(1).unsqueeze(1)  # 1, 3, 1, 3, ...
        >>> def fit(rows):
        ...     mean = torch.stack([target for _, target in rows]).mean()
        ...     return lambda x: Normal(mean.expand(x.shape), torch.full(x.shape, 0.5))
        >>> result = fcal.crossfit(fit, torch.utils.data.TensorDataset(y, y))
        >>> len(result.members), result.bags.cost
        (4, 3.0)
        >>> result.calibrated()(y).stddev[0]  # errors of 1, twice as large as predicted
        tensor([1.0...])
    """
    target, valid_mask = _targets(dataset, check_integer("batch_size", batch_size, at_least=1))
    _check_finite(target, valid_mask)
    check_integer("seed", seed, at_least=0)
    if not callable(fit):
        raise TypeError(f"expected `fit` to call with rows, got {type(fit).__name__}")
    if _KEEP[keep]:
        return out_of_bag(
            fit,
            dataset,
            target,
            valid_mask,
            bags=_bags(len(target), folds, cost, bags),
            heads=check_flag("heads", heads),
            groups=groups,
            seed=seed,
            batch_size=batch_size,
            workers=workers,
        )
    if cost is not None or bags is not None or heads:
        raise ValueError("expected `folds` with keep='full', got `cost`, `bags` or `heads`, which are of an ensemble")
    return _of_folds(
        fit,
        dataset,
        target,
        valid_mask,
        fold=fold_numbers(len(target), _FOLDS if folds is None else folds, groups=groups, seed=seed),
        correct=check_flag("correct", correct),
        batch_size=batch_size,
        workers=workers,
    )


def _bags(rows: int, folds: int | None, cost: int | None, bags: Bags | None) -> Bags:
    """The design of an ensemble, by one of its three names."""
    if sum(option is not None for option in (folds, cost, bags)) > 1:
        raise ValueError("expected one of `folds`, `cost` and `bags`, got several")
    if bags is not None:
        if not isinstance(bags, Bags):
            raise TypeError(f"expected `bags` a fcal.crossfitting.Bags, got {type(bags).__name__}")
        return bags
    if folds is not None:
        members = check_integer("folds", folds, at_least=2, at_most=1000)
        return Bags(members=members, leave_out=1 / members)
    return Bags.of_cost(_COST if cost is None else cost, rows)


def _of_folds(
    fit: Callable[..., Any],
    dataset: Any,
    target: Tensor,
    valid_mask: Tensor | None,
    *,
    fold: Tensor,
    correct: bool,
    batch_size: int,
    workers: int,
) -> "CrossFit":
    """Train a model on all rows and one without each fold."""
    _check_folds(target, valid_mask, fold)
    (full, *without), stages = train_models(fit, dataset, fold, batch_size=batch_size, workers=workers)
    held_out, seen, predicted_target = cross_predictions(dataset, fold, full, without, batch_size=batch_size)
    check_same_targets(predicted_target.to(target.device), target)
    ratio = 1.0
    if correct:
        others = [as_distribution(predict(model, dataset, batch_size=batch_size).pred) for model in without]
        ratio = error_ratio(held_out, predicted_target, fold, others, valid_mask=valid_mask)
    return CrossFit(
        dataset=dataset,
        fold=fold,
        full=full,
        without=tuple(without),
        stages=tuple(stages),
        held_out=held_out,
        seen=seen,
        target=predicted_target,
        valid_mask=valid_mask,
        error_ratio=ratio,
        batch_size=batch_size,
        workers=workers,
    )


def _targets(dataset: Any, batch_size: int) -> tuple[Tensor, Tensor | None]:
    """Targets and masks of all rows, read before anything is trained."""
    batches = [get_batch(dataset, rows.tolist()) for rows in torch.arange(length_of(dataset)).split(batch_size)]
    masks = [batch["valid_mask"] for batch in batches if batch.get("valid_mask") is not None]
    target = torch.cat([batch["target"] for batch in batches])
    if target.dtype == torch.bool or target.is_complex():
        raise TypeError(f"expected `dataset` with targets that are real numbers, got {target.dtype}")
    if not masks:
        return target, None
    if len(masks) < len(batches):
        raise ValueError("expected `dataset` with a valid_mask in all rows or in none, got some")
    return target, expand_mask(torch.cat(masks), target)


def _check_finite(target: Tensor, valid_mask: Tensor | None) -> None:
    """Refuse infinite targets."""
    infinite = target.isinf() if valid_mask is None else target.isinf() & valid_mask
    if bool(infinite.any()):
        raise ValueError(
            f"expected `dataset` with finite targets (NaN where missing), got {int(infinite.sum())} infinite"
        )


def _check_folds(target: Tensor, valid_mask: Tensor | None, fold: Tensor) -> None:
    """Refuse a fold without targets."""
    has_target = counted(target, valid_mask).reshape(len(fold), -1).any(1).double()
    rows = torch.zeros(int(fold.max()) + 1, dtype=has_target.dtype).index_add(0, fold, has_target)
    if bool((rows == 0).any()):
        raise ValueError(f"expected `dataset` with targets in every fold, got none in fold {int(rows.argmin())}")


@dataclass(frozen=True, kw_only=True)
class CrossFit(ShownResult):
    """Models of all rows and of all but each fold, and their predictions for the rows.

    Attributes:
        dataset: The training rows.
        fold: The fold that each row is in. Shape ``(n,)``.
        full: The model of all rows.
        without: For each fold, the model of the other folds.
        stages: Stage of its training that each of these models is taken from; 0 if ``fit`` returned one model each.
        held_out: Prediction for every row, in order, by the model that has not seen it.
        seen: Prediction for every row by the model of all rows.
        target: Targets of all rows.
        valid_mask: Targets that count; None for all that are finite.
        error_ratio: Size of the errors of the model of all rows relative to those of the fold models, which saw fewer
            rows; see :func:`fcal.crossfitting.error_ratio`. 1 without this correction.
        batch_size: Rows predicted at once.
        workers: Number of processes that train models.

    Example:
        See :func:`fcal.crossfit`.
    """

    dataset: Any
    fold: Tensor
    full: Any
    without: tuple[Any, ...]
    stages: tuple[int, ...]
    held_out: Distribution
    seen: Distribution
    target: Tensor
    valid_mask: Tensor | None
    error_ratio: float
    batch_size: int
    workers: int

    def calibrated(self, repair: str | Recalibrator = "auto") -> Calibrated:
        """The model of all rows, recalibrated on the errors of held-out rows.

        Args:
            repair: Name of a method of :mod:`fcal.recalibration`, or a recalibrator that is not fitted yet; ``"auto"``
                is that of :func:`fcal.crossfitting.usual_repair`. ``calibrated().repair`` shows it, and its ``wild``
                says how many rows were too far out to be followed.
        """
        held_out = self.levelled()
        return calibrated(self.full, repair, held_out, self.targets_around(held_out), self.valid_mask)

    def _heading(self) -> str:
        return f"a model of all {len(self.fold):,} rows, and one without each of {len(self.without)} folds"

    def _judged(self) -> tuple[Distribution, Tensor, Tensor | None]:
        held_out = self.levelled()
        return held_out, self.targets_around(held_out), self.valid_mask

    def levelled(self) -> Distribution:
        """Held-out predictions with the scale level of the model of all rows."""
        return levelled(self.held_out, self.seen, self.fold)

    def intervals(self, given: Any, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """CV+ intervals for new inputs, which assume no distribution of the targets; see :func:`cv_plus`.

        Args:
            given: Inputs of the models.
            level: Nominal coverage, within (0, 1).
        """
        with torch.no_grad(), ExitStack() as modes:
            for model in self.without:
                modes.enter_context(evaluating(model))
            preds = [as_distribution(model(given)) for model in self.without]
        return cv_plus(self.held_out, self.target, self.fold, preds, level=level, valid_mask=self.valid_mask)

    def with_scales(self, fit_scales: FitScales, *, nested: bool = True) -> "CrossFit":
        """The same locations with error bars that are trained on the errors of held-out rows.

        Args:
            fit_scales: ``fit_scales(rows, start)`` trains the model ``start`` in place, or another one, and returns it.
                The rows are mappings with ``"input"``, ``"target"`` and ``"center"``; the likelihood to maximize is
                that of the model around the center, ``recentred(model(input), center)``.
            nested: Train a model of error bars for each fold, which has not seen the errors of that fold, so that later
                calibration is not too optimistic. Otherwise all folds share that of the model of all rows, at a
                fraction of the cost.
        """
        centers = self._near_targets(location_of(self.held_out).expand(self.target.shape))
        models = (self.full, *self.without)
        starts = [copy.deepcopy(model) for model in (models if check_flag("nested", nested) else models[:1])]
        rows = [Centered(self.dataset, indices, centers) for indices in training_rows(self.fold)[: len(starts)]]
        jobs = [partial(fit_scales, subset, start) for subset, start in zip(rows, starts, strict=True)]
        scales = run_fits(jobs, workers=self.workers)
        check_distinct(scales)
        scales += [scales[0]] * (len(models) - len(scales))
        full, *without = (WithScales(model, scale) for model, scale in zip(models, scales, strict=True))
        held_out, seen, _ = cross_predictions(self.dataset, self.fold, full, without, batch_size=self.batch_size)
        return replace(self, full=full, without=tuple(without), held_out=held_out, seen=seen)

    def targets_around(self, pred: Distribution) -> Tensor:
        """Targets with errors as large as those of the model of all rows on new rows."""
        if self.error_ratio == 1:
            return self.target
        center = location_of(pred)
        return center + self.error_ratio * (self.target.to(center.dtype) - center)

    def _near_targets(self, center: Tensor) -> Tensor:
        """Locations with errors as large as those of the model of all rows on new rows."""
        if self.error_ratio == 1:
            return center
        target = self.target.to(center.dtype)
        return torch.where(target.isfinite(), torch.lerp(target, center, self.error_ratio), center)
