r"""Smooth curves integrated against a measure with kinks: :math:`\int Q(x) \, d\Phi(g(x))` for a piecewise linear g.

A curve is a cubic between neighbouring points, whose value and slope are known. It may differ from row to row; the
measure is the same for all rows, and powers of x are integrated against it in closed form.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fcal.distributions.piecewise import Segments
from fcal.distributions.tails import log_normal_density, normal_cdf

_STEEPEST = 3.0  # ratio of the slope at a point to that of the chord; a larger one may not rise everywhere
_CUBIC_FROM, _LINE_FROM = 0.02, 1e-4  # width of an interval in which a cubic, or a line, loses no digits


class Curve(NamedTuple):
    """Values of n distributions as a function of x: a cubic between neighbouring points, a line beyond the outermost.

    Attributes:
        x: Points, not decreasing. Shape ``(n, J)`` or ``(1, J)``.
        value: Values at the points. Same shape.
        slope: Slopes at the points. Same shape.
    """

    x: Tensor
    value: Tensor
    slope: Tensor

    def pieces(self) -> "Pieces":
        """The polynomials, with slopes reduced where a cubic would not rise everywhere."""
        width, rise = self.x.diff(), self.value.diff()
        chord = rise / width.clamp(min=1e-300)
        cubic, point = width > _CUBIC_FROM, width < _LINE_FROM
        left, right = (
            torch.where(cubic, torch.minimum(end, _STEEPEST * chord), chord)
            for end in (self.slope[:, :-1], self.slope[:, 1:])
        )
        middle = torch.where(point, self.value[:, :-1] + rise / 2, self.value[:, :-1])
        inverse = 1 / width.clamp(min=_LINE_FROM)
        inner = (
            middle,
            torch.where(point, 0.0, left),
            torch.where(cubic, (3 * chord - 2 * left - right) * inverse, 0.0),
            torch.where(cubic, (left + right - 2 * chord) * inverse.square(), 0.0),
        )
        nothing = torch.zeros_like(self.x[:, :1])
        ends = (
            (self.value[:, :1], self.value[:, -1:]),
            (left[:, :1].where(~point[:, :1], 0.0), right[:, -1:].where(~point[:, -1:], 0.0)),
            (nothing, nothing),
            (nothing, nothing),
        )
        coefficients = [torch.cat([low, part, high], 1) for part, (low, high) in zip(inner, ends, strict=True)]
        return Pieces(torch.cat([self.x[:, :1], self.x], 1), coefficients)


class Pieces(NamedTuple):
    """Polynomials of intervals: below the first point, between points, above the last. Shapes ``(n, J + 1)``."""

    origin: Tensor
    coefficients: list[Tensor]

    def integrals(self, moments: list[Tensor]) -> Tensor:
        """Integral of each polynomial, from the integrals of powers of x over its interval."""
        m0, m1, m2, m3 = moments
        o = self.origin
        central = (
            m0,
            m1 - o * m0,
            m2 - o * (2 * m1 - o * m0),
            m3 - o * (3 * m2 - o * (3 * m1 - o * m0)),
        )
        return sum((c * m for c, m in zip(self.coefficients, central, strict=True)), torch.zeros(()).to(o))

    def at(self, piece: Tensor) -> "Pieces":
        """One interval of each row. ``piece`` has shape ``(n, 1)``."""
        origin, *coefficients = (entry_of_each(part, piece) for part in (self.origin, *self.coefficients))
        return Pieces(origin, coefficients)

    def squared(self, x: Tensor) -> "Pieces":
        """Cubics with the values and slopes of the squares of these at both ends of every interval."""
        beyond = torch.zeros_like(x[:, :1])
        width = torch.cat([beyond, x.diff(), beyond], 1)
        c0, c1, c2, c3 = self.coefficients
        end = c0 + width * (c1 + width * (c2 + width * c3))
        slope = c1 + width * (2 * c2 + 3 * width * c3)
        left, right = 2 * c0 * c1, 2 * end * slope
        inverse, cubic = 1 / width.clamp(min=_CUBIC_FROM), width > _CUBIC_FROM
        chord = (end.square() - c0.square()) * inverse
        second = torch.where(cubic, (3 * chord - 2 * left - right) * inverse, c1.square())
        third = torch.where(cubic, (left + right - 2 * chord) * inverse.square(), 0.0)
        return Pieces(self.origin, [c0.square(), left, second, third])


class NormalMeasure:
    r"""The measure :math:`d\Phi(g(x))` of a piecewise linear g, and the same weighted by :math:`\Phi(g(x))`.

    Args:
        segments: The function g.
    """

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        knots = segments.x
        index = torch.arange(len(knots), device=knots.device)
        before, after = (torch.stack(self._antiderivatives(knots, index + side)) for side in (0, 1))
        steps = (before - after).cumsum(-1)
        self._offsets = torch.cat([torch.zeros_like(steps[:, :1]), steps], -1)
        far = knots.new_tensor(math.inf)
        last = torch.tensor(len(knots), device=knots.device)
        ends = self._antiderivatives(far, last)
        self.total = [end + offset for end, offset in zip(ends, self._offsets[:, -1], strict=True)]

    def up_to(self, x: Tensor, *, weighted: bool) -> list[Tensor]:
        """Integrals of powers 0 to 3 of x from minus infinity; ``weighted``: then those under the second measure."""
        piece = self.segments.piece(x)
        values = self._antiderivatives(x, piece, weighted=weighted)
        return [value + offsets[piece] for value, offsets in zip(values, self._offsets, strict=False)]

    def between(self, x: Tensor, *, weighted: bool) -> list[Tensor]:
        """The same over the intervals below, between and above points. Shapes ``(n, J + 1)``."""
        parts = []
        for value, total in zip(self.up_to(x, weighted=weighted), self.total, strict=False):
            nothing = torch.zeros_like(value[:, :1])
            parts.append(torch.cat([nothing, value, nothing + total], 1).diff())
        return parts

    def masses(self, x: Tensor) -> Tensor:
        """Mass of the intervals below, between and above points. Shape ``(n, J + 1)``."""
        below = normal_cdf(self.segments.value_and_slope(x)[0])
        nothing = torch.zeros_like(below[:, :1])
        return torch.cat([nothing, below, nothing + 1], 1).diff()

    def _antiderivatives(self, x: Tensor, piece: Tensor, *, weighted: bool = True) -> list[Tensor]:
        anchor = (piece - 1).clamp(min=0)
        slope, knot, height = self.segments.slope[piece], self.segments.x[anchor], self.segments.y[anchor]
        w = height + slope * (x - knot)
        width = 1 / slope
        centre = knot - height * width
        powers = _powers_under_normal(w, weighted=weighted)
        return [part for each in powers for part in _of_line(each, centre, width)]


def _powers_under_normal(w: Tensor, *, weighted: bool) -> list[list[Tensor]]:
    """Antiderivatives of powers 0 to 3 times the normal density, and times the CDF too; all vanish at -infinity."""
    cdf, density = normal_cdf(w), log_normal_density(w).exp()
    w = w.clamp(-1e100, 1e100)
    plain = [cdf, -density, cdf - w * density, -(w.square() + 2) * density]
    if not weighted:
        return [plain]
    square = density.square()
    of_square = normal_cdf(math.sqrt(2) * w) / (2 * math.sqrt(math.pi))
    products = [
        cdf.square() / 2,
        of_square - density * cdf,
        cdf.square() / 2 - w * density * cdf - square / 2,
        2.5 * of_square - (w.square() + 2) * density * cdf - w * square / 2,
    ]
    return [plain, products]


def _of_line(powers: list[Tensor], centre: Tensor, width: Tensor) -> list[Tensor]:
    """Integrals of powers of ``centre + width * w`` from those of powers of w."""
    p0, p1, p2, p3 = powers
    p1, p2, p3 = width * p1, width.square() * p2, width**3 * p3
    return [
        p0,
        centre * p0 + p1,
        centre * (centre * p0 + 2 * p1) + p2,
        centre * (centre * (centre * p0 + 3 * p1) + 3 * p2) + p3,
    ]


def entry_of_each(table: Tensor, index: Tensor) -> Tensor:
    """Entry of each row; a table of one row serves all."""
    return table.expand(len(index), -1).gather(1, index)
