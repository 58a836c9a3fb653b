r"""Distributions whose residual is a piecewise linear function of the value: closed forms, and :class:`QuantileLaw`."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from fcal.distributions.family import Family, Law
from fcal.distributions.tails import log_normal_cdf, log_normal_density, normal_cdf, normal_quantile

_MOST_LISTED = 8  # numbers of a row in an error


class Segments(NamedTuple):
    """A continuous, increasing, piecewise linear function; knots are in the last dimension.

    Attributes:
        x: Knots, strictly increasing. Shape ``(..., K)``.
        y: Values at the knots, strictly increasing. Shape ``(..., K)``.
        slope: Slopes below the first knot, between knots and above the last knot. Shape ``(..., K + 1)``.
    """

    x: Tensor
    y: Tensor
    slope: Tensor

    @classmethod
    def through(cls, x: Tensor, y: Tensor, below: Tensor | None = None, above: Tensor | None = None) -> "Segments":
        """Interpolate points; without ``below`` or ``above``, the outermost slopes continue beyond the knots."""
        inner = y.diff() / x.diff()
        first = inner[..., :1] if below is None else below.expand(*inner.shape[:-1], 1)
        last = inner[..., -1:] if above is None else above.expand(*inner.shape[:-1], 1)
        return cls(x, y, torch.cat([first, inner, last], -1))

    def inverse(self) -> "Segments":
        """The inverse function."""
        return Segments(self.y, self.x, 1 / self.slope)

    def piece(self, at: Tensor) -> Tensor:
        """Index of the slope at each point."""
        if self.x.dim() == 1:
            return torch.searchsorted(self.x.detach(), at.detach().contiguous())
        return (self.x.detach() < at.detach().unsqueeze(-1)).sum(-1)

    def value_and_slope(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Value and slope at each point."""
        piece = self.piece(at)
        anchor, slope = (piece - 1).clamp(min=0), picked(self.slope, piece)
        return picked(self.y, anchor) + slope * (at - picked(self.x, anchor)), slope


def picked(table: Tensor, index: Tensor) -> Tensor:
    """Entries of the last dimension at ``index``. Shape of ``index``."""
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
    second = mass - (torch.where(edges.isinf(), 0.0, edges) * density).diff()  # integral of t squared
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
    """Closed-form CRPS of the distribution whose residual is this function of the value. Shape of ``value``."""
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


class _Levels(NamedTuple):
    """Formulas of :class:`QuantileLaw`; the quantiles are its parameters.

    Attributes:
        levels: Probabilities of the quantiles. Shape ``(Q,)``.
        residuals: Standard normal quantiles of the levels. Shape ``(Q,)``, float64.
    """

    levels: Tensor
    residuals: Tensor

    def segments(self, *values: Tensor) -> Segments:
        """Residual as a function of the value."""
        x = torch.stack(values, -1)
        return Segments.through(x, self.residuals.to(x.device))

    def residual(self, value: Tensor, *values: Tensor) -> Tensor:
        return self.segments(*values).value_and_slope(value)[0]

    def log_cdf(self, value: Tensor, *values: Tensor) -> Tensor:
        return log_normal_cdf(self.residual(value, *values))

    def log_survival(self, value: Tensor, *values: Tensor) -> Tensor:
        return log_normal_cdf(-self.residual(value, *values))

    def log_prob(self, value: Tensor, *values: Tensor) -> Tensor:
        z, slope = self.segments(*values).value_and_slope(value)
        return log_normal_density(z) + slope.log()

    def quantile(self, lower: Tensor, upper: Tensor, *values: Tensor) -> Tensor:
        return self.value_at(normal_quantile(lower, upper), *values)

    def value_at(self, z: Tensor, *values: Tensor) -> Tensor:
        """Value whose residual is z."""
        return self.segments(*values).inverse().value_and_slope(z)[0]

    def crps(self, value: Tensor, *values: Tensor) -> Tensor:
        return crps_under_normal(self.segments(*values), value)

    def distribution(self, *values: Tensor) -> "QuantileLaw":
        columns = torch.stack(torch.broadcast_tensors(*values), -1)
        return QuantileLaw(self.levels, columns, validate_args=False)

    def as_family(self) -> Family:
        return Family(
            parameters=tuple(f"values[{index}]" for index in range(len(self.levels))),
            log_cdf=self.log_cdf,
            log_survival=self.log_survival,
            residual=self.residual,
            quantile=self.quantile,
            log_prob=self.log_prob,
            crps=self.crps,
            constraints={},
            build=self.distribution,
        )


