"""Isotonic and conformal recalibration: maps from quantiles of the calibration residuals to normal quantiles."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_flag, check_integer, check_number
from fcal.distributions import PiecewiseLinear, Warped, normal_quantile
from fcal.distributions.family import law_of
from fcal.distributions.monotone import value_of_residual
from fcal.recalibration.calibration_data import QUARTILES, CalibrationData
from fcal.recalibration.recalibrator import Recalibrator, register

_MIN_KNOTS, _MAX_KNOTS = 10, 400  # by default
_CENTRED_KNOTS = 6  # by default: more would make the density rough without a gain in coverage
_MIN_GAP = 1e-3  # between knots, in sd of the residuals: closer ones are ties
_ENOUGH = 8  # residuals beyond a knot that determine a slope
_ROUNDING = 1e-6
_LEVEL_ROUNDING = 1e-9  # of a level such as 0.9, which is not a binary number


class _QuantileMap(Recalibrator):
    """Base class of piecewise linear maps of residuals with knots at some of their ranks.

    Args:
        knots: Number of equally spaced ranks; about the square root of n, within 10 to 400, by default.
    """

    tensor_names: ClassVar[tuple[str, ...]] = ("x", "y", "slopes")
    least_rows = 10
    outermost_rank: ClassVar[int]
    offset: ClassVar[float]  # the r-th of n residuals has the probability (r - offset) / (n + 1 - 2 offset)

    def __init__(self, *, knots: int | None = None) -> None:
        self.knots = None if knots is None else check_integer("knots", knots, at_least=2, at_most=100_000)

    def _options(self) -> dict[str, Any]:
        return {"knots": self.knots}

    def _fitted(self, data: CalibrationData) -> dict[str, Tensor]:
        return self._map_of(data.without_wild_rows().z.sort().values)

    def _map_of(self, scores: Tensor) -> dict[str, Tensor]:
        """Knots ``x`` and ``y``, from sorted residuals to normal quantiles, and ``slopes`` beyond the outermost."""
        ranks = ranks_of_knots(len(scores), self.knots, outermost=self.outermost_rank)
        levels = (ranks.to(torch.float64) - self.offset) / (len(scores) + 1 - 2 * self.offset)
        spread = robust_spread(scores)
        x, y = scores[ranks.to(scores.device) - 1], normal_quantile(levels, 1 - levels).to(scores.device)
        x, y = _without_ties(x, y, float(_MIN_GAP * spread))
        if len(x) < 2:
            x, y = scores[[0, -1]], y[0] + torch.stack([scores[0] - x[0], scores[-1] - x[0]]) / spread
        return {"x": x, "y": y, "slopes": _slopes_beyond(x, y, len(scores))}

    def _repaired(self, pred: Distribution, tensors: Mapping[str, Tensor]) -> Distribution:
        below, above = tensors["slopes"].tolist()
        return Warped(pred, PiecewiseLinear(tensors["x"], tensors["y"], below=below, above=above))


@register
class Isotonic(_QuantileMap):
    r"""Maps predicted probabilities to their observed frequencies (Kuleshov et al. 2018).

    The isotonic regression of the empirical CDF of :math:`F_i(y_i)` is that CDF itself, which is monotone already. With
    a knot at every rank its density would be very rough, so the map has knots at about :math:`\sqrt n` equally spaced
    ranks (and a few more towards the tails) and is linear in the normal quantile between them. Beyond the outermost
    knots, eight residuals from either end, the predicted distribution continues, rescaled to match the outermost knot:
    the density is positive everywhere, and an outlier has the likelihood that the rescaled tail gives it.

    It repairs any error that all predictions share in terms of their residuals: scale, bias and shape.

    Args:
        knots: Number of equally spaced ranks; about the square root of n, within 10 to 400, by default.

    Example:
        Targets spread twice as far as predicted:

        >>> from torch.distributions import Normal
        >>> pred, levels = Normal(torch.zeros(199), torch.ones(199)), torch.arange(1, 200) / 200
        >>> repaired = fcal.recalibration.Isotonic().fit(pred, 2 * torch.special.ndtri(levels)).transform(pred)
        >>> repaired.icdf(torch.tensor(0.9))[0]  # 2 times the normal quantile is 2.5631; the data are finite
        tensor(2.5...)
    """

    method = "isotonic"
    outermost_rank = 8  # further out, a knot would rest on too few residuals
    offset = 0.5


@register
class Conformal(_QuantileMap):
    r"""Split-conformal predictive distribution: its coverage holds for any distribution of the targets.

    Among n calibration residuals and a new one that is exchangeable with them, every rank of the new one is equally
    likely. So the distribution that gives the r-th smallest residual the probability :math:`r / (n + 1)` is right on
    average over calibration sets, for any n and any model. ``transform`` evaluates it at about :math:`\sqrt n`
    ranks and at ranks that halve towards both ends, down to the first and the last, linear in the normal quantile
    between them; beyond, the predicted distribution continues, rescaled. :meth:`interval` uses all ranks and makes no
    further assumption.

    Args:
        knots: Number of equally spaced ranks; about the square root of n, within 10 to 400, by default, and 6 if
            ``centred``.
        centred: Keep the median of every prediction: the distribution is fitted to the sizes of the residuals and
            repairs scale and shape, but neither a bias nor asymmetric errors, in return for half the noise.

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
    outermost_rank = 1
    offset = 0.0

    def __init__(self, *, knots: int | None = None, centred: bool = False) -> None:
        super().__init__(knots=knots)
        self.centred = check_flag("centred", centred)

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "centred": self.centred}

    def interval(self, pred: Distribution, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Central intervals that cover at least ``level`` of new targets, on average over calibration sets.

        Args:
            pred: Predictions of the family at fit.
            level: Their coverage, within (0, 1).

        Returns:
            Lower and upper ends, shaped like the prediction's samples; infinite where n is too small for the level.
        """
        self.transform(pred)  # rejects other families
        scores = self._fitted_tensors()["scores"]
        tail = (1 - check_number("level", level, low=1e-6, high=1 - 1e-6)) / 2
        rank = math.floor(tail * (len(scores) + 1) + _LEVEL_ROUNDING)
        shape = pred.batch_shape + pred.event_shape
        if not rank:
            like = law_of(pred).parameters[0]
            return like.new_full(shape, -math.inf), like.new_full(shape, math.inf)
        low, high = (_value_at(pred, scores[at]).expand(shape) for at in (rank - 1, len(scores) - rank))
        return low, high

    def _fitted(self, data: CalibrationData) -> dict[str, Tensor]:
        z = data.without_wild_rows().z
        knots = centred_map(z.abs().sort().values, self.knots) if self.centred else self._map_of(z.sort().values)
        return knots | {"scores": data.z.sort().values}  # the coverage of intervals is that of all rows


def centred_map(sizes: Tensor, knots: int | None = None) -> dict[str, Tensor]:
    """The odd map that gives the k-th of n sizes of residuals the probability k / (n + 1), interpolated.

    Args:
        sizes: Absolute residuals, sorted. Shape ``(n,)``.
        knots: Number of equally spaced ranks; 6 if None.

    Returns:
        Knots ``"x"`` and ``"y"``, and the ``"slopes"`` beyond the outermost, as of :class:`Conformal`.
    """
    count, knots = len(sizes), knots or _CENTRED_KNOTS
    halvings = max(int(math.log2((count + 1) / (knots + 1))), 0)  # down to the largest size
    tails = 0.5 ** torch.arange(1, halvings + 1, dtype=torch.float64) / (knots + 1)
    level = torch.cat([torch.arange(1, knots + 1, dtype=torch.float64) / (knots + 1), 1 - tails]).to(sizes.device)
    position = (level * (count + 1) - 1).clamp(0, count - 1)
    below = position.long().clamp(max=count - 2)
    x = torch.lerp(sizes[below], sizes[below + 1], position - below)
    y = normal_quantile(0.5 + 0.5 * level, 0.5 - 0.5 * level)
    gap = _MIN_GAP * robust_spread(torch.cat([-sizes.flip(0), sizes]))
    x, y = _without_ties(x, y, float(gap))
    x, y = x[x >= gap], y[x >= gap]  # the centre is a knot of its own
    zero = x.new_zeros(1)
    x, y = torch.cat([-x.flip(0), zero, x]), torch.cat([-y.flip(0), zero, y])
    return {"x": x, "y": y, "slopes": _slopes_beyond(x, y, 2 * count)}


def _value_at(pred: Distribution, z: Tensor) -> Tensor:
    law = law_of(pred)
    like = law.parameters[0]
    wide = law.to(torch.float64)
    return wide.push_forward(value_of_residual(law.family, z.to(like.device), *wide.parameters)).to(like.dtype)


def ranks_of_knots(count: int, knots: int | None, *, outermost: int) -> Tensor:
    """Rising ranks from 1 to ``count``: ``knots`` of them equally spaced, and halving towards both ends.

    Example:
        >>> ranks_of_knots(99, 4, outermost=5)
        tensor([ 5, 10, 20, 40, 60, 80, 90, 95])
    """
    number = min(knots or min(max(round(math.sqrt(count)), _MIN_KNOTS), _MAX_KNOTS), count)
    equal = torch.linspace(0, count + 1, number + 2, dtype=torch.float64)[1:-1].round().long().clamp(1, count)
    outer = []
    rank = int(equal[0]) // 2
    while rank >= outermost:
        outer.append(rank)
        rank //= 2
    ends = torch.tensor(outer, dtype=torch.long)
    return torch.cat([ends, equal, count + 1 - ends]).unique()


def robust_spread(scores: Tensor) -> Tensor:
    """Sd of a normal distribution with the quartiles of sorted residuals, or their own sd. Shape ``()``.

    Quartiles are robust: a single outlier can make the sd arbitrarily large.

    Raises:
        ValueError: All residuals are the same.
    """
    low, high = (scores[round(share * (len(scores) - 1))] for share in (0.25, 0.75))
    spread = (high - low) / QUARTILES if bool(high > low) else scores.std(correction=0)
    if not bool(spread > 0):
        raise ValueError(f"expected `target` whose residuals differ, got {len(scores)} that are all {scores[0]:g}")
    return spread


def _slopes_beyond(x: Tensor, y: Tensor, count: int) -> Tensor:
    """Slopes from the middle knot to the last one on either side with enough residuals beyond it. Shape ``(2,)``.

    Beyond the knots, the predicted distribution continues, rescaled by them.
    """
    tail = torch.tensor(min(_ENOUGH / count, 0.25), dtype=y.dtype, device=y.device)
    inside = (y.abs() <= -normal_quantile(tail, 1 - tail) + _ROUNDING).nonzero()
    low, high = (int(inside[0]), int(inside[-1])) if len(inside) > 1 else (0, len(x) - 1)
    middle = min(max((low + high) // 2, low + 1), high)
    below = (y[middle] - y[low]) / (x[middle] - x[low])
    above = (y[high] - y[middle]) / (x[high] - x[middle]) if high > middle else below
    return torch.stack([below, above])


def _without_ties(x: Tensor, y: Tensor, min_gap: float) -> tuple[Tensor, Tensor]:
    """Knots, with those that are too close to each other replaced by their mean."""
    group, start = [], -math.inf
    number = -1
    for value in x.tolist():
        if value - start >= min_gap:
            start, number = value, number + 1
        group.append(number)
    index = torch.tensor(group, device=x.device)
    sizes = torch.bincount(index)
    x, y = (v.new_zeros(number + 1).index_add(0, index, v) / sizes for v in (x, y))
    return x, y
