"""Shifts and factors of groups, estimated robustly and shrunk by their noise."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._arrays import as_labels
from fcal.distributions.family import Law
from fcal.distributions.observation import observe_valid
from fcal.metrics.accumulation import labels_of
from fcal.recalibration.calibration_data import CalibrationData, calibration_data
from fcal.recalibration.location_and_scale import errors_in_scales, has_scale
from fcal.recalibration.scaling import is_normal_scale, rescaled_prediction

_CUT = 4.0  # robust standard deviations
_MEDIAN_SIZE = 0.6744897501960817  # of a standard normal number
_PRIOR_ROWS = 10.0  # of all, that the first robust estimate of a group is mixed with
_FEWEST_ROWS = 10  # of a group; the moves of smaller ones are those of all rows together
_STEPS = 100  # of a bisection
_CLEAR = 1e-3  # chance of shifts that differ as much, if they are the same
_RELEVANT_SHIFT = 0.05  # predicted standard deviations


@dataclass(frozen=True)
class GroupMoves:
    """What is done to the predictions of each group, and last to those of groups that are not known.

    Attributes:
        shift: Shifts of the location, in predicted scales. Shape ``(groups + 1,)``.
        factor: Factors of the scale. Shape ``(groups + 1,)``.
        own: Factors of the groups by themselves, not shrunk; that of all rows for groups without any. Same shape.
        weight: Weight of the own factor of each group, 0 where it is that of the others. Same shape.
        wild: Rows that were left out. Shape ``(n,)``.
        distance: Distance of each error from the median, in robust standard deviations. Shape ``(n,)``.
        shifts_differ: Whether the shifts of groups differ by more than chance, and enough to matter.
    """

    shift: Tensor
    factor: Tensor
    own: Tensor
    weight: Tensor
    wild: Tensor
    distance: Tensor
    shifts_differ: bool


def group_labels(group: Any) -> tuple[Tensor, list[str]]:
    """Groups of rows as numbers, and their names."""
    if group is None:
        raise TypeError("expected `group`, the group of each row, got None")
    return as_labels("group", group)


def grouped_data(
    pred: Distribution, target: Tensor, valid_mask: Tensor | None, group: Any, *, at_least: int
) -> tuple[CalibrationData, Tensor, list[str]]:
    """Valid rows, the number of the group of each, and the names of the groups."""
    labels, names = group_labels(group)
    data = calibration_data(pred, target, valid_mask, at_least=at_least)
    codes = labels_of("group", labels, observe_valid(pred, target, valid_mask=valid_mask))
    assert codes is not None
    return data, codes, names


@torch.no_grad()
def group_moves(data: CalibrationData, codes: Tensor, groups: int, *, shift: bool) -> GroupMoves:
    """Shrunk shifts and factors of groups.

    Args:
        data: Valid rows.
        codes: Group of each. Shape ``(n,)``.
        groups: Number of groups.
        shift: Whether groups have shifts; they are all 0 otherwise.
    """
    errors = _errors(data.law, data)
    centre, spread = _first_guess(errors, codes, groups, shift=shift)
    first = rescaled_prediction(data.law.distribution(), centre[codes], spread[codes])
    found = calibration_data(first, data.target, None, at_least=1)
    counts = ~found.wild
    rows = _Rows(errors[counts], codes[counts], groups, power=2 if is_normal_scale(data.law) else 1)
    guess, noise = rows.means(centre, spread)
    shifts_differ = _differ(guess[:-1], noise[:-1])
    shifts = torch.cat([_shrunk(guess, noise)[0], guess[-1:]]) if shift else torch.zeros_like(guess)
    log_factor, variance = rows.log_sizes(shifts, spread)
    shrunk, weight = _shrunk(log_factor, variance)
    factor = torch.cat([shrunk, log_factor[-1:]]).exp()
    own = torch.where(log_factor.isfinite(), log_factor, log_factor[-1]).exp()
    weight = torch.cat([weight, torch.zeros_like(weight[:1])])
    return GroupMoves(shifts, factor, own, weight, found.wild, found.distance, shifts_differ)


def _errors(law: Law, data: CalibrationData) -> Tensor:
    """Errors in predicted scales; residuals of families without one. Shape ``(n, D)``, D = 1 for scalars."""
    errors = errors_in_scales(law, data.target) if has_scale(law) else data.z
    return errors.reshape(len(errors), -1).double()


def _first_guess(errors: Tensor, codes: Tensor, groups: int, *, shift: bool) -> tuple[Tensor, Tensor]:
    """Robust centre and spread of every group, and of all rows last; those of few rows are mixed with those of all."""
    order = torch.argsort(codes, stable=True)
    parts = errors[order].split(torch.bincount(codes, minlength=groups).tolist())
    middle = errors.median() if shift else errors.new_zeros(())
    whole = _spread(errors - middle)
    if not bool(whole > 0):  # more than half of the errors are the same
        whole = (errors - middle).abs().mean().clamp(min=1e-300)
    centres, spreads = [], []
    for part in parts:
        if len(part) < _FEWEST_ROWS:
            centres.append(middle)
            spreads.append(whole)
            continue
        share = part.numel() / (part.numel() + _PRIOR_ROWS)
        own = torch.lerp(middle, part.median(), share) if shift else middle
        size = _spread(part - own)
        centres.append(own)
        spreads.append(whole * (size / whole).clamp(min=1e-9).pow(share))
    return torch.stack([*centres, middle]), torch.stack([*spreads, whole])


def _spread(errors: Tensor) -> Tensor:
    return errors.abs().median() / _MEDIAN_SIZE


class _Rows:
    """Errors of rows and their groups, and statistics of each group with their sampling variances.

    Results have an entry for every group and last one for all rows together; NaN for groups of few rows.
    """

    def __init__(self, errors: Tensor, codes: Tensor, groups: int, *, power: int) -> None:
        self.errors, self.codes, self.groups, self.power = errors, codes, groups, power
        self.counts = torch.bincount(codes, minlength=groups).double()
        self.known = self.counts >= _FEWEST_ROWS

    def means(self, centre: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        """Means of errors, those far from the centre cut off, and their variances."""
        own = (self.errors - centre[self.codes, None]) / spread[self.codes, None]
        cut = own.clamp(-_CUT, _CUT).mean(1)
        mean = self._mean(cut)
        variance = (cut - mean[self.codes]).square().mean() / self.counts
        found = torch.where(self.known, centre[:-1] + spread[:-1] * mean, torch.nan), spread[:-1].square() * variance
        all_cut = ((self.errors - centre[-1]) / spread[-1]).clamp(-_CUT, _CUT).mean(1)
        last = centre[-1] + spread[-1] * all_cut.mean(), spread[-1].square() * all_cut.var() / len(all_cut)
        return torch.cat([found[0], last[0].reshape(1)]), torch.cat([found[1], last[1].reshape(1)])

    def log_sizes(self, shift: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the sizes of errors around the shift, and their variances."""
        size = self._sizes(self.errors - shift[self.codes, None], spread[self.codes, None])
        mean = self._mean(size)
        relative = (size / mean[self.codes]).var() / self.power**2  # pooled: few rows do not tell it
        log_size = spread[:-1].log() + mean.log() / self.power + self.power * relative / (2 * self.counts)
        variance = relative / self.counts * (1 + 1 / self.counts)
        everything = self._sizes(self.errors - shift[-1], spread[-1])
        last = spread[-1].log() + everything.mean().log() / self.power
        log_size = torch.where(log_size.isfinite() & self.known, log_size, torch.nan)
        return torch.cat([log_size, last.reshape(1)]), torch.cat([variance, last.new_zeros(1)])

    def _sizes(self, errors: Tensor, spread: Tensor) -> Tensor:
        return (errors / spread).abs().clamp(max=_CUT).pow(self.power).mean(1)

    def _mean(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.groups).index_add(0, self.codes, values) / self.counts


