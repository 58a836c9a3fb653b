"""From a batch's sums to the loss: a handful of numbers, differentiated without autograd's cost per operation."""

import math
from collections.abc import Callable
from typing import Any

import torch

from fcal.constraints import SIZE, BatchSums

Objective = Callable[[BatchSums[Any]], Any]

_STEP = 1e-150


def value_and_slopes(objective: Objective, sums: list[float], by: tuple[str, ...] | None) -> tuple[float, list[float]]:
    """Value of an objective at the sums of a batch, and its derivatives by them.

    Args:
        objective: A smooth function of the sums, written in arithmetic that tensors and numbers share.
        sums: The numbers. Length ``SIZE``.
        by: Names of the sums that the objective depends on, if it takes complex numbers; None if it takes only tensors.

    Returns:
        The value and one derivative per sum.

    Example:
        >>> value_and_slopes(lambda sums: sums.z * sums.z, [1.0, 1.0, 3.0, 0.0, 0.0, 0.0], by=("z",))
        (9.0, [0.0, 0.0, 6.0, 0.0, 0.0, 0.0])
    """
    return _by_autograd(objective, sums) if by is None else _by_complex_step(objective, sums, by)


def _by_complex_step(objective: Objective, sums: list[float], by: tuple[str, ...]) -> tuple[float, list[float]]:
    """Derivatives as Im f(x + ih) / h, exact to the last bit: no difference is taken, so nothing cancels."""
    slopes = [0.0] * SIZE
    value = 0j
    for index in map(BatchSums._fields.index, by):
        stepped: list[complex] = [*sums]
        stepped[index] = complex(sums[index], _STEP)
        value = objective(BatchSums(*stepped))
        slopes[index] = value.imag / _STEP
    return value.real, slopes


def _by_autograd(objective: Objective, sums: list[float]) -> tuple[float, list[float]]:
    with torch.enable_grad():
        vector = torch.tensor(sums, dtype=torch.float64, requires_grad=True)
        value = objective(BatchSums(*vector.unbind()))
        if not value.requires_grad:
            raise ValueError("expected `divergence` to depend on mean and variance by autograd, got a constant")
        (slopes,) = torch.autograd.grad(value, vector)
    if math.isnan(value.item()) or not bool(torch.isfinite(slopes).all()):
        shown = f"{value.item():g} with slopes {[f'{slope:g}' for slope in slopes.tolist()]}"
        raise ValueError(f"expected `divergence` to give a number with finite slopes, got {shown}")
    return value.item(), slopes.tolist()
