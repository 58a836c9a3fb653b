"""The sums of a batch and their gradients, chunk by chunk, without autograd.

The elementwise work may be float32. Deviations are then taken from the mean of their chunk, and only chunks are added
up in double precision, so that no variance cancels.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fcal.constraints import SIZE
from fcal.distributions.tails import LOG_SQRT_2PI
from fcal.losses._fused.residual_curve import Curve
from fcal.residuals import scaled_errors

_CHUNK = 1 << 17  # elements: a few buffers of this size stay in cache between two passes, and the loop is short
# Within these bounds no product of the float32 work overflows; beyond any of them the work is done in float64.
_LARGEST_DERIVATIVE = 1e8
_LARGEST_FOURTH = 1e12
_LEAST_SQUARE = 1e-12
_LEAST_SCALE = 1e-12
_LARGEST_RESIDUAL = 1e70  # sums of its fourth power are still finite in float64


class SumOptions(NamedTuple):
    """How sums are computed.

    Attributes:
        dtype: Precision of the elementwise work; sums are double.
        detach_mean: Let only the gradient of the likelihood reach ``loc``.
        with_mean: Whether to sum z; otherwise that entry is 0.
        with_nll: Whether to sum the negative log-likelihood of a normal prediction; otherwise that entry is 0.
        curve: Maps errors in units of the scale to residuals; None where they are the residuals.
    """

    dtype: torch.dtype = torch.float64
    detach_mean: bool = False
    with_mean: bool = True
    with_nll: bool = False
    curve: Curve | None = None


class SumInputs(NamedTuple):
    """A flattened batch.

    Attributes:
        target: Targets; or residuals, where ``loc`` and ``scale`` are None. Shape ``(N,)``.
        loc: Locations of the prediction. Shape ``(N,)``.
        scale: Its scales, positive. Shape ``(N,)``.
        weight: Weights, or a mask; None for ones. Shape ``(N,)``.
    """

    target: Tensor
    loc: Tensor | None = None
    scale: Tensor | None = None
    weight: Tensor | None = None


@torch.no_grad()
def batch_sums(inputs: SumInputs, options: SumOptions) -> list[float]:
    """The sums of :class:`fcal.constraints.BatchSums` in one pass that keeps no tensor of size N.

    Returns:
        ``SIZE`` numbers; not finite where the work overflowed its dtype, or where an input is not finite or a scale
        not positive.

    Example:
        >>> batch_sums(SumInputs(torch.tensor([1.0, -2.0, 1.0])), SumOptions())
        [3.0, 3.0, 0.0, 6.0, 18.0, 0.0]
    """
    rows = []
    for chunk in _chunks(inputs.target):
        z, scale, weight = _chunk_errors(inputs, chunk, options.dtype)
        if options.curve is not None:
            z = _on_curve(z, options.curve)
        rows.append(_chunk_sums(z, scale, weight, options))
    return _merged(rows, with_constant=options.with_nll)


@torch.no_grad()
def batch_gradients(
    inputs: SumInputs, options: SumOptions, derivatives: list[float], wanted: tuple[bool, bool, bool]
) -> list[Tensor | None]:
    """Gradients by target, loc and scale, given the derivatives by the sums; None if not wanted. Shapes ``(N,)``."""
    sources = (inputs.target, inputs.loc, inputs.scale)
    gradients = [
        torch.empty_like(source) if want and source is not None else None
        for source, want in zip(sources, wanted, strict=True)
    ]
    dtype = torch.float64 if may_overflow(derivatives) else options.dtype
    for chunk in _chunks(inputs.target):
        t, scale, weight = _chunk_errors(inputs, chunk, dtype)
        weight = None if weight is None else weight.to(dtype)
        if scale is None:  # residuals of any family, whose likelihood is differentiated elsewhere
            _store(gradients[0], chunk, gradient_by_z(t, weight, [*derivatives[:5], 0.0]))
        else:
            _location_scale_gradients(t, scale, weight, derivatives, options, gradients, chunk)
    return gradients


def gradient_by_z(z: Tensor, weight: Tensor | None, derivatives: list[float]) -> Tensor:
    """Gradient by z, w (c1 + z (2 c2 + 4 c3 z^2 + c4)), for the derivatives c by the sums."""
    _, _, first, square, fourth, likelihood = derivatives
    constant = torch.tensor(2 * square + likelihood, dtype=z.dtype, device=z.device)
    gradient = torch.addcmul(constant, z, z, value=4 * fourth).mul_(z)
    if first:
        gradient.add_(first)
    return gradient if weight is None else gradient.mul_(weight)


def may_overflow(derivatives: list[float]) -> bool:
    """Whether products with these derivatives may leave the range of float32."""
    return max(map(abs, derivatives)) >= _LARGEST_DERIVATIVE


def are_accurate(sums: list[float], dtype: torch.dtype) -> bool:
    """Whether sums are finite and, unless the work was double, its terms were far from overflow and underflow."""
    if not all(map(math.isfinite, sums)):
        return False
    total, _, _, square, fourth, _ = sums
    return dtype == torch.float64 or (fourth < _LARGEST_FOURTH and square >= _LEAST_SQUARE * total)


def _chunks(values: Tensor) -> list[slice] | list[None]:
    """Slices of the batch; a single None if it is small, or on a device without small caches."""
    count = values.numel()
    if count <= _CHUNK or values.device.type != "cpu":
        return [None] if count else []
    step = _CHUNK * torch.get_num_threads()
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _chunk_errors(
    inputs: SumInputs, chunk: slice | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Errors in units of the scale and the scales in working precision, and the weights in double."""
    errors = _taken(inputs.target, chunk, dtype)
    scale = None
    if inputs.loc is not None and inputs.scale is not None:
        scale = _taken(inputs.scale, chunk, dtype)
        errors = scaled_errors(errors, _taken(inputs.loc, chunk, dtype), scale)
    if dtype == torch.float64:
        errors = errors.clamp(-_LARGEST_RESIDUAL, _LARGEST_RESIDUAL)
    return errors, scale, None if inputs.weight is None else _taken(inputs.weight, chunk, torch.float64)


