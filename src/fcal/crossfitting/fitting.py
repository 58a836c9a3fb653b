"""The models of a cross-fit, each fitted on its own rows, here or in processes."""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from fcal._executor import Job, check_workers, executor


def fitted(jobs: Sequence[Callable[[], Any]], *, workers: int, check: Callable[[Any], None] | None = None) -> list[Any]:
    """The model that each job returns.

    Args:
        jobs: To be called without arguments.
        workers: Processes; 1 for this one.
        check: Called with every model as it comes, so that what is wrong is said before the next one is fitted.

    Raises:
        TypeError: A job cannot be sent to other processes.

    Example:
        >>> fitted([lambda: nn.Linear(2, 1), lambda: nn.Linear(3, 1)], workers=1)[1].in_features
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
