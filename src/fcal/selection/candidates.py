"""Candidate families of noise, and their fit to errors in units of the predicted standard deviation."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Distribution,
    Gamma,
    Gumbel,
    Laplace,
    Normal,
    StudentT,
    TransformedDistribution,
)

from fcal._registry import Registry
from fcal.distributions import Logistic

_MARGIN = 1e-6  # distance from the end of a support, in spreads
_OUTLIERS = 1e-3  # share of errors of no family; without it, one error outside the support rules a family out
_OUTLIER_SPREAD = 5.0  # in spreads of the family
_OUTLIER_DF = 2.0
_NORMAL_QUARTILE = 0.6745
_LARGEST = 8.0  # bound of the search, in spreads and in logarithms
_ITERATIONS = 200


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A family of noise.

    Attributes:
        law: Distribution of an error with a given centre, spread and shape, all scalars; the shape may be ignored.
        shapes: Starting points of the search for the shape; empty for a family without shape.
        least: The smallest shape: below 1, a Gamma density is unbounded and Student-t has no mean.
        inside: Moves an error into the support, given centre, spread and shape.
        contains: Families that it equals for some shape, or approaches for a large one.
        tails: Description for the verdict.
    """

    law: Callable[[Tensor, Tensor, Tensor], Distribution]
    shapes: tuple[float, ...] = ()
    least: float = 1.0
    inside: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = lambda error, *_: error
    contains: tuple[str, ...] = ()
    tails: str


def _gamma(sign: int) -> Callable[[Tensor, Tensor, Tensor], Distribution]:
    """Gamma noise with mean ``centre`` and standard deviation ``spread``, skewed towards ``sign``."""

    def law(centre: Tensor, spread: Tensor, shape: Tensor) -> Distribution:
        root = shape.sqrt()
        move = AffineTransform(centre - sign * spread * root, sign * spread / root)
        return TransformedDistribution(Gamma(shape, torch.ones_like(shape), validate_args=False), [move])

    return law


def _inside_gamma(sign: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def inside(error: Tensor, centre: Tensor, spread: Tensor, shape: Tensor) -> Tensor:
        end = centre - sign * spread * (shape.sqrt() - _MARGIN)
        return torch.maximum(error, end) if sign > 0 else torch.minimum(error, end)

    return inside


def _mirrored_gumbel(centre: Tensor, spread: Tensor, _: Tensor) -> Distribution:
    unit = Gumbel(torch.zeros_like(centre), torch.ones_like(spread), validate_args=False)
    return TransformedDistribution(unit, [AffineTransform(centre, -spread)])


CANDIDATES: Registry[Candidate] = Registry("families")
CANDIDATES.add("normal", Candidate(law=lambda c, s, _: Normal(c, s, validate_args=False), tails="Gaussian"))
CANDIDATES.add("laplace", Candidate(law=lambda c, s, _: Laplace(c, s, validate_args=False), tails="heavy-tailed"))
CANDIDATES.add("logistic", Candidate(law=lambda c, s, _: Logistic(c, s, validate_args=False), tails="heavy-tailed"))
CANDIDATES.add(
    "student-t",
    Candidate(
        law=lambda c, s, df: StudentT(df, c, s, validate_args=False),
        shapes=(3.0, 10.0),
        contains=("normal",),
        tails="heavy-tailed",
    ),
)
CANDIDATES.add(
    "gamma",
    Candidate(law=_gamma(1), shapes=(2.0, 10.0), inside=_inside_gamma(1), contains=("normal",), tails="skewed upwards"),
)
CANDIDATES.add(
    "mirrored-gamma",
    Candidate(
        law=_gamma(-1), shapes=(2.0, 10.0), inside=_inside_gamma(-1), contains=("normal",), tails="skewed downwards"
    ),
)
CANDIDATES.add("gumbel", Candidate(law=lambda c, s, _: Gumbel(c, s, validate_args=False), tails="skewed upwards"))
CANDIDATES.add("mirrored-gumbel", Candidate(law=_mirrored_gumbel, tails="skewed downwards"))


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A distribution of errors.

    Attributes:
        candidate: The family.
        centre: Location, in predicted standard deviations from the predicted mean.
        spread: Scale, in predicted standard deviations.
        shape: Shape parameter, such as degrees of freedom; 1 for a family without shape.
    """

    candidate: Candidate
    centre: Tensor
    spread: Tensor
    shape: Tensor

    def law(self) -> Distribution:
        """Distribution of an error."""
        return self.candidate.law(self.centre, self.spread, self.shape)

    def inside(self, errors: Tensor) -> Tensor:
        """Errors, moved into the support if they lie outside."""
        return self.candidate.inside(errors, self.centre, self.spread, self.shape)

    def log_likelihood(self, errors: Tensor) -> Tensor:
        """Log-density of each error, in a mixture with a few outliers."""
        within = self.inside(errors)
        own = torch.where(within == errors, self.law().log_prob(within), -torch.inf)
        centre, spread = self.centre.detach(), _OUTLIER_SPREAD * self.spread.detach()
        outlier = StudentT(_OUTLIER_DF, centre, spread, validate_args=False).log_prob(errors)
        return torch.logaddexp(math.log1p(-_OUTLIERS) + own, math.log(_OUTLIERS) + outlier)


def fitted_to(errors: Tensor, candidate: Candidate) -> Fitted:
    """Maximum likelihood fit of a family to errors.

    Args:
        errors: Errors in predicted standard deviations, float64. Shape ``(n,)``.
        candidate: The family.

    Example:
        >>> errors = torch.distributions.Normal(0.0, 1.0).icdf(torch.linspace(0.001, 0.999, 999, dtype=torch.float64))
        >>> fit = fitted_to(2 * errors + 1, CANDIDATES["normal"])
        >>> round(float(fit.centre), 3), round(float(fit.spread), 2)
        (1.0, 1.99)
    """
    fits = [_local_fit(errors, candidate, shape) for shape in candidate.shapes or (1.0,)]
    return max(fits, key=lambda fit: float(fit.log_likelihood(errors).mean()))


def _local_fit(errors: Tensor, candidate: Candidate, shape: float) -> Fitted:
    """Local maximum of the likelihood, starting at the median, the interquartile spread and a shape."""
    centre = errors.median()
    spread = (errors - centre).abs().median().clamp(min=1e-12) / _NORMAL_QUARTILE
    raw = torch.tensor(
        [0.0, 0.0, math.log(shape - candidate.least) if candidate.shapes else 0.0],
        dtype=torch.float64,
        requires_grad=True,
    )

    def at(raw: Tensor) -> Fitted:
        moved, widened, free = _LARGEST * torch.tanh(raw / _LARGEST)  # bounds the search
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
