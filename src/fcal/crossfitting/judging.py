"""From the networks that left a row out to all networks of an ensemble: what they would predict, and how they err."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal

from fcal._datasets import per_target
from fcal.crossfitting.held_out import as_distribution, counted, tame
from fcal.distributions.family import law_of
from fcal.distributions.functional import has_location, index_select
from fcal.models.ensembles import mixture

_SMALLEST_RATIO = 0.25  # of the squared errors: beyond it, disagreement is no correction any more
_STEPS = 60
_LARGEST_PART = 0.6  # of the squared errors of a network, for the disagreement of networks
_LARGEST_DISAGREEMENT = 10.0  # on unseen rows relative to seen ones: beyond it, networks know what they have seen
_WINSOR = 35.0  # medians of a squared normal residual: four standard deviations
_LARGEST_STEP = 1.2  # ratio of squared residuals, from the variance of one network to the mean of two
_LARGEST_CHANGE = 0.5  # of the mean square, by the sample of judged rows
_FEWEST_TARGETS = 20


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Rows of an out-of-bag ensemble as if it had not seen them.

    Attributes:
        rows: Indices of the judged rows. Shape ``(j,)``.
        pred: What the whole ensemble would predict for them if they were new.
        target: Their targets, with errors as large as those of the whole ensemble.
        disagreement: Variance of the networks' means on rows that they have not seen, relative to that on rows that
            they have seen; NaN where no row is left out by two networks.
        error_ratio: Size of the errors of the whole ensemble relative to those of the judging networks.
        sample_ratio: Size of the errors of all rows relative to those of the judged ones, which are a sample.
    """

    rows: Tensor
    pred: Distribution
    target: Tensor
    disagreement: float
    error_ratio: float
    sample_ratio: float


def judged(
    preds: Sequence[Distribution], left_out: Tensor, target: Tensor, *, valid_mask: Tensor | None = None
) -> Judged:
    r"""Predictions and errors for rows as if all networks had left them out, from the few that did.

    Row i is judged by the mean of :math:`m_i` networks, new rows by that of all M. If :math:`V` is the variance of the
    networks' means on rows that they have not seen, the squared error of m networks exceeds that of M networks by
    :math:`V (1/m - 1/M)` in expectation, and the variance of their mixture,
    :math:`\overline{s^2} + V (1 - 1/m)`, is smaller by as much. So the ensemble would predict the variance

    .. math:: \sigma_i^2 = \overline{s_i^2} + V_i\, (1 - 1/M)

    and the errors of the judging networks are multiplied by

    .. math:: \sqrt{c / (c + g_i)}, \qquad g_i = \bar V\, \overline{s_i^2}\, (1/m_i - 1/M) / \sigma_i^2

    where :math:`\bar V` is the mean of :math:`V_i / \overline{s_i^2}`, and c, the mean of the squared errors of the
    ensemble in units of :math:`\sigma_i^2`, solves :math:`\overline{z_i^2 / (c + g_i)} = 1`. The variance between the
    networks that left row i out, where there are two or more, is a very noisy estimate of :math:`V_i`. Here it is taken
    from the variance between those that have seen the row, times the ratio of the two variances, pooled over all rows;
    and drawn towards the pooled level as far as makes it no noisier than the variance of M networks on a new row. (A
    variance between networks of both kinds would depend on the target, which those that have seen it were drawn to.)
    Predicted variances that vary between networks make residuals by few of them larger, which is measured on the rows
    that several left out.

    The judged rows are a sample, whose errors are by chance a little larger or smaller than those of all rows. The
    networks that have seen a row err in the same direction as those that have not, mostly by the noise of its target,
    so their squared residuals :math:`s_i`, known for all rows, tell by how much. The mean square of the judged errors
    is corrected by the regression :math:`b\, (\bar s_{all} - \bar s_{judged})`, as in survey sampling.

    Args:
        preds: For each network, its predictions for all rows.
        left_out: True where a network left out a row. Shape ``(members, n)``.
        target: Targets of all rows, NaN where missing. Shape ``(n, ...)``.
        valid_mask: True where a target counts; shaped like ``target`` or its rows.

    Returns:
        The judged rows. The predicted distribution is the normal one with the moments of the mixture. Predictions
        without a location in the unit of the target, such as LogNormal ones, remain mixtures of the judging networks,
        without any correction.

    Example:
        Two networks, means 0 and 2, that both left out all rows: V is 2, and its variance is 1 + 2 (1 - 1 / 2).

        >>> preds = [Normal(torch.full((4,), mean), torch.ones(4)) for mean in (0.0, 2.0)]
        >>> judged(preds, torch.ones(2, 4, dtype=torch.bool), torch.tensor([3.0, -1.0, 3.0, -1.0])).pred.scale
        tensor([1.4142, 1.4142, 1.4142, 1.4142])
    """
    rows = left_out.any(0).nonzero().squeeze(1)
    out, everywhere, everything = left_out[:, rows], target, list(preds)
    preds = [as_distribution(index_select(pred, rows)) for pred in preds]
    target = target[rows]
    counts = counted(everywhere, valid_mask)
    if not has_normal_moments(everything):
        pred = _weighted_mixture(preds, out)
        return Judged(rows=rows, pred=pred, target=target, disagreement=math.nan, error_ratio=1.0, sample_ratio=1.0)
    moments = _Moments.of(preds, out)
    error = target.to(moments.center) - moments.center
    usual = tame(torch.where(counts[rows], error / moments.spread.sqrt(), torch.nan))
    ratio, level, disagreement = moments.disagreement(error, usual)
    added = disagreement * (1 - 1 / len(preds))
    steadier = _steadiness(preds, out, target, added, usual) ** (1 / moments.count - 1 / len(preds))
    variance = (moments.spread + added) * steadier
    excess = level * moments.spread * (1 / moments.count - 1 / len(preds)) / variance
    square = error.square() / variance
    shrink = _shrinking(square, excess, usual)
    seen = torch.where(counts, _seen_squares(everything, left_out, everywhere), torch.nan)
    sample = _sample_ratio(square * shrink.square(), seen[rows], usual, seen[tame(seen.sqrt())])
    dtype = preds[0].mean.dtype
    return Judged(
        rows=rows,
        pred=Normal(moments.center.to(dtype), variance.sqrt().to(dtype)),
        target=torch.where(target.isfinite(), moments.center + sample * shrink * error, target.to(error)).to(dtype),
        disagreement=ratio,
        error_ratio=_root_ratio((square * shrink.square())[usual], square[usual]),
        sample_ratio=sample,
    )


