r"""Rising maps of residuals, :math:`z' = g(z)`, that turn one law into another; see :class:`fcal.distributions.Warped`.

A map has tensors, one number per prediction each (none, where one map serves all), and three formulas of them: the
value, the log of its slope, and the inverse.
"""

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fcal.distributions.implicit import LogOdds, polished, root
from fcal.distributions.tails import LOG_SQRT_2PI, log_normal_cdf, mills_ratio, normal_quantile_of_log

_LOG_HALF = math.log(0.5)
_SQRT_HALF = math.sqrt(0.5)


def normal_cdf(t: Tensor) -> Tensor:
    """Standard normal CDF, also where torch's own rounds to 0."""
    return 0.5 * torch.erfc(-_SQRT_HALF * t)


def log_normal_density(t: Tensor) -> Tensor:
    """Log of the standard normal density."""
    return -0.5 * t.square() - LOG_SQRT_2PI


class Segments(NamedTuple):
    """A continuous, rising, piecewise linear function and its two rays; knots are in the last dimension.

    Attributes:
        x: Where it bends, strictly rising. Shape ``(..., K)``.
        y: Its values there, strictly rising. Shape ``(..., K)``.
        slope: Of the ray below, of the pieces between neighbours, of the ray above. Shape ``(..., K + 1)``.
    """

    x: Tensor
    y: Tensor
    slope: Tensor

    @classmethod
    def through(cls, x: Tensor, y: Tensor, below: Tensor | None = None, above: Tensor | None = None) -> "Segments":
        """Through points; a ray whose slope is not given continues its neighbour."""
        inner = y.diff() / x.diff()
        first = inner[..., :1] if below is None else below.expand(*inner.shape[:-1], 1)
        last = inner[..., -1:] if above is None else above.expand(*inner.shape[:-1], 1)
        return cls(x, y, torch.cat([first, inner, last], -1))

    def inverse(self) -> "Segments":
        """The function that undoes this one."""
        return Segments(self.y, self.x, 1 / self.slope)

    def piece(self, at: Tensor) -> Tensor:
        """Index of the slope that holds at each point."""
        if self.x.dim() == 1:
            return torch.searchsorted(self.x.detach(), at.detach().contiguous())
        return (self.x.detach() < at.detach().unsqueeze(-1)).sum(-1)

    def value_and_slope(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """The function and its slope."""
        piece = self.piece(at)
        anchor, slope = (piece - 1).clamp(min=0), picked(self.slope, piece)
        return picked(self.y, anchor) + slope * (at - picked(self.x, anchor)), slope


def picked(table: Tensor, index: Tensor) -> Tensor:
    """Entries of the last dimension, one per index. Shape of ``index``."""
    if table.dim() == 1:
        return table[index]
    shape = torch.broadcast_shapes(table.shape[:-1], index.shape)
    chosen = index.expand(shape).unsqueeze(-1)
    return table.expand(*shape, table.shape[-1]).gather(-1, chosen).squeeze(-1)


def moments_under_normal(function: Segments) -> tuple[Tensor, Tensor]:
    r"""Mean and variance of f(t) for a standard normal t, in closed form. Shapes ``(...)``.

    Example:
        >>> steps = torch.tensor([0.0, 1.0])
        >>> moments_under_normal(Segments.through(steps, 5 + 2 * steps))  # 5 + 2 t
        (tensor(5.), tensor(4.))
    """
    t = function.x
    ends = torch.full_like(t[..., :1], math.inf)
    edges = torch.cat([-ends, t, ends], -1)
    density = log_normal_density(edges).exp()
    mass = normal_cdf(edges).diff()
    first = -density.diff()  # integral of t
    second = mass - (torch.where(edges.isinf(), 0.0, edges) * density).diff()  # of its square
    anchors = torch.cat([t[..., :1], t], -1), torch.cat([function.y[..., :1], function.y], -1)
    start = anchors[1] - function.slope * anchors[0]
    mean = (start * mass + function.slope * first).sum(-1)
    start = start - mean.unsqueeze(-1)
    squares = start.square() * mass + 2 * start * function.slope * first + function.slope.square() * second
    return mean, squares.sum(-1)


def _area(t: Tensor) -> Tensor:
    """Integral of the squared normal CDF up to t."""
    p = normal_cdf(t)
    return t * p.square() + 2 * p * log_normal_density(t).exp() - normal_cdf(math.sqrt(2) * t) / math.sqrt(math.pi)


def crps_under_normal(residual: Segments, value: Tensor) -> Tensor:
    """CRPS of the law whose residual is this function of the value, in closed form. Shape of ``value``."""
    per_residual = 1 / residual.slope
    below = (per_residual[..., :-1] * _area(residual.y).diff(prepend=torch.zeros_like(residual.y[..., :1]))).cumsum(-1)
    mirrored = _area(-residual.y).flip(-1)
    above = per_residual[..., 1:].flip(-1) * mirrored.diff(prepend=torch.zeros_like(mirrored[..., :1]))
    above = above.cumsum(-1).flip(-1)
    piece = residual.piece(value)
    anchor, width = (piece - 1).clamp(min=0), picked(per_residual, piece)
    t, _ = residual.value_and_slope(value)
    start = picked(residual.y, anchor)
    to_value = picked(below, anchor) + width * (_area(t) - _area(start))
    return to_value + picked(above, anchor) + width * (_area(-t) - _area(-start))


class MonotoneMap(ABC):
    """A strictly rising map of the whole line onto itself, differentiable but for some bends.

    Attributes:
        names: What its tensors are called in errors.
        tensors: One number per prediction each; their shapes broadcast against the predictions'.

    Example:
        A map of one's own, for :class:`fcal.distributions.Warped`: residuals stretched by two.

        >>> from fcal.distributions import MonotoneMap, Warped
        >>> class Halved(MonotoneMap):
        ...     def value_and_log_slope(self, z, *tensors):
        ...         return z / 2, torch.full_like(z, 0.5).log()
        ...
        ...     def inverse(self, value, *tensors):
        ...         return 2 * value
        >>> wide = Warped(torch.distributions.Normal(torch.zeros(1), torch.ones(1)), Halved())
        >>> fcal.standardize(wide, torch.tensor([4.0]))
        tensor([2.])
    """

    names: tuple[str, ...] = ()
    tensors: tuple[Tensor, ...] = ()

    @abstractmethod
    def value_and_log_slope(self, z: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """The map and the log of its slope."""

    @abstractmethod
    def inverse(self, value: Tensor, *tensors: Tensor) -> Tensor:
        """What is mapped to ``value``."""

    def rebuilt(self, tensors: tuple[Tensor, ...]) -> "MonotoneMap":
        """The same kind of map with other tensors."""
        make: Any = type(self)  # maps of other tensors take them by position
        result: MonotoneMap = make(*tensors) if self.names else self
        return result


class PiecewiseLinear(MonotoneMap):
    """One piecewise linear map for all predictions.

    Args:
        x: Where it bends, strictly rising. Shape ``(K,)``, K at least 2.
        y: Its values there, strictly rising. Shape ``(K,)``.
        below: Slope of the ray below the first knot.
        above: Slope of the ray above the last knot.

    Example:
        >>> bent = PiecewiseLinear(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 3.0]), below=1.0, above=2.0)
        >>> bent.value_and_log_slope(torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64))[0]
        tensor([-1.0000, 1.5000, 5.0000], dtype=torch.float64)
    """

    def __init__(self, x: Tensor, y: Tensor, *, below: float, above: float) -> None:
        x, y = x.detach().to(torch.float64), y.detach().to(torch.float64)
        if x.dim() != 1 or x.shape != y.shape or len(x) < 2:
            shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
            raise ValueError(f"expected `x` and `y` of one shape (K,) with K >= 2, got {shapes}")
        rising = bool((x.diff() > 0).all() and (y.diff() > 0).all())
        if not (rising and x.isfinite().all() and y.isfinite().all()):
            raise ValueError("expected `x` and `y` finite and strictly rising, got knots that are not")
        if not (0 < below < math.inf and 0 < above < math.inf):
            raise ValueError(f"expected `below` and `above` > 0, got {below:g} and {above:g}")
        self.segments = Segments.through(x, y, x.new_tensor(below), x.new_tensor(above))

    @cached_property
    def moments(self) -> tuple[float, float]:
        """Mean and variance of what is mapped to a standard normal variable."""
        mean, variance = moments_under_normal(self.segments.inverse())
        return mean.item(), variance.item()

    def on(self, like: Tensor) -> Segments:
        """Its pieces, on the device of a tensor."""
        segments = self.segments
        return segments if segments.x.device == like.device else Segments(*(part.to(like.device) for part in segments))

    def value_and_log_slope(self, z: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        """The map and the log of its slope."""
        value, slope = self.on(z).value_and_slope(z)
        return value, slope.log()

    def inverse(self, value: Tensor, *_: Tensor) -> Tensor:
        """What is mapped to ``value``."""
        return self.on(value).inverse().value_and_slope(value)[0]


class AffineMap(MonotoneMap):
    r"""Residuals recentred and rescaled, :math:`z' = (z - b) / s`.

    Args:
        shift: The bias :math:`b`, in residuals.
        spread: The scale :math:`s > 0`.

    Example:
        >>> AffineMap(torch.tensor(1.0), torch.tensor(2.0)).inverse(torch.tensor(3.0), *map(torch.tensor, (1.0, 2.0)))
        tensor(7.)
    """

    names = ("shift", "spread")

    def __init__(self, shift: Tensor, spread: Tensor) -> None:
        self.tensors = (shift, spread)

    def value_and_log_slope(self, z: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """The map and the log of its slope."""
        shift, spread = tensors
        return (z - shift) / spread, -spread.log()

    def inverse(self, value: Tensor, *tensors: Tensor) -> Tensor:
        """What is mapped to ``value``."""
        shift, spread = tensors
        return shift + spread * value


class BetaMap(MonotoneMap):
    r"""The beta map of probabilities, :math:`G(u) = \sigma(a \log u - b \log(1 - u) + c)`, as a map of residuals.

    Song et al. 2019 use it to recalibrate; :math:`a = b = 1, c = 0` changes nothing. In the tails it multiplies
    residuals by :math:`\sqrt a` and :math:`\sqrt b`.

    Args:
        a: What the lower tail is raised to, > 0.
        b: What the upper tail is raised to, > 0.
        c: Shift of the log-odds.

    Example:
        >>> one, zero = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
        >>> BetaMap(one, one, zero).value_and_log_slope(2 * one, one, one, zero)[0]
        tensor(2., dtype=torch.float64)
    """

    names = ("a", "b", "c")

    def __init__(self, a: Tensor, b: Tensor, c: Tensor) -> None:
        self.tensors = (a, b, c)

    def value_and_log_slope(self, z: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """The map and the log of its slope."""
        odds, slope = _beta_log_odds(z, *tensors)
        nearer = torch.where(odds < 0, odds, -odds)  # abs() would have no slope at 0
        size = normal_quantile_of_log(logsigmoid(nearer))
        log_slope = logsigmoid(nearer) + logsigmoid(-nearer) + slope.log() - log_normal_density(size)
        return torch.where(odds < 0, size, -size), log_slope

    def inverse(self, value: Tensor, *tensors: Tensor) -> Tensor:
        """What is mapped to ``value``: Newton's method between bounds that are known."""
        goal = log_normal_cdf(value) - log_normal_cdf(-value)
        shape = torch.broadcast_shapes(goal.shape, *(t.shape for t in tensors))
        goal = goal.expand(shape)
        with torch.no_grad():
            low, high = _beta_bounds(goal, *tensors)
            z = root(lambda x: _beta_log_odds(x, *tensors), goal, (low + high) / 2, low, high)
            slope = _beta_log_odds(z, *tensors).slope
        return polished(z, _beta_log_odds(z, *tensors).value, goal, slope)


def _beta_log_odds(z: Tensor, a: Tensor, b: Tensor, c: Tensor) -> LogOdds:
    value = a * log_normal_cdf(z) - b * log_normal_cdf(-z) + c
    return LogOdds(value, a / mills_ratio(z) + b / mills_ratio(-z))


def _beta_bounds(goal: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Residuals below and above the root: on its own side of 0 the farther tail adds at most log 2."""
    below = torch.minimum((goal - c + b * _LOG_HALF) / a, goal.new_tensor(_LOG_HALF))
    above = torch.minimum((c - goal + a * _LOG_HALF) / b, goal.new_tensor(_LOG_HALF))
    return normal_quantile_of_log(below), -normal_quantile_of_log(above)
