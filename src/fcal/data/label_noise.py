"""Laws of label noise, each with mean 0 and standard deviation 1, times a sigma."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import AffineTransform, Distribution, Gamma, Laplace, Normal, StudentT, TransformedDistribution

from fcal._registry import Registry
from fcal.distributions import quantile

Law = Callable[[Tensor, Tensor, float], Distribution]
_LAWS: Registry[Law] = Registry("noise")
_LABEL_STEP = 2.0**-20


def names() -> list[str]:
    """Every kind of noise."""
    return _LAWS.names()


def check(noise: str) -> None:
    """Refuse a noise that is not known."""
    _LAWS[noise]


def noise_distribution(noise: str, centre: Tensor, sigma: Tensor, shape: float) -> Distribution:
    """The law of a label around its true value.

    Args:
        noise: One of ``names()``.
        centre: True values.
        sigma: Standard deviations, of the same shape.
        shape: Shape of Gamma noise, degrees of freedom of Student-t noise; the others have none.
    """
    return _LAWS[noise](centre, sigma, shape)


def labels(law: Distribution, uniform: Tensor) -> Tensor:
    """Draws of a law by its quantiles, so that each takes one uniform number.

    They are rounded up to multiples of 2**-20, a millionth of the image: no label then depends on the last digits of a
    machine's logarithm, each is exact in float32, and none leaves the support of its law.
    """
    return torch.ceil(quantile(law, uniform) / _LABEL_STEP) * _LABEL_STEP


def _normal(centre: Tensor, sigma: Tensor, _shape: float) -> Distribution:
    return Normal(centre, sigma)


def _laplace(centre: Tensor, sigma: Tensor, _shape: float) -> Distribution:
    return Laplace(centre, sigma / math.sqrt(2))


def _student_t(centre: Tensor, sigma: Tensor, shape: float) -> Distribution:
    return StudentT(torch.full_like(centre, shape), centre, sigma * math.sqrt((shape - 2) / shape))


def _gamma(centre: Tensor, sigma: Tensor, shape: float) -> Distribution:
    """Gamma moved and scaled: skewed to the right for a small shape, nearly normal for a large one."""
    base = Gamma(torch.full_like(centre, shape), torch.ones_like(centre))
    return _MovedGamma(base, AffineTransform(centre - sigma * math.sqrt(shape), sigma / math.sqrt(shape)))


class _MovedGamma(TransformedDistribution):
    """A transformed law that knows its moments: torch's does not."""

    @property
    def mean(self) -> Tensor:
        (move,) = self.transforms
        return move(self.base_dist.mean)

    @property
    def variance(self) -> Tensor:
        (move,) = self.transforms
        assert isinstance(move, AffineTransform)
        return self.base_dist.variance * move.scale**2


_LAWS.add("homoscedastic", _normal)
_LAWS.add("heteroscedastic", _normal)
_LAWS.add("gamma", _gamma)
_LAWS.add("laplace", _laplace)
_LAWS.add("student-t", _student_t)
