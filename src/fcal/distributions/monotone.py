r"""Increasing maps of residuals, :math:`z' = g(z)`.

A map holds tensors with one number per prediction (none if one map serves all predictions) and three formulas: its
value, the log of its slope, and its inverse. :class:`fcal.distributions.Warped` is the distribution it gives.
"""

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fcal.distributions.implicit import LogOdds, polished, root
from fcal.distributions.piecewise import Segments, moments_under_normal
from fcal.distributions.tails import log_normal_cdf, log_normal_density, mills_ratio, normal_quantile_of_log

_LOG_HALF = math.log(0.5)


class MonotoneMap(ABC):
    """Base of strictly increasing, piecewise differentiable maps of the real line onto itself.

    Attributes:
        names: Names of the tensors in error messages.
        tensors: One number per prediction each, or shapes that broadcast against the predictions.

    Example:
        A custom map for :class:`fcal.distributions.Warped`, which halves residuals.

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
        """Value of the map and the log of its slope."""

    @abstractmethod
    def inverse(self, value: Tensor, *tensors: Tensor) -> Tensor:
        """Residual that is mapped to ``value``."""

    def rebuilt(self, tensors: tuple[Tensor, ...]) -> "MonotoneMap":
        """A map of the same class with other tensors."""
        make: Any = type(self)  # the constructors of maps with tensors take them by position
        result: MonotoneMap = make(*tensors) if self.names else self
        return result


class PiecewiseLinear(MonotoneMap):
    """A piecewise linear map, the same for all predictions.

    Args:
        x: Knots, strictly increasing. Shape ``(K,)``, K at least 2.
        y: Values at the knots, strictly increasing. Shape ``(K,)``.
        below: Slope below the first knot.
        above: Slope above the last knot.

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
        increasing = bool((x.diff() > 0).all() and (y.diff() > 0).all())
        if not (increasing and x.isfinite().all() and y.isfinite().all()):
            raise ValueError("expected `x` and `y` finite and strictly increasing, got knots that are not")
        if not (0 < below < math.inf and 0 < above < math.inf):
            raise ValueError(f"expected `below` and `above` > 0, got {below:g} and {above:g}")
        self.segments = Segments.through(x, y, x.new_tensor(below), x.new_tensor(above))

    @cached_property
    def moments(self) -> tuple[float, float]:
        """Mean and variance of the inverse map of a standard normal variable."""
        mean, variance = moments_under_normal(self.segments.inverse())
        return mean.item(), variance.item()

    def on(self, like: Tensor) -> Segments:
        """The segments, on the device of a tensor."""
        segments = self.segments
        return segments if segments.x.device == like.device else Segments(*(part.to(like.device) for part in segments))

    def value_and_log_slope(self, z: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        """Value of the map and the log of its slope."""
        value, slope = self.on(z).value_and_slope(z)
        return value, slope.log()

    def inverse(self, value: Tensor, *_: Tensor) -> Tensor:
        """Residual that is mapped to ``value``."""
        return self.on(value).inverse().value_and_slope(value)[0]


class AffineMap(MonotoneMap):
    r"""Shift and rescale residuals, :math:`z' = (z - b) / s`.

    Args:
        shift: The shift :math:`b`.
        spread: The scale :math:`s > 0`.

    Example:
        >>> AffineMap(torch.tensor(1.0), torch.tensor(2.0)).inverse(torch.tensor(3.0), *map(torch.tensor, (1.0, 2.0)))
        tensor(7.)
    """

    names = ("shift", "spread")

    def __init__(self, shift: Tensor, spread: Tensor) -> None:
        self.tensors = (shift, spread)

    def value_and_log_slope(self, z: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Value of the map and the log of its slope."""
        shift, spread = tensors
        return (z - shift) / spread, -spread.log()

    def inverse(self, value: Tensor, *tensors: Tensor) -> Tensor:
        """Residual that is mapped to ``value``."""
        shift, spread = tensors
        return shift + spread * value


class BetaMap(MonotoneMap):
    r"""The beta map of probabilities, :math:`G(u) = \sigma(a \log u - b \log(1 - u) + c)`, applied to residuals.

    Song et al. 2019 use it to recalibrate; :math:`a = b = 1, c = 0` is the identity. In the tails it multiplies
    residuals by :math:`\sqrt a` and :math:`\sqrt b`.

    Args:
        a: Exponent of the lower tail, > 0.
        b: Exponent of the upper tail, > 0.
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
        """Value of the map and the log of its slope."""
        odds, slope = _beta_log_odds(z, *tensors)
        nearer = torch.where(odds < 0, odds, -odds)  # abs() would have no slope at 0
        size = normal_quantile_of_log(logsigmoid(nearer))
        log_slope = logsigmoid(nearer) + logsigmoid(-nearer) + slope.log() - log_normal_density(size)
        return torch.where(odds < 0, size, -size), log_slope

    def inverse(self, value: Tensor, *tensors: Tensor) -> Tensor:
        """Residual that is mapped to ``value``, by Newton's method in a known bracket."""
        goal = log_normal_cdf(value) - log_normal_cdf(-value)
        shape = torch.broadcast_shapes(goal.shape, *(t.shape for t in tensors))
        goal = goal.expand(shape)
        with torch.no_grad():
            low, high = _beta_bounds(goal, *tensors)
            z = root(lambda x: _beta_log_odds(x, *tensors), goal, (low + high) / 2, low, high)
        value, slope = _beta_log_odds(z, *tensors)
        return polished(z, value, goal, slope)


def _beta_log_odds(z: Tensor, a: Tensor, b: Tensor, c: Tensor) -> LogOdds:
    value = a * log_normal_cdf(z) - b * log_normal_cdf(-z) + c
    return LogOdds(value, a / mills_ratio(z) + b / mills_ratio(-z))


def _beta_bounds(goal: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Bracket of the root: on its side of 0 the farther tail adds at most log 2."""
    below = torch.minimum((goal - c + b * _LOG_HALF) / a, goal.new_tensor(_LOG_HALF))
    above = torch.minimum((c - goal + a * _LOG_HALF) / b, goal.new_tensor(_LOG_HALF))
    return normal_quantile_of_log(below), -normal_quantile_of_log(above)
