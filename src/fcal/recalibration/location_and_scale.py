"""Predictions that are a location plus a scale times noise: which they are, and how they are moved and rescaled."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import LogNormal

from fcal.distributions.family import Family, Law

_COMPONENT = "component_distribution."
_LOGITS = "mixture_distribution.logits"


class LocationAndScale(NamedTuple):
    """Centre and size of predictions, in the unit of the target (of its logarithm, for LogNormal). Shape ``(n,)``."""

    loc: Tensor
    scale: Tensor


def has_scale(law: Law) -> bool:
    """Whether predictions are a location plus a scale times noise, or a mixture of such (LogNormal: its logarithm)."""
    family = law.family
    if family.component is not None:
        return _is_located(family.component)
    return _is_located(family) or (law.kind is LogNormal and family.location == "loc")


def _is_located(family: Family) -> bool:
    known = family.location == "loc" and "scale" in family.parameters
    return known and not family.event_dim and family.support is None


def location_and_scale(law: Law) -> LocationAndScale:
    r"""Parameters ``loc`` and ``scale``; of a mixture, those of all components together.

    With weights :math:`w_k` a mixture has the location :math:`c = \sum w_k c_k` and the scale
    :math:`\sqrt{\sum w_k (s_k^2 + (c_k - c)^2)}`: mean and standard deviation, if components are normal.
    """
    named = _named(law)
    if law.family.component is None:
        return LocationAndScale(named["loc"], named["scale"])
    weights = torch.softmax(named[_LOGITS], -1)
    locs, scales = named[f"{_COMPONENT}loc"], named[f"{_COMPONENT}scale"]
    loc = (weights * locs).sum(-1)
    return LocationAndScale(loc, (weights * (scales.square() + (locs - loc.unsqueeze(-1)).square())).sum(-1).sqrt())


def errors_in_scales(law: Law, target: Tensor) -> Tensor:
    """Target minus location, in scales. Shape ``(n,)``."""
    value, _, _ = law.pull_back(target)
    own = location_and_scale(law)
    return ((value.log() if law.kind is LogNormal else value) - own.loc) / own.scale


def rescaled(law: Law, shift: Tensor, factor: Tensor) -> Law:
    """Location moved by ``shift`` scales, and distances from it multiplied by ``factor``; parameters keep their dtype.

    Components of a mixture move apart, or together, with the scale: it keeps its shape.
    """
    named, own = _named(law), location_and_scale(law)
    shift, factor = shift.to(own.scale), factor.to(own.scale)
    loc = own.loc + own.scale * shift
    if law.family.component is None:
        named |= {"loc": loc, "scale": own.scale * factor}
    else:
        gaps = named[f"{_COMPONENT}loc"] - own.loc.unsqueeze(-1)
        each = factor.expand(own.scale.shape).unsqueeze(-1)
        named[f"{_COMPONENT}loc"] = loc.unsqueeze(-1) + each * gaps
        named[f"{_COMPONENT}scale"] = each * named[f"{_COMPONENT}scale"]
    return law._replace(parameters=tuple(named[name] for name in law.family.parameters))


def _named(law: Law) -> dict[str, Tensor]:
    return dict(zip(law.family.parameters, law.parameters, strict=True))
