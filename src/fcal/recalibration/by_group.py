"""Repair of groups: a factor, and a shift, of each group, small groups shrunk towards the others, then one method."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from fcal._arrays import as_flags, as_labels, as_numbers
from fcal._checks import check_flag
from fcal.distributions.family import Law, law_of
from fcal.distributions.observation import observe_valid
from fcal.metrics import fingerprint
from fcal.metrics.accumulation import labels_of
from fcal.recalibration.calibration_data import CalibrationData, WildRows, calibration_data
from fcal.recalibration.location_and_scale import errors_in_scales, has_scale
from fcal.recalibration.recalibrator import METHODS, Recalibrator, elementwise, register, signature
from fcal.recalibration.scaling import is_normal_scale, rescaled_prediction

_MOVING = ("affine", "isotonic", "conformal", "gp-beta")  # methods that repair a bias
_CUT = 4.0  # robust standard deviations
_MEDIAN_SIZE = 0.6744897501960817  # of a standard normal number
_PRIOR_ROWS = 10.0  # of all, that the first robust estimate of a group is mixed with
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


@register
class ByGroup(Recalibrator):
    r"""Repairs the error bars of each group, then those of all with a method; small groups lean on the others.

    The logarithm of the factor of a group is the weighted mean of its own and of the mean of all groups,

    .. math:: \log s_g' = \mu + \frac{\tau^2}{\tau^2 + v_g} (\log s_g - \mu)

    where :math:`v_g`, about 1 / 2n for normal errors, is the sampling variance of the logarithm, and :math:`\tau^2` the
    variance of the true ones (empirical Bayes; :math:`\tau^2` after Paule and Mandel). Groups of 20 rows that differ by
    a factor of 1.1 are hardly told apart, groups of 5,000 keep their own factor. With ``shift`` the biases of groups
    are treated likewise. The method is then fitted to the rows of all groups together: their shape is the same.

    Sizes of errors are cut off at four robust standard deviations, and wild rows are found among the errors of all
    groups in units of their own, so that no single row decides about a group.

    A group that was not there at fit has the factor and the shift of all rows together.

    Args:
        recalibrator: The method; what it was fitted to does not matter.
        shift: Whether to repair the bias of each group; by default if the method repairs a bias.

    Example:
        Errors of group "b" are three times as large as predicted:

        >>> from torch.distributions import Normal
        >>> generator = torch.Generator().manual_seed(0)
        >>> names = ["a"] * 500 + ["b"] * 500
        >>> factor = torch.tensor([1.0, 3.0]).repeat_interleave(500)
        >>> pred, target = Normal(torch.zeros(1000), 1.0), factor * torch.randn(1000, generator=generator)
        >>> repair = ByGroup(fcal.recalibration.Temperature()).fit(pred, target, group=names)
        >>> repair.transform(Normal(torch.zeros(2), torch.ones(2)), group=["a", "b"]).stddev
        tensor([0.9..., 2.9...])
    """

    method = "by-group"

    def __init__(self, recalibrator: Recalibrator, *, shift: bool | None = None) -> None:
        if not isinstance(recalibrator, Recalibrator) or isinstance(recalibrator, ByGroup):
            raise TypeError(f"expected `recalibrator` a method such as Temperature(), got {recalibrator!r}")
        if getattr(recalibrator, "per_output", False):
            raise ValueError("expected `recalibrator` without per_output for groups, got one with it")
        self.recalibrator = type(recalibrator)(**recalibrator._options())
        self.shift = recalibrator.method in _MOVING if shift is None else check_flag("shift", shift)
        self.groups: tuple[str, ...] = ()

    def fit(self, pred: Distribution, target: Tensor, *, valid_mask: Tensor | None = None, group: Any = None) -> Self:
        """Fit to predictions, their targets and groups.

        Args:
            pred: As for every recalibrator.
            target: As for every recalibrator.
            valid_mask: As for every recalibrator.
            group: The group of each row: numbers or names, in a tensor, array, series or list.

        Returns:
            Itself.

        Raises:
            TypeError: No groups, or a family that the method cannot repair.
            ValueError: Too few valid targets, or groups of another shape.
        """
        target = as_numbers("target", target)
        mask = None if valid_mask is None else as_flags("valid_mask", valid_mask)
        data, codes, names = grouped_data(pred, target, mask, group, at_least=self.recalibrator.least_rows)
        moves = group_moves(data, codes, len(names), shift=self.shift)
        adjusted = moved(data.law.distribution(), moves.shift[codes], moves.factor[codes])
        self.recalibrator.fit(adjusted, data.target)
        self.groups, self._family = tuple(names), signature(data.law)
        counts = torch.bincount(codes, minlength=len(names))
        self._tensors = {"shift": moves.shift, "factor": moves.factor, "own": moves.own, "weight": moves.weight}
        self._tensors |= {"rows": torch.cat([counts, counts.sum().reshape(1)])}
        self._tensors |= {f"common.{name}": t for name, t in self.recalibrator._fitted_tensors().items()}
        count = int(moves.wild.sum())
        self.wild = WildRows(count=count, rows=len(codes), farthest=float(moves.distance.max())) if count else None
        self.fitted_on = fingerprint(target, mask)
        return self

    def transform(self, pred: Distribution, *, group: Any = None) -> Distribution:
        """Repair predictions.

        Args:
            pred: Predictions of the family at fit.
            group: The group of each row. Rows of groups that were not there at fit have the repair of all rows
                together, with a warning that counts them.

        Returns:
            Repaired predictions of the same shape and dtype, with ``fitted_on`` as an attribute.

        Raises:
            TypeError: No groups.
            ValueError: It is not fitted, or was fitted on another family.
        """
        codes = self.codes(group)
        unseen = int((codes == len(self.groups)).sum())
        if unseen:
            text = f"{unseen:,} of {codes.numel():,} rows are of groups that were not there at fit"
            warnings.warn(f"{text}: they get the repair of all rows together", UserWarning, stacklevel=2)
        return self.transform_coded(pred, codes)

    def codes(self, group: Any, names: Sequence[str] | None = None) -> Tensor:
        """Number of the group of each row, as at fit; that of unknown groups is the number of groups.

        Args:
            group: The group of each row, or its index in ``names``.
            names: Names of the groups that ``group`` has the indices of.
        """
        self._fitted_tensors()
        own, labels = _labels(group) if names is None else (group, list(names))
        number = {name: code for code, name in enumerate(self.groups)}
        table = torch.tensor([number.get(name, len(number)) for name in labels], dtype=torch.long, device=own.device)
        return table[own]

    def transform_coded(self, pred: Distribution, codes: Tensor) -> Distribution:
        """Repair predictions whose groups are numbers; see :meth:`codes`."""
        tensors = self._fitted_tensors()
        if not isinstance(pred, Distribution):
            raise TypeError(f"expected `pred` a torch.distributions.Distribution, got {type(pred).__name__}")
        law = law_of(pred)
        if signature(law) != self._family:
            raise ValueError(f"expected `pred` of the family at fit, {self._family}, got {signature(law)}")
        base = elementwise(pred)
        if codes.shape != pred.batch_shape:
            raise ValueError(f"expected `group` of shape {tuple(pred.batch_shape)}, got {tuple(codes.shape)}")
        codes = codes.reshape(codes.shape + (1,) * (len(base.batch_shape) - codes.dim())).expand(base.batch_shape)
        adjusted = moved(base, tensors["shift"][codes], tensors["factor"][codes])
        repaired: Any = self.recalibrator._repaired(adjusted, self._common(tensors))
        event_dims = len(pred.event_shape) - len(repaired.event_shape)
        repaired = Independent(repaired, event_dims, validate_args=False) if event_dims else repaired
        repaired.fitted_on = self.fitted_on
        return repaired

    def by_name(self) -> dict[str, dict[str, float]]:
        """Of every group its rows, its own factor, the weight of that, and the factor and the shift in use.

        Factors are without that of the method which follows.
        """
        keys = ("rows", "own", "weight", "factor", "shift")
        columns = [self._fitted_tensors()[key][:-1].tolist() for key in keys]
        return {name: dict(zip(keys, row, strict=True)) for name, *row in zip(self.groups, *columns, strict=True)}

    @property
    def keeps_family(self) -> bool:
        """Whether the method does."""
        return self.recalibrator.keeps_family

    def numbers(self) -> dict[str, Any]:
        """Fitted parameters: how many groups, the range of their factors, and what the method has."""
        *factors, unseen = self._fitted_tensors()["factor"].tolist()
        found = {"groups": len(self.groups), "method": self.recalibrator.method, "smallest_factor": min(factors)}
        return {**found, "largest_factor": max(factors), "unseen_factor": unseen, **self.recalibrator.numbers()}

    @property
    def tensor_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the fitted tensors, which depend on the method."""
        common = (f"common.{name}" for name in self.recalibrator.tensor_names)
        return ("shift", "factor", "own", "weight", "rows", *common)

    def _common(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensors[f"common.{name}"] for name in self.recalibrator.tensor_names}

    def _options(self) -> dict[str, Any]:
        inner = {"method": self.recalibrator.method, "options": self.recalibrator._options()}
        return {"recalibrator": inner, "shift": self.shift, "groups": list(self.groups)}

    @classmethod
    def _from_options(cls, options: Mapping[str, Any]) -> Self:
        inner = options["recalibrator"]
        loaded = cls(METHODS[inner["method"]]._from_options(inner["options"]), shift=options["shift"])
        loaded.groups = tuple(options["groups"])
        return loaded

    def _restored(self) -> None:
        tensors = self._fitted_tensors()
        if len(tensors["factor"]) != len(self.groups) + 1:
            raise ValueError(f"expected `folder` with factors of {len(self.groups)} groups, got others")
        self.recalibrator._tensors = self._common(tensors)

    def _fitted(self, data: CalibrationData) -> dict[str, Tensor]:
        raise NotImplementedError  # ``fit`` needs the groups

    def _repaired(self, pred: Distribution, tensors: Mapping[str, Tensor]) -> Distribution:
        raise NotImplementedError  # ``transform`` needs the groups


