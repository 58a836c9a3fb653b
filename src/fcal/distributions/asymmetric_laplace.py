"""The asymmetric Laplace distribution, with an exponential tail of a different scale on each side."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all
from torch.nn.functional import logsigmoid

from fcal.distributions.family import Family, register
from fcal.distributions.location_scale import unit


def _log_share(asymmetry: Tensor) -> Tensor:
    """Log-probability left of the location."""
    return logsigmoid(2 * asymmetry.log())


def _log_side(distance: Tensor, asymmetry: Tensor) -> Tensor:
    """Log-probability left of a point at ``distance`` (in scales) from the location."""
    left = distance < 0
    near = _log_share(asymmetry) + torch.where(left, distance, 0.0) / asymmetry
    beyond = _log_share(1 / asymmetry) - torch.where(left, 0.0, distance) * asymmetry
    return torch.where(left, near, torch.log1p(-torch.exp(beyond)))


def _log_cdf(value: Tensor, loc: Tensor, scale: Tensor, asymmetry: Tensor) -> Tensor:
    return _log_side(unit(value, loc, scale), asymmetry)


def _log_survival(value: Tensor, loc: Tensor, scale: Tensor, asymmetry: Tensor) -> Tensor:
    return _log_side(-unit(value, loc, scale), 1 / asymmetry)


def _log_prob(value: Tensor, loc: Tensor, scale: Tensor, asymmetry: Tensor) -> Tensor:
    t = unit(value, loc, scale)
    left = t < 0
    exponent = torch.where(left, t, 0.0) / asymmetry - torch.where(left, 0.0, t) * asymmetry
    return exponent - torch.log(asymmetry + 1 / asymmetry) - scale.log()


def _quantile(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor, asymmetry: Tensor) -> Tensor:
    share = torch.exp(_log_share(asymmetry))
    left = lower < share
    below = asymmetry * (torch.where(left, lower, 0.5).log() - _log_share(asymmetry))
    above = (_log_share(1 / asymmetry) - torch.where(left, 0.5, upper).log()) / asymmetry
    return loc + scale * torch.where(left, below, above)


def _crps(value: Tensor, loc: Tensor, scale: Tensor, asymmetry: Tensor) -> Tensor:
    """Integral of F^2 below the value plus that of (1 - F)^2 above it."""
    t = unit(value, loc, scale)
    left, right = asymmetry, 1 / asymmetry  # scales of the two tails
    share, rest = left / (left + right), right / (left + right)
    on_left = t < 0
    inner = torch.where(on_left, torch.where(on_left, -t, 0.0) / left, torch.where(on_left, 0.0, t) / right)
    own, other = torch.where(on_left, left, right), torch.where(on_left, right, left)
    own_share, other_share = torch.where(on_left, share, rest), torch.where(on_left, rest, share)
    decay = torch.exp(-inner)
    # beyond the value: the tail squared; between value and location: its complement squared; then the other tail
    beyond = own * (own_share * decay).square() / 2
    between = own * (inner + 2 * own_share * torch.expm1(-inner) - own_share.square() * torch.expm1(-2 * inner) / 2)
    return scale * (beyond + between + other * other_share.square() / 2)


class AsymmetricLaplace(Distribution):
    r"""Laplace distribution with scale :math:`s \kappa` on the left and :math:`s / \kappa` on the right.

    Its location is the quantile :math:`\kappa^2 / (1 + \kappa^2)`: its likelihood is the loss of quantile regression.

    Args:
        loc: Mode :math:`m`.
        scale: Scale :math:`s`.
        asymmetry: :math:`\kappa`; 1 is the Laplace distribution, and less than 1 makes the right tail longer.
        validate_args: As in every torch distribution.

    Example:
        >>> pred = AsymmetricLaplace(torch.tensor(0.0), torch.tensor(1.0), torch.tensor(2.0))
        >>> pred.cdf(torch.tensor(0.0))
        tensor(0.8000)
        >>> pred.mean  # scale (1 / kappa - kappa)
        tensor(-1.5000)
    """

    arg_constraints = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "asymmetry": constraints.positive,
    }
    support = constraints.real
    has_rsample = True

    def __init__(
        self,
        loc: Tensor | float,
        scale: Tensor | float,
        asymmetry: Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        self.loc, self.scale, self.asymmetry = broadcast_all(loc, scale, asymmetry)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "AsymmetricLaplace":
        """Expand to a larger batch shape."""
        new = self._get_checked_instance(AsymmetricLaplace, _instance)  # type: ignore[no-untyped-call]
        new.loc, new.scale, new.asymmetry = (p.expand(batch_shape) for p in (self.loc, self.scale, self.asymmetry))
        super(AsymmetricLaplace, new).__init__(torch.Size(batch_shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        r""":math:`m + s (1 / \kappa - \kappa)`."""
        return self.loc + self.scale * (1 / self.asymmetry - self.asymmetry)

    @property
    def mode(self) -> Tensor:
        """The location."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        r""":math:`s^2 (\kappa^2 + 1 / \kappa^2)`."""
        return self.scale.square() * (self.asymmetry.square() + self.asymmetry.pow(-2))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Differentiable samples, by the inverse CDF."""
        shape = self._extended_shape(torch.Size(sample_shape))
        tiny = torch.finfo(self.loc.dtype).tiny
        return self.icdf(torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device).clamp(min=tiny))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density."""
        if self._validate_args:
            self._validate_sample(value)
        return _log_prob(value, self.loc, self.scale, self.asymmetry)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability below ``value``."""
        if self._validate_args:
            self._validate_sample(value)
        return torch.exp(_log_cdf(value, self.loc, self.scale, self.asymmetry))

    def icdf(self, value: Tensor | float) -> Tensor:
        """Quantile of a probability."""
        p = value if isinstance(value, Tensor) else self.loc.new_tensor(value)
        return _quantile(p, 1 - p, self.loc, self.scale, self.asymmetry)

    def entropy(self) -> Tensor:
        r""":math:`1 + \log(s (\kappa + 1 / \kappa))`."""
        return 1 + torch.log(self.scale * (self.asymmetry + 1 / self.asymmetry))


ASYMMETRIC_LAPLACE = Family(
    parameters=("loc", "scale", "asymmetry"),
    log_cdf=_log_cdf,
    log_survival=_log_survival,
    quantile=_quantile,
    log_prob=_log_prob,
    crps=_crps,
    location="loc",
)

register(AsymmetricLaplace, ASYMMETRIC_LAPLACE)
