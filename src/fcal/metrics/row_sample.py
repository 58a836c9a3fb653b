"""A few rows of an evaluation, to be seen one by one: a fair sample, and those with the largest residuals.

Both are of fixed size and do not depend on how the rows were cut into chunks: a row is sampled by a hash of its number.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fcal.distributions.family import Law
from fcal.distributions.functional import quantile_of
from fcal.distributions.observation import Observation
from fcal.metrics.report import Rows

SAMPLED, WORST = 400, 20
WITH_BARS = 60  # of the sampled rows; a quantile may be costly
LEVEL = 0.9  # of the bars
_FACTORS = -7046029254386353131, -4658895280553007687  # of splitmix64, as signed numbers
_HASH_BITS = 53
_ROW, _MEAN, _SIGMA, _TARGET, _Z = range(5)


def hashes(index: Tensor) -> Tensor:
    """Pseudo-random numbers from 0 to 2^53 - 1, a function of the index alone.

    Example:
        >>> hashes(torch.arange(3)).tolist() == hashes(torch.arange(1, 3)).tolist()
        False
        >>> hashes(torch.arange(1, 3)).equal(hashes(torch.arange(3))[1:])
        True
    """
    mixed = (index + 1) * _FACTORS[0]
    mixed = (mixed ^ (mixed >> 31)) * _FACTORS[1]
    return (mixed ^ (mixed >> 29)) & (2**_HASH_BITS - 1)


class RowSampler:
    """Collects rows while chunks go by.

    Example:
        >>> from fcal.metrics.accumulation import accumulate
        >>> from fcal.metrics.state import Grid
        >>> from torch.distributions import Normal
        >>> sampler = RowSampler()
        >>> _ = accumulate(Normal(torch.zeros(3), 1.0), torch.tensor([0.5, -4.0, 1.0]), Grid(75, 20), rows=sampler)
        >>> sampler.worst().row, sampler.worst().target
        ((2, 3, 1), (-4.0, 1.0, 0.5))
    """

    def __init__(self) -> None:
        self._sample = _Best(SAMPLED, WITH_BARS)
        self._worst = _Best(WORST, WORST)
        self._passed = 0  # elements of earlier batches

    def add(
        self, chunk: Observation, index: Tensor, outputs: int, z: Tensor, error: Tensor | None, sigma: Tensor | None
    ) -> None:
        """Add scalars of a chunk: their indices in the batch, outputs per row, residuals, and errors with their sd."""
        if error is None or sigma is None or len(index) != len(z):  # vectors have no error bar of their own
            return
        index = index + self._passed

        def values(chosen: Tensor) -> Tensor:
            target = chunk.target.reshape(-1)[chosen].double()
            number = index[chosen].div(outputs, rounding_mode="floor").double() + 1
            columns = number, target - error[chosen].double(), sigma[chosen].double(), target, z[chosen].double()
            return torch.stack(columns, 1).cpu()

        self._sample.add(hashes(index), values, chunk)
        self._worst.add(z.abs().neg_(), values, chunk)

    def pass_batch(self, elements: int) -> None:
        """Count the elements of a batch, so that rows of the next one have numbers after them."""
        self._passed += elements

    def sample(self) -> Rows | None:
        """A fair sample, in random order; None where predictions have no mean and sd."""
        return self._sample.rows()

    def worst(self) -> Rows | None:
        """Rows with the largest residuals, those first."""
        return self._worst.rows()


class _Best:
    """The rows with the smallest keys so far, and the laws of the first ``with_bars`` of them."""

    def __init__(self, most: int, with_bars: int) -> None:
        self._most, self._with_bars = most, with_bars
        self._keys, self._values = torch.empty(0, dtype=torch.float64), torch.empty(0, 5, dtype=torch.float64)
        self._law: Law | None = None
        self._leaves: list[Tensor] = []

    def add(self, keys: Tensor, values: Callable[[Tensor], Tensor], chunk: Observation) -> None:
        if len(self._keys) == self._most:
            chosen = (keys < self._keys[-1].to(keys.device)).nonzero().reshape(-1)
        else:
            chosen = torch.arange(len(keys), device=keys.device)
        if len(chosen) > self._most:
            chosen = chosen[keys[chosen].topk(self._most, largest=False).indices]
        if not len(chosen):
            return
        leaves = [leaf[chosen].cpu() for leaf in chunk.law.leaves(chunk.elements())]
        if self._law is not None:
            leaves = [torch.cat(pair) for pair in zip(self._leaves, leaves, strict=True)]
        rows = values(chosen)
        keys = torch.cat([self._keys, keys[chosen].double().cpu()])
        rows = torch.cat([self._values, rows])
        keys[~rows.isfinite().all(1)] = torch.inf
        order = keys.argsort(stable=True)[: self._most]
        self._law, self._leaves = chunk.law, [leaf[order] for leaf in leaves]
        self._keys, self._values = keys[order], rows[order]

    def rows(self) -> Rows | None:
        finite = self._keys.isfinite()
        values = self._values[finite]
        if self._law is None or not len(values):
            return None
        law = self._law.with_leaves(leaf[finite][: self._with_bars] for leaf in self._leaves)
        low, high = _bar(law, min(len(values), self._with_bars))
        columns = [tuple(column.tolist()) for column in values.T]
        return Rows(
            row=tuple(int(number) for number in columns[_ROW]),
            mean=columns[_MEAN],
            sigma=columns[_SIGMA],
            target=columns[_TARGET],
            z=columns[_Z],
            low=low,
            high=high,
        )


def _bar(law: Law, count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Ends of central intervals; nothing for a family without quantiles."""
    tail = torch.full((count,), 0.5 * (1 - LEVEL), dtype=torch.float64)
    law = law.to(torch.float64)
    try:
        low, high = quantile_of(law, tail, 1 - tail), quantile_of(law, 1 - tail, tail)
    except (NotImplementedError, TypeError, ValueError):
        return (), ()
    return tuple(low.tolist()), tuple(high.tolist())
