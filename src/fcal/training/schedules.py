"""Optimizers and learning rates by name."""

import math
from collections.abc import Callable

import torch

from fcal._registry import Registry

Schedule = Callable[[float], float]
SCHEDULES: Registry[Schedule] = Registry("schedule")
OPTIMIZERS: Registry[Callable[..., torch.optim.Optimizer]] = Registry("optimizer")
OPTIMIZERS.add("adam", torch.optim.Adam)
OPTIMIZERS.add("adamw", torch.optim.AdamW)

_RISE = 0.3  # share of one cycle in which the rate grows
_START = 25.0  # by which the first rate of one cycle is smaller than the largest
_END = 1e4  # by which the last is smaller than the first


def _between(first: float, last: float, share: float) -> float:
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * share))


def _one_cycle(share: float) -> float:
    if share < _RISE:
        return _between(1 / _START, 1.0, share / _RISE)
    return _between(1.0, 1 / _START / _END, (share - _RISE) / (1 - _RISE))


SCHEDULES.add("constant", lambda share: 1.0)  # noqa: ARG005
SCHEDULES.add("cosine", lambda share: _between(1.0, 0.0, share))
SCHEDULES.add("one-cycle", _one_cycle)


def rate_factor(schedule: str, step: int, steps: int) -> float:
    """Factor on the learning rate in a step; a function of the step alone, so that resuming has nothing to restore.

    Args:
        schedule: A known name.
        step: Number of steps that are done.
        steps: Number of steps of the whole training.

    Returns:
        Within [0, 1].

    Example:
        >>> [round(rate_factor("cosine", step, 4), 3) for step in range(4)]
        [1.0, 0.854, 0.5, 0.146]
    """
    return SCHEDULES[schedule](step / steps)
