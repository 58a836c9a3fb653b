"""The cross-fitting procedure and its result."""

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal import recalibration
from fcal._checks import check_flag, check_integer
from fcal._datasets import get_batch, length_of
from fcal.crossfitting.held_out import (
    as_distribution,
    check_distinct,
    check_same_targets,
    counted,
    cross_predictions,
    cv_plus,
    error_ratio,
    expand_mask,
    levelled,
    run_fits,
    train_models,
    training_rows,
)
from fcal.crossfitting.recentering import Centered, location_of, recentred
from fcal.data.folds import fold_numbers
from fcal.distributions.family import law_of
from fcal.models.predicting import evaluating, predict
from fcal.recalibration import Recalibrator

FitScales = Callable[[Any, Any], Any]

_ENOUGH_FOR_SHAPE = 200  # targets; fewer determine a scale better than a shape


def crossfit(
    fit: Callable[..., Any],
    dataset: Any,
    *,
    folds: int = 4,
    groups: Sequence[Any] | Tensor | None = None,
    seed: int = 0,
    correct: bool = True,
    batch_size: int = 256,
    workers: int = 1,
) -> "CrossFit":
    """Train a model on all rows and one without each fold, and evaluate them on rows that they have not seen.

    A model's errors on its training rows are too small, and so are error bars calibrated on them. Held-out rows show
    the true errors, but a model trained without them is worse. Here every row is held out once, and the model that is
    kept has seen all of them.

    Args:
        fit: ``fit(rows)`` returns a new model trained on ``rows``, a subset of ``dataset``. A model is a network, or
            anything callable with inputs, and returns a distribution. If ``fit`` has an argument of one of these names,
            it also gets ``held_out``, the rows of the fold, for example to stop at the best epoch (None for the model
            of all rows), and ``fold_models``, which the model of all rows gets so that it can be trained as long as
            they were (empty for the fold models themselves).
        dataset: Has a length; its items are tuples ``(input, target)`` or mappings with ``"input"``, ``"target"`` and
            optionally ``"valid_mask"``, in the same order in every pass.
        folds: Number of folds. The cost is ``folds`` fits on all rows but one fold, and one on all rows.
        groups: Group of each row; the rows of a group, such as frames of one sequence, are held out together.
        seed: Seed of the draw of folds.
        correct: Reduce the errors of held-out rows a little, because the models that made them saw fewer rows; see
            :func:`fcal.crossfitting.error_ratio`. Models that start from one that has seen all rows know a little about
            the held-out rows, which compensates for it: pass False in that case.
        batch_size: Rows predicted at once.
        workers: Number of processes that train models.

    Returns:
        The models and their predictions; :meth:`CrossFit.calibrated` returns the model to use.

    Raises:
        TypeError: The dataset has no length, or ``fit`` does not return a model of distributions.
        ValueError: There are fewer rows or groups than folds, a fold has no targets, the rows are in another order in
            another pass, or ``fit`` returns the same model twice.

    Example:
        >>> from torch.distributions import Normal
        >>> y = torch.tensor([1.0, 3.0, 1.0, 3.0]).unsqueeze(1)
        >>> def fit(rows):
        ...     mean = torch.stack([target for _, target in rows]).mean()
        ...     return lambda x: Normal(mean.expand(x.shape), torch.ones(x.shape))
        >>> result = fcal.crossfit(fit, torch.utils.data.TensorDataset(y, y), folds=4)
        >>> result.held_out.mean.squeeze(1)  # of the three other rows
        tensor([2.3333, 1.6667, 2.3333, 1.6667])
        >>> result.calibrated().forward(y).scale[0]  # errors of 4/3, less the correction
        tensor([1.3194])
    """
    rows = length_of(dataset)
    fold = fold_numbers(rows, folds, groups=groups, seed=seed)
    target, valid_mask = _targets(dataset, check_integer("batch_size", batch_size, at_least=1))
    _check_targets(target, valid_mask, fold)
    if not callable(fit):
        raise TypeError(f"expected `fit` to call with rows, got {type(fit).__name__}")
    full, *without = train_models(fit, dataset, fold, workers=workers)
    held_out, seen, predicted_target = cross_predictions(dataset, fold, full, without, batch_size=batch_size)
    check_same_targets(predicted_target.to(target.device), target)
    ratio = 1.0
    if check_flag("correct", correct):
        others = [as_distribution(predict(model, dataset, batch_size=batch_size).pred) for model in without]
        ratio = error_ratio(held_out, predicted_target, fold, others, valid_mask=valid_mask)
    return CrossFit(
        dataset=dataset,
        fold=fold,
        full=full,
        without=tuple(without),
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


def _check_targets(target: Tensor, valid_mask: Tensor | None, fold: Tensor) -> None:
    """Refuse infinite targets, and a fold without any."""
    infinite = target.isinf() if valid_mask is None else target.isinf() & valid_mask
    if bool(infinite.any()):
        raise ValueError(
            f"expected `dataset` with finite targets (NaN where missing), got {int(infinite.sum())} infinite"
        )
    has_target = counted(target, valid_mask).reshape(len(fold), -1).any(1).double()
    rows = torch.zeros(int(fold.max()) + 1, dtype=has_target.dtype).index_add(0, fold, has_target)
    if bool((rows == 0).any()):
        raise ValueError(f"expected `dataset` with targets in every fold, got none in fold {int(rows.argmin())}")


class Calibrated(nn.Module):
    """A model whose predictions are recalibrated.

    Args:
        model: Returns a distribution.
        repair: Recalibrator fitted to predictions of the same family.

    Example:
        >>> from torch.distributions import Normal
        >>> pred = Normal(torch.zeros(2), torch.ones(2))
        >>> repair = fcal.recalibration.Temperature().fit(pred, torch.tensor([3.0, -3.0]))
        >>> Calibrated(lambda x: Normal(x, 1.0), repair)(torch.zeros(1)).scale
        tensor([3.])
    """

    def __init__(self, model: Callable[[Any], Distribution], repair: Recalibrator) -> None:
        super().__init__()
        self.model = model
        self.repair = repair

    def forward(self, inputs: Any) -> Distribution:
        """The recalibrated prediction."""
        return self.repair.transform(self.model(inputs))


class WithScales(nn.Module):
    """The location of one model with the error bars of another.

    Args:
        model: Returns a distribution; its location is used.
        scales: Returns a distribution of the same shape; all but its location is used.

    Example:
        >>> from torch.distributions import Normal
        >>> WithScales(lambda x: Normal(x, 1.0), lambda x: Normal(0 * x, 3.0))(torch.tensor([2.0]))
        Normal(loc: tensor([2.]), scale: tensor([3.]))
    """

    def __init__(self, model: Callable[[Any], Distribution], scales: Callable[[Any], Distribution]) -> None:
        super().__init__()
        self.model = model
        self.scales = scales

    def forward(self, inputs: Any) -> Distribution:
        """The prediction of ``scales`` around the location of ``model``."""
        return recentred(self.scales(inputs), location_of(self.model(inputs)))


@dataclass(frozen=True, kw_only=True)
class CrossFit:
    """Models of all rows and of all but each fold, and their predictions for the rows.

    Attributes:
        dataset: The training rows.
        fold: The fold that each row is in. Shape ``(n,)``.
        full: The model of all rows.
        without: For each fold, the model of the other folds.
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
            repair: Name of a method of :mod:`fcal.recalibration`, or a recalibrator that is not fitted yet. ``"auto"``
                keeps the model's median and repairs scale and shape, ``Conformal(centred=True)``, where there are at
                least 200 scalar targets, and only the scale, ``Temperature()``, otherwise. Neither follows wild rows;
                ``calibrated().repair.wild`` says how many were met, and how far out.
        """
        held_out = self.levelled()
        method: object = copy.deepcopy(repair)
        if repair == "auto":
            method = self._usual_repair(held_out)
        elif isinstance(repair, str):
            method = recalibration.by_name(repair)()
        if not isinstance(method, Recalibrator):
            raise TypeError(f"expected `repair` a name or a Recalibrator, got {type(repair).__name__}")
        method.fit(held_out, self.targets_around(held_out), valid_mask=self.valid_mask)
        return Calibrated(self.full, method)

    def _usual_repair(self, held_out: Distribution) -> Recalibrator:
        scalars = law_of(held_out).family.event_dim == 0
        enough = int(counted(self.target, self.valid_mask).sum()) >= _ENOUGH_FOR_SHAPE
        return recalibration.Conformal(centred=True) if scalars and enough else recalibration.Temperature()

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
