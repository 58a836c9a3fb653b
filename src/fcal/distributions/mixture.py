"""Mixtures: ``MixtureSameFamily`` of any scalar family, by the tails of its components."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily

from fcal.distributions.family import Family, Formula, family_of
from fcal.distributions.implicit import LogOdds, log_odds, polished, root

_WEIGHTS = "mixture_distribution.logits"
_COMPONENT = "component_distribution."


class Mixture(NamedTuple):
    """Formulas of a mixture of ``family``; parameters carry the components in their last dimension."""

    kind: type[Distribution]
    family: Family

    def log_cdf(self, value: Tensor, logits: Tensor, *parameters: Tensor) -> Tensor:
        """Log of the weighted sum of the components' probabilities below."""
        assert self.family.log_cdf is not None
        return self._summed(self.family.log_cdf, (-math.inf, 0.0), value, logits, *parameters)

    def log_survival(self, value: Tensor, logits: Tensor, *parameters: Tensor) -> Tensor:
        """Log of the weighted sum of the components' probabilities above."""
        assert self.family.log_survival is not None
        return self._summed(self.family.log_survival, (0.0, -math.inf), value, logits, *parameters)

    def log_prob(self, value: Tensor, logits: Tensor, *parameters: Tensor) -> Tensor:
        """Log of the weighted sum of the components' densities."""
        return self._summed(self._log_density, (-math.inf, -math.inf), value, logits, *parameters)

    def quantile(self, lower: Tensor, upper: Tensor, logits: Tensor, *parameters: Tensor) -> Tensor:
        """Newton's method on the log-odds, between the least and the largest quantile of the components."""
        assert self.family.quantile is not None
        goal = log_odds(lower, upper)
        with torch.no_grad():
            ends = self.family.quantile(lower.unsqueeze(-1), upper.unsqueeze(-1), *parameters)
            low, high = ends.amin(-1).expand(goal.shape), ends.amax(-1).expand(goal.shape)
            start = torch.where(lower < upper, low, high)
            value = root(lambda x: self._log_odds(x, logits, *parameters), goal, start, low, high)
            slope = self._log_odds(value, logits, *parameters).slope
        here = self.log_cdf(value, logits, *parameters) - self.log_survival(value, logits, *parameters)
        return polished(value, here, goal, slope)

    def support(self, value: Tensor, _: Tensor, *parameters: Tensor) -> Tensor:
        """Where at least one component can be."""
        assert self.family.support is not None
        return self.family.support(value.unsqueeze(-1), *parameters).any(-1)

    def distribution(self, logits: Tensor, *parameters: Tensor) -> MixtureSameFamily:
        """A torch distribution with these parameters."""
        weights = Categorical(logits=logits, validate_args=False)
        shape = torch.broadcast_shapes(logits.shape, *(p.shape for p in parameters))
        components = self.family.distribution(self.kind, tuple(p.expand(shape) for p in parameters))
        return MixtureSameFamily(weights.expand(shape[:-1]), components, validate_args=False)

    def as_family(self) -> Family:
        """What the library knows of the mixture."""
        names = tuple(_COMPONENT + name for name in self.family.parameters)
        known = self.kind.arg_constraints if isinstance(self.kind.arg_constraints, dict) else {}
        ordered, location = self.family.ordered, self.family.location
        return Family(
            parameters=(_WEIGHTS, *names),
            parameter_dims=(1,) * (1 + len(names)),
            log_cdf=self.log_cdf,
            log_survival=self.log_survival,
            quantile=None if self.family.quantile is None else self.quantile,
            log_prob=self.log_prob,
            support=None if self.family.support is None else self.support,
            unbounded=tuple(_COMPONENT + n for n in self.family.unbounded),
            ordered=None if ordered is None else (_COMPONENT + ordered[0], _COMPONENT + ordered[1]),
            location=None if location is None else _COMPONENT + location,
            constraints={_COMPONENT + n: known[n] for n in self.family.parameters if n in known},
            build=self.distribution,
        )

    def _summed(
        self, formula: Formula, outside: tuple[float, float], value: Tensor, logits: Tensor, *parameters: Tensor
    ) -> Tensor:
        """Log of the weighted sum; ``outside`` is what a component has below and above its bounds."""
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

    def _log_density(self, value: Tensor, *parameters: Tensor) -> Tensor:
        if self.family.log_prob is not None:
            return self.family.log_prob(value, *parameters)
        return self.family.distribution(self.kind, parameters).log_prob(value)

    def _log_odds(self, value: Tensor, logits: Tensor, *parameters: Tensor) -> LogOdds:
        below = self.log_cdf(value, logits, *parameters)
        above = self.log_survival(value, logits, *parameters)
        return LogOdds(below - above, torch.exp(self.log_prob(value, logits, *parameters) - below - above))


_MIXTURES: dict[tuple[type[Distribution], Family], Family] = {}


def mixture_family(pred: MixtureSameFamily) -> Family:
    """What the library knows of a mixture, by the family of its components.

    Raises:
        TypeError: The components are vectors, or of a family that is not registered as such.
    """
    component: Distribution = pred.component_distribution
    known = family_of(component)
    if known is None or known[1].event_dim or known[1].log_cdf is None or known[1].log_survival is None:
        name = type(component).__name__
        raise TypeError(f"expected `pred.component_distribution` of a scalar, registered family, got {name}")
    if known not in _MIXTURES:
        _MIXTURES[known] = Mixture(*known).as_family()
    return _MIXTURES[known]
