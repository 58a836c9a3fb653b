"""Split-conformal prediction: the ranks of calibration residuals as the law of the next one."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_integer, check_number
from fcal.distributions import Warped
from fcal.distributions.law import law_of
from fcal.distributions.monotone import value_of_residual
from fcal.recalibration.knots import map_of, map_through, ranks_of_knots
from fcal.recalibration.recalibrator import Recalibrator, add
from fcal.recalibration.rows import Rows

_ROUNDING = 1e-9  # of a level such as 0.9, which is no binary number


@add
class Conformal(Recalibrator):
    r"""The split-conformal predictive law, whose coverage does not depend on what the targets' law is.

    Among n calibration residuals and a new one that is exchangeable with them, the new one has every rank with the same
    probability. So the law that gives the r-th smallest residual the probability :math:`r / (n + 1)` is right on
    average over calibration sets, for any n and any model. :meth:`transform` takes it at about :math:`\sqrt n` ranks
    and at those that halve towards both ends, down to the first and the last, linear in the normal quantile between
    them; beyond, the prediction's own law goes on, rescaled. :meth:`interval` rests on all ranks and on nothing else.

    Args:
        knots: How many ranks at equal distances; about the root of n, but 10 to 400, where None.

    Example:
        >>> from torch.distributions import Normal
        >>> pred, levels = Normal(torch.zeros(199), torch.ones(199)), torch.arange(1, 200) / 200
        >>> conformal = fcal.recalibration.Conformal().fit(pred, 2 * torch.special.ndtri(levels))
        >>> low, high = conformal.interval(Normal(torch.tensor(0.0), torch.tensor(1.0)), 0.9)
        >>> high  # 2 times the normal quantile of 0.95
        tensor(3.2897)
    """

    method = "conformal"
    tensor_names = ("x", "y", "slopes", "scores")
    least_rows = 10

    def __init__(self, *, knots: int | None = None) -> None:
        self.knots = None if knots is None else check_integer("knots", knots, at_least=2, at_most=100_000)

    def interval(self, pred: Distribution, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Central intervals that hold at least ``level`` of new targets, on average over calibration sets.

        Args:
            pred: Predictions of the family at fit.
            level: Their probability, within (0, 1).

        Returns:
            Lower and upper ends, shaped like the prediction's samples; infinite where n is too small for the level.
        """
        self.transform(pred)  # refuses what does not fit
        scores = self._fitted_tensors()["scores"]
        tail = (1 - check_number("level", level, low=1e-6, high=1 - 1e-6)) / 2
        rank = math.floor(tail * (len(scores) + 1) + _ROUNDING)
        shape = pred.batch_shape + pred.event_shape
        if not rank:
            like = law_of(pred).parameters[0]
            return like.new_full(shape, -math.inf), like.new_full(shape, math.inf)
        low, high = (_value_at(pred, scores[at]).expand(shape) for at in (rank - 1, len(scores) - rank))
        return low, high

    def _options(self) -> dict[str, Any]:
        return {"knots": self.knots}

    def _fitted(self, rows: Rows) -> dict[str, Tensor]:
        scores = rows.z.sort().values
        ranks = ranks_of_knots(len(scores), self.knots, outermost=1)
        return map_through(scores, ranks, ranks.to(torch.float64) / (len(scores) + 1)) | {"scores": scores}

    def _repaired(self, pred: Distribution, tensors: Mapping[str, Tensor]) -> Distribution:
        return Warped(pred, map_of(tensors))


def _value_at(pred: Distribution, z: Tensor) -> Tensor:
    law = law_of(pred)
    like = law.parameters[0]
    wide = law.map(lambda p, _: p.to(torch.float64), lambda p: p.to(torch.float64))
    return wide.push_forward(value_of_residual(law.family, z.to(like.device), *wide.parameters)).to(like.dtype)
