"""Numerics of families without a closed-form CDF: known derivatives for autograd, quadrature and root finding."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fcal._checks import check_once, is_tracing
from fcal.distributions.tails import LOG_SQRT_2PI, normal_quantile, normal_quantile_of_log

_NO_GAP = 1e-12  # relative; rounding prevents a smaller gap
_LOG_HALF = math.log(0.5)
_STEPS_UP = 10  # steps of the recurrence of the gamma function, until its series is accurate
_STEPS = 60  # of Newton's method, at most
_CLOSE = 1e-9  # relative; the last step, recorded by autograd, squares it


class Tail(NamedTuple):
    """One tail of a distribution and its derivatives, without autograd.

    Attributes:
        log_p: Log-probability of the tail.
        slopes: Derivatives of ``log_p`` with respect to each input.
        lower: True where it is the lower tail, False where it is the upper tail.
    """

    log_p: Tensor
    slopes: tuple[Tensor, ...]
    lower: Tensor


TailOf = Callable[..., Tail]


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(value: Tensor, count: int, *tensors: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[2 + inputs[1] :])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        check_once("a distribution without a closed-form CDF")
        slopes = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2 : 2 + len(slopes)]
        by_input = [grads[0] * slope if want else None for slope, want in zip(slopes, wanted, strict=True)]
        return (None, None, *by_input, *([None] * len(slopes)))


def attach(value: Tensor, inputs: tuple[Tensor, ...], slopes: tuple[Tensor, ...]) -> Tensor:
    """Give a value known derivatives with respect to inputs of its shape; differentiable once.

    Example:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> attach(torch.tensor(9.0), (x,), (torch.tensor(6.0),)).backward()
        >>> x.grad
        tensor(6.)
    """
    result: Tensor = _Attach.apply(value, len(inputs), *inputs, *slopes)
    return result


def by_regime(first: Tensor, formulas: tuple[Callable[..., Any], Callable[..., Any]], *inputs: Tensor) -> list[Tensor]:
    """Evaluate the first formula where ``first`` is True and the second elsewhere, each on its own elements only.

    Args:
        first: Elements of the first formula. Shape ``(N,)``.
        formulas: Functions of the inputs that return the same number of tensors.
        inputs: Shapes ``(N,)``.
    """
    if is_tracing():
        return _blended(first, formulas, *inputs)
    chosen = int(first.sum())
    if chosen in (0, first.numel()):
        return list(formulas[0 if chosen else 1](*inputs))
    results: list[Tensor] = []
    for mask, formula in zip((first, ~first), formulas, strict=True):
        where = mask.nonzero().squeeze(1)
        values = formula(*(x.index_select(0, where) for x in inputs))
        results = results or [value.new_empty(first.shape) for value in values]
        for result, value in zip(results, values, strict=True):
            result.index_copy_(0, where, value)
    return results


def _blended(first: Tensor, formulas: tuple[Callable[..., Any], ...], *inputs: Tensor) -> list[Tensor]:
    """Both formulas on all elements, for torch.compile; elements of the other formula get valid inputs."""
    results = []
    for mask, formula in zip((first, ~first), formulas, strict=True):
        own = mask.to(torch.uint8).argmax().reshape(1)
        results.append(formula(*(torch.where(mask, x, x.index_select(0, own)) for x in inputs)))
    return [torch.where(first, a, b) for a, b in zip(*results, strict=True)]


def patched(few: Tensor, value: Tensor, formula: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Replace a value by a formula where ``few`` is True; may modify ``value`` in place."""
    if is_tracing():
        own = few.to(torch.uint8).argmax().reshape(1)
        return torch.where(few, formula(*(torch.where(few, x, x.index_select(0, own)) for x in inputs)), value)
    where = few.nonzero().squeeze(1)
    if not len(where):
        return value
    return value.index_copy_(0, where, formula(*(x.index_select(0, where) for x in inputs)))


def flattened(*inputs: Tensor) -> tuple[list[Tensor], torch.Size]:
    """Inputs broadcast against each other and flattened, and their common shape."""
    full = torch.broadcast_tensors(*inputs)
    return [x.reshape(-1) for x in full], full[0].shape