def has_normal_moments(preds: Sequence[Distribution]) -> bool:
    """Whether the mixture of predictions is summarised by its mean and variance: a real line, and finite moments."""
    return all(has_location(pred) and not pred.event_shape for pred in preds) and all(
        bool(value.isfinite().all()) for pred in preds for value in (pred.mean, pred.stddev)
    )


@dataclass(frozen=True)
class _Moments:
    """Moments of the networks' predictions for the judged rows; float64, shape of their targets.

    Attributes:
        members: Number M of networks.
        count: Number m of networks that judge the row.
        center: Mean of their means.
        spread: Mean of their variances.
        unseen: Unbiased variance of their means; NaN for one network.
        seen: Unbiased variance of the means of the other networks; NaN for fewer than two.
    """

    members: int
    count: Tensor
    center: Tensor
    spread: Tensor
    unseen: Tensor
    seen: Tensor

    @classmethod
    def of(cls, preds: Sequence[Distribution], out: Tensor) -> "_Moments":
        means, variances = _means_and_variances(preds)
        judging = out.to(means.device).double().reshape(out.shape + (1,) * (means.dim() - 2)).expand(means.shape)
        count, center, unseen = _mean_and_variance(means, judging)
        _, _, seen = _mean_and_variance(means, 1 - judging)
        return cls(len(preds), count, center, (judging * variances).sum(0) / count, unseen, seen)

    def disagreement(self, error: Tensor, usual: Tensor) -> tuple[float, float, Tensor]:
        """Ratio of the two variances, their level relative to the spread on unseen rows, and the variance on each row.

        The first two are pooled; the last one is as if no network had seen the row. The level is at most what squared
        errors of the judging networks leave room for: estimated from few rows, it may be far too large. Networks that
        agree on what they have seen, because they know it by heart, tell nothing about single rows.
        """
        unseen, seen = (_pooled(variance / self.spread, usual) for variance in (self.unseen, self.seen))
        ratio = unseen / seen if seen > 0 else math.nan
        level = unseen if math.isfinite(unseen) else seen if math.isfinite(seen) else 0.0
        most = _pooled(error.square() / self.spread, usual)
        level = min(level, _LARGEST_PART * most) if math.isfinite(most) else level
        telling = seen > 0 and not unseen > _LARGEST_DISAGREEMENT * seen  # also where only one of them is known
        by_seen = self.seen * (level / seen) if telling else torch.full_like(self.seen, torch.nan)
        known = by_seen.isfinite()
        by_row = torch.where(known, by_seen, self.unseen * (level / unseen if unseen > 0 else 1.0)).nan_to_num()
        degrees = torch.where(known, self.members - self.count - 1, self.count - 1).clamp(min=0)
        weight = (degrees / (self.members - 1)).sqrt()
        return ratio, level, weight * by_row + (1 - weight) * level * self.spread


def _means_and_variances(preds: Sequence[Distribution]) -> tuple[Tensor, Tensor]:
    """Predicted means and variances, in float64 before anything is squared."""
    means = torch.stack([pred.mean.double() for pred in preds])
    return means, torch.stack([pred.stddev.double().square() for pred in preds])


