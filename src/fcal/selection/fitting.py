"""The most likely law of a family, for errors of which a few may be anything."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution, StudentT

from fcal.selection.candidates import Candidate

_STRAY = 1e-3  # share of errors that are of no family: else a single one outside the support rules a family out
_STRAY_SPREAD = 5.0  # of their law, in spreads of the start
_STRAY_DF = 2.0
_NORMAL_QUARTILE = 0.6745
_LARGEST = 8.0  # of the logarithms and spreads that are searched
_ITERATIONS = 200


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A law of errors.

    Attributes:
        candidate: Its family.
        centre: Where it is, in predicted standard deviations from the predicted mean.
        spread: How wide.
        shape: Degrees of freedom, or the like; 1 where the family has none.
    """

    candidate: Candidate
    centre: Tensor
    spread: Tensor
    shape: Tensor

    def law(self) -> Distribution:
        """The law of an error."""
        return self.candidate.law(self.centre, self.spread, self.shape)

    def inside(self, errors: Tensor) -> Tensor:
        """Errors, moved into the support where they are outside."""
        return self.candidate.inside(errors, self.centre, self.spread, self.shape)

    def log_likelihood(self, errors: Tensor) -> Tensor:
        """Log-density of each error; a few may be strays."""
        within = self.inside(errors)
        own = torch.where(within == errors, self.law().log_prob(within), -torch.inf)
        centre, spread = self.centre.detach(), _STRAY_SPREAD * self.spread.detach()
        stray = StudentT(_STRAY_DF, centre, spread, validate_args=False).log_prob(errors)
        return torch.logaddexp(math.log1p(-_STRAY) + own, math.log(_STRAY) + stray)


def fitted_to(errors: Tensor, candidate: Candidate) -> Fitted:
    """The law of a family under which errors are most likely.

    Args:
        errors: In predicted standard deviations; float64. Shape ``(n,)``.
        candidate: The family.

    Example:
        >>> from fcal.selection.candidates import CANDIDATES
        >>> errors = torch.distributions.Normal(0.0, 1.0).icdf(torch.linspace(0.001, 0.999, 999, dtype=torch.float64))
        >>> found = fitted_to(2 * errors + 1, CANDIDATES["normal"])
        >>> round(float(found.centre), 3), round(float(found.spread), 2)
        (1.0, 1.99)
    """
    found = [_climbed(errors, candidate, shape) for shape in candidate.shapes or (1.0,)]
    return max(found, key=lambda one: float(one.log_likelihood(errors).mean()))


def _climbed(errors: Tensor, candidate: Candidate, shape: float) -> Fitted:
    """The nearest summit of the likelihood from the median, the spread of the inner half, and a shape."""
    centre = errors.median()
    spread = (errors - centre).abs().median().clamp(min=1e-12) / _NORMAL_QUARTILE
    raw = torch.tensor(
        [0.0, 0.0, math.log(shape - candidate.least) if candidate.shapes else 0.0],
        dtype=torch.float64,
        requires_grad=True,
    )

    def at(raw: Tensor) -> Fitted:
        moved, widened, free = _LARGEST * torch.tanh(raw / _LARGEST)  # a step too long does not end in nowhere
        shaped = candidate.least + free.exp() if candidate.shapes else torch.ones_like(free)
        return Fitted(candidate=candidate, centre=centre + spread * moved, spread=spread * widened.exp(), shape=shaped)

    optimizer = torch.optim.LBFGS([raw], max_iter=_ITERATIONS, line_search_fn="strong_wolfe", tolerance_change=1e-12)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -at(raw).log_likelihood(errors).mean()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    return at(raw.detach())
