"""Distributions of label noise with a given standard deviation."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import AffineTransform, Distribution, Gamma, Laplace, Normal, StudentT, TransformedDistribution

from fcal._registry import Registry
from fcal.distributions import quantile

_LABEL_STEP = 2.0**-20


def labels(distribution: Distribution, uniform: Tensor) -> Tensor:
    """Labels drawn by inverse transform sampling from uniform numbers.

    They are rounded up to multiples of 2**-20, a millionth of the image, so that a label does not depend on the last
    digits of a machine's logarithm, is exact in float32, and stays within the support of its distribution.
    """
    return torch.ceil(quantile(distribution, uniform) / _LABEL_STEP) * _LABEL_STEP


def _normal(centre: Tensor, sigma: Tensor, _shape: float) -> Distribution:
    return Normal(centre, sigma)


def _laplace(centre: Tensor, sigma: Tensor, _shape: float) -> Distribution:
    return Laplace(centre, sigma / math.sqrt(2))


def _student_t(centre: Tensor, sigma: Tensor, shape: float) -> Distribution:
    return StudentT(torch.full_like(centre, shape), centre, sigma * math.sqrt((shape - 2) / shape))


def _gamma(centre: Tensor, sigma: Tensor, shape: float) -> Distribution:
    """Gamma noise, shifted and scaled: right-skewed for a small shape, nearly normal for a large one."""
    base = Gamma(torch.full_like(centre, shape), torch.ones_like(centre))
    return _ShiftedGamma(base, AffineTransform(centre - sigma * math.sqrt(shape), sigma / math.sqrt(shape)))


class _ShiftedGamma(TransformedDistribution):
    """A transformed distribution with the moments that torch's class lacks."""

    @property
    def mean(self) -> Tensor:
        (affine,) = self.transforms
        return affine(self.base_dist.mean)

    @property
    def variance(self) -> Tensor:
        (affine,) = self.transforms
        assert isinstance(affine, AffineTransform)
        return self.base_dist.variance * affine.scale**2


# Distribution of labels around true values, given their sd and a shape: that of Gamma noise, or degrees of freedom.
NOISES: Registry[Callable[[Tensor, Tensor, float], Distribution]] = Registry("noise")
NOISES.add("homoscedastic", _normal)
NOISES.add("heteroscedastic", _normal)
NOISES.add("gamma", _gamma)
NOISES.add("laplace", _laplace)
NOISES.add("student-t", _student_t)
