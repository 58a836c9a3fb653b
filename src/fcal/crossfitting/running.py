"""Cross-fitting: every row is judged by a model that has not seen it."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.utils.data import Subset

from fcal._checks import check_flag, check_integer
from fcal._datasets import get_batch, length_of
from fcal.crossfitting.counting import counting, of_targets
from fcal.crossfitting.fitting import check_apart, fitted
from fcal.crossfitting.result import CrossFit, check_same_rows, parts_of, predictions
from fcal.crossfitting.small_folds import error_ratio
from fcal.data.folds import fold_numbers
from fcal.models import predict


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
) -> CrossFit:
    """Fit a model on all rows and one without each fold, and see how well they know rows that they have not seen.

    A model's errors on the rows it was fitted on are too small, and so are error bars that are calibrated on them.
    Held-out rows tell the truth, but a model fitted without them is the worse for it. Here every row is held out once
    and the model that is kept has seen all of them.

    Args:
        fit: ``fit(rows)`` returns a new model, fitted on a dataset of some rows of ``dataset``. A model is a network,
            or anything to call with inputs, and returns a distribution. It gets more where it names an argument so:
            ``held_out``, the rows of the fold, to stop at the best epoch, say, and None for the model of all rows;
            ``fold_models``, which the model of all rows gets, in order to be trained for as long as they were, and
            for those themselves is empty.
        dataset: Has a length; its items are tuples ``(input, target)`` or mappings with ``"input"``, ``"target"`` and
            perhaps ``"valid_mask"``, in the same order in every pass.
        folds: Number of folds: the cost is that of ``folds`` fits on all rows but one fold, and of one on all rows.
        groups: Group of each row; rows of one are held out together. Frames of one sequence, say.
        seed: Of the draw of folds.
        correct: Whether errors of held-out rows are taken as a little smaller than they are, because the models that
            made them saw fewer rows; see :func:`fcal.crossfitting.error_ratio`. Models that start from one that has
            seen all rows know a little of the rows held out, which makes up for it: say False for these.
        batch_size: Rows predicted at once.
        workers: Processes that fit models; ``fit`` must then be a function that they can import.

    Returns:
        The models and their predictions; its :meth:`~CrossFit.calibrated` is the model to use.

    Raises:
        TypeError: A dataset without a length, or a ``fit`` that does not return what it should.
        ValueError: Fewer rows or groups than folds, a fold without targets, rows in another order in another pass, or
            a ``fit`` that returns one model twice.

    Example:
        >>> from torch.distributions import Normal
        >>> y = torch.tensor([1.0, 3.0, 1.0, 3.0]).unsqueeze(1)
        >>> def fit(rows):
        ...     mean = torch.stack([target for _, target in rows]).mean()
        ...     return lambda x: Normal(mean.expand(x.shape), torch.ones(x.shape))
        >>> found = fcal.crossfit(fit, torch.utils.data.TensorDataset(y, y), folds=4)
        >>> found.held_out.mean.squeeze(1)  # of the three other rows
        tensor([2.3333, 1.6667, 2.3333, 1.6667])
        >>> found.calibrated().forward(y).scale[0]  # errors of 4/3, less what models of all rows are better by
        tensor([1.3194])
    """
    rows = length_of(dataset)
    fold = fold_numbers(rows, folds, groups=groups, seed=seed)
    target, valid_mask = _targets(dataset, check_integer("batch_size", batch_size, at_least=1))
    _check_targets(target, valid_mask, fold)
    if not callable(fit):
        raise TypeError(f"expected `fit` to call with rows, got {type(fit).__name__}")
    full, *without = _models(fit, dataset, fold, workers=workers)
    held_out, seen, again = predictions(dataset, fold, full, without, batch_size=batch_size)
    check_same_rows(again.to(target.device), target)
    ratio = 1.0
    if check_flag("correct", correct):
        others = [predict(model, dataset, batch_size=batch_size).pred for model in without]
        ratio = error_ratio(held_out, again, fold, others, valid_mask=valid_mask)  # type: ignore[arg-type]
    return CrossFit(
        dataset=dataset,
        fold=fold,
        full=full,
        without=tuple(without),
        held_out=held_out,
        seen=seen,
        target=again,
        valid_mask=valid_mask,
        error_ratio=ratio,
        batch_size=batch_size,
        workers=workers,
    )


def _models(fit: Callable[..., Any], dataset: Any, fold: Tensor, *, workers: int) -> list[Any]:
    """The model of all rows and those without each fold."""
    asked, check = _asked_for(fit), partial(_check_model, dataset)
    whole, *parts = (Subset(dataset, part.tolist()) for part in parts_of(fold))
    jobs = []
    for number, rows in enumerate(parts):
        held_out = Subset(dataset, (fold == number).nonzero().squeeze(1).tolist())
        jobs.append(_job(fit, rows, asked, held_out=held_out, fold_models=()))
    if "fold_models" in asked:
        without = fitted(jobs, workers=workers, check=check)
        last = _job(fit, whole, asked, held_out=None, fold_models=tuple(without))
        models = [*fitted([last], workers=1, check=check), *without]
    else:
        models = fitted([_job(fit, whole, asked, held_out=None), *jobs], workers=workers, check=check)
    check_apart(models)
    return models


def _check_model(dataset: Any, model: Any) -> None:
    """Refuse what a model says of a first row before the others are fitted."""
    pred, target, _ = predict(model, Subset(dataset, [0]))
    shape = pred.batch_shape + pred.event_shape if isinstance(pred, Distribution) else None
    if shape is None:
        raise TypeError("expected `fit` to return a model of distributions, got one that returns a tensor")
    if shape != target.shape:
        raise ValueError(f"expected predictions of the targets' shape {tuple(target.shape)}, got {tuple(shape)}")


def _asked_for(fit: Callable[..., Any]) -> set[str]:
    """What ``fit`` names among the arguments that it may have."""
    try:
        named = inspect.signature(fit).parameters
    except (TypeError, ValueError):  # of something built in, which does not say
        return set()
    return {"held_out", "fold_models"} & set(named)


def _job(fit: Callable[..., Any], rows: Any, asked: set[str], **given: Any) -> Callable[[], Any]:
    return partial(fit, rows, **{name: value for name, value in given.items() if name in asked})


def _targets(dataset: Any, batch_size: int) -> tuple[Tensor, Tensor | None]:
    """Targets and masks of all rows, read before the work."""
    pieces = torch.arange(length_of(dataset)).split(batch_size)
    batches = [get_batch(dataset, piece.tolist()) for piece in pieces]
    masks = [batch["valid_mask"] for batch in batches if batch.get("valid_mask") is not None]
    target = torch.cat([batch["target"] for batch in batches])
    if target.dtype == torch.bool or target.is_complex():
        raise TypeError(f"expected `dataset` with targets that are real numbers, got {target.dtype}")
    if not masks:
        return target, None
    if len(masks) < len(batches):
        raise ValueError("expected `dataset` with a valid_mask in all rows or in none, got some")
    return target, of_targets(torch.cat(masks), target)


def _check_targets(target: Tensor, valid_mask: Tensor | None, fold: Tensor) -> None:
    """Refuse a fold from which nothing could be learnt."""
    counts = counting(target, valid_mask)
    infinite = target.isinf() if valid_mask is None else target.isinf() & valid_mask
    if bool(infinite.any()):
        raise ValueError(
            f"expected `dataset` with finite targets (NaN where missing), got {int(infinite.sum())} infinite"
        )
    there = counts.reshape(len(fold), -1).any(1).double()
    known = torch.zeros(int(fold.max()) + 1, dtype=there.dtype).index_add(0, fold, there)
    if bool((known == 0).any()):
        raise ValueError(f"expected `dataset` with targets in every fold, got none in fold {int(known.argmin())}")