def _labels(group: Any) -> tuple[Tensor, list[str]]:
    if group is None:
        raise TypeError("expected `group`, the group of each row, got None")
    return as_labels("group", group)


def grouped_data(
    pred: Distribution, target: Tensor, valid_mask: Tensor | None, group: Any, *, at_least: int
) -> tuple[CalibrationData, Tensor, list[str]]:
    """Valid rows, the number of the group of each, and the names of the groups."""
    labels, names = _labels(group)
    data = calibration_data(pred, target, valid_mask, at_least=at_least)
    codes = labels_of("group", labels, observe_valid(pred, target, valid_mask=valid_mask))
    assert codes is not None
    return data, codes, names


def moved(pred: Distribution, shift: Tensor, factor: Tensor) -> Distribution:
    """Elementwise predictions with a shift and a factor of their own each."""
    return rescaled_prediction(pred, shift, factor)


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
    first = moved(data.law.distribution(), centre[codes], spread[codes])
    found = calibration_data(first, data.target, None, at_least=1)
    counts = ~found.wild
    rows = _Rows(errors[counts], codes[counts], groups, power=2 if is_normal_scale(data.law) else 1)
    guess, noise = rows.means(centre, spread)
    shifts_differ = _differ(guess[:-1], noise[:-1])
    shifts = torch.cat([_shrunk(guess[:-1], noise[:-1])[0], guess[-1:]]) if shift else torch.zeros_like(guess)
    log_factor, variance = rows.log_sizes(shifts, spread)
    shrunk, weight = _shrunk(log_factor[:-1], variance[:-1])
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
        share = part.numel() / (part.numel() + _PRIOR_ROWS)
        own = torch.lerp(middle, part.median(), share) if shift and len(part) else middle
        size = _spread(part - own) if len(part) else whole
        centres.append(own)
        spreads.append(whole * (size / whole).clamp(min=1e-9).pow(share))
    return torch.stack([*centres, middle]), torch.stack([*spreads, whole])