def _taken(values: Tensor, chunk: slice | None, dtype: torch.dtype) -> Tensor:
    selected = values if chunk is None else values[chunk]
    return selected if selected.dtype == dtype else selected.to(dtype)


def _on_curve(t: Tensor, curve: Curve) -> Tensor:
    """Residuals; NaN where an error is beyond the range of the curve, so that the sums are NaN too."""
    low, high = torch.aminmax(t)
    if not (low.item() >= -curve.farthest and high.item() <= curve.farthest):
        return torch.full_like(t, math.nan)
    return curve.residual(t)


def _chunk_sums(z: Tensor, scale: Tensor | None, weight: Tensor | None, options: SumOptions) -> list[float]:
    """Total, total square, sum of z, sum of z^2, sum of squared deviations of z^2 from its own mean, sum of nll.

    Overwrites z. All NaN where a scale is not positive (in float32: not tiny) and finite, which sums may not show.
    """
    total = total_square = float(z.numel())
    if weight is not None:
        total, total_square = weight.sum().item(), torch.dot(weight, weight).item()
        weight = (weight / weight.max()).to(z.dtype) if total else weight.to(z.dtype)  # within the range of z.dtype
    size = total if weight is None else weight.sum(dtype=torch.float64).item()
    first = square = nll = 0.0
    if options.with_mean and size:
        first = _weighted_sum(z, weight)
        square = _weighted_sum((z - first / size).square_(), weight) + first * first / size
    squares = z.mul_(z)
    if not options.with_mean:
        square = _weighted_sum(squares, weight)
    spread = _spread(squares, square, size, weight)
    if scale is not None:
        low, high = torch.aminmax(scale)
        least = 0.0 if z.dtype == torch.float64 else _LEAST_SCALE
        if not (low.item() > least and high.item() < math.inf):
            return [math.nan] * SIZE
        if options.with_nll:
            nll = 0.5 * square + _weighted_sum(scale.log(), weight)
    unit = total / size if size else 0.0
    return [total, total_square, unit * first, unit * square, unit * spread, unit * nll]


def _spread(squares: Tensor, total: float, size: float, weight: Tensor | None) -> float:
    """Sum of squared deviations from the mean; overwrites ``squares``."""
    squares.sub_(total / size if size else 0.0)  # all elements of a chunk may be hidden
    return torch.dot(squares, squares).item() if weight is None else _weighted_sum(squares.square_(), weight)


def _weighted_sum(values: Tensor, weight: Tensor | None) -> float:
    """Pairwise sum: a dot product would lose digits over a long chunk."""
    return (values if weight is None else values * weight).sum().item()


def _merged(rows: list[list[float]], *, with_constant: bool) -> list[float]:
    """Add chunks up in double precision."""
    columns = list(zip(*rows, strict=True)) or [()] * SIZE
    total, total_square, first, square, _, nll = (sum(column, 0.0) for column in columns)
    fourth = 0.0
    for count, _, _, chunk_square, spread, _ in rows:
        fourth += spread + (chunk_square * chunk_square / count if count else 0.0)
    if with_constant:
        nll += total * LOG_SQRT_2PI
    return [total, total_square, first, square, fourth, nll]


def _location_scale_gradients(
    t: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    derivatives: list[float],
    options: SumOptions,
    gradients: list[Tensor | None],
    chunk: slice | None,
) -> None:
    """Write the gradients by target, loc and scale of one chunk into ``gradients``.

    With g the gradient by t: g / scale by the target, -g / scale by loc, and -t g / scale plus the 1 / scale of the
    likelihood by scale. For a normal prediction t is z.
    """
    by_target, by_loc, by_scale = gradients
    likelihood = derivatives[5]
    z, z_by_t = (t, None) if options.curve is None else options.curve.residual_and_slope(t)
    negative = gradient_by_z(z, weight, [-derivative for derivative in derivatives])
    if z_by_t is not None:
        negative.mul_(z_by_t)
    if by_scale is not None:
        along = negative * t
        if likelihood:
            along = along.add_(likelihood) if weight is None else along.add_(weight, alpha=likelihood)
        _divide_into(by_scale, chunk, along, scale)  # the division is last, as infinity times 0 would be NaN
    if by_target is not None:
        _divide_into(by_target, chunk, -negative, scale)
    if by_loc is not None:
        if options.detach_mean:
            negative = z * -likelihood if weight is None else weight * z * -likelihood
        _divide_into(by_loc, chunk, negative, scale)


def _divide_into(gradient: Tensor, chunk: slice | None, values: Tensor, scale: Tensor) -> None:
    selected = gradient if chunk is None else gradient[chunk]
    if selected.dtype == values.dtype == torch.float32:
        torch.div(values, scale, out=selected)  # its range was checked in advance
    else:
        _store(gradient, chunk, values.div_(scale))


def _store(gradient: Tensor | None, chunk: slice | None, values: Tensor) -> None:
    """Write a chunk of a gradient, clamped to the finite numbers of its dtype."""
    if gradient is not None:
        largest = torch.finfo(gradient.dtype).max
        selected = gradient if chunk is None else gradient[chunk]
        if selected.dtype == values.dtype:
            torch.clamp(values, -largest, largest, out=selected)
        else:
            selected.copy_(values.clamp(-largest, largest))
