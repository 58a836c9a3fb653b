"""The law of a model that gives only a few quantiles."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from fcal.distributions.family import Family
from fcal.distributions.law import Law, taken_apart_by
from fcal.distributions.monotone import (
    Segments,
    crps_under_normal,
    log_normal_density,
    moments_under_normal,
    normal_cdf,
)
from fcal.distributions.tails import log_normal_cdf, normal_quantile


class _Levels(NamedTuple):
    """Formulas of a law through given quantiles; its parameters are the quantiles.

    Attributes:
        levels: Their probabilities. Shape ``(Q,)``.
        residuals: The normal quantiles of these. Shape ``(Q,)``, float64.
    """

    levels: Tensor
    residuals: Tensor

    def segments(self, *values: Tensor) -> Segments:
        """The residual as a function of the value."""
        x = torch.stack(values, -1)
        return Segments.through(x, self.residuals.to(x.device))

    def residual(self, value: Tensor, *values: Tensor) -> Tensor:
        """Linear between the quantiles and beyond them."""
        return self.segments(*values).value_and_slope(value)[0]

    def log_cdf(self, value: Tensor, *values: Tensor) -> Tensor:
        """By the residual."""
        return log_normal_cdf(self.residual(value, *values))

    def log_survival(self, value: Tensor, *values: Tensor) -> Tensor:
        """By the residual."""
        return log_normal_cdf(-self.residual(value, *values))

    def log_prob(self, value: Tensor, *values: Tensor) -> Tensor:
        """A normal density on every piece."""
        z, slope = self.segments(*values).value_and_slope(value)
        return log_normal_density(z) + slope.log()

    def quantile(self, lower: Tensor, upper: Tensor, *values: Tensor) -> Tensor:
        """Linear in the normal quantile."""
        return self.value_at(normal_quantile(lower, upper), *values)

    def value_at(self, z: Tensor, *values: Tensor) -> Tensor:
        """The value whose residual is z."""
        return self.segments(*values).inverse().value_and_slope(z)[0]

    def crps(self, value: Tensor, *values: Tensor) -> Tensor:
        """In closed form."""
        return crps_under_normal(self.segments(*values), value)

    def distribution(self, *values: Tensor) -> "QuantileLaw":
        """A distribution with these quantiles."""
        columns = torch.stack(torch.broadcast_tensors(*values), -1)
        return QuantileLaw(self.levels, columns, validate_args=False)

    def as_family(self) -> Family:
        """What the library knows of the law."""
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
    r"""A law through given quantiles, for models that predict only those (q05, q50, q95, ...).

    Its residual :math:`z = \Phi^{-1}(F(y))` is linear between neighbouring quantiles and continues beyond the outermost
    two, so the density is a normal one on every piece and the tails are normal. Quantiles of a normal law give back
    exactly that law.

    Args:
        levels: Probabilities of the quantiles, strictly rising within (0, 1). Shape ``(Q,)``, Q at least 2.
        values: The quantiles, strictly rising in the last dimension. Shape ``(..., Q)``.
        validate_args: As in every torch distribution; False also skips the check of the values.

    Raises:
        ValueError: Levels or values out of range, not finite, or quantiles that cross or are equal (with their count
            and the first such row).

    Example:
        >>> law = QuantileLaw([0.1587, 0.5, 0.8413], torch.tensor([[8.0, 10.0, 13.0]]))
        >>> law.cdf(torch.tensor([10.0]))
        tensor([0.5000])
        >>> law.icdf(torch.tensor([0.8413]))
        tensor([13.])
        >>> QuantileLaw([0.1, 0.9], torch.tensor([[0.0, 1.0], [2.0, 1.5]]))
        Traceback (most recent call last):
        ...
        ValueError: expected `values` strictly rising in the last dimension, got 1 of 2 rows that are not; the first is
        row 1: 2, 1.5
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.real
    has_rsample = True
    fitted_on: str | None = None

    def __init__(self, levels: Tensor | list[float], values: Tensor, validate_args: bool | None = None) -> None:
        if not isinstance(values, Tensor) or not values.is_floating_point():
            found = values.dtype if isinstance(values, Tensor) else type(values).__name__
            raise TypeError(f"expected `values` a tensor of a floating dtype, got {found}")
        self.levels = _checked_levels(torch.as_tensor(levels, dtype=torch.float64, device=values.device), values)
        if validate_args is not False:
            _check_rising(values.detach())
        self.values = values
        self._formulas = _Levels(self.levels, normal_quantile(self.levels, 1 - self.levels))
        self._family = self._formulas.as_family()
        super().__init__(values.shape[:-1], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "QuantileLaw":
        """The same law with a larger batch shape."""
        values = self.values.expand(*torch.Size(batch_shape), self.values.shape[-1])
        new = QuantileLaw(self.levels, values, validate_args=False)
        new._validate_args, new.fitted_on = self._validate_args, self.fitted_on
        return new

    @property
    def mean(self) -> Tensor:
        """In closed form, of a normal law on every piece."""
        return self._moments()[0].to(self.values.dtype)

    @property
    def variance(self) -> Tensor:
        """In closed form, of a normal law on every piece."""
        return self._moments()[1].to(self.values.dtype)

    @property
    def stddev(self) -> Tensor:
        """Root of the variance, formed before it is rounded to the law's dtype."""
        return self._moments()[1].sqrt().to(self.values.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density."""
        return self._of(value, self._formulas.log_prob)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability below ``value``."""
        return self._of(value, lambda y, *values: normal_cdf(self._formulas.residual(y, *values)))

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile of a probability."""
        p = value.to(torch.float64)
        return self._formulas.value_at(normal_quantile(p, 1 - p), *self._columns()).to(self.values.dtype)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Differentiable draws: those of a standard normal law as residuals."""
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
        raise ValueError(f"expected `levels` strictly rising within (0, 1), got {_listed(levels)}")
    return levels


def _check_rising(values: Tensor) -> None:
    rows = values.reshape(-1, values.shape[-1])
    for requirement, good in (
        ("finite", rows.isfinite().all(-1)),
        ("strictly rising in the last dimension", (rows.diff() > 0).all(-1)),
    ):
        if not bool(good.all()):
            bad = (~good).nonzero().squeeze(1)
            first = int(bad[0])
            count = f"{len(bad)} of {len(rows)} rows that are not"
            shown = _listed(rows[first])
            raise ValueError(f"expected `values` {requirement}, got {count}; the first is row {first}: {shown}")


def _listed(numbers: Tensor) -> str:
    return ", ".join(f"{v:g}" if math.isfinite(v) else str(v) for v in numbers.tolist())


@taken_apart_by(QuantileLaw)
def _taken_apart(pred: Distribution) -> Law:
    assert isinstance(pred, QuantileLaw)
    return Law(QuantileLaw, pred._family, pred.values.unbind(-1), name="QuantileLaw")
