"""A rising map of predicted probabilities, fitted to their empirical distribution."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_integer
from fcal.distributions import Warped
from fcal.recalibration.knots import map_of, map_through, ranks_of_knots
from fcal.recalibration.recalibrator import Recalibrator, add
from fcal.recalibration.rows import Rows

_OUTERMOST = 8  # farther out a knot would rest on too few residuals


@add
class Isotonic(Recalibrator):
    r"""Maps predicted probabilities to how often they came true (Kuleshov et al. 2018).

    Their isotonic regression of the empirical CDF of :math:`F_i(y_i)` is that CDF itself, which rises already. As a map
    of every rank it would have a wildly rough density, so it is taken at about :math:`\sqrt n` ranks at equal distances
    (and a few more towards the tails) and is linear in the normal quantile between them. Beyond the outermost knots,
    eight residuals from either end, the prediction's own law goes on, rescaled to meet the outermost one: the density
    is positive everywhere and an outlier costs what that law says.

    It repairs any error that is the same for all predictions in terms of their own residuals: scale, bias and shape.

    Args:
        knots: How many ranks; about the root of n, but 10 to 400, where None.

    Example:
        Targets spread twice as far as predicted:

        >>> from torch.distributions import Normal
        >>> pred, levels = Normal(torch.zeros(199), torch.ones(199)), torch.arange(1, 200) / 200
        >>> repaired = fcal.recalibration.Isotonic().fit(pred, 2 * torch.special.ndtri(levels)).transform(pred)
        >>> repaired.icdf(torch.tensor(0.9))[0]  # 2 times the normal quantile, 2.5631, but for the finite data
        tensor(2.5...)
    """

    method = "isotonic"
    tensor_names = ("x", "y", "slopes")
    least_rows = 10

    def __init__(self, *, knots: int | None = None) -> None:
        self.knots = None if knots is None else check_integer("knots", knots, at_least=2, at_most=100_000)

    def _options(self) -> dict[str, Any]:
        return {"knots": self.knots}

    def _fitted(self, rows: Rows) -> dict[str, Tensor]:
        scores = rows.z.sort().values
        ranks = ranks_of_knots(len(scores), self.knots, outermost=_OUTERMOST)
        return map_through(scores, ranks, (ranks.to(torch.float64) - 0.5) / len(scores))

    def _repaired(self, pred: Distribution, tensors: Mapping[str, Tensor]) -> Distribution:
        return Warped(pred, map_of(tensors))
