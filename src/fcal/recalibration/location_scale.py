"""Predictions with a location and a scale, shifted and rescaled; others by way of their residuals."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution, LogNormal, LowRankMultivariateNormal, MultivariateNormal

from fcal.distributions import AffineMap, Warped
from fcal.distributions.functional import with_cdf
from fcal.distributions.law import Law, law_of
from fcal.distributions.location_scale import LAPLACE, NORMAL
from fcal.recalibration.rows import Rows

_CLOSE = 1e-12  # of log factors
_STEPS = 200


def has_scale(law: Law) -> bool:
    """Whether the law is a location plus a scale times noise (of its logarithm, for a LogNormal law)."""
    family = law.family
    return (
        not family.event_dim
        and family.location == "loc"
        and "scale" in family.parameters
        and (family.support is None or law.kind is LogNormal)
    )


def normal_scale(law: Law) -> bool:
    """Whether its residuals are what the scale multiplies, or all there is to rescale."""
    return not has_scale(law) or law.family is NORMAL or law.kind is LogNormal


def is_laplace(law: Law) -> bool:
    """Whether it is a Laplace law, which has closed forms of its own."""
    return law.family is LAPLACE


def check_vector(law: Law, name: str) -> None:
    """Refuse vectors other than multivariate normal ones."""
    if law.family.event_dim and law.kind not in (MultivariateNormal, LowRankMultivariateNormal):
        raise TypeError(f"expected `pred` of scalars or multivariate normal for {name}, got {law.name}")


def errors_in_scales(rows: Rows) -> Tensor:
    """Distance of each target from the location, in scales. Shape ``(n,)``."""
    value, _, _ = rows.law.pull_back(rows.target)
    named = dict(zip(rows.law.family.parameters, rows.law.parameters, strict=True))
    return (value - named["loc"]) / named["scale"]


def mean_nll(rows: Rows, shift: Tensor, factor: Tensor) -> Tensor:
    """Mean negative log-likelihood after shift (in scales) and rescaling, but for what depends on neither."""
    law = moved(rows.law, shift, factor)
    value, _, _ = law.pull_back(rows.target)
    if law.family.log_prob is not None:
        return -law.family.log_prob(value, *law.parameters).mean()
    return -law._replace(transforms=()).distribution().log_prob(value).mean()


def moved(law: Law, shift: Tensor, factor: Tensor) -> Law:
    """Location moved by ``shift`` scales, scale multiplied by ``factor``; parameters keep their dtype."""
    named = dict(zip(law.family.parameters, law.parameters, strict=True))
    loc, scale = named["loc"], named["scale"]
    named["loc"] = loc + scale * shift.to(scale)
    named["scale"] = scale * factor.to(scale)
    return law._replace(parameters=tuple(named[name] for name in law.family.parameters))


def repaired(pred: Distribution, shift: Tensor, factor: Tensor) -> Distribution:
    """Elementwise predictions, shifted and rescaled: their parameters where these say it, else their residuals."""
    law = law_of(pred)
    if law.family.event_dim:
        return _moved_vectors(law, shift, factor)
    if has_scale(law):
        return with_cdf(moved(law, shift, factor).distribution())
    like = law.parameters[0]
    return Warped(pred, AffineMap(shift.to(like), factor.to(like)))


def _moved_vectors(law: Law, shift: Tensor, factor: Tensor) -> Distribution:
    """Multivariate normal laws; the shift is of whitened residuals."""
    loc, *rest = law.parameters
    factor = factor.to(loc)
    if bool((shift != 0).any()):
        tril = getattr(law.distribution(), "scale_tril")  # noqa: B009  # of both classes, but of no common one
        loc = loc + (tril @ shift.to(loc).unsqueeze(-1)).squeeze(-1)
    powers = (1, 2) if law.kind is LowRankMultivariateNormal else (1,)  # a factor and a diagonal of the covariance
    scaled = (value * factor.pow(power) for value, power in zip(rest, powers, strict=True))
    return law._replace(parameters=(loc, *scaled)).distribution()


def best_factor(rows: Rows) -> Tensor:
    """The factor at which the mean likelihood has its maximum, to 1e-12 relative: a root of its slope."""

    def slope(log_factor: float) -> float:
        with torch.enable_grad():
            at = torch.tensor(log_factor, dtype=torch.float64, requires_grad=True)
            (found,) = torch.autograd.grad(mean_nll(rows, torch.zeros(()), at.exp()), at)
        return float(found)

    size = errors_in_scales(rows).abs().median().clamp(min=1e-300).log()
    return torch.tensor(math.exp(_root(slope, float(size))), dtype=torch.float64)


def _root(rising: Callable[[float], float], start: float) -> float:
    """Root of a function that rises: a bracket by doubled steps, then regula falsi (Illinois)."""
    low = high = start
    f_low = f_high = rising(start)
    step = 1.0
    while f_low > 0 and step < 1e3:
        low, step = low - step, 2 * step
        f_low = rising(low)
    step = 1.0
    while f_high < 0 and step < 1e3:
        high, step = high + step, 2 * step
        f_high = rising(high)
    if f_low > 0 or f_high < 0:
        raise ValueError("expected `target` for which one scale is the most likely, got residuals without such a scale")
    kept = 0  # the end that stayed: twice the same, and its value counts half, so that it will move
    for _ in range(_STEPS):
        if high - low < _CLOSE or f_low == 0 or f_high == 0:
            break
        middle = (low * f_high - high * f_low) / (f_high - f_low)
        f_middle = rising(middle)
        if f_middle > 0:
            f_low = f_low / 2 if kept < 0 else f_low
            high, f_high, kept = middle, f_middle, -1
        else:
            f_high = f_high / 2 if kept > 0 else f_high
            low, f_low, kept = middle, f_middle, 1
    return low if abs(f_low) < abs(f_high) else high


def best_shift_and_factor(rows: Rows) -> tuple[Tensor, Tensor]:
    """Where the mean likelihood has its maximum, by L-BFGS until its slopes are below 1e-9."""
    errors = errors_in_scales(rows)
    middle = errors.median()
    size = (errors - middle).abs().median().clamp(min=1e-300)
    at = torch.stack(
        [torch.zeros_like(middle), size.log()]
    ).requires_grad_()  # shift in units of the size, from the median
    minimise(lambda: mean_nll(rows, middle + size * at[0], at[1].exp()), at)
    return (middle + size * at[0]).detach(), at[1].exp().detach()


def minimise(function: Callable[[], Tensor], at: Tensor, *, steps: int = 200) -> float:
    """Minimise a smooth function of a small float64 tensor in place, until its slopes are below 1e-9."""
    optimizer = torch.optim.LBFGS(
        [at], max_iter=steps, tolerance_grad=1e-9, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimizer.zero_grad()
        loss = function()
        loss.backward()
        return loss.item()

    with torch.enable_grad():
        optimizer.step(closure)
        return float(function().detach())