def _mean_and_variance(means: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Number of networks with weight 1, mean of their means, and its unbiased variance (NaN for fewer than two)."""
    count = weight.sum(0)
    center = (weight * means).sum(0) / count
    squares = (weight * (means - center).square()).sum(0)
    return count, center, torch.where(count > 1, squares / (count - 1), torch.nan)


def _pooled(relative: Tensor, usual: Tensor) -> float:
    """Mean over rows, without those that are far beyond all others; NaN where there are none."""
    known = relative[usual & relative.isfinite()]
    known = known[tame(known.sqrt())]
    return float(known.mean()) if len(known) else math.nan


def _shrinking(square: Tensor, excess: Tensor, usual: Tensor) -> Tensor:
    """Factor of every error; ``c`` is the root of a function that falls from its lower bound on."""
    sizes, gaps = square[usual], excess[usual]
    mean = float(sizes.mean()) if len(sizes) else 0.0
    if mean <= 0:
        return torch.ones_like(square)
    low, high = _SMALLEST_RATIO * mean, mean
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if float((sizes / (middle + gaps)).mean()) > 1 else (low, middle)
    return (high / (high + excess)).sqrt()


def _steadiness(preds: Sequence[Distribution], out: Tensor, target: Tensor, added: Tensor, usual: Tensor) -> float:
    """How much larger squared residuals are by the variance of one network than by the mean of many variances.

    Predicted variances vary from one network to the next, and the mean of reciprocals is larger than the reciprocal of
    the mean, unless variances vary as the errors do. Measured on the rows that two networks left out or more.
    """
    means, variances = _means_and_variances(preds)
    judging = out.to(means.device).reshape(out.shape + (1,) * (means.dim() - 2)).expand(means.shape).double()
    count = judging.sum(0)
    rows = usual & (count > 1)
    if int(rows.sum()) < _FEWEST_TARGETS:
        return 1.0
    squares = judging * (target.to(means) - means).square()
    each = (squares / (variances + added)).sum(0)[rows]
    together = (squares.sum(0) / ((judging * variances).sum(0) / count + added))[rows]
    known = tame(together.sqrt()) & tame(each.sqrt())
    ratio = float(each[known].sum() / together[known].sum()) if bool(together[known].any()) else 1.0
    power = 1 / (1 - float((1 / count[rows]).mean()))
    return min(max(ratio, 1 / _LARGEST_STEP), _LARGEST_STEP) ** power


def _root_ratio(squares: Tensor, others: Tensor) -> float:
    """Root of the ratio of two means; 1 where there are none."""
    return float((squares.mean() / others.mean()).sqrt()) if bool(others.any()) else 1.0


def _seen_squares(preds: Sequence[Distribution], left_out: Tensor, target: Tensor) -> Tensor:
    """Mean squared residual of the networks that have seen each row; NaN where none has. Shape of the targets."""
    total, count = torch.zeros(target.shape, dtype=torch.float64), torch.zeros(target.shape, dtype=torch.float64)
    for pred, out in zip(preds, left_out, strict=True):
        seen = per_target(~out, target).to(pred.mean.device)
        square = ((target.double() - pred.mean.double()) / pred.stddev.double()).square()
        total = total.to(square.device) + torch.where(seen, square, 0.0)
        count = count.to(square.device) + seen
    return total / count


def _sample_ratio(square: Tensor, seen: Tensor, usual: Tensor, seen_anywhere: Tensor) -> float:
    """Root of the mean square of all rows relative to that of the judged ones, by regression on the seen residuals."""
    usual = usual & seen.isfinite()
    if int(usual.sum()) < _FEWEST_TARGETS or not len(seen_anywhere):
        return 1.0
    y, x = square[usual], seen[usual]
    edge_y, edge_x = (_WINSOR * values.median() for values in (y, x))  # no tail decides
    y, x, everywhere = y.clamp(max=edge_y), x.clamp(max=edge_x), seen_anywhere.clamp(max=edge_x)
    spread = (x - x.mean()).square().sum()
    if not bool(spread > 0):
        return 1.0
    slope = ((x - x.mean()) * (y - y.mean())).sum() / spread
    change = slope.clamp(min=0.0) * (everywhere.mean() - x.mean()) / y.mean()
    return float((1 + change.clamp(-_LARGEST_CHANGE, _LARGEST_CHANGE)).sqrt())


def _weighted_mixture(preds: Sequence[Distribution], out: Tensor) -> MixtureSameFamily:
    """Mixture of the networks that left out each row."""
    components = mixture(preds).component_distribution
    like, shape = law_of(components).parameters[0], components.batch_shape
    logits = torch.where(out.T.to(like.device), 0.0, -torch.inf).to(like.dtype)
    logits = logits.reshape(len(logits), *(1,) * (len(shape) - 2), -1).expand(shape)
    return MixtureSameFamily(Categorical(logits=logits), components)