def _spread(errors: Tensor) -> Tensor:
    return errors.abs().median() / _MEDIAN_SIZE


class _Rows:
    """Errors of rows and their groups, and statistics of each group with their sampling variances.

    Results have an entry for every group and last one for all rows together; NaN for groups without rows.
    """

    def __init__(self, errors: Tensor, codes: Tensor, groups: int, *, power: int) -> None:
        self.errors, self.codes, self.groups, self.power = errors, codes, groups, power
        self.counts = torch.bincount(codes, minlength=groups).double()

    def means(self, centre: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        """Means of errors, those far from the centre cut off, and their variances."""
        own = (self.errors - centre[self.codes, None]) / spread[self.codes, None]
        cut = own.clamp(-_CUT, _CUT).mean(1)
        mean = self._mean(cut)
        variance = (cut - mean[self.codes]).square().mean() / self.counts
        found = centre[:-1] + spread[:-1] * mean, spread[:-1].square() * variance
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
        log_size = torch.where(log_size.isfinite() & (self.counts > 0), log_size, torch.nan)
        return torch.cat([log_size, last.reshape(1)]), torch.cat([variance, last.new_zeros(1)])

    def _sizes(self, errors: Tensor, spread: Tensor) -> Tensor:
        return (errors / spread).abs().clamp(max=_CUT).pow(self.power).mean(1)

    def _mean(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.groups).index_add(0, self.codes, values) / self.counts


def _shrunk(values: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Values of groups, those that are not known well drawn to the mean, and the weight of each group's own."""
    known = values.isfinite() & (variances > 0) & variances.isfinite()
    if not bool(known.any()):
        return torch.nan_to_num(values), torch.zeros_like(values)
    own, noise = values[known], variances[known]
    between = _variance_between(own, noise)
    precision = 1 / (noise + between)
    mean = (precision * own).sum() / precision.sum()
    weight = torch.zeros_like(values)
    weight[known] = between / (between + noise)
    return mean + weight * (torch.where(known, values, mean) - mean), weight


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
