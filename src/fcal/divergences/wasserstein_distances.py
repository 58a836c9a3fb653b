"""Wasserstein distances: of the fitted normal distribution, and of the sorted residuals themselves."""

import math

import torch
from torch import Tensor

from fcal.divergences.numerics import Scalar, sqrt, standardized, target_moments

_FARTHEST = 40.0  # standard deviations; a normal tail beyond has no probability in double precision
_LEAST_MASS = 1e-300


def wasserstein(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Squared 2-Wasserstein distance in units of the target's variance, :math:`W_2^2 / 2K`.

    .. math:: m^2 + (\sqrt v - 1)^2

    with m and v as in :func:`kl`. Unlike the printed form it does not grow with K, so a weight ``lam`` means the
    same for every K.

    Args:
        mean: Mean of the fitted distribution. Shape ``()``.
        variance: Its variance, non-negative. Shape ``()``.
        df: Degrees of freedom :math:`K` of the target; None for N(0, 1), where it is :math:`W_2^2` itself.

    Returns:
        A non-negative scalar, zero exactly when the distributions agree.

    Example:
        >>> fcal.divergences.wasserstein(torch.tensor(0.0), torch.tensor(4.0))
        tensor(1.)
    """
    offset, ratio = standardized(mean, variance, df)
    gap = sqrt(ratio) - 1
    return offset + gap * gap


def wasserstein_printed(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Squared 2-Wasserstein distance :math:`W_2^2` as the paper prints it.

    .. math:: (mean - K)^2 + (\sqrt{variance} - \sqrt{2K})^2

    Args:
        mean: Mean of the fitted distribution. Shape ``()``.
        variance: Its variance, non-negative. Shape ``()``.
        df: Degrees of freedom :math:`K` of the target; None for N(0, 1).

    Returns:
        A non-negative scalar, zero exactly when the distributions agree.

    Example:
        >>> fcal.divergences.wasserstein_printed(torch.tensor(101.0), torch.tensor(200.0), df=100)
        tensor(1.)
    """
    return wasserstein(mean, variance, df) * target_moments(df)[1]


def sorted_wasserstein(z: Tensor, weight: Tensor | None = None) -> Tensor:
    r"""Squared 2-Wasserstein distance between the empirical distribution of the residuals and N(0, 1).

    The i-th smallest residual is compared with a slice of the normal distribution, from the quantile of the weight
    :math:`c_{i-1}` below it to that of :math:`c_i = c_{i-1} + w_i`. With weights of sum 1,

    .. math:: W_2^2 = \sum_i \int_{c_{i-1}}^{c_i} \left( z_{(i)} - \Phi^{-1}(u) \right)^2 du
        = \sum_i w_i (z_{(i)} - \tau_i)^2 + 1 - \sum_i w_i \tau_i^2, \qquad
        \tau_i = \frac{\varphi(\Phi^{-1}(c_{i-1})) - \varphi(\Phi^{-1}(c_i))}{w_i}

    It sorts all residuals, and is sensitive to tails and modes that mean and variance do not show.

    Args:
        z: Residuals. Shape ``(N,)``.
        weight: Their non-negative weights; None for equal ones. Shape ``(N,)``.

    Returns:
        A positive scalar. It is zero only in the limit of many residuals: N draws of N(0, 1) score about 3 / N to
        4 / N.

    Note:
        Equal residuals share their slices and have the same gradient, so the order of the residuals does not matter.

    Example:
        >>> fcal.divergences.sorted_wasserstein(torch.tensor([3.0]))  # z^2 + 1
        tensor(10.)
        >>> edge = math.sqrt(2 / math.pi)  # mean of |N(0, 1)|
        >>> fcal.divergences.sorted_wasserstein(torch.tensor([-edge, edge]))  # 1 - 2 / pi
        tensor(0.3634)
    """
    if z.dim() != 1 or not z.numel():
        raise ValueError(f"expected `z` of shape (N,) with N >= 1, got {tuple(z.shape)}")
    if weight is not None and weight.shape != z.shape:
        raise ValueError(f"expected `weight` of shape {tuple(z.shape)} like `z`, got {tuple(weight.shape)}")
    wide = z.double()
    mass = torch.ones_like(wide) if weight is None else weight.double()
    mass = mass.detach() / mass.sum()
    center, within = _slices(wide.detach(), mass)
    return ((mass * (wide - center).square()).sum() + within).to(z.dtype)


def _slices(z: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of the slice of N(0, 1) that belongs to each residual, shape ``(N,)``, and the variance within slices."""
    atoms, index = z.unique(return_inverse=True)
    masses = torch.zeros_like(atoms).index_add_(0, index, mass)
    below, above = masses.cumsum(0)[:-1], masses.flip(0).cumsum(0).flip(0)[1:]
    quantile = torch.special.ndtri(torch.minimum(below, above)).clamp(min=-_FARTHEST)  # of the nearer tail
    edges = torch.where(below < above, quantile, -quantile)
    densities = torch.nn.functional.pad((-0.5 * edges.square()).exp() / math.sqrt(2 * math.pi), (1, 1))
    low, high = (
        torch.nn.functional.pad(edges, pad, value=end) for pad, end in (((1, 0), -math.inf), ((0, 1), math.inf))
    )
    centers = -densities.diff() / masses.clamp(min=_LEAST_MASS)
    centers = torch.maximum(torch.minimum(centers, high), low)  # for slices thinner than the rounding of their edges
    return centers[index], 1 - (masses * centers.square()).sum()
