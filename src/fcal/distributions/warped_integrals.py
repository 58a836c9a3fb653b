r"""Moments and CRPS of warped distributions without autograd, from some twenty points of each base distribution.

With the residual z of the base, the map g and the value :math:`Q(z)` whose residual is z, an expectation under the
warped distribution is :math:`\int Q(z) \, d\Phi(g(z))`. The values :math:`Q` are smooth and differ from row to row; the
map may have hundreds of kinks and is the same for all rows: see :mod:`fcal.distributions.normal_measure`. Errors are
about 1e-4 standard deviations, as large as those of a quadrature whose panels do not end at the kinks.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import StudentT

from fcal._checks import is_tracing
from fcal.distributions.family import Law, family_residual
from fcal.distributions.location_scale import NORMAL
from fcal.distributions.monotone import WARP_OF, PiecewiseLinear, Warp, value_of_residual
from fcal.distributions.normal_measure import Curve, NormalMeasure, entry_of_each
from fcal.distributions.piecewise import Segments
from fcal.distributions.tails import log_normal_density

_CHUNK = 1 << 18
_MAPPED_REACH = 6.0  # residuals after the map that are resolved; beyond, values are extrapolated
_FARTHEST = 36.0  # before the map: tail probabilities underflow soon after
_SPACING = 0.6  # of points, in standard deviations;
_SPACING_OF_STUDENT = 0.4  # closer for heavy tails,
_SPACING_OF_COMPONENTS = 0.5  # where components are far from each other,
_SPACING_OF_SHARED = 0.05  # and where one curve serves all rows
_LARGEST_ERROR = 1e-4  # estimate, in standard deviations, above which a row gets more points
_CUBIC_ERROR = 64.0  # part of the third-order term of a cubic that its error is estimated to be
_FLATTEST = 1e-3  # slope of a map
_NARROWEST = 0.25  # sd of residuals that a map makes standard normal; a smaller one is less than the distance of points
_LEAST_DF = {"moments": 4.0, "crps": 1.5}  # of Student's t after the map; tails of fewer reach beyond the points
_LARGEST_LOG = 600.0


class Integrals(NamedTuple):
    """What was asked for. Shape ``(n,)`` each."""

    mean: Tensor | None
    variance: Tensor | None
    crps: Tensor | None


def fast_moments(law: Law, shape: torch.Size) -> tuple[Tensor, Tensor] | None:
    """Mean and variance of warped distributions, or None where they have to be computed another way."""
    if not _is_known(law, "moments"):
        return None
    result = _in_chunks(law, law.leaves(shape), None, moments=True)
    assert result.mean is not None
    assert result.variance is not None
    return result.mean.reshape(shape), result.variance.reshape(shape)


def fast_crps(law: Law, target: Tensor) -> Tensor | None:
    """CRPS of warped distributions, or None where it has to be computed another way. Shape of ``target``."""
    if target.requires_grad or not _is_known(law, "crps"):
        return None
    result = _in_chunks(law, law.leaves(target.shape), target.reshape(-1), moments=False)
    assert result.crps is not None
    return result.crps.reshape(target.shape)


def fast_moments_and_crps(law: Law, target: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Mean, variance and CRPS in one pass, or None. Shapes of ``target``."""
    if target.requires_grad or not _is_known(law, "moments"):
        return None
    result = _in_chunks(law, law.leaves(target.shape), target.reshape(-1), moments=True)
    mean, variance, crps = (part.reshape(target.shape) for part in result if part is not None)
    return mean, variance, crps


def _is_known(law: Law, purpose: str) -> bool:
    own = WARP_OF.get(law.family)
    if own is None or own.has_closed_forms() or law.transforms or is_tracing():
        return False
    if not isinstance(own.warp, PiecewiseLinear) or any(p.requires_grad for p in law.parameters):
        return False
    slope, width = own.warp.segments.slope, math.sqrt(own.warp.moments[1])
    if float(slope.min()) < _FLATTEST or width < _NARROWEST or _reach(own) > _FARTHEST:
        return False
    if own.kind is StudentT:
        heaviest = float(slope[[0, -1]].min()) ** 2  # slopes below 1 make tails heavier
        return bool((own.split(law.parameters)[1][0] * heaviest >= _LEAST_DF[purpose]).all())
    return own.family.component is NORMAL or _is_standard(own)


def _is_standard(own: Warp) -> bool:
    """Whether rows differ by location and scale alone."""
    return own.family.parameters == ("loc", "scale") and own.family.support is None


def _reach(own: Warp) -> float:
    """Largest residual of the base that counts."""
    ends = torch.tensor([-_MAPPED_REACH, _MAPPED_REACH], dtype=torch.float64)
    return max(float(own.warp.inverse(ends).abs().max()), _MAPPED_REACH)


