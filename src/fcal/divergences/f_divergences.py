"""f-divergences other than KL: squared Hellinger, total variation, Jensen-Shannon, Rényi, Pearson's chi-squared."""

import math

import numpy
import torch
from torch import Tensor

from fcal._checks import check_number
from fcal.divergences.numerics import (
    Scalar,
    at_least,
    at_most,
    excess_variance,
    expm1,
    log,
    log1p,
    sqrt,
    standardized,
    target_moments,
)

_NODES, _WEIGHTS = (torch.from_numpy(values) for values in numpy.polynomial.legendre.leggauss(20))
_GRID = torch.arange(-10.0, 11.0, dtype=torch.float64)  # standard deviations; probability 1e-23 lies beyond
_SAME_VARIANCE = 1e-100  # replaces v - 1 = 0 and sends the second crossing of the densities far out
_FARTHEST = 1e100  # standard deviations
_EXTREME_RATIO = 1e40  # of variances; beyond it the Jensen-Shannon divergence is log 2 and constant
_EXTREME_SHIFT = 1e3  # of means, in standard deviations of both; likewise
ORDERS = (0.01, 100.0)  # of Rényi divergences
_REMAINDER = 0.05  # of the way from v = 1 to the singularity, where the tangent takes over
_LARGEST_LOG = 20.0  # value of log(1 + chi^2) from which its tangent continues it


