r"""Fourier sums over a batch and Fourier series at its points, in time N M and memory independent of N M.

The powers of :math:`e^{i \theta}` up to M come from two short tables, :math:`e^{i a \theta}` and
:math:`e^{i b B \theta}` with :math:`m = a + b B`, so that both functions are matrix products. The batch is
processed in chunks, and the backward pass computes the tables again instead of keeping them.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fcal._checks import check_once

_CHUNK = 1 << 13  # points: their tables stay in cache


def fourier_sums(values: Tensor, weight: Tensor, step: float, count: int) -> Tensor:
    r"""Weighted sums of complex exponentials, :math:`S_m = \sum_n w_n e^{i m \delta x_n}` for m below ``count``.

    Args:
        values: Points :math:`x`, float64. Shape ``(N,)``.
        weight: Their weights, constants for autograd. Shape ``(N,)``.
        step: Spacing :math:`\delta` of the frequencies.
        count: Number of frequencies, the first of which is 0.

    Returns:
        complex128 of shape ``(count,)``; zeros for an empty batch.

    Example:
        >>> fourier_sums(torch.zeros(2).double(), torch.tensor([1.0, 2.0]).double(), step=0.5, count=3)
        tensor([3.+0.j, 3.+0.j, 3.+0.j], dtype=torch.complex128)
    """
    sums: Tensor = _Sums.apply(values, weight, step, count)
    return sums


def fourier_series(values: Tensor, coefficients: Tensor, step: float) -> Tensor:
    r"""Values of a trigonometric series, :math:`r_n = \mathrm{Re} \sum_m c_m e^{i m \delta x_n}`.

    Args:
        values: Points :math:`x`, float64. Shape ``(N,)``.
        coefficients: complex128 :math:`c`. Shape ``(M,)``.
        step: Spacing :math:`\delta` of the frequencies.

    Returns:
        One number per point. Shape ``(N,)``.

    Example:
        >>> fourier_series(torch.tensor([0.0, 1.0]).double(), torch.ones(2, dtype=torch.complex128), step=1.0)
        tensor([2.0000, 1.5403], dtype=torch.float64)
    """
    series: Tensor = _Series.apply(values, coefficients, step)
    return series


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, step: float, count: int) -> Tensor:
        ctx.save_for_backward(values, weight)
        ctx.step = step
        return _sums(values, weight, step, count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        check_once("a Fourier sum")
        values, weight = ctx.saved_tensors
        return weight * _series(values, _differentiated(grads[0].conj(), ctx.step), ctx.step), None, None, None


class _Series(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, coefficients: Tensor, step: float) -> Tensor:
        ctx.save_for_backward(values, coefficients)
        ctx.step = step
        return _series(values, coefficients, step)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        check_once("a Fourier series")
        values, coefficients = ctx.saved_tensors
        by_values = grads[0] * _series(values, _differentiated(coefficients, ctx.step), ctx.step)
        return by_values, _sums(values, grads[0], ctx.step, len(coefficients)).conj(), None


def _sums(values: Tensor, weight: Tensor, step: float, count: int) -> Tensor:
    width, height = _split(count)
    total = torch.zeros(height, width, dtype=torch.complex128, device=values.device)
    for chunk in _chunks(len(values)):
        fine, coarse = _tables(values[chunk], step, width, height)
        total += (coarse * weight[chunk].unsqueeze(-1)).mT @ fine
    return total.reshape(-1)[:count]


def _series(values: Tensor, coefficients: Tensor, step: float) -> Tensor:
    width, height = _split(len(coefficients))
    grid = torch.zeros(height * width, dtype=torch.complex128, device=values.device)
    grid[: len(coefficients)] = coefficients
    result = torch.empty_like(values)
    for chunk in _chunks(len(values)):
        fine, coarse = _tables(values[chunk], step, width, height)
        result[chunk] = (fine @ grid.reshape(height, width).mT * coarse).sum(-1).real
    return result


def _differentiated(coefficients: Tensor, step: float) -> Tensor:
    """Coefficients of the derivative of a series."""
    order = torch.arange(len(coefficients), dtype=torch.float64, device=coefficients.device)
    return 1j * step * order * coefficients


def _tables(values: Tensor, step: float, width: int, height: int) -> tuple[Tensor, Tensor]:
    return _powers(step * values, width), _powers(width * step * values, height)


def _powers(angle: Tensor, count: int) -> Tensor:
    """Powers of e^(i angle) from 0 on; each step doubles their number. Shape ``(n, count)``."""
    factor = torch.complex(angle.cos(), angle.sin()).unsqueeze(-1)
    powers = torch.ones_like(factor)
    while powers.shape[1] < count:
        powers = torch.cat([powers, factor * powers], dim=1)
        factor = factor * factor
    return powers[:, :count]


def _split(count: int) -> tuple[int, int]:
    width = math.isqrt(count - 1) + 1
    return width, -(-count // width)


def _chunks(length: int) -> Iterator[slice]:
    return (slice(start, start + _CHUNK) for start in range(0, length, _CHUNK))
