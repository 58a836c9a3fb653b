"""Likelihood of calibration targets under a beta map of their residuals."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fcal.distributions import log_normal_cdf
from fcal.distributions.tails import mills_ratio
from fcal.recalibration.scaling import minimise


class Tails(NamedTuple):
    """Log-tails of residuals and their derivatives. Shapes ``(n,)``.

    Attributes:
        log_below: Log-probability below the residual.
        log_above: Log-probability above.
        rise: Derivative of ``log_below``.
        fall: Negative derivative of ``log_above``.
    """

    log_below: Tensor
    log_above: Tensor
    rise: Tensor
    fall: Tensor

    @classmethod
    def of(cls, z: Tensor) -> "Tails":
        """The tails of residuals z."""
        return cls(log_normal_cdf(z), log_normal_cdf(-z), 1 / mills_ratio(z), 1 / mills_ratio(-z))

    def rows(self, where: Tensor) -> "Tails":
        """The tails of some rows."""
        return Tails(*(values[where] for values in self))


def log_likelihood(tails: Tails, parameters: Tensor) -> Tensor:
    """Log-density of z where z' = g(z) is normal; the density of y differs by a constant that no map changes.

    Args:
        tails: Of n residuals.
        parameters: log a, log b and c. Shape ``(..., 3)``, where ``...`` broadcasts against ``(n,)``.
    """
    log_a, log_b, c = parameters.unbind(-1)
    a, b = log_a.exp(), log_b.exp()
    odds = a * tails.log_below - b * tails.log_above + c
    return logsigmoid(odds) + logsigmoid(-odds) + torch.log(a * tails.rise + b * tails.fall)


def best_constant(tails: Tails) -> Tensor:
    """Parameters log a, log b and c of the most likely constant map, by L-BFGS. Shape ``(3,)``.

    Example:
        >>> best_constant(Tails.of(torch.special.ndtri(torch.arange(1, 10_000).double() / 10_000))).abs().max() < 0.01
        tensor(True)
    """
    at = torch.zeros(3, dtype=tails.rise.dtype, device=tails.rise.device).requires_grad_()
    minimise(lambda: -log_likelihood(tails, at).mean(), at)
    return at.detach()


class BetaLikelihood(NamedTuple):
    """Likelihood with parameters that are a constant plus a normal variable per row."""

    tails: Tails
    constant: Tensor

    def expected(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Expected log-likelihood of each row, by the third-degree cubature rule with six points.

        Args:
            mean: Means of the three normal variables. Shape ``(n, 3)``.
            variance: Their variances. Shape ``(n, 3)``.
        """
        offset = torch.diag_embed((3 * variance).sqrt())  # one parameter at a time
        points = (mean + self.constant).unsqueeze(-2)
        spread = torch.cat([points + offset, points - offset], -2)
        return log_likelihood(Tails(*(values.unsqueeze(-1) for values in self.tails)), spread).mean(-1)


def kernel(x: Tensor, at: Tensor, lengthscale: Tensor, outputscale: Tensor) -> Tensor:
    """Squared-exponential kernels of the three processes. Shape ``(3, n, M)``."""
    scaled, centres = x / lengthscale.unsqueeze(-2), at / lengthscale.unsqueeze(-2)
    return outputscale[:, None, None] * torch.exp(-0.5 * torch.cdist(scaled, centres).square())
