r"""The few sums of a batch that its calibration depends on, with hand-written gradients.

They are additive, so batches stream and ranks add up, and they are all that an exact loss needs. With weights w:

.. math::
    \sum w, \quad \sum w^2, \quad \sum w z, \quad \sum w z^2, \quad \sum w z^4, \quad \sum w \ell

where :math:`\ell` is the negative log-likelihood of an element. The elementwise work may be float32; spreads are then
taken about the mean of their piece, and only pieces are added up in double precision, so that no variance cancels.
"""

import math
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from fcal.distributions.residual_curve import Curve
from fcal.distributions.tails import LOG_SQRT_2PI

SIZE = 6
_PIECE = 1 << 17  # elements: a few buffers of it stay in cache between two passes, and the loop over pieces is short
# Within these bounds no product of the float32 work can overflow; beyond any of them the work is done in float64.
_STEEPEST_SLOPE = 1e8
_LARGEST_FOURTH = 1e12
_LEAST_SQUARE = 1e-12
_LEAST_SCALE = 1e-12
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
        curve: What makes residuals of the distances from ``loc`` in scales; None where they are the residuals.
    """

    dtype: torch.dtype = torch.float64
    detach_mean: bool = False
    with_mean: bool = True
    with_nll: bool = False
    curve: Curve | None = None


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
        [3.0, 3.0, 0.0, 6.0, 18.0, 0.0]
    """
    rows = []
    for piece in _pieces(inputs.target):
        z, scale, weight = _piece_of(inputs, piece, options.dtype)
        if options.curve is not None:
            z = _on_curve(z, options.curve)
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
    dtype = torch.float64 if are_steep(slopes) else options.dtype
    for piece in _pieces(inputs.target):
        z, scale, weight = _piece_of(inputs, piece, dtype)
        weight = None if weight is None else weight.to(dtype)
        if scale is None:
            _store(gradients[0], piece, slope_of_z(z, weight, [*slopes[:5], 0.0]))  # the likelihood has its own way
        else:
            _gaussian_slopes(z, scale, weight, slopes, options, gradients, piece)
    return gradients


def _on_curve(t: Tensor, curve: Curve) -> Tensor:
    """Residuals; NaN where a distance is beyond the curve, which makes the sums unsound."""
    low, high = torch.aminmax(t)
    if not (low.item() >= -curve.farthest and high.item() <= curve.farthest):
        return torch.full_like(t, math.nan)
    return curve.residual(t)


def are_steep(slopes: list[float]) -> bool:
    """Whether products with these derivatives may leave the range of float32."""
    return max(map(abs, slopes)) >= _STEEPEST_SLOPE


def are_sound(sums: list[float], dtype: torch.dtype) -> bool:
    """Whether sums are finite and, unless the work was double, its terms were far from overflow and underflow."""
    if not all(map(math.isfinite, sums)):
        return False
    total, _, _, square, fourth, _ = sums
    return dtype == torch.float64 or (fourth < _LARGEST_FOURTH and square >= _LEAST_SQUARE * total)


def traced_sums(z: Tensor, weight: Tensor | None) -> Tensor:
    """The same sums as plain operations, differentiable, for torch.compile to fuse. Shape ``(SIZE,)``."""
    z = z.to(torch.float64)
    weight = torch.ones_like(z) if weight is None else weight.to(torch.float64)
    square = z.square()
    parts = [weight, weight.square(), weight * z, weight * square, weight * square.square()]
    return torch.stack([part.sum() for part in parts] + [z.new_zeros(())])


def _gaussian_slopes(
    t: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    slopes: list[float],
    options: SumOptions,
    gradients: list[Tensor | None],
    piece: slice | None,
) -> None:
    """Gradients by target, loc and scale of one piece, written into ``gradients``.

    With g the derivative by t: g / scale by the target, its opposite by loc, and by scale t times that opposite plus
    the likelihood's 1 / scale. For a normal prediction t is z.
    """
    by_target, by_loc, by_scale = gradients
    likelihood = slopes[5]
    z, z_by_t = (t, None) if options.curve is None else options.curve.residual_and_slope(t)
    opposite = slope_of_z(z, weight, [-slope for slope in slopes])
    if z_by_t is not None:
        opposite.mul_(z_by_t)
    if by_scale is not None:
        along = opposite * t
        if likelihood:
            along = along.add_(likelihood) if weight is None else along.add_(weight, alpha=likelihood)
        _divide_into(by_scale, piece, along, scale)  # last, as it may overflow: infinity times 0 would be NaN
    if by_target is not None:
        _divide_into(by_target, piece, -opposite, scale)
    if by_loc is not None:
        if options.detach_mean:
            opposite = z * -likelihood if weight is None else weight * z * -likelihood
        _divide_into(by_loc, piece, opposite, scale)


