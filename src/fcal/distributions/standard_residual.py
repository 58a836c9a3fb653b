"""The standard normal residual of a value under a family: by its own formula, or from the nearer tail."""

import math

import torch
from torch import Tensor

from fcal._checks import is_tracing
from fcal.distributions.family import Family, Formula
from fcal.distributions.tails import normal_quantile_of_log

_CENTRAL = 0.02


def family_residual(family: Family, value: Tensor, *parameters: Tensor) -> Tensor:
    """Residual z of a value of the family's own variable, in the precision of its tensors."""
    if family.residual is not None:
        z = family.residual(value, *parameters)
    else:
        assert family.log_cdf is not None  # Family guarantees both
        assert family.log_survival is not None
        z = _from_nearer_tail(family.log_cdf(value, *parameters), family.log_survival(value, *parameters))
    return z if family.central is None else _refined_near_median(z, family.central, (value, *parameters))


def _refined_near_median(z: Tensor, central: Formula, arguments: tuple[Tensor, ...]) -> Tensor:
    """Replace residuals near 0, where log F rounds, by the series of the normal quantile about 1/2."""
    near = z.detach().abs() < _CENTRAL
    if is_tracing():
        return torch.where(near, _from_central(torch.where(near, central(*arguments), 0.0)), z)
    where = near.reshape(-1).nonzero().squeeze(1)
    if not len(where):
        return z
    few = (_selected(x, z.shape, where) for x in arguments)
    return z.reshape(-1).index_copy(0, where, _from_central(central(*few))).reshape(z.shape)


def _selected(values: Tensor, shape: torch.Size, where: Tensor) -> Tensor:
    event = values.shape[len(shape) :]
    return values if not values.dim() else values.expand(shape + event).reshape(-1, *event).index_select(0, where)


def _from_central(c: Tensor) -> Tensor:
    square = c.square()
    series = c * (1 + square * (math.pi / 3 + square * (7 * math.pi**2 / 30 + square * 127 * math.pi**3 / 630)))
    return math.sqrt(2 * math.pi) * series


def _from_nearer_tail(log_cdf: Tensor, log_survival: Tensor) -> Tensor:
    below = log_cdf <= log_survival
    z = normal_quantile_of_log(torch.where(below, log_cdf, log_survival))
    return torch.where(below, z, -z)
