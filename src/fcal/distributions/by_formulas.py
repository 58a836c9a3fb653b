"""Base classes of our own distributions: the methods that torch expects, by the formulas of a family in float64."""

from abc import ABC, abstractmethod
from functools import reduce
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from fcal.distributions.family import Family, Formula, Law, family_residual, law_of
from fcal.distributions.tails import log_normal_cdf, log_normal_density, normal_cdf, normal_quantile

_FARTHEST = 37.5  # beyond this residual, tail probabilities underflow and a quantile cannot be computed


class ByFormulas(Distribution):
    """Base of registered distributions, whose parameters are attributes of one shape."""

    has_rsample = True

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """Expand to a larger batch shape."""
        shape, law = torch.Size(batch_shape), law_of(self)
        new: Self = self._get_checked_instance(law.kind, _instance)  # type: ignore[no-untyped-call]
        for name, parameter in zip(law.family.parameters, law.parameters, strict=True):
            setattr(new, name, parameter.expand(shape))
        Distribution.__init__(new, shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of results: the widest of the parameters."""
        return reduce(torch.promote_types, (parameter.dtype for parameter in law_of(self).parameters))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density."""
        return self._evaluated(law_of(self).family.log_prob, value, density=True)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability below ``value``."""
        log_cdf = law_of(self).family.log_cdf
        assert log_cdf is not None
        return self._evaluated(lambda *arguments: log_cdf(*arguments).exp(), value)

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile of a probability."""
        law, p = law_of(self).to(torch.float64), value.to(torch.float64)
        assert law.family.quantile is not None
        return law.family.quantile(p, 1 - p, *law.parameters).to(self.dtype)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Differentiable samples, by the inverse CDF."""
        shape, like = self._extended_shape(torch.Size(sample_shape)), law_of(self).parameters[0]
        uniform = torch.rand(shape, dtype=like.dtype, device=like.device)
        return self.icdf(uniform.clamp(min=torch.finfo(like.dtype).tiny))

    def _evaluated(self, formula: Formula | None, value: Tensor, *, density: bool = False) -> Tensor:
        assert formula is not None
        if self._validate_args:
            self._validate_sample(value)
        law = law_of(self).to(torch.float64)
        inner, _, log_slope = law.pull_back(value.to(torch.float64))
        result = formula(inner, *law.parameters)
        return (result - log_slope if density else result).to(torch.promote_types(self.dtype, value.dtype))


class ResidualFormulas(ABC):
    """Formulas of a family that is defined by its residual, an increasing function of the value, and the inverse."""

    @abstractmethod
    def residual(self, value: Tensor, *parameters: Tensor) -> Tensor:
        """Residual z of a value."""

    @abstractmethod
    def residual_and_log_slope(self, value: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Residual z of a value and log dz/dy."""

    @abstractmethod
    def value_at(self, z: Tensor, *parameters: Tensor) -> Tensor:
        """Value whose residual is z."""

    def log_cdf(self, value: Tensor, *parameters: Tensor) -> Tensor:
        """Normal log-tail of the residual."""
        return log_normal_cdf(self.residual(value, *parameters))

    def log_survival(self, value: Tensor, *parameters: Tensor) -> Tensor:
        """Normal log-tail of the residual."""
        return log_normal_cdf(-self.residual(value, *parameters))

    def log_prob(self, value: Tensor, *parameters: Tensor) -> Tensor:
        """Log of the normal density of the residual times the slope of the residual."""
        z, log_slope = self.residual_and_log_slope(value, *parameters)
        return log_normal_density(z) + log_slope

    def quantile(self, lower: Tensor, upper: Tensor, *parameters: Tensor) -> Tensor:
        """Value whose residual is the normal quantile."""
        return self.value_at(normal_quantile(lower, upper), *parameters)

    def as_family(self, **details: Any) -> Family:
        """The family with these formulas; ``details`` are its other fields."""
        return Family(
            log_cdf=self.log_cdf,
            log_survival=self.log_survival,
            residual=self.residual,
            residual_and_log_slope=self.residual_and_log_slope,
            quantile=self.quantile,
            value_at=self.value_at,
            log_prob=self.log_prob,
            **details,
        )


class ByResidual(ByFormulas, ABC):
    """Base of distributions with residual formulas of their own; subclasses set ``_law``."""

    arg_constraints: dict[str, constraints.Constraint] = {}
    fitted_on: str | None = None  # the targets that the distribution was fitted on, if any
    _law: Law

    @abstractmethod
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance in float64."""

    @property
    def mean(self) -> Tensor:
        """Closed form or quadrature; NaN where the mean does not exist."""
        return self._moments()[0].to(self.dtype)

    @property
    def variance(self) -> Tensor:
        """Closed form or quadrature; infinite where the variance does not exist."""
        variance = self._moments()[1]
        finite = variance.clamp(max=torch.finfo(self.dtype).max)
        return torch.where(variance.isinf(), variance, finite).to(self.dtype)

    @property
    def stddev(self) -> Tensor:
        """Square root of the variance, taken before it is rounded to :attr:`dtype`."""
        return self._moments()[1].sqrt().to(self.dtype)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability below ``value``."""
        residual = self._law.family.residual
        assert residual is not None
        return self._evaluated(lambda *arguments: normal_cdf(residual(*arguments)), value)

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile of a probability."""
        p = value.to(torch.float64)
        return self._value_at(normal_quantile(p, 1 - p))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Differentiable samples, whose residuals are standard normal."""
        shape, device = self._extended_shape(torch.Size(sample_shape)), self._law.parameters[0].device
        return self._value_at(torch.randn(shape, dtype=torch.float64, device=device))

    def _value_at(self, z: Tensor) -> Tensor:
        law = self._law.to(torch.float64)
        return law.push_forward(value_of_residual(law.family, z, *law.parameters)).to(self.dtype)


def residual_and_log_slope(
    kind: type[Distribution], family: Family, value: Tensor, *parameters: Tensor
) -> tuple[Tensor, Tensor]:
    """Residual z of a value and log dz/dy, without the density where the family has such a formula."""
    if family.residual_and_log_slope is not None:
        return family.residual_and_log_slope(value, *parameters)
    z = family_residual(family, value, *parameters)
    return z, family.log_density(kind, value, *parameters) - log_normal_density(z)


def value_of_residual(family: Family, z: Tensor, *parameters: Tensor) -> Tensor:
    """Value of a family whose residual is z; z is clamped to +-37.5 where the family has only a quantile."""
    if family.value_at is not None:
        return family.value_at(z, *parameters)
    assert family.quantile is not None
    inside = z.clamp(-_FARTHEST, _FARTHEST).expand(torch.broadcast_shapes(z.shape, *family.batch_shapes(parameters)))
    return family.quantile(normal_cdf(inside), normal_cdf(-inside), *parameters)