class Implicit(NamedTuple):
    """Formulas of a family that is defined by one of its tails.

    Attributes:
        tail: Function of the flattened inputs that returns a :class:`Tail`; called without autograd.
        inputs: Differentiable function of ``(value, *parameters)`` that returns the inputs of ``tail``.
    """

    tail: TailOf
    inputs: Callable[..., tuple[Tensor, ...]]

    def _rows(self, *arguments: Tensor) -> tuple[list[Tensor], torch.Size, Tail]:
        rows, shape = flattened(*self.inputs(*arguments))
        with torch.no_grad():
            tail = self.tail(*(row.detach() for row in rows))
        return rows, shape, tail

    def log_cdf(self, *arguments: Tensor) -> Tensor:
        """Log-CDF."""
        return self._log_side(True, *arguments)

    def log_survival(self, *arguments: Tensor) -> Tensor:
        """Log-survival."""
        return self._log_side(False, *arguments)

    def _log_side(self, lower: bool, *arguments: Tensor) -> Tensor:
        rows, shape, tail = self._rows(*arguments)
        same = tail.lower == lower
        rest = log_rest(tail.log_p)
        odds = -torch.exp(tail.log_p - rest)
        slopes = tuple(torch.where(same, slope, slope * odds) for slope in tail.slopes)
        return attach(torch.where(same, tail.log_p, rest), tuple(rows), slopes).reshape(shape)

    def residual(self, *arguments: Tensor) -> Tensor:
        """Residual z."""
        rows, shape, tail = self._rows(*arguments)
        z, factor = residual_of_tail(tail.log_p, tail.lower)
        return attach(z, tuple(rows), tuple(slope * factor for slope in tail.slopes)).reshape(shape)


def log_rest(log_p: Tensor) -> Tensor:
    """Log of 1 - p, given log p."""
    small = log_p < _LOG_HALF
    near_one = torch.log(-torch.expm1(torch.where(small, -1.0, log_p)))
    return torch.where(small, torch.log1p(-torch.exp(log_p)), near_one)


def residual_of_tail(log_p: Tensor, lower: Tensor) -> tuple[Tensor, Tensor]:
    """Residual of a tail and its derivative with respect to the log-probability, without autograd."""
    size = normal_quantile_of_log(log_p.clamp(max=_LOG_HALF)).neg_()
    size = patched(log_p > _LOG_HALF, size, _size_of_rest, log_p)
    sign = lower.to(log_p.dtype).mul_(-2).add_(1)
    factor = torch.addcmul(log_p, size, size, value=0.5).add_(LOG_SQRT_2PI).exp_().mul_(-sign)
    return size.mul_(sign), factor


def _size_of_rest(log_p: Tensor) -> Tensor:
    """Absolute residual of a tail with probability above 1/2, computed from the other tail."""
    return normal_quantile_of_log(torch.log(-torch.expm1(log_p)))


Rule = tuple[tuple[float, float], ...]


def legendre(count: int) -> Rule:
    """Nodes and weights of Gauss-Legendre quadrature on (0, 1).

    Example:
        >>> legendre(1)
        ((0.5, 1.0),)
    """
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return tuple(zip(((nodes + 1) / 2).tolist(), (weights / 2).tolist(), strict=True))


def log_gamma_rest(a: Tensor) -> list[Tensor]:
    r"""Remainder of Stirling's formula for :math:`\log \Gamma(a)`, and :math:`\psi(a) - \log a`, without autograd.

    .. math:: \log \Gamma(a) = (a - \tfrac12) \log a - a + \tfrac12 \log 2 \pi + r(a)

    Example:
        >>> log_gamma_rest(torch.tensor([1e6], dtype=torch.float64))[0] * 12e6
        tensor([1.0000], dtype=torch.float64)
    """
    return by_regime(a < _STEPS_UP, (_rest_from_above, _rest_by_series), a)


def _rest_by_series(a: Tensor) -> tuple[Tensor, Tensor]:
    u = a.reciprocal()
    s = u.square()
    rest = u * (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s * (1 / 1188 - s * 691 / 360360)))))
    slope = -u / 2 - s * (1 / 12 - s * (1 / 120 - s * (1 / 252 - s * (1 / 240 - s * (1 / 132 - s * 691 / 32760)))))
    return rest, slope


def _rest_from_above(a: Tensor) -> tuple[Tensor, Tensor]:
    """The same for small a, by the recurrence of the gamma function."""
    above = a + _STEPS_UP
    rest, slope = _rest_by_series(above)
    product, harmonic, here = torch.ones_like(a), torch.zeros_like(a), a.clone()
    for _ in range(_STEPS_UP):
        product.mul_(here)
        harmonic.add_(here.reciprocal())
        here.add_(1)
    log_a, log_above = a.log(), above.log()
    rest = rest + (above - 0.5) * log_above - (a - 0.5) * log_a - product.log() - _STEPS_UP
    return rest, slope + log_above - log_a - harmonic


