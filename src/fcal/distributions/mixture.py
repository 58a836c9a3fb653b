"""``MixtureSameFamily`` of any scalar family, by the tails of its components."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily

from fcal._checks import is_tracing
from fcal.distributions.family import Family, Formula, family_of
from fcal.distributions.implicit import LogOdds, log_odds, polished, root
from fcal.distributions.location_scale import NORMAL
from fcal.distributions.tails import normal_quantile_of_log

_WEIGHTS = "mixture_distribution.logits"
_COMPONENT = "component_distribution."
_LEAST_TAIL = 1e-30  # smaller tails underflow in float32
_LARGE_TAIL = 0.75  # 1 minus a larger tail loses digits in float32
_BULK = 1.5  # deviations; a component farther away lies entirely on one side


class Mixture(NamedTuple):
    """Formulas of a mixture of ``family``; the last dimension of parameters is that of the components."""

    kind: type[Distribution]
    family: Family

    def log_cdf(self, value: Tensor, logits: Tensor, *parameters: Tensor) -> Tensor:
        """Log of the weighted sum of the components' CDFs."""
        return _by_smaller(*self._tails(value, logits, *parameters))

    def log_survival(self, value: Tensor, logits: Tensor, *parameters: Tensor) -> Tensor:
        """Log of the weighted sum of the components' survival functions."""
        below, above = self._tails(value, logits, *parameters)
        return _by_smaller(above, below)

    def residual(self, value: Tensor, logits: Tensor, *parameters: Tensor) -> Tensor:
        """Residual of the smaller tail."""
        below, above = self._tails(value, logits, *parameters)
        lower = below <= above
        z = normal_quantile_of_log(torch.where(lower, below, above))
        return torch.where(lower, z, -z)

    def log_prob(self, value: Tensor, logits: Tensor, *parameters: Tensor) -> Tensor:
        """Log of the weighted sum of the components' densities."""
        return self._summed(
            partial(self.family.log_density, self.kind), (-math.inf, -math.inf), value, logits, *parameters
        )

    def quantile(self, lower: Tensor, upper: Tensor, logits: Tensor, *parameters: Tensor) -> Tensor:
        """Newton's method on the log-odds, between the smallest and the largest quantile of the components."""
        assert self.family.quantile is not None
        goal = log_odds(lower, upper)
        with torch.no_grad():
            ends = self.family.quantile(lower.unsqueeze(-1), upper.unsqueeze(-1), *parameters)
            low, high = ends.amin(-1).expand(goal.shape), ends.amax(-1).expand(goal.shape)
            start = torch.where(lower < upper, low, high)
            value = root(lambda x: self._log_odds(x, logits, *parameters), goal, start, low, high)
            finite = self._log_odds(value, logits, *parameters).value.isfinite()  # not where it rounds to a bound
            inside = torch.where(finite, value, self._medians(value.unsqueeze(-1), *parameters).amin(-1))
            slope = self._log_odds(inside, logits, *parameters).slope
        below, above = self._tails(inside, logits, *parameters)
        return torch.where(finite, polished(inside, below - above, goal, slope), value)

    def support(self, value: Tensor, _: Tensor, *parameters: Tensor) -> Tensor:
        """Union of the supports of the components."""
        assert self.family.support is not None
        return self.family.support(value.unsqueeze(-1), *parameters).any(-1)

    def distribution(self, logits: Tensor, *parameters: Tensor) -> MixtureSameFamily:
        """The torch distribution with these parameters."""
        weights = Categorical(logits=logits, validate_args=False)
        shape = torch.broadcast_shapes(logits.shape, *(p.shape for p in parameters))
        components = self.family.distribution(self.kind, tuple(p.expand(shape) for p in parameters))
        return MixtureSameFamily(weights.expand(shape[:-1]), components, validate_args=False)

    def as_family(self) -> Family:
        """The family of the mixture."""
        names = tuple(_COMPONENT + name for name in self.family.parameters)
        declared: Any = self.kind.arg_constraints if self.family.constraints is None else self.family.constraints
        known: Mapping[str, Any] = declared if isinstance(declared, Mapping) else {}
        ordered, location = self.family.ordered, self.family.location
        return Family(
            parameters=(_WEIGHTS, *names),
            parameter_dims=(1,) * (1 + len(names)),
            log_cdf=self.log_cdf,
            log_survival=self.log_survival,
            residual=self.residual,
            quantile=None if self.family.quantile is None else self.quantile,
            log_prob=self.log_prob,
            support=None if self.family.support is None else self.support,
            # a weight of 0 has an infinite logit
            unbounded=(_WEIGHTS, *(_COMPONENT + n for n in self.family.unbounded)),
            ordered=None if ordered is None else (_COMPONENT + ordered[0], _COMPONENT + ordered[1]),
            location=None if location is None else _COMPONENT + location,
            constraints={_COMPONENT + n: known[n] for n in self.family.parameters if n in known},
            component=self.family,
            build=self.distribution,
            crps=_crps_of_normals if self.family is NORMAL else None,
            slopes=_slopes_of_normals if self.family is NORMAL else None,
        )

    def _tails(self, value: Tensor, logits: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Logs of both tails; that of the larger one is inaccurate."""
        assert self.family.log_cdf is not None
        assert self.family.log_survival is not None
        below = self._summed(self.family.log_cdf, (-math.inf, 0.0), value, logits, *parameters)
        return below, self._summed(self.family.log_survival, (0.0, -math.inf), value, logits, *parameters)

    def _summed(
        self, formula: Formula, outside: tuple[float, float], value: Tensor, logits: Tensor, *parameters: Tensor
    ) -> Tensor:
        """Log of the weighted sum; ``outside`` are the values of a component below and above its bounds."""
        x = value.unsqueeze(-1)
        weights = torch.log_softmax(logits, -1)
        if self.family.bounds is None:
            return torch.logsumexp(weights + formula(x, *parameters), -1)
        low, high = self.family.bounds(*parameters)
        inside = (x > low) & (x < high)
        safe = torch.where(inside, x, self._medians(x, *parameters))
        beyond = torch.where(x <= low, outside[0], outside[1]).to(x.dtype)
        return torch.logsumexp(weights + torch.where(inside, formula(safe, *parameters), beyond), -1)

    @torch.no_grad()
    def _medians(self, like: Tensor, *parameters: Tensor) -> Tensor:
        assert self.family.quantile is not None
        half = torch.full_like(like, 0.5)
        return self.family.quantile(half, half, *parameters)

    def _log_odds(self, value: Tensor, logits: Tensor, *parameters: Tensor) -> LogOdds:
        below, above = self._tails(value, logits, *parameters)
        return LogOdds(below - above, torch.exp(self.log_prob(value, logits, *parameters) - below - above))


def _by_smaller(log_this: Tensor, log_other: Tensor) -> Tensor:
    """Log of a tail, computed from the other one where that is smaller."""
    larger = log_this > log_other
    rest = torch.log1p(-torch.exp(torch.where(larger, log_other, -1.0)))
    return torch.where(larger, rest, log_this)


def _mean_distance(gap: Tensor, spread: Tensor) -> Tensor:
    """Mean of the absolute value of a normal variable."""
    z = gap / spread
    return gap * torch.erf(z * math.sqrt(0.5)) + spread * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square())


def _crps_of_normals(value: Tensor, logits: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """E|X - y| - E|X - X'| / 2, summed over components and pairs of components."""
    weight = torch.softmax(logits, -1)
    to_value = (weight * _mean_distance(value.unsqueeze(-1) - loc, scale)).sum(-1)
    spread = torch.hypot(scale.unsqueeze(-1), scale.unsqueeze(-2))
    pairs = _mean_distance(loc.unsqueeze(-1) - loc.unsqueeze(-2), spread)
    return to_value - 0.5 * (weight.unsqueeze(-1) * weight.unsqueeze(-2) * pairs).sum((-2, -1))


def _slopes_of_normals(
    value: Tensor, logits: Tensor, loc: Tensor, scale: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """Residuals and their derivatives from the smaller tail probability; None where float32 underflows."""
    weight = torch.softmax(_components_first(logits), 0)
    m, s = _components_first(loc), _components_first(scale)
    t = (value - m).div_(s)
    side = t.clamp(-_BULK, _BULK).mul_(weight).sum(0).sign_()  # most of the probability is on the other side
    side.add_(side.square().sub_(1), alpha=-1)  # 0 counts as 1
    tails = torch.mul(t, side).mul_(math.sqrt(0.5)).erfc_().mul_(weight)  # twice the contribution of each component
    tail = tails.sum(0).mul_(0.5)
    if tail.max().item() > _LARGE_TAIL:
        _take_other_side(tail > _LARGE_TAIL, t, weight, side, tails, tail)
    if not (tail.min().item() > _LEAST_TAIL and s.min().item() > 0):
        return None
    size = torch.special.ndtri(tail.double())
    square = (0.5 * size.square()).float()
    by_loc = torch.addcmul(square, t, t, value=-0.5).exp_().mul_(weight).div_(s).neg_()
    by_value = by_loc.sum(0).neg_()
    odds = square.exp_().mul_(side).mul_(-math.sqrt(2 * math.pi))
    by_logits = tails.mul_(0.5).addcmul_(weight, tail, value=-1).mul_(odds)
    by_scale = t.mul_(by_loc)
    return size.mul_(side).neg_(), (by_value, by_logits.mT, by_loc.mT, by_scale.mT)


def _take_other_side(wrong: Tensor, t: Tensor, weight: Tensor, side: Tensor, tails: Tensor, tail: Tensor) -> None:
    """Replace tails by the other side's, in place, where ``wrong``: 1 minus a large tail would have few digits."""
    where = wrong.nonzero().squeeze(1)
    if len(where):
        other = -side.index_select(0, where)
        small = torch.mul(t.index_select(1, where), other).mul_(math.sqrt(0.5)).erfc_()
        small.mul_(weight.index_select(1, where))
        tails.index_copy_(1, where, small)
        tail.index_copy_(0, where, small.sum(0).mul_(0.5))
        side.index_copy_(0, where, other)


def _components_first(parameter: Tensor) -> Tensor:
    return torch.stack(parameter.unbind(-1))  # several times faster than a transposed copy


_MIXTURES: dict[tuple[type[Distribution], Family], Family] = {}


def mixture_family(pred: MixtureSameFamily) -> Family:
    """Family of a mixture, cached by the family of its components.

    Raises:
        TypeError: The components are multivariate, or their family is not registered.
    """
    component: Distribution = pred.component_distribution
    known = family_of(component)
    if known is None or known[1].event_dim or known[1].log_cdf is None or known[1].log_survival is None:
        name = type(component).__name__
        raise TypeError(f"expected `pred.component_distribution` of a scalar, registered family, got {name}")
    if not pred._num_component:
        raise ValueError("expected `pred` with at least one component, got 0")
    if is_tracing():  # objects made while tracing must not be cached, and dynamo cannot look up a family
        return Mixture(*known).as_family()
    if known not in _MIXTURES:
        _MIXTURES[known] = Mixture(*known).as_family()
    return _MIXTURES[known]
