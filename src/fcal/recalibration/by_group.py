"""Repair of groups: a factor, and a shift, of each group, small groups shrunk towards the others, then one method."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from fcal._arrays import as_flags, as_numbers
from fcal._checks import check_flag
from fcal.distributions.family import law_of
from fcal.metrics import fingerprint
from fcal.recalibration.calibration_data import CalibrationData, WildRows
from fcal.recalibration.group_moves import group_labels, group_moves, grouped_data
from fcal.recalibration.recalibrator import METHODS, Recalibrator, elementwise, register, signature
from fcal.recalibration.scaling import rescaled_prediction

_MOVING = ("affine", "isotonic", "conformal", "gp-beta")  # methods that repair a bias


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
        tensor([1.0..., 3.1...])
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
        adjusted = rescaled_prediction(data.law.distribution(), moves.shift[codes], moves.factor[codes])
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
        own, labels = group_labels(group) if names is None else (group, list(names))
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
        adjusted = rescaled_prediction(base, tensors["shift"][codes], tensors["factor"][codes])
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
