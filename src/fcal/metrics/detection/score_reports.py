"""Calibration of scores: of the detections with a score of 0.8, are 80 % right?"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcal._checks import check_integer, check_values
from fcal.metrics.clusters import interval_of_error
from fcal.metrics.report import Floor, Interval, plain

_Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

_RUNS = 1000
_SEED = 0  # of floors and intervals: equal data have equal reports
_FINE = 1000  # steps of a score within which detections count as equally probable in the simulation of a floor


@dataclass(frozen=True, kw_only=True)
class ScoreReport:
    """Scores against the share of detections that are right, in bins of equal width.

    Attributes:
        n: Number of detections.
        images: Number of images that have any.
        bins: Number of bins between 0 and 1.
        ece: Mean over detections of the gap between mean score and share of right detections in their bin, and its
            95 % interval by resampling whole images.
        ece_floor: The same of perfect scores: each of these detections is right with the probability that its score
            says, independently of the others.
        mce: Largest gap of a bin.
        mean_score: Over all detections; above ``right`` where scores promise too much.
        right: Share of detections that are right.
        score: Mean score of each bin, NaN where it is empty. Shape ``(bins,)``, as are the next two.
        share: Share of right detections in each bin, NaN where it is empty.
        count: Number of detections in each bin.
    """

    n: int
    images: int
    bins: int
    ece: Interval
    ece_floor: Floor
    mce: float
    mean_score: float
    right: float
    score: tuple[float, ...]
    share: tuple[float, ...]
    count: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dictionaries for JSON; numbers that are not finite become None."""
        return {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}


def score_calibration(scores: Tensor, right: Tensor, *, image: Tensor | None = None, bins: int = 20) -> ScoreReport:
    r"""Expected calibration error of scores with its noise.

    .. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n} \left| \frac{1}{n_b} \sum_{i \in b} (s_i - r_i) \right|

    over bins :math:`b` of equal width, which the last score of 1 closes. It is never 0 on few data: compare it with
    its floor, and never across ``bins``.

    Args:
        scores: Score of each detection, within [0, 1]. Shape ``(n,)``.
        right: Whether it is right. Shape ``(n,)``, bool.
        image: Integers, equal for detections of one image, which the interval resamples together; every detection on
            its own by default. Shape ``(n,)``.
        bins: Number of bins.

    Returns:
        The error, its interval, its floor and the reliability curve.

    Raises:
        TypeError: Wrong types or dtypes.
        ValueError: No detection, shapes that do not fit, or scores outside [0, 1].

    Example:
        >>> scores, right = torch.tensor([0.9, 0.9, 0.9, 0.1]), torch.tensor([True, False, False, False])
        >>> report = score_calibration(scores, right, bins=2)
        >>> round(report.ece.value, 6)  # (3 |0.9 - 1/3| + |0.1 - 0|) / 4
        0.45
        >>> report.count
        (1, 3)

    Reference:
        Guo et al. (2017), "On Calibration of Modern Neural Networks".
    """
    check_integer("bins", bins, at_least=1, at_most=_FINE)
    _check(scores, right, image)
    values, hits = scores.detach().double().cpu().numpy(), right.cpu().numpy()
    bin_of = np.minimum((values * bins).astype(np.int64), bins - 1)
    cluster = np.arange(len(values)) if image is None else np.unique(image.cpu().numpy(), return_inverse=True)[1]
    tables = [_table(cluster, bin_of, bins, weight) for weight in (np.ones_like(values), values, hits.astype(float))]
    count, total, good = (table.sum(0) for table in tables)
    floor = _floor(values, bins)
    with np.errstate(invalid="ignore"):
        score, share = total / count, good / count
    return ScoreReport(
        n=len(values),
        images=len(tables[0]),
        bins=bins,
        ece=interval_of_error(_ece(total - good, count), _resampled(tables), floor),
        ece_floor=floor,
        mce=float(np.nanmax(np.abs(score - share))),
        mean_score=float(values.mean()),
        right=float(hits.mean()),
        score=tuple(score.tolist()),
        share=tuple(share.tolist()),
        count=tuple(count.astype(int).tolist()),
    )


def _check(scores: Tensor, right: Tensor, image: Tensor | None) -> None:
    for name, value in {"scores": scores, "right": right, "image": scores if image is None else image}.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"expected `{name}` a torch.Tensor, got {type(value).__name__}")
        if value.shape != scores.shape or value.dim() != 1:
            raise ValueError(f"expected `{name}` of shape (n,) like `scores`, got {tuple(value.shape)}")
    if right.dtype != torch.bool:
        raise TypeError(f"expected `right` of dtype torch.bool, got {right.dtype}")
    if not len(scores):
        raise ValueError("expected `scores` of at least 1 detection, got 0")
    check_values("scores", "within [0, 1]", scores, (scores >= 0) & (scores <= 1))


def _ece(gaps: _Array, counts: _Array) -> _Array:
    """ECE from sums over each bin of score minus right, and numbers of detections. Shape ``(...)``."""
    errors: _Array = np.abs(gaps).sum(-1) / np.maximum(counts.sum(-1), 1)
    return errors


def _table(cluster: np.ndarray[Any, Any], bin_of: np.ndarray[Any, Any], bins: int, weight: _Array) -> _Array:
    """Sums of a weight in each bin of each image. Shape ``(images, bins)``."""
    images = int(cluster.max()) + 1
    return np.bincount(cluster * bins + bin_of, weight, images * bins).astype(np.float64).reshape(images, bins)


def _resampled(tables: list[_Array]) -> _Array:
    """ECE of data sets of as many images, drawn with replacement. Shape ``(runs,)``."""
    count, total, good = tables
    images = len(count)
    generator = np.random.default_rng(_SEED)
    errors = []
    for runs in np.array_split(np.arange(_RUNS), max(_RUNS * images // 2**22, 1)):
        weights = generator.multinomial(images, np.full(images, 1 / images), len(runs)).astype(np.float64)
        errors.append(_ece(weights @ (total - good), weights @ count))
    return np.concatenate(errors)


def _floor(scores: _Array, bins: int) -> Floor:
    """ECE of the same scores where each is right with its own probability.

    Only the number of right detections in a bin counts. Those within a thousandth of a bin's width are drawn together,
    from a binomial distribution with their mean score, which has their variance to 1e-6.
    """
    fine = np.minimum((scores * bins * _FINE).astype(np.int64), bins * _FINE - 1)
    steps, number = np.unique(fine, return_inverse=True)
    count, total = np.bincount(number), np.bincount(number, scores)
    starts = np.flatnonzero(np.diff(steps // _FINE, prepend=-1))
    generator = np.random.default_rng(_SEED)
    probability = np.clip(total / count, 0, 1)
    errors = []
    for runs in np.array_split(np.arange(_RUNS), max(_RUNS * len(steps) // 2**22, 1)):
        gaps = total - generator.binomial(count, probability, (len(runs), len(steps)))
        errors.append(np.abs(np.add.reduceat(gaps, starts, axis=1)).sum(1) / len(scores))
    draws = np.concatenate(errors)
    return Floor(float(draws.mean()), float(np.quantile(draws, 0.95)))
