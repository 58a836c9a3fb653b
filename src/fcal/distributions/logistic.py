"""The logistic distribution, which torch lacks as a class of its own."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all
from torch.nn.functional import logsigmoid


class Logistic(Distribution):
    r"""Logistic law with density :math:`e^{-t} / (s (1 + e^{-t})^2)`, :math:`t = (y - \mu) / s`.

    Args:
        loc: Mean and median :math:`\mu`.
        scale: Scale :math:`s`; the standard deviation is :math:`s \pi / \sqrt 3`.
        validate_args: As in every torch distribution.

    Example:
        >>> law = Logistic(torch.tensor(1.0), torch.tensor(2.0))
        >>> law.cdf(torch.tensor(1.0))
        tensor(0.5000)
        >>> law.icdf(torch.tensor(0.5))
        tensor(1.)
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Logistic":
        """The same law with a larger batch shape."""
        new = self._get_checked_instance(Logistic, _instance)  # type: ignore[no-untyped-call]
        new.loc, new.scale = self.loc.expand(batch_shape), self.scale.expand(batch_shape)
        super(Logistic, new).__init__(torch.Size(batch_shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """Its location."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """Its location."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        r""":math:`s^2 \pi^2 / 3`."""
        return (self.scale * (math.pi / math.sqrt(3))).square()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Differentiable draws, by the inverse CDF."""
        shape = self._extended_shape(torch.Size(sample_shape))
        tiny = torch.finfo(self.loc.dtype).tiny
        uniform = torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device).clamp(min=tiny)
        return self.icdf(uniform)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density."""
        if self._validate_args:
            self._validate_sample(value)
        t = (value - self.loc) / self.scale
        return logsigmoid(t) + logsigmoid(-t) - self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        """Probability below ``value``."""
        if self._validate_args:
            self._validate_sample(value)
        return torch.sigmoid((value - self.loc) / self.scale)

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile of a probability."""
        return self.loc + self.scale * torch.logit(value)

    def entropy(self) -> Tensor:
        r""":math:`\log s + 2`."""
        return self.scale.log() + 2