def _shrunk(values: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Values of groups, those that are not known well drawn to the mean, and the weight of each group's own.

    The last value is that of all rows together: groups that are not known at all have it.
    """
    values, variances, whole = values[:-1], variances[:-1], values[-1]
    known = values.isfinite() & (variances > 0) & variances.isfinite()
    if not bool(known.any()):
        return whole.expand(values.shape).clone(), torch.zeros_like(values)
    own, noise = values[known], variances[known]
    between = _variance_between(own, noise)
    precision = 1 / (noise + between)
    mean = (precision * own).sum() / precision.sum()
    weight = torch.zeros_like(values)
    weight[known] = between / (between + noise)
    return torch.where(known, mean + weight * (torch.nan_to_num(values) - mean), whole), weight


def _variance_between(values: Tensor, variances: Tensor) -> Tensor:
    """Variance of true values, by the scatter that it lets expect (Paule and Mandel); 0 if chance explains all."""
    degrees = len(values) - 1

    def excess(between: Tensor) -> Tensor:
        return _scatter(values, variances + between) - degrees

    low = values.new_zeros(())
    if degrees < 1 or bool(excess(low) <= 0):
        return low
    high = (values.max() - values.min()).square() + variances.max()
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if bool(excess(middle) > 0) else (low, middle)
    return (low + high) / 2


def _scatter(values: Tensor, variances: Tensor) -> Tensor:
    """Weighted sum of squares around the weighted mean."""
    precision = 1 / variances
    mean = (precision * values).sum() / precision.sum()
    return (precision * (values - mean).square()).sum()


def _differ(values: Tensor, variances: Tensor) -> bool:
    """Whether values of groups differ by more than chance, and enough to matter."""
    known = values.isfinite() & (variances > 0)
    degrees = int(known.sum()) - 1
    if degrees < 1:
        return False
    scatter = _scatter(values[known], variances[known])
    chance = torch.special.gammaincc(scatter.new_tensor(degrees / 2), scatter / 2)
    spread = math.sqrt(float(_variance_between(values[known], variances[known])))
    return bool(chance < _CLEAR) and spread > _RELEVANT_SHIFT