def slope_of_z(z: Tensor, weight: Tensor | None, slopes: list[float]) -> Tensor:
    """Derivative by z, w (c1 + z (2 c2 + 4 c3 z^2 + c4)), for the slopes c of the sums."""
    _, _, first, square, fourth, likelihood = slopes
    constant = torch.tensor(2 * square + likelihood, dtype=z.dtype, device=z.device)
    slope = torch.addcmul(constant, z, z, value=4 * fourth).mul_(z)
    if first:
        slope.add_(first)
    return slope if weight is None else slope.mul_(weight)


def _divide_into(gradient: Tensor, piece: slice | None, values: Tensor, scale: Tensor) -> None:
    part = gradient if piece is None else gradient[piece]
    if part.dtype == values.dtype == torch.float32:
        torch.div(values, scale, out=part)  # its range was checked in advance
    else:
        _store(gradient, piece, values.div_(scale))


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
    """Residuals and scales of a piece in working precision, and its weights in double."""
    value = _taken(inputs.target, piece, dtype)
    scale = None
    if inputs.loc is not None and inputs.scale is not None:
        scale = _taken(inputs.scale, piece, dtype)
        value = torch.sub(value, _taken(inputs.loc, piece, dtype)).div_(scale)
    if dtype == torch.float64:
        value = value.clamp(-_LARGEST_RESIDUAL, _LARGEST_RESIDUAL)
    return value, scale, None if inputs.weight is None else _taken(inputs.weight, piece, torch.float64)


def _pieces(values: Tensor) -> list[slice] | list[None]:
    """Pieces to work through; a single None where the whole is small enough, or on a device without small caches."""
    count = values.numel()
    if count <= _PIECE or values.device.type != "cpu":
        return [None] if count else []
    step = _PIECE * torch.get_num_threads()
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _piece_sums(z: Tensor, scale: Tensor | None, weight: Tensor | None, options: SumOptions) -> list[float]:
    """Total, total square, sum of z, sum of z^2, sum of squared deviations of z^2 from its own mean, sum of nll.

    Overwrites z. All NaN where a scale is not positive (in float32: not tiny) and finite, which sums need not show.
    """
    total = total_square = float(z.numel())
    if weight is not None:
        total, total_square = weight.sum().item(), torch.dot(weight, weight).item()
        weight = (weight / weight.max()).to(z.dtype) if total else weight.to(z.dtype)  # of a size that z.dtype holds
    size = total if weight is None else weight.sum(dtype=torch.float64).item()
    first = square = nll = 0.0
    if options.with_mean and size:
        first = _weighted(z, weight)
        square = _weighted((z - first / size).square_(), weight) + first * first / size
    squares = z.mul_(z)
    if not options.with_mean:
        square = _weighted(squares, weight)
    spread = _spread(squares, square, size, weight)
    if scale is not None:
        low, high = torch.aminmax(scale)
        least = 0.0 if z.dtype == torch.float64 else _LEAST_SCALE
        if not (low.item() > least and high.item() < math.inf):
            return [math.nan] * SIZE
        if options.with_nll:
            nll = 0.5 * square + _weighted(scale.log(), weight)
    unit = total / size if size else 0.0
    return [total, total_square, unit * first, unit * square, unit * spread, unit * nll]


def _spread(squares: Tensor, total: float, size: float, weight: Tensor | None) -> float:
    """Sum of squared deviations from the mean; overwrites ``squares``."""
    squares.sub_(total / size if size else 0.0)  # a piece may be hidden as a whole
    return torch.dot(squares, squares).item() if weight is None else _weighted(squares.square_(), weight)


def _weighted(values: Tensor, weight: Tensor | None) -> float:
    """Sum, by torch's pairwise summation: a dot product would lose digits over a long piece."""
    return (values if weight is None else values * weight).sum().item()


def _merged(rows: list[list[float]], *, with_constant: bool) -> list[float]:
    """Add pieces up in double precision."""
    columns = list(zip(*rows, strict=True)) or [()] * SIZE
    total, total_square, first, square, _, nll = (sum(column, 0.0) for column in columns)
    fourth = 0.0
    for count, _, _, part, spread, _ in rows:
        fourth += spread + (part * part / count if count else 0.0)
    if with_constant:
        nll += total * LOG_SQRT_2PI
    return [total, total_square, first, square, fourth, nll]
