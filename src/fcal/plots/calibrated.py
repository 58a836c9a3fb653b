"""What calibrated predictions look like: densities, bands, and regions of over- and under-confidence."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import torch
from torch.distributions import Chi2, Normal

from fcal.metrics.report import Reliability, SigmaBins
from fcal.plots.figure import Axis, Band, Figure, Line, Note, Tint

Point = tuple[float, float]
Curve = tuple[Sequence[float], Sequence[float]]

DENSITY_HOVER = "density {y:.3g} at {x:.3g}"
_DENSITY_POINTS = 241
_NAME_WIDTH, _NAME_HEIGHT = 0.36, 0.07  # of the name of a region, as shares of the axes


def law(df: int | None, low: float, high: float, *, colour: str = "ink", width: float = 2) -> Line:
    """The density beside a histogram: of chi-squared with ``df`` degrees of freedom for q, of N(0, 1) for z (None).

    Example:
        >>> density = law(2, 0.0, 4.0)
        >>> density.name, density.x[119], round(density.y[119], 4)  # exp(-x / 2) / 2
        ('χ²(2)', 2.0, 0.1839)
    """
    x = torch.linspace(low, high, _DENSITY_POINTS, dtype=torch.float64)
    if df is None:
        name, y = "N(0, 1)", Normal(0.0, 1.0).log_prob(x).exp()
    else:
        x = x[x > 0]
        name, y = f"χ²({df})", Chi2(torch.tensor(float(df), dtype=torch.float64)).log_prob(x).exp()
    return Line(x=x.tolist(), y=y.tolist(), colour=colour, width=width, name=name, hover=DENSITY_HOVER)


class Region(NamedTuple):
    """A part of a reliability diagram.

    Attributes:
        name: What a model is whose curve lies here.
        corners: Of the polygon.
        spots: Where its name may stand, the preferred one first.
        side: Which end of the name is at the spot.
    """

    name: str
    corners: tuple[Point, ...]
    spots: tuple[Point, ...]
    side: Literal["left", "right"]

    def spot(self, curves: Sequence[Curve]) -> Point:
        """The first spot that all curves leave free, or else the first of all."""
        return next((spot for spot in self.spots if self._is_free(spot, curves)), self.spots[0])

    def _is_free(self, spot: Point, curves: Sequence[Curve]) -> bool:
        x, y = spot
        left, right = (x, x + _NAME_WIDTH) if self.side == "left" else (x - _NAME_WIDTH, x)
        points = (point for curve in curves for point in zip(*curve, strict=True))
        return all(abs(e - y) > _NAME_HEIGHT for p, e in points if left - 0.05 <= p <= right + 0.05)


_HIGH, _LOW = ((0.03, 0.94), (0.08, 0.68)), ((0.97, 0.06), (0.92, 0.32))

# Of central intervals and of the CDF of q: too large errors lie below the diagonal.
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
TINTS = {"over-confident": "over-soft", "under-confident": "under-soft"}


def reliability_figure(
    *,
    title: str,
    caption: Sequence[str],
    axes: tuple[str, str],
    regions: Sequence[Region],
    band: Band | None,
    lines: Sequence[Line],
    legend: Literal["", "above"] = "",
) -> Figure:
    """A reliability diagram: nominal against empirical probability, with the regions named where lines leave room.

    ``axes`` are the labels of both, ``regions`` are ``CDF_REGIONS`` or ``INTERVAL_REGIONS``, and ``band`` is where
    calibrated models lie, if known.
    """
    x, y = (Axis(label=label, limits=(0, 1), share=True) for label in axes)
    tints = [Tint(TINTS[region.name], region.corners) for region in regions]
    curves = [(line.x, line.y) for line in lines if line.visible]
    return Figure(
        title=title,
        caption=caption,
        x=x,
        y=y,
        marks=[*tints, *([band] if band else []), diagonal(0, 1), *lines],
        notes=[Note(region.name, *region.spot(curves), region.side) for region in regions],
        legend=legend,
        aspect="equal",
    )


def diagonal(low: float, high: float) -> Line:
    """Where both axes have the same value."""
    return Line(x=(low, high), y=(low, high), colour="faint", width=1, dash="dashed")


def sigma_limits(curves: Iterable[SigmaBins]) -> tuple[float, float]:
    """Limits of both logarithmic axes of errors by sigma; a single sigma leaves room to see its error.

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

    Between the levels of the curve, and beyond its last inner one, the distance to the diagonal is taken to be
    proportional to :math:`\sqrt{p (1 - p)}`, as the standard deviation of a share is.

    Example:
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
