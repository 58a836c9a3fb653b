r"""A predictive distribution from samples of it: draws of MC dropout, or the outputs of an ensemble."""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fcal._arrays import as_numbers
from fcal._checks import is_tracing
from fcal.distributions.family import Law
from fcal.distributions.piecewise import QuantileLaw, check_rows

FEWEST_SAMPLES = 3
_LEAST_TAIL = 0.25  # scale of a tail, in standard deviations of the samples
_TAIL_SHARES = (1 / 3, 1 / 10, 1 / 30, 1 / 100, 1 / 1000)  # of the probability beyond an extreme, at knots of the tail
_CLOSEST = 1e-4  # smallest distance of knots, as a share of the range of a row, where samples are equal
_MOST_NUMBERS = 1 << 22  # sorted at a time


class Empirical(QuantileLaw):
    r"""Distribution of which S samples are known, for MC dropout and ensembles.

    A target and S samples of the same continuous law are exchangeable, so that the target lies below the i-th smallest
    sample with probability :math:`i / (S + 1)`, whatever the law is; the empirical distribution function says
    :math:`i / S` instead and calls everything beyond the samples impossible. Here some order statistics, about
    :math:`2 + \sqrt S`, with the smallest and the largest among them, are quantiles of levels :math:`i / (S + 1)`, and
    between them the residual is linear, as in :class:`QuantileLaw`: a density through all samples would follow their
    noise, at 0.3 nats or more per target.

    Beyond an extreme sample there is a probability of :math:`1 / (S + 1)`, also whatever the law is. Its shape rests on
    an assumption: that the m largest samples, :math:`m = \lceil \sqrt S \rceil`, exceed the next one by exponential
    amounts. With the mean b of these amounts, the amount e by which a target exceeds the largest sample then has

    .. math:: P(E > e) = (1 + e / m b)^{-m},

    a Pareto tail that is exact for every S, since it counts the noise of b too. Quantiles of it, down to a thousandth
    of the probability, are further knots, and the tail is normal beyond. Tails that are lighter than exponential are
    covered with something to spare: with few samples the sd exceeds that of the law (normal law: 1.45 times for S = 10,
    1.15 for 30, 1.05 for 100).

    Args:
        samples: Samples in the last dimension, in any order, at least 3; of any array library. Shape ``(..., S)``.
        validate_args: As in every torch distribution; False also skips the check of the samples.

    Raises:
        TypeError: These are no numbers.
        ValueError: Fewer than 3 samples, samples that are not finite, or rows of equal samples, which do not tell how
            far a target may lie from them; the message gives their count and the first such row.

    Note:
        The law is differentiable with respect to the samples. Rows of a selection or concatenation of such laws are
        :class:`QuantileLaw` objects with the same quantiles.

    Example:
        >>> law = Empirical(torch.tensor([[2.0, 1.0, 4.0, 3.0]]))
        >>> law.cdf(torch.tensor([1.0])), law.icdf(torch.tensor([0.8]))
        (tensor([0.2000]), tensor([4.]))
        >>> Empirical([[1.0, 1.0, 1.0]])
        Traceback (most recent call last):
        ...
        ValueError: expected `samples` that differ in every row, got 1 of 1 rows that are not; the first is row 0:
        1, 1, 1; equal samples do not tell how far a target may lie from them
    """

    def __init__(self, samples: Any, validate_args: bool | None = None) -> None:
        numbers = as_numbers("samples", samples)
        if not numbers.is_floating_point():
            raise TypeError(f"expected `samples` of a floating dtype, got {numbers.dtype}")
        if not numbers.dim() or numbers.shape[-1] < FEWEST_SAMPLES:
            got = f"shape {tuple(numbers.shape)}"
            raise ValueError(f"expected `samples` of shape (..., S) with S >= {FEWEST_SAMPLES}, got {got}; draw more")
        numbers = numbers.to(torch.promote_types(numbers.dtype, torch.float32))
        if validate_args is not False:
            _check_samples(numbers.detach())
        super().__init__(list(_levels(numbers.shape[-1])), _knots(numbers), validate_args=False)
        self._validate_args = self._validate_args if validate_args is None else validate_args
        self._law = Law(QuantileLaw, self._law.family, self._law.parameters, name="Empirical")


