"""Models of all rows and of all but one fold: how they are trained, and their predictions of held-out rows."""

import inspect
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils.data import Subset

from fcal._executor import Job, check_workers, executor
from fcal.distributions.family import law_of
from fcal.distributions.functional import cat, index_select
from fcal.models.predicting import predict


def training_rows(fold: Tensor) -> list[Tensor]:
    """Indices to train on: all rows, and for each fold the rows outside of it.

    Example:
        >>> [rows.tolist() for rows in training_rows(torch.tensor([0, 1, 0]))]
        [[0, 1, 2], [1], [0, 2]]
    """
    return [torch.arange(len(fold)), *((fold != held).nonzero().squeeze(1) for held in range(int(fold.max()) + 1))]


def train_models(fit: Callable[..., Any], dataset: Any, fold: Tensor, *, workers: int) -> list[Any]:
    """The model of all rows, then the models without each fold; see :func:`fcal.crossfit` for ``fit``."""
    accepted, check = _accepted_arguments(fit), partial(_check_model, dataset)
    whole, *subsets = (Subset(dataset, rows.tolist()) for rows in training_rows(fold))
    jobs = []
    for number, rows in enumerate(subsets):
        held_out = Subset(dataset, (fold == number).nonzero().squeeze(1).tolist())
        jobs.append(_bound(fit, rows, accepted, held_out=held_out, fold_models=()))
    if "fold_models" in accepted:
        fold_models = run_fits(jobs, workers=workers, check=check)
        last = _bound(fit, whole, accepted, held_out=None, fold_models=tuple(fold_models))
        models = [*run_fits([last], workers=1, check=check), *fold_models]
    else:
        models = run_fits([_bound(fit, whole, accepted, held_out=None), *jobs], workers=workers, check=check)
    check_distinct(models)
    return models


def run_fits(
    jobs: Sequence[Callable[[], Any]], *, workers: int, check: Callable[[Any], None] | None = None
) -> list[Any]:
    """The model that each job returns.

    Args:
        jobs: Called without arguments.
        workers: Number of processes; 1 for this one.
        check: Called with every model as soon as it is trained, so that an error is raised before the others are.

    Raises:
        TypeError: A job returns no model, or cannot be sent to other processes.

    Example:
        >>> run_fits([lambda: nn.Linear(2, 1), lambda: nn.Linear(3, 1)], workers=1)[1].in_features
        3
    """
    check_workers(workers)
    with executor(min(workers, len(jobs))) as pool:
        submitted = [pool.submit(job) for job in jobs]
        for job in pool.as_completed():
            model = _result(job)
            if not callable(model) or isinstance(model, type):
                raise TypeError(f"expected `fit` to return a model to call, got {type(model).__name__}")
            if check is not None:
                check(model)
    return [job.value for job in submitted]


def _result(job: Job) -> Any:
    try:
        return job.result()
    except pickle.PicklingError as error:
        message = f"expected `fit` and `dataset` that other processes can be sent, or workers=1, got: {error}"
        raise TypeError(message) from error


def _accepted_arguments(fit: Callable[..., Any]) -> set[str]:
    """Optional arguments that ``fit`` names in its signature."""
    try:
        parameters = inspect.signature(fit).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return set()
    return {"held_out", "fold_models"} & set(parameters)


def _bound(fit: Callable[..., Any], rows: Any, accepted: set[str], **options: Any) -> Callable[[], Any]:
    return partial(fit, rows, **{name: value for name, value in options.items() if name in accepted})


def _check_model(dataset: Any, model: Any) -> None:
    """Refuse a model by its prediction for the first row, before the others are trained."""
    pred, target, _ = predict(model, Subset(dataset, [0]))
    pred = as_distribution(pred)
    shape = pred.batch_shape + pred.event_shape
    if shape != target.shape:
        raise ValueError(f"expected predictions of the targets' shape {tuple(target.shape)}, got {tuple(shape)}")


def check_distinct(models: Sequence[Any]) -> None:
    """Refuse models that share weights: a fold model would have seen the rows that it is evaluated on.

    Raises:
        ValueError: Two models are the same object, or share weights.
    """
    owner: dict[int, int] = {}
    for number, model in enumerate(models):
        identities = [id(model)]
        if isinstance(model, nn.Module):
            identities += [weight.data_ptr() for weight in model.parameters() if weight.numel()]
        if any(owner.setdefault(identity, number) != number for identity in identities):
            raise ValueError("expected `fit` to return a new model each time, got weights of an earlier one")


def cross_predictions(
    dataset: Any, fold: Tensor, full: Any, fold_models: Sequence[Any], *, batch_size: int
) -> tuple[Distribution, Distribution, Tensor]:
    """Predictions for all rows by models that have not seen them, by the model of all rows, and the targets.

    Raises:
        TypeError: A model does not return a distribution.
        ValueError: The rows of the dataset are not in the same order in every pass.
    """
    seen = predict(full, dataset, batch_size=batch_size)
    held = [(fold == number).nonzero().squeeze(1) for number in range(len(fold_models))]
    by_fold = [
        predict(model, Subset(dataset, rows.tolist()), batch_size=batch_size)
        for model, rows in zip(fold_models, held, strict=True)
    ]
    preds = [as_distribution(predicted.pred) for predicted in (seen, *by_fold)]
    names = list(dict.fromkeys(law_of(pred).name for pred in preds))
    if len(names) > 1:
        raise ValueError(f"expected `fit` to return models of one family, got {' and '.join(names)}")
    order = torch.cat(held).argsort()
    check_same_targets(torch.cat([predicted.target for predicted in by_fold])[order], seen.target)
    return as_distribution(index_select(cat(preds[1:]), order)), preds[0], seen.target


def as_distribution(pred: Any) -> Distribution:
    """Refuse a prediction that is no distribution."""
    if not isinstance(pred, Distribution):
        raise TypeError("expected `fit` to return a model of distributions, got one that returns a tensor")
    return pred


def check_same_targets(target: Tensor, before: Tensor) -> None:
    """Refuse targets that are not those of an earlier pass over the dataset."""
    if target.shape != before.shape or not torch.equal(target.nan_to_num(), before.nan_to_num()):
        raise ValueError("expected `dataset` with its rows in the same order in every pass, got other targets")
