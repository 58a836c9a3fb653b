"""Training of the models of a cross-fit: what ``fit`` is called with, what it may return, and the choice of a stage."""

import inspect
import math
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils.data import Subset

from fcal._executor import Executor, check_workers
from fcal.crossfitting.held_out import as_distribution, counted, elementwise, expand_mask, is_finite, tame
from fcal.models.predicting import predict
from fcal.residuals import standardize
from fcal.scores import nll

_DIVERGED = 1.0  # nats of held-out likelihood behind the median network


def training_rows(fold: Tensor) -> list[Tensor]:
    """Indices to train on: all rows, and for each fold the rows outside of it.

    Example:
        >>> [rows.tolist() for rows in training_rows(torch.tensor([0, 1, 0]))]
        [[0, 1, 2], [1], [0, 2]]
    """
    return [torch.arange(len(fold)), *((fold != held).nonzero().squeeze(1) for held in range(int(fold.max()) + 1))]


def train_models(
    fit: Callable[..., Any], dataset: Any, fold: Tensor, *, batch_size: int, workers: int
) -> tuple[list[Any], list[int]]:
    """The model of all rows, then the models without each fold, and the stage of each; see :func:`fcal.crossfit`."""
    accepted, check = accepted_arguments(fit), partial(check_stages, dataset)
    whole, *subsets = (Subset(dataset, rows.tolist()) for rows in training_rows(fold))
    held_out = [Subset(dataset, (fold == number).nonzero().squeeze(1).tolist()) for number in range(len(subsets))]
    jobs = [
        job_of(fit, rows, held_out=held, fold_models=(), seed=number)
        for number, (rows, held) in enumerate(zip(subsets, held_out, strict=True), 1)
    ]
    if "fold_models" in accepted:
        trained = run_fits(jobs, workers=workers, check=check)
        last = job_of(fit, whole, held_out=None, fold_models=tuple(trained), seed=0)
        trained = [*run_fits([last], workers=1, check=check), *trained]
    else:
        trained = run_fits([job_of(fit, whole, held_out=None, seed=0), *jobs], workers=workers, check=check)
    stages = [as_stages(models) for models in trained]
    check_lengths(stages)
    check_distinct([model for models in stages for model in models])
    if len(stages[0]) == 1:
        return [models[0] for models in stages], [0] * len(stages)
    curves = torch.tensor(
        [
            [held_out_score(model, held, batch_size) for model in models]
            for models, held in zip(stages[1:], held_out, strict=True)
        ]
    )
    chosen = [int(curves.sum(0).argmin()), *chosen_stages(curves)]
    return [models[stage] for models, stage in zip(stages, chosen, strict=True)], chosen


def run_fits(
    jobs: Sequence[Callable[[], Any]], *, workers: int, check: Callable[[Any], None] | None = None
) -> list[Any]:
    """The model that each job returns.

    Args:
        jobs: Called without arguments.
        workers: Number of processes; 1 for this one.
        check: Called with every model as soon as it is trained, so that an error is raised before the others are.

    Raises:
        TypeError: A job cannot be sent to other processes.

    Example:
        >>> run_fits([lambda: nn.Linear(2, 1), lambda: nn.Linear(3, 1)], workers=1)[1].in_features
        3
    """
    check_workers(workers)
    with Executor(min(workers, len(jobs))) as pool:
        submitted = [pool.submit(job) for job in jobs]
        for job in pool.as_completed():
            try:
                model = job.result()
            except pickle.PicklingError as error:
                message = f"expected `fit` and `dataset` that other processes can be sent, or workers=1, got: {error}"
                raise TypeError(message) from error
            if check is not None:
                check(model)
    return [job.result() for job in submitted]


def job_of(fit: Callable[..., Any], rows: Any, **options: Any) -> Callable[[], Any]:
    """A training, with those of the options that ``fit`` names in its signature."""
    accepted = accepted_arguments(fit)
    return partial(fit, rows, **{name: value for name, value in options.items() if name in accepted})


def accepted_arguments(fit: Callable[..., Any]) -> set[str]:
    """Optional arguments that ``fit`` names in its signature."""
    try:
        parameters = inspect.signature(fit).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return set()
    return {"held_out", "fold_models", "seed"} & set(parameters)


