"""Families of noise: laws of an error measured in predicted standard deviations."""

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

_MARGIN = 1e-6  # spreads from the end of a support


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A family that noise may be of.

    Attributes:
        law: The law of an error for a centre, a spread and a shape, all scalars; a family without a shape ignores it.
        shapes: Where to begin the search for its shape; empty where it has none.
        least: The smallest shape: Gamma's density has no bound below 1, Student-t's tails no mean.
        inside: An error moved into the support, for a centre, a spread and a shape.
        contains: Families that it is, for some shape, or nearly so for a large one.
        tails: What it is like, in words.
    """

    law: Callable[[Tensor, Tensor, Tensor], Distribution]
    shapes: tuple[float, ...] = ()
    least: float = 1.0
    inside: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = lambda error, *_: error
    contains: tuple[str, ...] = ()
    tails: str


def _gamma(sign: int) -> Callable[[Tensor, Tensor, Tensor], Distribution]:
    """Gamma noise with mean ``centre`` and standard deviation ``spread``; its long tail points to ``sign``."""

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
