r"""The few sums of a batch that its calibration depends on, with hand-written gradients.

They are additive, so batches stream and ranks add up, and they are all that an exact loss needs. With weights w:

.. math::
    \sum w, \quad \sum w^2, \quad \sum w z, \quad \sum w (z^2 - 1), \quad \sum w (z^2 - 1)^2, \quad \sum w \ell

where :math:`\ell` is the negative log-likelihood of an element. Squares are centred at 1, their mean
under a calibrated model; raw fourth moments would cancel.
"""

import math
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

SIZE = 6
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_PIECE = 1 << 17  # elements: a few buffers of it stay in cache between two passes, and the loop over pieces is short
_LARGEST_RESIDUAL = 1e70  # sums of its fourth power are still float64; beyond it the loss has left every scale


Scalar = TypeVar("Scalar", Tensor, complex)


class BatchSums(NamedTuple, Generic[Scalar]):
    """The entries of a vector of sums by name: 0-dimensional tensors or plain numbers."""

    total: Scalar
    total_square: Scalar
    z: Scalar
    square: Scalar
    fourth: Scalar
    nll: Scalar


class SumOptions(NamedTuple):
    """How sums are formed.

    Attributes:
        dtype: Precision of the elementwise work; sums are double.
        detach_mean: Let only the likelihood's gradient reach ``loc``.
        with_mean: Whether to sum z; else that entry is 0.
        with_nll: Whether to sum the negative log-likelihood of a normal prediction; else that entry is 0.
    """

    dtype: torch.dtype = torch.float64
    detach_mean: bool = False
    with_mean: bool = True
    with_nll: bool = False


class SumInputs(NamedTuple):
    """A batch in rows of equal length.

    Attributes:
        target: Targets; or, where ``loc`` and ``scale`` are None, residuals. Shape ``(N,)``.
        loc: Means of a normal prediction. Shape ``(N,)``.
        scale: Its standard deviations, positive. Shape ``(N,)``.
        weight: Weights, or a mask; None for ones. Shape ``(N,)``.
    """

    target: Tensor
    loc: Tensor | None = None
    scale: Tensor | None = None
    weight: Tensor | None = None


@torch.no_grad()
def batch_sums(inputs: SumInputs, options: SumOptions) -> list[float]:
    """The sums described above, in one pass and in pieces that stay in cache; nothing of size N is kept.

    Returns:
        ``SIZE`` numbers; not finite where the work overflowed its dtype, or where an input is not finite or a scale
        not positive.

    Example:
        >>> batch_sums(SumInputs(torch.tensor([1.0, -2.0, 1.0])), SumOptions())
        [3.0, 3.0, 0.0, 3.0, 9.0, 0.0]
    """
    rows = []
    for piece in _pieces(inputs.target):
        z, scale, weight = _piece_of(inputs, piece, options.dtype)
        rows.append(_piece_sums(z, scale, weight, options))
    return _merged(rows, with_constant=options.with_nll)


@torch.no_grad()
def batch_slopes(
    inputs: SumInputs, options: SumOptions, slopes: list[float], wanted: tuple[bool, bool, bool]
) -> list[Tensor | None]:
    """Gradients by target, loc and scale, given that by the sums; None where not wanted. Shapes ``(N,)``."""
    sources = (inputs.target, inputs.loc, inputs.scale)
    gradients = [
        torch.empty_like(source) if want and source is not None else None
        for source, want in zip(sources, wanted, strict=True)
    ]
    for piece in _pieces(inputs.target):
        z, scale, weight = _piece_of(inputs, piece, options.dtype)
        if scale is None:
            _store(gradients[0], piece, _slope_of_z(z, weight, [*slopes[:5], 0.0]))  # the likelihood has its own way
        else:
            _gaussian_slopes(z, scale, weight, slopes, options, gradients, piece)
    return gradients


def traced_sums(z: Tensor, weight: Tensor | None) -> Tensor:
    """The same sums as plain operations, differentiable, for torch.compile to fuse. Shape ``(SIZE,)``."""
    z = z.to(torch.float64)
    weight = torch.ones_like(z) if weight is None else weight.to(torch.float64)
    excess = z.square() - 1
    parts = [weight, weight.square(), weight * z, weight * excess, weight * excess.square()]
    return torch.stack([part.sum() for part in parts] + [z.new_zeros(())])


