"""What cross-fitting found, and the models that come of it."""

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils.data import Subset

from fcal import recalibration
from fcal._checks import check_flag
from fcal.crossfitting.centers import Centered, location_of, recentred
from fcal.crossfitting.fitting import check_apart, fitted
from fcal.crossfitting.intervals import cv_plus
from fcal.crossfitting.levels import levelled
from fcal.distributions.batching import cat, index_select
from fcal.distributions.law import law_of
from fcal.models.predicting import evaluating, predict
from fcal.recalibration import Recalibrator

FitScales = Callable[[Any, Any], Any]


class Calibrated(nn.Module):
    """A model whose predictions are repaired.

    Args:
        model: Returns a distribution.
        repair: Fitted to predictions of its kind.

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

    def forward(self, given: Any) -> Distribution:
        """The repaired prediction."""
        return self.repair.transform(self.model(given))


class WithScales(nn.Module):
    """The location of one model with the error bars of another.

    Args:
        model: Returns a distribution, of which the location is taken as it is.
        scales: Returns one of the same shape, of which all else is taken.

    Example:
        >>> from torch.distributions import Normal
        >>> WithScales(lambda x: Normal(x, 1.0), lambda x: Normal(0 * x, 3.0))(torch.tensor([2.0]))
        Normal(loc: tensor([2.]), scale: tensor([3.]))
    """

    def __init__(self, model: Callable[[Any], Distribution], scales: Callable[[Any], Distribution]) -> None:
        super().__init__()
        self.model = model
        self.scales = scales

    def forward(self, given: Any) -> Distribution:
        """Where the first expects the target, with the error bars of the second."""
        return recentred(self.scales(given), location_of(self.model(given)))


@dataclass(frozen=True, kw_only=True)
class CrossFit:
    """Models of all rows and of all but each fold, and what they say of the rows.

    Attributes:
        dataset: What they were fitted on.
        fold: The fold that holds out each row. Shape ``(n,)``.
        full: The model fitted on all rows.
        without: For each fold, the model fitted on the other ones.
        held_out: What the model that has not seen a row says of it, for every row in its order.
        seen: What the full model says of each row, which it was fitted on.
        target: Targets of all rows.
        valid_mask: Which of them count; None for all that are finite.
        error_ratio: How large errors of the full model are beside those of the others, which saw fewer rows; see
            :func:`fcal.crossfitting.error_ratio`. 1 where it is not corrected for.
        batch_size: Rows predicted at once.
        workers: Processes to fit models in.

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

    def calibrated(self, repair: str | Recalibrator = "temperature") -> Calibrated:
        """The full model, repaired by what held-out rows tell.

        Args:
            repair: Name of a method of :mod:`fcal.recalibration`, or one that is not fitted yet.
        """
        method = recalibration.by_name(repair)() if isinstance(repair, str) else copy.deepcopy(repair)
        if not isinstance(method, Recalibrator):
            raise TypeError(f"expected `repair` a name or a Recalibrator, got {type(repair).__name__}")
        held_out = self.levelled()
        method.fit(held_out, self._with_errors_of_full(held_out), valid_mask=self.valid_mask)
        return Calibrated(self.full, method)

    def levelled(self) -> Distribution:
        """Held-out predictions with error bars as large, on the whole, as the full model's."""
        return levelled(self.held_out, self.seen, self.fold)

    def intervals(self, given: Any, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """CV+ intervals for new inputs, which assume no law of the targets; see :func:`cv_plus`.

        Args:
            given: Inputs, as models are called with.
            level: Share of targets that they are made for, within (0, 1).
        """
        with torch.no_grad(), ExitStack() as modes:
            for model in self.without:
                modes.enter_context(evaluating(model))
            preds = [_law(model(given)) for model in self.without]
        return cv_plus(self.held_out, self.target, self.fold, preds, level=level, valid_mask=self.valid_mask)

    def with_scales(self, fit_scales: FitScales, *, nested: bool = True) -> "CrossFit":
        """The same locations with error bars that are fitted to the errors of held-out rows.

        Args:
            fit_scales: ``fit_scales(rows, start)`` trains the model ``start`` in place, or another one, and returns it.
                The rows are mappings with ``"input"``, ``"target"`` and ``"center"``; the law whose likelihood is to be
                large is that of the model around the center, ``recentred(model(input), center)``.
            nested: Whether each fold has error bars of its own, which have not seen its errors, so that what is
                calibrated afterwards is not flattered. Otherwise all share those of the full model, at a fraction of
                the cost.
        """
        centers = self._near_targets(location_of(self.held_out).expand(self.target.shape))
        models = (self.full, *self.without)
        rows = [Centered(self.dataset, part, centers) for part in parts_of(self.fold)]
        starts = [copy.deepcopy(model) for model in (models if check_flag("nested", nested) else models[:1])]
        rows = rows[: len(starts)]
        jobs = [partial(fit_scales, part, start) for part, start in zip(rows, starts, strict=True)]
        scales = fitted(jobs, workers=self.workers)
        check_apart(scales)
        scales += [scales[0]] * (len(models) - len(scales))
        full, *without = (WithScales(model, scale) for model, scale in zip(models, scales, strict=True))
        held_out, seen, _ = predictions(self.dataset, self.fold, full, without, batch_size=self.batch_size)
        return replace(self, full=full, without=tuple(without), held_out=held_out, seen=seen)

    def _with_errors_of_full(self, pred: Distribution) -> Tensor:
        """Targets as far from a prediction as those of new rows will be from the full model's."""
        if self.error_ratio == 1:
            return self.target
        center = location_of(pred)
        return center + self.error_ratio * (self.target.to(center.dtype) - center)

    def _near_targets(self, center: Tensor) -> Tensor:
        """Locations as far from the targets as the full model's will be from those of new rows."""
        if self.error_ratio == 1:
            return center
        target = self.target.to(center.dtype)
        return torch.where(target.isfinite(), torch.lerp(target, center, self.error_ratio), center)


def parts_of(fold: Tensor) -> list[Tensor]:
    """Rows to fit on: all, and for each fold those that it does not hold out.

    Example:
        >>> [part.tolist() for part in parts_of(torch.tensor([0, 1, 0]))]
        [[0, 1, 2], [1], [0, 2]]
    """
    return [torch.arange(len(fold)), *((fold != held).nonzero().squeeze(1) for held in range(int(fold.max()) + 1))]


def predictions(
    dataset: Any, fold: Tensor, full: Any, without: Sequence[Any], *, batch_size: int
) -> tuple[Distribution, Distribution, Tensor]:
    """What models say of rows that they have not seen, what the full one says of all, and the targets.

    Raises:
        TypeError: A model that does not return a distribution.
        ValueError: A dataset whose rows are not in the same order in every pass.
    """
    seen = predict(full, dataset, batch_size=batch_size)
    held = [(fold == number).nonzero().squeeze(1) for number in range(len(without))]
    parts = [
        predict(model, Subset(dataset, rows.tolist()), batch_size=batch_size)
        for model, rows in zip(without, held, strict=True)
    ]
    _check_one_family([seen.pred, *(part.pred for part in parts)])
    back = torch.cat(held).argsort()
    check_same_rows(torch.cat([part.target for part in parts])[back], seen.target)
    return _law(index_select(cat([part.pred for part in parts]), back)), _law(seen.pred), seen.target


def _check_one_family(preds: Sequence[Distribution | Tensor]) -> None:
    names = list(dict.fromkeys(law_of(_law(pred)).name for pred in preds))
    if len(names) > 1:
        raise ValueError(f"expected `fit` to return models of one family, got {' and '.join(names)}")


def _law(pred: Distribution | Tensor) -> Distribution:
    if not isinstance(pred, Distribution):
        raise TypeError("expected `fit` to return a model of distributions, got one that returns a tensor")
    return pred


def check_same_rows(target: Tensor, before: Tensor) -> None:
    """Refuse targets that are not those of an earlier pass."""
    if target.shape != before.shape or not torch.equal(target.nan_to_num(), before.nan_to_num()):
        raise ValueError("expected `dataset` with its rows in the same order in every pass, got other targets")
