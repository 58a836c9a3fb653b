"""The divergence of the residuals themselves, not of their moments."""

import math

import torch
from torch import Tensor

from fcal.divergences.registry import built_in

_FARTHEST = 40.0  # deviations; a normal law has no double-precision probability beyond them
_LEAST_MASS = 1e-300


@built_in(samples=True)
def sorted_wasserstein(z: Tensor, weight: Tensor | None = None) -> Tensor:
    r"""Squared 2-Wasserstein distance between the residuals' empirical law and N(0, 1), whatever shape the former has.

    The i-th smallest residual takes the place of a slice of the normal law, from the quantile of the weight
    :math:`c_{i-1}` below it to that of :math:`c_i = c_{i-1} + w_i`. With weights of sum 1,

    .. math:: W_2^2 = \sum_i \int_{c_{i-1}}^{c_i} \left( z_{(i)} - \Phi^{-1}(u) \right)^2 du
        = \sum_i w_i (z_{(i)} - \tau_i)^2 + 1 - \sum_i w_i \tau_i^2, \qquad
        \tau_i = \frac{\varphi(\Phi^{-1}(c_{i-1})) - \varphi(\Phi^{-1}(c_i))}{w_i}

    It needs all residuals and sorts them. Mean and variance say little about a tail or a second mode; this sees them.

    Args:
        z: Residuals. Shape ``(N,)``.
        weight: Their non-negative weights; None for equal ones. Shape ``(N,)``.

    Returns:
        A positive scalar. It is zero only in the limit of many residuals: N draws of N(0, 1) itself score about 3 / N
        to 4 / N.

    Note:
        Equal residuals share their slices and get the same gradient, so that the order they come in does not matter.

    Example:
        >>> fcal.divergences.sorted_wasserstein(torch.tensor([3.0]))  # z^2 + 1
        tensor(10.)
        >>> edge = math.sqrt(2 / math.pi)  # the mean of half a normal law
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
    """Mean of every residual's slice of the normal law, shape ``(N,)``, and the variance within slices."""
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
    centers = torch.maximum(torch.minimum(centers, high), low)  # a slice thinner than the rounding of its edges
    return centers[index], 1 - (masses * centers.square()).sum()