@cache
def _ranks(count: int) -> tuple[int, ...]:
    """Ranks, from 1 on, of the order statistics that are knots; symmetric, their residuals about evenly spaced."""
    knots = 2 + math.ceil(math.sqrt(count))
    knots += knots % 2 and not count % 2  # no knot at the median where no sample is
    lowest = torch.special.ndtri(torch.tensor(1 / (count + 1), dtype=torch.float64)).item()
    levels = torch.special.ndtr(torch.linspace(lowest, -lowest, knots, dtype=torch.float64))[: (knots + 1) // 2]
    lower = [round(level * (count + 1)) for level in levels.tolist()]
    return tuple(sorted({*lower, *(count + 1 - rank for rank in lower)}))


@cache
def _levels(count: int) -> tuple[float, ...]:
    """Probabilities of the knots of S samples, rising."""
    beyond = [share / (count + 1) for share in _TAIL_SHARES]
    middle = [rank / (count + 1) for rank in _ranks(count)]
    return (*reversed(beyond), *middle, *(1 - p for p in beyond))


def _knots(samples: Tensor) -> Tensor:
    """Quantiles of the levels of each row, strictly rising. Shape ``(..., S)`` to ``(..., knots)``."""
    rows = samples.reshape(-1, samples.shape[-1])
    step = max(_MOST_NUMBERS // rows.shape[-1], 1)
    parts = [_knots_of_rows(rows[start : start + step]) for start in range(0, max(len(rows), 1), step)]
    return torch.cat(parts).reshape(*samples.shape[:-1], -1)


def _knots_of_rows(rows: Tensor) -> Tensor:
    ordered = rows.to(torch.float64).sort(-1).values
    count = ordered.shape[-1]
    most = min(math.ceil(math.sqrt(count)), count - 1)  # samples that tell the scale of a tail
    below = ordered[:, most] - ordered[:, :most].mean(-1)
    above = ordered[:, -most:].mean(-1) - ordered[:, -most - 1]
    # Of equal samples, such as counts, the outermost do not tell the scale of a tail.
    least = _LEAST_TAIL * ordered.std(-1)
    below, above = torch.maximum(below, least), torch.maximum(above, least)
    smallest, largest = ordered[:, 0], ordered[:, -1]
    closest = _CLOSEST * (largest - smallest)
    excess = [most * (share ** (-1 / most) - 1) for share in _TAIL_SHARES]
    middle = [ordered[:, rank - 1] for rank in _ranks(count)]
    knots = [*middle, *(largest + above * e for e in excess)]
    for index in range(1, len(knots)):  # equal samples
        knots[index] = torch.maximum(knots[index], knots[index - 1] + closest)
    for e in excess:
        knots.insert(0, torch.minimum(smallest - below * e, knots[0] - closest))
    return _rising(torch.stack(knots, -1).to(rows.dtype))


def _rising(knots: Tensor) -> Tensor:
    """Knots that rounding made equal, at least one step of their dtype apart."""
    if not is_tracing() and bool((knots.detach().diff() > 0).all()):
        return knots
    columns = list(knots.unbind(-1))
    for index in range(1, len(columns)):
        before = columns[index - 1]
        columns[index] = torch.maximum(columns[index], torch.nextafter(before, torch.full_like(before, math.inf)))
    return torch.stack(columns, -1)


def _check_samples(samples: Tensor) -> None:
    rows = samples.reshape(-1, samples.shape[-1])
    low, high = rows.amin(-1), rows.amax(-1)  # NaN where a sample is
    reach = torch.maximum(low.abs(), high.abs())
    limits = torch.finfo(rows.dtype)
    for requirement, good, remedy in (
        ("finite in every row", low.isfinite() & high.isfinite(), "leave out such draws of all rows"),
        ("that differ in every row", high > low, "equal samples do not tell how far a target may lie from them"),
        (
            f"of sizes that {rows.dtype} holds the square of",
            (reach < math.sqrt(limits.max)) & (high - low > math.sqrt(limits.tiny)),
            "choose another unit",
        ),
    ):
        check_rows("samples", requirement, rows, good, remedy)
