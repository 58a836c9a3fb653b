"""The models of a cross-fit, each fitted on its own rows, here or in processes."""

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from torch import nn

from fcal._checks import check_integer

_MOST_WORKERS = 256


def fitted(jobs: Sequence[Callable[[], Any]], *, workers: int, check: Callable[[Any], None] | None = None) -> list[Any]:
    """The model that each job returns.

    Args:
        jobs: To be called without arguments.
        workers: Processes; 1 for this one.
        check: Called with every model as it comes, so that what is wrong is said before the next one is fitted.

    Raises:
        TypeError: A job cannot be sent to other processes.

    Example:
        >>> fitted([lambda: torch.nn.Linear(2, 1), lambda: torch.nn.Linear(3, 1)], workers=1)[1].in_features
        3
    """
    workers = check_integer("workers", workers, at_least=1, at_most=_MOST_WORKERS)
    models = []
    for model in (job() for job in jobs) if workers == 1 else _in_processes(jobs, workers):
        if not callable(model) or isinstance(model, type):
            raise TypeError(f"expected `fit` to return a model to call, got {type(model).__name__}")
        if check is not None:
            check(model)
        models.append(model)
    return models


def _in_processes(jobs: Sequence[Callable[[], Any]], workers: int) -> list[Any]:
    try:
        pickle.dumps(jobs[0])
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"expected `fit` and `dataset` that other processes can be sent, or workers=1, got: {error}"
        ) from error
    context = get_context("spawn")  # a fork of a process that has used torch's threads may hang
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context, initializer=_one_thread) as pool:
        return [waiting.result() for waiting in [pool.submit(job) for job in jobs]]


def _one_thread() -> None:
    """Several processes with as many threads as cores each would wait for one another."""
    torch.set_num_threads(1)


def check_apart(models: Sequence[Any]) -> None:
    """Refuse models that are one: that of a fold would have seen the rows it is asked about.

    Raises:
        ValueError: Two models are the same object, or share weights.
    """
    owner: dict[int, int] = {}
    for number, model in enumerate(models):
        parts = [id(model)]
        if isinstance(model, nn.Module):
            parts += [weight.data_ptr() for weight in model.parameters() if weight.numel()]
        if any(owner.setdefault(part, number) != number for part in parts):
            raise ValueError("expected `fit` to return a new model each time, got weights of an earlier one")
