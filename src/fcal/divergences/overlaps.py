"""Divergences that measure how much of two normal laws overlaps; all of them are bounded."""

import math

import numpy
import torch
from torch import Tensor

from fcal.divergences.arithmetic import (
    Scalar,
    excess_variance,
    expm1,
    log1p,
    sqrt,
    standardized,
    target_moments,
)
from fcal.divergences.registry import built_in

_NODES, _WEIGHTS = (torch.from_numpy(values) for values in numpy.polynomial.legendre.leggauss(20))
_GRID = torch.arange(-10.0, 11.0, dtype=torch.float64)  # deviations; 1e-23 of a normal law is beyond them
_SAME_VARIANCE = 1e-100  # stands for v - 1 = 0, and sends the second crossing of two densities far out
_FARTHEST = 1e100  # deviations
_EXTREME_RATIO = 1e40  # of variances; beyond it a Jensen-Shannon divergence of log 2 changes no more
_EXTREME_SHIFT = 1e3  # of means, in deviations of both laws; likewise


@built_in(numbers=True)
def hellinger(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""SQUARED Hellinger distance, which unlike the distance itself is smooth where the laws agree.

    .. math:: 1 - \int \sqrt{p q} = 1 - \sqrt{\frac{2 s}{1 + s^2}} \exp\left( -\frac{m^2}{4 (1 + s^2)} \right)

    with p the fitted law, q the target, m as in :func:`kl` and :math:`s^2` its v.

    Args:
        mean: Mean of the fitted law. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom of the target; None for N(0, 1).

    Returns:
        A scalar within [0, 1], zero exactly when the laws agree. It saturates at 1, so its gradient vanishes far away:
        exponentially in :math:`m^2`, and by :math:`\log v` as the fourth root of v or 1 / v.

    Note:
        The logarithm of the overlap is formed without cancellation: the relative accuracy holds down to zero.

    Example:
        >>> fcal.divergences.hellinger(torch.tensor(2.0), torch.tensor(1.0))  # 1 - exp(-1/2)
        tensor(0.3935)
    """
    offset, ratio = standardized(mean, variance, df)
    root = sqrt(ratio)
    gap = excess_variance(variance, df) / (1 + root)  # s - 1
    return -expm1(-0.5 * log1p(gap * (gap / (2 * root))) - 0.25 * offset / (1 + ratio))


@built_in()
def total_variation(mean: Tensor, variance: Tensor, df: int | None = None) -> Tensor:
    r"""Total variation distance, the largest difference in probability that the laws give to any one event.

    .. math:: \frac12 \int |p - q|
        = \left| \Phi(x_1) - \Phi(x_2) - \Phi\left(\frac{x_1 - m}{s}\right) + \Phi\left(\frac{x_2 - m}{s}\right) \right|

    with :math:`x_1, x_2` the points where the densities cross (for equal variances, one of them is infinitely far), and
    m and s as in :func:`hellinger`. A crossing moves with the law but adds nothing to the slope, as p = q there.

    Args:
        mean: Mean of the fitted law. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom of the target; None for N(0, 1).

    Returns:
        A scalar within [0, 1], right to 1e-15, zero when the laws agree. Near there it grows linearly, as a norm does,
        and its gradient does not vanish; at the very point it is 0. Far away it saturates at 1, and the gradient
        vanishes.

    Example:
        >>> fcal.divergences.total_variation(torch.tensor(2.0), torch.tensor(1.0))  # P(|z| < 1)
        tensor(0.6827)
    """
    shift, ratio = _shift(mean, df), variance.double() / target_moments(df)[1]
    value, by_shift, by_ratio = _variation_and_slopes(shift.detach(), ratio.detach())
    linear = by_shift * (shift - shift.detach()) + by_ratio * (ratio - ratio.detach())
    return (value + linear).to(mean.dtype)


@built_in()
def jensen_shannon(mean: Tensor, variance: Tensor, df: int | None = None) -> Tensor:
    r"""Jensen-Shannon divergence in nats: how well one observation tells which of the two laws it came from.

    .. math:: \tfrac12 KL(p \,\|\, r) + \tfrac12 KL(q \,\|\, r)
        = \int r(x) \, g\left( \log \frac{p(x)}{q(x)} \right) dx, \qquad
        r = \frac{p + q}{2}, \quad g(l) = \frac l2 \tanh \frac l2 - \log \cosh \frac l2

    with p the fitted law and q the target. There is no closed form.

    Args:
        mean: Mean of the fitted law. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom of the target; None for N(0, 1).

    Returns:
        A scalar within [0, log 2], zero exactly when the laws agree. It saturates at log 2, so its gradient vanishes
        far away; beyond a ratio of variances of 1e40 it is zero.

    Note:
        Gauss-Legendre quadrature, every law on its own and panels of at most one deviation of either: right to 1e-13,
        also relative to a value close to zero, as every term is positive.

    Example:
        >>> fcal.divergences.jensen_shannon(torch.tensor(0.0), torch.tensor(1.0))
        tensor(0.)
        >>> fcal.divergences.jensen_shannon(torch.tensor(100.0), torch.tensor(1.0))  # log 2
        tensor(0.6931)
    """
    ratio = (variance.double() / target_moments(df)[1]).clamp(1 / _EXTREME_RATIO, _EXTREME_RATIO)
    excess = excess_variance(variance.double(), df).clamp(max=_EXTREME_RATIO)
    root = ratio.sqrt()
    bound = _EXTREME_SHIFT * (1 + root.detach())
    shift = _shift(mean, df).clamp(-bound, bound)
    grid = _GRID.to(root.device)
    x, mass = _normal_quadrature(shift + root * grid)  # in deviations of the target from its mean
    u, fitted_mass = _normal_quadrature((grid - shift) / root)  # in those of the fitted law
    at_x = (x.square() * excess + shift * (2 * x - shift)) / ratio - ratio.log()
    at_u = u.square() * excess + shift * (2 * root * u + shift) - ratio.log()
    halves = (mass * _information(0.5 * at_x)).sum() + (fitted_mass * _information(0.5 * at_u)).sum()
    return (0.5 * halves).to(mean.dtype)


def _shift(mean: Tensor, df: int | None) -> Tensor:
    """Distance of the means in target deviations, with its sign."""
    target_mean, target_variance = target_moments(df)
    return (mean.double() - target_mean) / math.sqrt(target_variance)


def _variation_and_slopes(shift: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Total variation of N(shift, ratio) from N(0, 1), and its derivatives by both."""
    m, s, log_ratio = shift.abs(), ratio.sqrt(), ratio.log()
    excess = torch.where(ratio == 1, _SAME_VARIANCE, ratio - 1)
    width = (m.square() + (ratio - 1) * log_ratio).sqrt()
    # The roots of a quadratic, each in deviations of the target (x) and of the fitted law (t), without cancellation.
    for_x, for_t = s * width + m, width + m * s
    tiny = torch.finfo(m.dtype).tiny
    x1, x2 = (m.square() + ratio * log_ratio) / for_x.clamp(min=tiny), -for_x / excess
    t1, t2 = (log_ratio - m.square()) / for_t.clamp(min=tiny), -for_t / excess
    x1, x2, t1, t2 = (point.clamp(-_FARTHEST, _FARTHEST) for point in (x1, x2, t1, t2))
    value = torch.special.ndtr(x1) - torch.special.ndtr(x2) - torch.special.ndtr(t1) + torch.special.ndtr(t2)
    by_shift = shift.sign() * (_density(t1) - _density(t2)) / s
    by_ratio = (t1 * _density(t1) - t2 * _density(t2)) / (2 * ratio)
    return value.clamp(0.0, 1.0), by_shift, by_ratio


def _normal_quadrature(others: Tensor) -> tuple[Tensor, Tensor]:
    """Points and masses that integrate against N(0, 1): panels end at whole deviations of this law and of another.

    Args:
        others: Whole deviations of the other law, in units of this one. Shape ``(G,)``.

    Returns:
        Points and their masses. Shape ``(P, Q)`` for P panels of Q points.
    """
    grid = _GRID.to(others.device)
    edges = torch.cat([grid, others.detach().clamp(grid[0], grid[-1])]).sort().values.unsqueeze(1)
    half = 0.5 * edges.diff(dim=0)
    points = edges[:-1] + half + half * _NODES.to(others.device)
    return points, half * _WEIGHTS.to(others.device) * _density(points)


def _information(log_odds: Tensor) -> Tensor:
    """Log 2 less the entropy of a coin with these log-odds, in nats, without cancellation near 0 and far out."""
    near = log_odds.abs() < 1
    small = torch.where(near, log_odds, 0.0)
    tanh = (0.5 * small).tanh()
    large = torch.where(near, 1.0, log_odds.abs())
    odds = (-large).exp()
    far = math.log(2) - odds.log1p() - large * odds / (1 + odds)
    return torch.where(near, 0.5 * (tanh * small + (-tanh.square()).log1p()), far)


def _density(x: Tensor) -> Tensor:
    return (-0.5 * x.square()).exp() / math.sqrt(2 * math.pi)
