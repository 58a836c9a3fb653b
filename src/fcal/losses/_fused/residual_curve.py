r"""Polynomial residuals of symmetric families with exponential tails, for large float32 batches.

The residual of such a family is a fixed odd function :math:`z(t)` of :math:`t = (y - \mu) / s`. With
:math:`\tau = (1 + c |t|)^{-1/2}` both :math:`z / (t \tau)` and :math:`z' / \tau` are nearly constant, so that
polynomials in :math:`\tau` of low degree approximate them to float32 precision. They are fitted on first use.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from fcal.distributions.family import Family
from fcal.distributions.tails import normal_quantile_of_log

Points = npt.NDArray[np.float64]

_DEGREE = 10
_FARTHEST_Z = 13.0  # float32 probabilities underflow beyond
_ONE = torch.tensor(1.0)


class Curve(NamedTuple):
    """Residual and slope as functions of t, for float32 tensors on a CPU.

    Attributes:
        bend: The constant c.
        stretch: With ``shift``, maps tau to the variable of the polynomials in [-1, 1].
        shift: See ``stretch``.
        value: Coefficients of z / (t tau), highest degree first.
        slope: Coefficients of z' / tau, highest degree first.
        farthest: Largest t of the fit.
    """

    bend: float
    stretch: float
    shift: Tensor
    value: tuple[Tensor, ...]
    slope: tuple[Tensor, ...]
    farthest: float

    def residual(self, t: Tensor) -> Tensor:
        """Residuals z at t."""
        tau, x = self._coordinates(t)
        return _horner(self.value, x).mul_(tau).mul_(t)

    def residual_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Residuals z at t and their derivatives."""
        tau, x = self._coordinates(t)
        return _horner(self.value, x).mul_(tau).mul_(t), _horner(self.slope, x).mul_(tau)

    def _coordinates(self, t: Tensor) -> tuple[Tensor, Tensor]:
        tau = torch.add(_ONE, t.abs(), alpha=self.bend).rsqrt_()
        return tau, torch.add(self.shift, tau, alpha=self.stretch)


def _horner(coefficients: tuple[Tensor, ...], x: Tensor) -> Tensor:
    first, second, *rest = coefficients
    value = torch.addcmul(second, x, first)
    for coefficient in rest:
        torch.addcmul(coefficient, value, x, out=value)
    return value


_CURVES: dict[Family, Curve] = {}


def curve_of(family: Family) -> Curve | None:
    """The curve of a family with ``curve=True``, else None."""
    if not family.curve:
        return None
    if family not in _CURVES:
        _CURVES[family] = _fitted(family)
    return _CURVES[family]


def _fitted(family: Family) -> Curve:
    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    assert family.quantile is not None
    tail = 0.5 * torch.erfc(torch.tensor(_FARTHEST_Z * math.sqrt(0.5), dtype=torch.float64))
    farthest = family.quantile(1 - tail, tail, zero, one).item()
    bend = _exact(family, torch.tensor([1e-9], dtype=torch.float64))[1].item() ** 2 / 2
    low = (1 + bend * farthest) ** -0.5
    x = chebyshev.chebpts1(_DEGREE + 1)
    tau = torch.from_numpy((x * (1 - low) + 1 + low) / 2)
    t = (tau**-2 - 1) / bend
    z, slope = _exact(family, t)
    return Curve(
        bend=bend,
        stretch=2 / (1 - low),
        shift=torch.tensor(-(1 + low) / (1 - low)),
        value=_polynomial(x, (z / (t * tau)).numpy()),
        slope=_polynomial(x, (slope / tau).numpy()),
        farthest=farthest,
    )


def _exact(family: Family, t: Tensor) -> tuple[Tensor, Tensor]:
    """Residuals and slopes at t > 0, by the formulas of the family."""
    assert family.log_survival is not None
    with torch.enable_grad():
        t = t.clone().requires_grad_()
        z = -normal_quantile_of_log(family.log_survival(t, torch.zeros_like(t), torch.ones_like(t)))
        (slope,) = torch.autograd.grad(z.sum(), t)
    return z.detach(), slope


def _polynomial(x: Points, values: Points) -> tuple[Tensor, ...]:
    fitted = np.linalg.solve(chebyshev.chebvander(x, _DEGREE), values)
    return torch.from_numpy(chebyshev.cheb2poly(fitted)[::-1].copy()).to(torch.float32).unbind()
