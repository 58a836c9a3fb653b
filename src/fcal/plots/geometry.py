"""Where things go in a picture, whatever draws it: regions and their names, ends of bands, limits of axes."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from fcal.metrics.report import Reliability, SigmaBins

Point = tuple[float, float]

_WORD_WIDTH, _WORD_HEIGHT = 0.36, 0.07  # of the name of a region, as shares of the axes


class Region(NamedTuple):
    """A part of a reliability diagram.

    Attributes:
        name: What a model is whose curve lies here.
        corners: Of the polygon.
        spots: Where its name may stand, in order of liking.
        side: Which end of the name is at the spot, ``"left"`` or ``"right"``.
    """

    name: str
    corners: tuple[Point, ...]
    spots: tuple[Point, ...]
    side: str

    def spot(self, curve: Reliability) -> Point:
        """The first spot that a curve leaves free, or else the first of all."""
        return next((spot for spot in self.spots if self._is_free(spot, curve)), self.spots[0])

    def _is_free(self, spot: Point, curve: Reliability) -> bool:
        x, y = spot
        left, right = (x, x + _WORD_WIDTH) if self.side == "left" else (x - _WORD_WIDTH, x)
        near = (e for p, e in zip(curve.nominal, curve.empirical, strict=True) if left - 0.05 <= p <= right + 0.05)
        return all(abs(e - y) > _WORD_HEIGHT for e in near)


_HIGH, _LOW = ((0.03, 0.94), (0.08, 0.68)), ((0.97, 0.06), (0.92, 0.32))

# Of central intervals and of the CDF of q: errors larger than promised lie below the diagonal.
INTERVAL_REGIONS = (
    Region("over-confident", ((0, 0), (1, 0), (1, 1)), _LOW, "right"),
    Region("under-confident", ((0, 0), (0, 1), (1, 1)), _HIGH, "left"),
)
# Of the CDF of z: they lie above it left of 1/2, and below it on the right.
CDF_REGIONS = (
    Region("over-confident", ((0, 0), (0, 1), (0.5, 1), (0.5, 0.5)), _HIGH, "left"),
    Region("over-confident", ((0.5, 0.5), (1, 1), (1, 0), (0.5, 0)), _LOW, "right"),
    Region("under-confident", ((0, 0), (0.5, 0.5), (0.5, 0)), ((0.48, 0.06), (0.48, 0.16)), "right"),
    Region("under-confident", ((0.5, 0.5), (0.5, 1), (1, 1)), ((0.52, 0.94), (0.52, 0.84)), "left"),
)


def sigma_limits(curves: Iterable[SigmaBins]) -> tuple[float, float]:
    """Limits of both logarithmic axes of errors by sigma; one sigma for all leaves room to see its error.

    Example:
        >>> bins = SigmaBins(sigma=(1.0, 10.0), error=(0.0, 20.0), low=(0.9, 9.0), high=(1.1, 11.0), count=(9, 9))
        >>> sigma_limits([bins])
        (0.8, 25.0)
    """
    known = [v for curve in curves for v in (*curve.sigma, *curve.error) if v > 0 and math.isfinite(v)] or [1.0]
    low, high = min(known), max(known)
    margin = max(1.25, 3 * low / high)
    return low / margin, high * margin


def band_at(curve: Reliability, level: float) -> tuple[float, float]:
    r"""Ends of a consistency band at a level.

    Between the levels of the curve, and beyond its last inner one, the distance to the diagonal is taken to go like
    :math:`\sqrt{p (1 - p)}`, as that of a share does.

    Example:
        >>> from fcal.metrics.report import Reliability
        >>> curve = Reliability(
        ...     nominal=(0.0, 0.5, 1.0), empirical=(0.0, 0.5, 1.0), low=(0.0, 0.4, 1.0), high=(0.0, 0.6, 1.0)
        ... )
        >>> [round(end, 3) for end in band_at(curve, 0.9)]
        [0.84, 0.96]
    """
    inner = [k for k, p in enumerate(curve.nominal) if 0 < p < 1]
    if not inner:
        return 0.0, 1.0
    near = min(inner, key=lambda k: abs(curve.nominal[k] - level))
    p = curve.nominal[near]
    factor = math.sqrt(level * (1 - level) / (p * (1 - p)))
    return max(0.0, level + factor * (curve.low[near] - p)), min(1.0, level + factor * (curve.high[near] - p))