def _gaussian_slopes(
    z: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    slopes: list[float],
    options: SumOptions,
    gradients: list[Tensor | None],
    piece: slice | None,
) -> None:
    """Gradients by target, loc and scale of one piece, written into ``gradients``.

    With g the derivative by z: g / scale by the target, its opposite by loc, and by scale z times that opposite plus
    the likelihood's 1 / scale.
    """
    by_target, by_loc, by_scale = gradients
    likelihood = slopes[5]
    opposite = _slope_of_z(z, weight, [-slope for slope in slopes]).div_(scale)
    if by_target is not None:
        _store(by_target, piece, -opposite)
    if by_scale is not None:
        along = opposite * z
        if likelihood:
            along.add_(scale.reciprocal() if weight is None else weight / scale, alpha=likelihood)
        _store(by_scale, piece, along)
    if options.detach_mean:
        opposite = torch.div(z, scale).mul_(-likelihood)
        opposite = opposite if weight is None else opposite.mul_(weight)
    _store(by_loc, piece, opposite)


def _slope_of_z(z: Tensor, weight: Tensor | None, slopes: list[float]) -> Tensor:
    """Derivative by z, w (c1 + z (2 c2 + 4 c3 (z^2 - 1) + c4)), for the slopes c of the sums."""
    _, _, first, square, fourth, likelihood = slopes
    largest = torch.finfo(z.dtype).max
    constant = torch.tensor(
        min(max(2 * square - 4 * fourth + likelihood, -largest), largest), dtype=z.dtype, device=z.device
    )
    slope = torch.addcmul(constant, z, z, value=4 * fourth).mul_(z)
    if first:
        slope.add_(first)
    return slope if weight is None else slope.mul_(weight)


def _store(gradient: Tensor | None, piece: slice | None, values: Tensor) -> None:
    """Write a piece of a gradient; what exceeds the dtype becomes its largest number instead of infinity."""
    if gradient is not None:
        largest = torch.finfo(gradient.dtype).max
        part = gradient if piece is None else gradient[piece]
        if part.dtype == values.dtype:
            torch.clamp(values, -largest, largest, out=part)
        else:
            part.copy_(values.clamp(-largest, largest))


def _taken(row: Tensor, piece: slice | None, dtype: torch.dtype) -> Tensor:
    part = row if piece is None else row[piece]
    return part if part.dtype == dtype else part.to(dtype)


def _piece_of(
    inputs: SumInputs, piece: slice | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Residuals, scales and weights of a piece, in working precision."""
    value, loc, scale, weight = (None if row is None else _taken(row, piece, dtype) for row in inputs)
    assert value is not None
    if loc is not None and scale is not None:
        value = torch.sub(value, loc).div_(scale)
    if dtype == torch.float64:
        value = value.clamp(-_LARGEST_RESIDUAL, _LARGEST_RESIDUAL)
    return value, scale, weight


def _pieces(values: Tensor) -> list[slice] | list[None]:
    """Pieces to work through; a single None where the whole is small enough, or on a device without small caches."""
    count = values.numel()
    if count <= _PIECE or values.device.type != "cpu":
        return [None] if count else []
    step = _PIECE * torch.get_num_threads()
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _piece_sums(z: Tensor, scale: Tensor | None, weight: Tensor | None, options: SumOptions) -> list[float]:
    """Total, total square, sum of z, sum of z^2, sum of squared deviations of z^2 from its own mean, sum of nll.

    Overwrites z. All NaN where a scale is not positive and finite, which the sums alone need not show.
    """
    count = float(z.numel())
    first = _weighted(z, weight).item() if options.with_mean else 0.0
    squares = z.mul_(z)
    square = _weighted(squares, weight).item()
    if weight is None:
        total = total_square = count
    else:
        total, total_square = weight.sum().item(), torch.dot(weight, weight).item()
    squares.sub_(square / total if total else 0.0)  # a piece may be hidden as a whole
    spread = torch.dot(squares, squares if weight is None else squares * weight).item()
    nll = 0.0
    if scale is not None:
        low, high = torch.aminmax(scale)
        if not (low.item() > 0 and high.item() < math.inf):
            return [math.nan] * SIZE
        if options.with_nll:
            nll = 0.5 * square + _weighted(scale.log(), weight).item()
    return [total, total_square, first, square, spread, nll]


def _weighted(values: Tensor, weight: Tensor | None) -> Tensor:
    return values.sum() if weight is None else torch.dot(weight, values)


def _merged(rows: list[list[float]], *, with_constant: bool) -> list[float]:
    """Add pieces up in double precision and centre the squares at 1."""
    columns = list(zip(*rows, strict=True)) or [()] * SIZE
    total, total_square, first, square, _, nll = (sum(column, 0.0) for column in columns)
    fourth = 0.0
    for count, _, _, part, spread, _ in rows:
        offset = part - count
        fourth += spread + (offset * offset / count if count else 0.0)
    if with_constant:
        nll += total * _LOG_SQRT_2PI
    return [total, total_square, first, square - total, fourth, nll]