class LogOdds(NamedTuple):
    """Log-odds of the lower tail, an increasing function of a coordinate, and their slope."""

    value: Tensor
    slope: Tensor


@torch.no_grad()
def root(function: Callable[[Tensor], LogOdds], goal: Tensor, start: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Root of an increasing function, by Newton's method with bisection where it leaves or hardly shrinks the bracket.

    Args:
        function: Elementwise function of coordinates shaped like ``goal``.
        goal: Values to reach.
        start: First guesses.
        low: Lower bounds of the root; minus infinity if unknown.
        high: Upper bounds of the root; infinity if unknown.

    Example:
        >>> root(lambda x: LogOdds(x**3, 3 * x**2), torch.tensor(8.0), *map(torch.tensor, (1.0, 0.0, 9.0)))
        tensor(2.)
    """
    x, reach = start, 1 + start.abs()
    width = torch.full_like(start, torch.inf)
    for _ in range(_STEPS):
        value, slope = function(x)
        gap = goal - value
        low, high = torch.where(gap >= 0, x, low), torch.where(gap <= 0, x, high)
        step = gap / slope
        step = torch.where(step.isfinite(), step, gap.sign() * reach)
        step = torch.maximum(torch.minimum(step, reach), -reach)
        reach = torch.where(step.abs() == reach, 2 * reach, reach)
        moved = x + step
        # Between two modes Newton's steps may go back and forth: the bracket has to halve every other step.
        slow = (high - low > 0.5 * width) & (step.abs() > 0.25 * (high - low))
        width = torch.where(slow, torch.inf, high - low)
        outside = (moved < low) | (moved > high) | moved.isnan() | slow
        following = torch.where(outside, _middle(low, high, x), moved)
        done = ((following - x).abs() <= _CLOSE * following.abs()) | (gap.abs() <= _NO_GAP * (1 + goal.abs()))
        x = following
        if not is_tracing() and bool(done.all()):
            break
    return x


def _middle(low: Tensor, high: Tensor, otherwise: Tensor) -> Tensor:
    """Middle of a bracket, geometric if both ends are positive, so that tiny roots are found as fast."""
    geometric = low.clamp(min=0).sqrt() * high.clamp(min=0).sqrt()
    middle = torch.where(low > 0, geometric, low / 2 + high / 2)
    return torch.where(low.isfinite() & high.isfinite(), middle, otherwise)


def log_odds_of(tail: Tail) -> LogOdds:
    """Log-odds of a tail and their derivative with respect to its first input."""
    rest = log_rest(tail.log_p)
    sign = torch.where(tail.lower, 1.0, -1.0).to(tail.log_p.dtype)
    return LogOdds(sign * (tail.log_p - rest), sign * tail.slopes[0] / -torch.expm1(tail.log_p))


def log_odds(lower: Tensor, upper: Tensor) -> Tensor:
    """Log-odds of two tail probabilities."""
    return lower.log() - upper.log()


def solved(tail: TailOf, start: Callable[..., Tensor], lower: Tensor, upper: Tensor, *parameters: Tensor) -> Tensor:
    """Coordinate with given tail probabilities, differentiable in the probabilities and the parameters.

    Args:
        tail: Function of ``(coordinate, *parameters)`` that returns a :class:`Tail`, for any real coordinate.
        start: Function of ``(z, *parameters)`` that returns a first guess of the coordinate with residual z.
        lower: Probabilities below.
        upper: Probabilities above.
        parameters: Parameters, which broadcast against the probabilities.
    """
    (below, above, *rows), shape = flattened(lower, upper, *parameters)
    with torch.no_grad():
        fixed = [row.detach() for row in rows]
        limit = torch.full_like(below, math.inf)
        first = start(normal_quantile(below, above), *fixed)
        coordinate = root(lambda x: log_odds_of(tail(x, *fixed)), log_odds(below, above), first, -limit, limit)
        slope = log_odds_of(tail(coordinate, *fixed)).slope
    implicit = Implicit(tail, lambda *inputs: inputs)
    value = implicit.log_cdf(coordinate, *rows) - implicit.log_survival(coordinate, *rows)
    return polished(coordinate, value, log_odds(below, above), slope).reshape(shape)


def polished(coordinate: Tensor, value: Tensor, goal: Tensor, slope: Tensor) -> Tensor:
    """One more step of Newton's method, recorded by autograd: it gives the gradient of the implicit function.

    Args:
        coordinate: The root, without gradient.
        value: The function at the root, differentiable in the parameters.
        goal: Target of the function, differentiable in the probabilities.
        slope: Derivative of the function at the root, without gradient.
    """
    return coordinate + (goal - value) / slope.detach()