def as_stages(models: Any) -> list[Any]:
    """Stages of a training; a single model is the only one."""
    return list(models) if isinstance(models, list | tuple) else [models]


def check_model(dataset: Any, model: Any) -> None:
    """Refuse a model by its prediction for the first row, before the others are trained."""
    if not callable(model) or isinstance(model, type):
        raise TypeError(f"expected `fit` to return a model to call, got {type(model).__name__}")
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


# Stages of a training, such as its epochs.


def check_stages(dataset: Any, models: Any) -> None:
    """Refuse what is no model, or no list of models, by the last one."""
    if isinstance(models, list | tuple):
        if not models:
            raise ValueError("expected `fit` to return a model or the stages of its training, got an empty list")
        models = models[-1]
    check_model(dataset, models)


def check_lengths(stages: Sequence[Sequence[Any]]) -> None:
    """Refuse models with different numbers of stages, among which there is no common choice."""
    lengths = sorted({len(models) for models in stages})
    if len(lengths) > 1:
        raise ValueError(
            f"expected `fit` to return as many stages for every network, got {lengths[0]} and {lengths[-1]}"
        )


def held_out_score(model: Any, held_out: Any, batch_size: int) -> float:
    """Likelihood of the rows that a network left out; infinite where its predictions are not finite."""
    pred, target, valid_mask = predict(model, held_out, batch_size=batch_size)
    pred = elementwise(pred)
    if not is_finite(pred):
        return math.inf
    return scaled_nll(pred, target, valid_mask=None if valid_mask is None else expand_mask(valid_mask, target))


def diverged(curves: Tensor) -> list[int]:
    """Numbers of the networks whose best score is more than a nat behind that of the median network.

    Args:
        curves: As for :func:`chosen_stages`.

    Example:
        >>> diverged(torch.tensor([[0.0, -1.0], [0.1, -1.1], [torch.inf, 0.5]]))
        [2]
    """
    best = curves.nan_to_num(nan=math.inf, posinf=math.inf).amin(1)
    finite = best[best.isfinite()]
    limit = float(finite.median()) + _DIVERGED if len(finite) else -math.inf
    return [number for number, score in enumerate(best.tolist()) if not score <= limit]


def chosen_stages(curves: Tensor) -> list[int]:
    """Stage of every network, by the held-out scores of the other networks, so that no row chooses its own judge.

    Args:
        curves: Score of each network after each stage of its training, on the rows it left out; less is better, and
            infinite where the network diverged. Shape ``(members, stages)``.

    Example:
        >>> chosen_stages(torch.tensor([[3.0, 1.0, 2.0], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]))
        [2, 1, 1]
    """
    numbers = torch.arange(len(curves))
    chosen = []
    for number in numbers.tolist():
        own = curves[number].isfinite()
        others = torch.where(own, curves[numbers != number].sum(0), torch.inf)
        chosen.append(int((others if bool(others.isfinite().any()) else curves[number]).argmin()))
    return chosen


def scaled_nll(pred: Distribution, target: Tensor, *, valid_mask: Tensor | None = None) -> float:
    """Mean negative log-likelihood after the best common factor on all scales, for a normal distribution.

    Rows whose residuals are beyond 20 robust standard deviations do not count, so that no wild row decides.

    Example:
        >>> from torch.distributions import Normal
        >>> target = torch.tensor([2.0, -2.0, 2.0, -2.0])
        >>> narrow, right = (scaled_nll(Normal(torch.zeros(4), sigma), target) for sigma in (0.1, 2.0))
        >>> abs(narrow - right) < 1e-4
        True
    """
    z = standardize(pred, target, valid_mask=valid_mask).double()
    each = nll(pred, target, valid_mask=valid_mask).double()
    counts = counted(target, valid_mask)
    z, each = z[counts], each[counts]
    usual = tame(z)
    z, each = z[usual], each[usual]
    # What the scales alone contribute: the likelihood without the squared residuals.
    return float((each - z.square() / 2).mean() + (z.square().mean().clamp(min=1e-300).log() + 1) / 2)