def _in_chunks(law: Law, leaves: list[Tensor], target: Tensor | None, *, moments: bool) -> Integrals:
    """Integrals of all rows, of which some are computed at a time."""
    own = WARP_OF[law.family]
    points = len(_grid(own, _SPACING)) * max((size or 1 for size in own.sizes), default=1)
    step = max(_CHUNK // points, 1)
    results = []
    with torch.no_grad():
        measure = _measure_of(own, leaves[-1])
        for start in range(0, max(len(leaves[-1]), 1), step):
            rows = slice(start, start + step)
            parameters = [leaf[rows].to(torch.float64) for leaf in leaves]
            goal = None if target is None else target[rows].to(torch.float64)
            results.append(_integrals(own, measure, parameters, goal, moments=moments))
    return Integrals(*(None if part[0] is None else torch.cat(part) for part in zip(*results, strict=True)))


def _measure_of(own: Warp, like: Tensor) -> NormalMeasure:
    assert isinstance(own.warp, PiecewiseLinear)
    return NormalMeasure(Segments(*(part.double() for part in own.warp.on(like))))


def _integrals(
    own: Warp, measure: NormalMeasure, parameters: list[Tensor], target: Tensor | None, *, moments: bool
) -> Integrals:
    like = parameters[-1]
    mean, variance = (torch.empty_like(like) if moments else None for _ in range(2))
    crps = None if target is None else torch.empty_like(like)
    base = own.split(tuple(parameters))[1]
    x = None if target is None else family_residual(own.family, target, *base)
    for rows, loc, scale, curve in _curves(own, parameters, measure):
        between = measure.between(curve.x, weighted=target is not None)
        if mean is not None and variance is not None:
            centre, square = _moments(curve, between[:4])
            mean[rows], variance[rows] = loc + scale * centre, scale**2 * square
        if crps is not None and x is not None and target is not None:
            crps[rows] = scale * _scores(curve, measure, between, x[rows], (target[rows] - loc) / scale)
    return Integrals(mean, variance, crps)


def _moments(curve: Curve, between: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and variance of every row of a curve."""
    mean = curve.pieces().integrals(between).sum(1)
    centred = Curve(curve.x, curve.value - mean.unsqueeze(1), curve.slope)
    return mean, centred.pieces().squared(curve.x).integrals(between).sum(1)


def _scores(curve: Curve, measure: NormalMeasure, between: list[Tensor], x: Tensor, target: Tensor) -> Tensor:
    r"""The score :math:`2 \int (Q - y) (1\{Q \ge y\} - W) \, dW` with :math:`W = \Phi(g(x))`. Shape ``(n,)``."""
    pieces = curve.pieces()
    weighted = pieces.integrals(between[4:]).sum(1)
    inside = torch.minimum(torch.maximum(x.unsqueeze(1), curve.x[:, :1]), curve.x[:, -1:])
    piece = torch.searchsorted(curve.x.expand(len(x), -1).contiguous(), inside)
    up_to_x = measure.up_to(inside, weighted=False)
    to_next = [entry_of_each(part.cumsum(1), piece) - below for part, below in zip(between[:4], up_to_x, strict=True)]
    farther = pieces.integrals(between[:4]).flip(1).cumsum(1).flip(1)
    farther = torch.cat([farther[:, 1:], torch.zeros_like(farther[:, :1])], 1)
    above = entry_of_each(farther, piece) + pieces.at(piece).integrals(to_next)
    share = measure.total[0] - up_to_x[0] - measure.total[4]
    return (2 * (above.squeeze(1) - weighted - target * share.squeeze(1))).clamp(min=0)


def _curves(
    own: Warp, parameters: list[Tensor], measure: NormalMeasure
) -> Iterator[tuple[Tensor, Tensor, Tensor, Curve]]:
    """Indices of some rows, their locations and scales, and curves in that unit, or one that serves them all."""
    like = parameters[-1]
    everything = torch.arange(len(like), device=like.device)
    zero, one = torch.zeros_like(like[:1]), torch.ones_like(like[:1])
    base = own.split(tuple(parameters))[1]
    if _is_standard(own) or (own.kind is StudentT and bool((base[0] == base[0][:1]).all())):
        yield everything, base[-2], base[-1], _shared_curve(own, [p[:1] for p in base[:-2]], like)
        return
    if own.kind is StudentT:
        yield everything, zero, one, _student_curve(own, parameters)
        return
    curve = _mixture_curve(own, parameters, _SPACING, each=False)
    good = _is_close(curve, measure)
    if good.all():
        yield everything, zero, one, curve
        return
    yield everything[good], zero, one, Curve(*(part[good] for part in curve))
    rough = everything[~good]
    step = max(_CHUNK // (16 * curve.x.shape[1]), 1)
    for start in range(0, len(rough), step):
        rows = rough[start : start + step]
        yield rows, zero, one, _mixture_curve(own, [p[rows] for p in parameters], _SPACING_OF_COMPONENTS, each=True)


def _is_close(curve: Curve, measure: NormalMeasure) -> Tensor:
    """Whether points are so close that the estimated error of the mean is small. Shape ``(n,)``.

    The term of third order is that of the cubics; in the outermost intervals, all that is extrapolated may be wrong.
    """
    width, mass = curve.x.diff(), measure.masses(curve.x)
    third = ((curve.slope[:, :-1] + curve.slope[:, 1:]) * width - 2 * curve.value.diff()).abs()
    reach = curve.value[:, -1] - curve.value[:, 0]
    error = (mass[:, 1:-1] * third).sum(1) / _CUBIC_ERROR + (mass[:, 0] + mass[:, -1]) * reach
    spread = reach / (2 * _MAPPED_REACH)
    return error <= _LARGEST_ERROR * spread


def _mixture_curve(own: Warp, parameters: list[Tensor], spacing: float, *, each: bool) -> Curve:
    """Points of normal mixtures: around the mean of each, or around the means of all components."""
    logits, loc, scale = own.split(tuple(parameters))[1]
    weight = torch.softmax(logits, -1)
    grid = _grid(own, spacing).to(loc.device)
    if each:
        value = (loc.unsqueeze(-1) + scale.unsqueeze(-1) * grid).flatten(1).sort(1).values
    else:
        centre = (weight * loc).sum(1, keepdim=True)
        spread = (weight * (scale.square() + (loc - centre).square())).sum(1, keepdim=True).sqrt()
        value = centre + spread * grid
    z, log_density = _mixture_residual(value, weight, loc, scale)
    return _curve(value, z, log_density)


def _mixture_residual(value: Tensor, weight: Tensor, loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Residuals from the smaller tail, and log-densities. Shapes of ``value``, ``(n, J)``."""
    t = (value.unsqueeze(-1) - loc.unsqueeze(1)) / scale.unsqueeze(1)
    tail = 0.5 * torch.erfc(t.abs() * math.sqrt(0.5))
    below = t < 0
    weight = weight.unsqueeze(1)
    lower = (weight * torch.where(below, tail, 1 - tail)).sum(-1)
    upper = (weight * torch.where(below, 1 - tail, tail)).sum(-1)
    size = torch.special.ndtri(torch.minimum(lower, upper).clamp(min=1e-300))
    density = (weight / scale.unsqueeze(1) * torch.exp(-0.5 * t.square())).sum(-1) / math.sqrt(2 * math.pi)
    return torch.where(lower < upper, size, -size), density.clamp(min=1e-300).log()


def _student_curve(own: Warp, parameters: list[Tensor]) -> Curve:
    """Points whose residuals are nearly evenly spaced, by the approximate quantile of Wallace (1959)."""
    df, loc, scale = (p.unsqueeze(-1) for p in own.split(tuple(parameters))[1])
    grid = _grid(own, _SPACING_OF_STUDENT).to(loc.device)
    exponent = (grid * (8 * df + 3) / (8 * df + 1)).square() / df
    value = loc + scale * grid.sign() * (df * torch.expm1(exponent.clamp(max=_LARGEST_LOG))).sqrt()
    flat = [p.expand(value.shape).reshape(-1) for p in (df, loc, scale)]
    z = family_residual(own.family, value.reshape(-1), *flat).reshape(value.shape)
    log_density = own.family.log_density(own.kind, value.reshape(-1), *flat).reshape(value.shape)
    return _curve(value, z, log_density)


def _shared_curve(own: Warp, shape: list[Tensor], like: Tensor) -> Curve:
    """Points of the distribution with location 0 and scale 1, which serve all rows."""
    z = _grid(own, _SPACING_OF_SHARED).to(like.device)
    parameters = [*(p.expand(z.shape) for p in shape), torch.zeros_like(z), torch.ones_like(z)]
    value = value_of_residual(own.family, z, *parameters)
    log_density = own.family.log_density(own.kind, value, *parameters)
    return _curve(*(part.unsqueeze(0) for part in (value, z, log_density)))


def _curve(value: Tensor, z: Tensor, log_density: Tensor) -> Curve:
    slope = (log_normal_density(z) - log_density).clamp(max=_LARGEST_LOG).exp()
    return Curve(torch.cummax(z, 1).values, value, slope)


def _grid(own: Warp, spacing: float) -> Tensor:
    """Residuals of points: evenly spaced within six, and ever wider apart beyond."""
    inner = torch.arange(0, _MAPPED_REACH + spacing, spacing, dtype=torch.float64)
    reach, ratio = _reach(own), 1 + spacing / _MAPPED_REACH
    count = math.ceil(math.log(max(reach / float(inner[-1]), 1.0)) / math.log(ratio))
    half = torch.cat([inner, inner[-1] * ratio ** torch.arange(1, count + 1, dtype=torch.float64)])
    return torch.cat([-half[1:].flip(0), half])