def hellinger(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Squared Hellinger distance; unlike the distance itself, it is smooth where the distributions agree.

    .. math:: 1 - \int \sqrt{p q} = 1 - \sqrt{\frac{2 s}{1 + s^2}} \exp\left( -\frac{m^2}{4 (1 + s^2)} \right)

    with p the fitted distribution, q the target, m as in :func:`kl` and :math:`s^2` its v.

    Args:
        mean: Mean of the fitted distribution. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom of the target; None for N(0, 1).

    Returns:
        A scalar within [0, 1], zero exactly when the distributions agree. It saturates at 1, so its gradient vanishes
        far away: exponentially in :math:`m^2`, and in :math:`\log v` as the fourth root of v or 1 / v.

    Note:
        The logarithm of the overlap is computed without cancellation: the relative accuracy holds down to zero.

    Example:
        >>> fcal.divergences.hellinger(torch.tensor(2.0), torch.tensor(1.0))  # 1 - exp(-1/2)
        tensor(0.3935)
    """
    offset, ratio = standardized(mean, variance, df)
    root = sqrt(ratio)
    gap = excess_variance(variance, df) / (1 + root)  # s - 1
    return -expm1(-0.5 * log1p(gap * (gap / (2 * root))) - 0.25 * offset / (1 + ratio))


def total_variation(mean: Tensor, variance: Tensor, df: int | None = None) -> Tensor:
    r"""Total variation distance: the largest difference between the probabilities of one event.

    .. math:: \frac12 \int |p - q|
        = \left| \Phi(x_1) - \Phi(x_2) - \Phi\left(\frac{x_1 - m}{s}\right) + \Phi\left(\frac{x_2 - m}{s}\right) \right|

    with :math:`x_1, x_2` the points where the densities cross (for equal variances, one of them is at infinity), and
    m and s as in :func:`hellinger`. The crossings depend on the moments but do not contribute to the gradient, as p = q
    there.

    Args:
        mean: Mean of the fitted distribution. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom of the target; None for N(0, 1).

    Returns:
        A scalar within [0, 1], accurate to 1e-15, zero when the distributions agree. Close to agreement it grows
        linearly, as a norm does, with a gradient that does not vanish; at agreement the gradient is 0. It saturates at
        1, so its gradient vanishes far away.

    Example:
        >>> fcal.divergences.total_variation(torch.tensor(2.0), torch.tensor(1.0))  # P(|z| < 1)
        tensor(0.6827)
    """
    shift, ratio = _shift(mean, df), variance.double() / target_moments(df)[1]
    value, by_shift, by_ratio = _variation_and_slopes(shift.detach(), ratio.detach())
    linear = by_shift * (shift - shift.detach()) + by_ratio * (ratio - ratio.detach())
    return (value + linear).to(mean.dtype)


def jensen_shannon(mean: Tensor, variance: Tensor, df: int | None = None) -> Tensor:
    r"""Jensen-Shannon divergence in nats: how much one observation reveals about which distribution it came from.

    .. math:: \tfrac12 KL(p \,\|\, r) + \tfrac12 KL(q \,\|\, r)
        = \int r(x) \, g\left( \log \frac{p(x)}{q(x)} \right) dx, \qquad
        r = \frac{p + q}{2}, \quad g(l) = \frac l2 \tanh \frac l2 - \log \cosh \frac l2

    with p the fitted distribution and q the target. There is no closed form.

    Args:
        mean: Mean of the fitted distribution. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom of the target; None for N(0, 1).

    Returns:
        A scalar within [0, log 2], zero exactly when the distributions agree. It saturates at log 2, so its gradient
        vanishes far away; it is zero where the ratio of variances exceeds 1e40.

    Note:
        Gauss-Legendre quadrature over each distribution, in panels of at most one standard deviation of either:
        accurate to 1e-13, also relative to values close to zero, as every term is positive.

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
    x, mass = _normal_quadrature(shift + root * grid)  # in standard deviations of the target from its mean
    u, fitted_mass = _normal_quadrature((grid - shift) / root)  # likewise of the fitted distribution
    at_x = (x.square() * excess + shift * (2 * x - shift)) / ratio - ratio.log()
    at_u = u.square() * excess + shift * (2 * root * u + shift) - ratio.log()
    halves = (mass * _information(0.5 * at_x)).sum() + (fitted_mass * _information(0.5 * at_u)).sum()
    return (0.5 * halves).to(mean.dtype)


def renyi(mean: Scalar, variance: Scalar, df: int | None = None, *, alpha: float = 0.5) -> Scalar:
    r"""Rényi divergence of order alpha from the fitted distribution to the target.

    .. math:: \frac{1}{\alpha - 1} \log \int p^\alpha q^{1 - \alpha}
        = \frac12 \left( \frac{\log w}{1 - \alpha} - \log v + \frac{\alpha m^2}{w} \right),
        \qquad w = \alpha + (1 - \alpha) v

    with p the fitted distribution, q the target, and m and v as in :func:`kl`. The limit at order 1 is :func:`kl`;
    order 1/2 is symmetric, and equals -2 log of the overlap that :func:`hellinger` subtracts from 1.

    Args:
        mean: Mean of the fitted distribution. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom of the target; None for N(0, 1).
        alpha: Order, within [0.01, 100]. In a name: ``"renyi(2)"``.

    Returns:
        A non-negative scalar, zero exactly when the distributions agree; unbounded as the variance goes to 0.

    Note:
        For alpha > 1 the divergence is infinite from :math:`v = \alpha / (\alpha - 1)` on. From 95 % of the way between
        1 and there, :math:`v_0 = 1 + 0.95 / (\alpha - 1)`, it is continued by its tangent in :math:`\log v`,
        :math:`D(m, v_0) + v_0 \, \partial_v D(m, v_0) \log(v / v_0)`, which grows with v and m at any distance. Values
        below :math:`v_0` are exact.

    Example:
        >>> fcal.divergences.renyi(torch.tensor(1.0), torch.tensor(1.0), alpha=3.0)  # alpha m^2 / 2
        tensor(1.5000)
    """
    alpha = check_number("alpha", alpha, low=ORDERS[0], high=ORDERS[1])
    offset, ratio = standardized(mean, variance, df)
    excess = excess_variance(variance, df)
    if alpha <= 1:
        return _renyi(offset, ratio, excess, alpha)
    tangent_at = (1 - _REMAINDER) / (alpha - 1)
    inside = _renyi(offset, ratio, at_most(excess, tangent_at), alpha)  # -log v is finite beyond and needs no tangent
    slope = 0.5 * (1 + tangent_at) * (1 / _REMAINDER + alpha * (alpha - 1) / _REMAINDER**2 * offset)
    return inside + slope * log1p((at_least(excess, tangent_at) - tangent_at) / (1 + tangent_at))


def chi_square(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Pearson's chi-squared divergence of the fitted distribution from the target.

    .. math:: \int \frac{p^2}{q} - 1 = \frac{1}{\sqrt{v (2 - v)}} \exp\left( \frac{m^2}{2 - v} \right) - 1
        = e^{D_2} - 1

    with p the fitted distribution, q the target, m and v as in :func:`kl`, and :math:`D_2` the Rényi divergence of
    order 2.

    Args:
        mean: Mean of the fitted distribution. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom of the target; None for N(0, 1).

    Returns:
        A non-negative scalar, zero exactly when the distributions agree; unbounded as the variance goes to 0.

    Note:
        The divergence is infinite from v = 2 on. From v = 1.95 on, :math:`D_2` is continued as in :func:`renyi`; from
        :math:`D_2 = 20` on (a value of 4.9e8), :math:`e^{D_2}` is continued by its tangent
        :math:`e^{20} (D_2 - 19)`. Values below both are exact.

    Example:
        >>> fcal.divergences.chi_square(torch.tensor(0.0), torch.tensor(1.0))
        tensor(0.)
    """
    exponent = renyi(mean, variance, df, alpha=2.0)
    beyond = at_least(exponent, _LARGEST_LOG) - _LARGEST_LOG
    return expm1(at_most(exponent, _LARGEST_LOG)) + math.exp(_LARGEST_LOG) * beyond


def _shift(mean: Tensor, df: int | None) -> Tensor:
    """Signed distance of the means in standard deviations of the target."""
    target_mean, target_variance = target_moments(df)
    return (mean.double() - target_mean) / math.sqrt(target_variance)


def _variation_and_slopes(shift: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Total variation of N(shift, ratio) from N(0, 1), and its derivatives by both."""
    m, s, log_ratio = shift.abs(), ratio.sqrt(), ratio.log()
    excess = torch.where(ratio == 1, _SAME_VARIANCE, ratio - 1)
    width = (m.square() + (ratio - 1) * log_ratio).sqrt()
    # Roots of a quadratic without cancellation, in standard deviations of the target (x) and of the fit (t).
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
    """Nodes and weights that integrate against N(0, 1), in panels that end at whole standard deviations.

    Args:
        others: Whole standard deviations of the other distribution, in units of this one. Shape ``(G,)``.

    Returns:
        Nodes and weights. Shape ``(P, Q)`` for P panels of Q nodes.
    """
    grid = _GRID.to(others.device)
    edges = torch.cat([grid, others.detach().clamp(grid[0], grid[-1])]).sort().values.unsqueeze(1)
    half = 0.5 * edges.diff(dim=0)
    points = edges[:-1] + half + half * _NODES.to(others.device)
    return points, half * _WEIGHTS.to(others.device) * _density(points)


def _information(log_odds: Tensor) -> Tensor:
    """Log 2 minus the entropy in nats of a coin with these log-odds, without cancellation near 0 and far out."""
    near = log_odds.abs() < 1
    small = torch.where(near, log_odds, 0.0)
    tanh = (0.5 * small).tanh()
    large = torch.where(near, 1.0, log_odds.abs())
    odds = (-large).exp()
    far = math.log(2) - odds.log1p() - large * odds / (1 + odds)
    return torch.where(near, 0.5 * (tanh * small + (-tanh.square()).log1p()), far)


def _density(x: Tensor) -> Tensor:
    return (-0.5 * x.square()).exp() / math.sqrt(2 * math.pi)


def _renyi(offset: Scalar, ratio: Scalar, excess: Scalar, alpha: float) -> Scalar:
    """The closed form; at order 1, its limit."""
    rest = 1 - alpha
    spread = log1p(rest * excess) / rest if rest else excess
    return 0.5 * (spread - log(ratio) + alpha * offset / (1 + rest * excess))