class QuantileLaw(Distribution):
    r"""Distribution with given quantiles, for models that predict only quantiles (q05, q50, q95, ...).

    The residual :math:`z = \Phi^{-1}(F(y))` is linear between neighbouring quantiles and extrapolated beyond the
    outermost two, so that the density is normal on every segment and the tails are normal. The quantiles of a normal
    distribution give back that distribution exactly.

    Args:
        levels: Probabilities of the quantiles, strictly increasing within (0, 1). Shape ``(Q,)``, Q at least 2.
        values: The quantiles, strictly increasing in the last dimension. Shape ``(..., Q)``.
        validate_args: As in every torch distribution; False also skips the check of the values.

    Raises:
        ValueError: Levels or values are out of range or not finite, or quantiles cross or are equal; the message gives
            their count and the first such row.

    Example:
        >>> law = QuantileLaw([0.1587, 0.5, 0.8413], torch.tensor([[8.0, 10.0, 13.0]]))
        >>> law.cdf(torch.tensor([10.0]))
        tensor([0.5000])
        >>> law.icdf(torch.tensor([0.8413]))
        tensor([13.])
        >>> QuantileLaw([0.1, 0.9], torch.tensor([[0.0, 1.0], [2.0, 1.5]]))
        Traceback (most recent call last):
        ...
        ValueError: expected `values` strictly increasing in the last dimension, got 1 of 2 rows that are not; the first
        is row 1: 2, 1.5
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.real
    has_rsample = True
    fitted_on: str | None = None

    def __init__(self, levels: Tensor | list[float], values: Tensor, validate_args: bool | None = None) -> None:
        if not isinstance(values, Tensor) or not values.is_floating_point():
            got = values.dtype if isinstance(values, Tensor) else type(values).__name__
            raise TypeError(f"expected `values` a tensor of a floating dtype, got {got}")
        self.levels = _checked_levels(torch.as_tensor(levels, dtype=torch.float64, device=values.device), values)
        if validate_args is not False:
            _check_increasing(values.detach())
        self.values = values
        self._formulas = _Levels(self.levels, normal_quantile(self.levels, 1 - self.levels))
        self._law = Law(QuantileLaw, self._formulas.as_family(), values.unbind(-1), name="QuantileLaw")
        super().__init__(values.shape[:-1], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "QuantileLaw":
        """Expand to a larger batch shape."""
        values = self.values.expand(*torch.Size(batch_shape), self.values.shape[-1])
        new = QuantileLaw(self.levels, values, validate_args=False)
        new._validate_args, new.fitted_on = self._validate_args, self.fitted_on
        return new

    @property
    def mean(self) -> Tensor:
        """Closed form, from the normal density of each segment."""
        return self._moments()[0].to(self.values.dtype)

    @property
    def variance(self) -> Tensor:
        """Closed form, from the normal density of each segment."""
        return self._moments()[1].to(self.values.dtype)

    @property
    def stddev(self) -> Tensor:
        """Square root of the variance, taken before it is rounded to the dtype of ``values``."""
        return self._moments()[1].sqrt().to(self.values.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density."""
        return self._of(value, self._formulas.log_prob)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability below ``value``."""
        return self._of(value, lambda y, *values: normal_cdf(self._formulas.residual(y, *values)))

    def icdf(self, value: Tensor | float) -> Tensor:
        """Quantile of a probability."""
        p = torch.as_tensor(value, dtype=torch.float64, device=self.values.device)
        return self._formulas.value_at(normal_quantile(p, 1 - p), *self._columns()).to(self.values.dtype)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Differentiable samples, whose residuals are standard normal."""
        shape = self._extended_shape(torch.Size(sample_shape))
        z = torch.randn(shape, dtype=torch.float64, device=self.values.device)
        return self._formulas.value_at(z, *self._columns()).to(self.values.dtype)

    def _columns(self) -> tuple[Tensor, ...]:
        return self.values.to(torch.float64).unbind(-1)

    def _of(self, value: Tensor, formula: Any) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        result: Tensor = formula(value.to(torch.float64), *self._columns())
        return result.to(torch.promote_types(self.values.dtype, value.dtype))

    def _moments(self) -> tuple[Tensor, Tensor]:
        return moments_under_normal(self._formulas.segments(*self._columns()).inverse())


def _checked_levels(levels: Tensor, values: Tensor) -> Tensor:
    if levels.dim() != 1 or len(levels) < 2 or not values.dim() or values.shape[-1] != len(levels):
        shapes = f"{tuple(levels.shape)} and {tuple(values.shape)}"
        raise ValueError(f"expected `levels` of shape (Q,), Q >= 2, and `values` of shape (..., Q), got {shapes}")
    if not bool(((levels > 0) & (levels < 1)).all() and (levels.diff() > 0).all()):
        raise ValueError(f"expected `levels` strictly increasing within (0, 1), got {_listed(levels)}")
    return levels


def _check_increasing(values: Tensor) -> None:
    rows = values.reshape(-1, values.shape[-1])
    check_rows("values", "finite", rows, rows.isfinite().all(-1))
    check_rows("values", "strictly increasing in the last dimension", rows, (rows.diff() > 0).all(-1))


def check_rows(name: str, requirement: str, rows: Tensor, good: Tensor, remedy: str = "") -> None:
    """Raise with the count of rows that are not good, and the first of them."""
    if bool(good.all()):
        return
    bad = (~good).nonzero().squeeze(1)
    first = int(bad[0])
    count = f"{len(bad)} of {len(rows)} rows that are not; the first is row {first}: {_listed(rows[first])}"
    raise ValueError(f"expected `{name}` {requirement}, got {count}{'; ' * bool(remedy)}{remedy}")


def _listed(numbers: Tensor) -> str:
    shown = [f"{v:g}" if math.isfinite(v) else str(v) for v in numbers[:_MOST_LISTED].tolist()]
    return ", ".join(shown) + (", ..." if len(numbers) > _MOST_LISTED else "")
