"""Predictions of a model: their metrics, accumulated batch by batch, and their invalid parameters."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Cauchy, Distribution, HalfCauchy, constraints

from fcal._datasets import Batch, per_target, rows_of
from fcal.metrics import Report, evaluate
from fcal.metrics.accumulation import accumulate
from fcal.metrics.report_from_state import report_from_state
from fcal.metrics.state import Grid, State, empty_state
from fcal.models.predicting import Predicted

_LONGEST_SHOWN = 60  # characters of a value or a constraint in a message
_REPORTED = (
    "nll", "crps", "rmse", "bias", "sharpness", "ece_z", "mce_z", "ece_q", "mce_q", "kld_z", "wdist_z", "kld_q",
    "wdist_q", "ence", "ause",
)  # fmt: skip


class Validation:
    """Accumulates the metrics of one pass over a dataset.

    Example:
        >>> from torch.distributions import Normal
        >>> validation = Validation()
        >>> validation.add(Normal(torch.zeros(2), torch.ones(2)), {"target": torch.tensor([1.0, -1.0])})
        >>> metrics = validation.metrics()
        >>> metrics["z_sq"], metrics["rmse"], metrics["l1"]
        (1.0, 1.0, 0.5)
    """

    def __init__(self) -> None:
        self._grid = Grid(df=75, bins=20)
        self._state: State | None = None
        self._sums = dict.fromkeys(("l1", "mse", "loss"), 0.0)
        self._targets = 0
        self._rows = 0  # with a loss
        self._is_empty = True

    def add(
        self, pred: Distribution | Tensor, batch: Batch, loss: float | None = None, *, rows: int | None = None
    ) -> None:
        """Add a batch.

        Args:
            pred: Prediction; a tensor has errors, but no calibration.
            batch: Its targets, and perhaps their mask.
            loss: Mean of the objective over the rows of the batch.
            rows: Number of these rows; that of the targets if None.
        """
        target, mask = batch["target"], batch.get("valid_mask")
        self._is_empty &= not target.numel()
        if isinstance(pred, Distribution) and target.numel():
            state = accumulate(pred, target, self._grid, valid_mask=mask)
            self._state = empty_state(self._grid, device=target.device) if self._state is None else self._state
            self._state.add_(state)
        self.add_errors(pred, batch)
        if loss is not None:
            rows = rows_of(batch) if rows is None else rows
            self._sums["loss"] += loss * rows
            self._rows += rows

    def add_errors(self, pred: Distribution | Tensor, batch: Batch) -> None:
        """Add only the errors of the mean, if there is one."""
        mean, target, mask = mean_of(pred), batch["target"], batch.get("valid_mask")
        if mean is None:
            return
        if mean.shape != target.shape:
            raise ValueError(f"expected a prediction of shape {tuple(target.shape)}, got {tuple(mean.shape)}")
        counts = target.isfinite() if mask is None else target.isfinite() & per_target(mask, target)
        mean, target = mean[counts].double(), target[counts].double()
        self._sums["l1"] += float(F.smooth_l1_loss(mean, target, reduction="sum"))
        self._sums["mse"] += float(F.mse_loss(mean, target, reduction="sum"))
        self._targets += mean.numel()

    def is_empty(self) -> bool:
        """Whether there has been no prediction, as of a detector that proposes no object."""
        return self._is_empty

    def metrics(self) -> dict[str, float]:
        """Every metric that is defined for these predictions; of none, only the loss.

        Raises:
            ValueError: Predictions have fewer than 2 targets that count.
        """
        metrics: dict[str, float] = {}
        if self._rows:
            metrics["loss"] = self._sums["loss"] / self._rows
        if self._targets:
            metrics |= {name: self._sums[name] / self._targets for name in ("l1", "mse")}
            metrics["rmse"] = metrics["mse"] ** 0.5
        return metrics | self._residual_metrics()

    def _residual_metrics(self) -> dict[str, float]:
        if self._state is None:
            return {}
        report = report_from_state(self._state, self._grid)
        metrics = {name: getattr(report, name) for name in _REPORTED}
        metrics["z_scale"], metrics["z_shift"] = report.scale.value, report.shift.value
        metrics["z_sq"] = z_sq = report.scale.value**2 + report.shift.value**2
        if report.nll is not None and z_sq > 0:  # with all sigmas multiplied by the root of z_sq
            metrics["nll_scaled"] = report.nll - (z_sq - 1 - math.log(z_sq)) / 2
        return {name: float(value) for name, value in metrics.items() if value is not None}


def evaluated(predicted: Predicted) -> tuple[dict[str, Any], Report | None]:
    """Metrics of predictions of a whole dataset: those of :func:`fcal.evaluate`, and ``l1`` and ``mse`` of the mean.

    Also the report they are from; None for predictions without error bars.
    """
    validation = Validation()
    batch = {"target": predicted.target, "valid_mask": predicted.valid_mask}
    if not isinstance(predicted.pred, Distribution):
        validation.add(predicted.pred, batch)
        return validation.metrics(), None
    report = evaluate(predicted.pred, predicted.target, valid_mask=predicted.valid_mask)
    validation.add_errors(predicted.pred, batch)
    return report.as_dict() | validation.metrics(), report


def mean_of(pred: Distribution | Tensor) -> Tensor | None:
    """The predicted mean; None if the distribution has none."""
    if not isinstance(pred, Distribution):
        return pred
    if isinstance(pred, Cauchy | HalfCauchy):  # torch returns NaN, which would look like a divergence
        return None
    try:
        return pred.mean
    except NotImplementedError:
        return None


@dataclass(frozen=True, kw_only=True)
class InvalidParameter:
    """The first invalid parameter of a predicted distribution.

    Attributes:
        message: The distribution, its parameter, the value and the constraint, in one line.
        value: The first invalid number; NaN if the invalid value is a vector or a matrix.
        is_finite: Whether the value is finite.
    """

    message: str
    value: float
    is_finite: bool

    def __str__(self) -> str:
        return self.message


def invalid_parameter(pred: Distribution | Tensor) -> InvalidParameter | None:
    """The first parameter that is not finite or violates its constraint; None if the prediction is valid.

    Distributions inside of ``pred``, such as the components of a mixture, are checked as well.

    Example:
        >>> from torch.distributions import Normal
        >>> print(invalid_parameter(Normal(torch.zeros(2), torch.tensor([1.0, 0.0]), validate_args=False)))
        Normal with scale 0.0, expected GreaterThan(lower_bound=0.0)
    """
    if not isinstance(pred, Distribution):
        return None if is_finite(pred) else _first_invalid("a tensor with", pred, pred.isfinite(), constraints.real)
    for name, constraint in pred.arg_constraints.items():
        value = vars(pred).get(name)  # the others are derived from these
        if not isinstance(value, Tensor) or constraints.is_dependent(constraint):
            continue
        finite = value.isfinite() | (value == -math.inf) if name == "logits" else value.isfinite()
        valid = finite if not bool(finite.all()) else constraint.check(value)
        if not bool(valid.all()):
            return _first_invalid(f"{type(pred).__name__} with {name}", value, valid, constraint)
    inner = (value for value in vars(pred).values() if isinstance(value, Distribution))
    return next((invalid for each in inner if (invalid := invalid_parameter(each)) is not None), None)


def _first_invalid(name: str, value: Tensor, valid: Tensor, constraint: Any) -> InvalidParameter:
    """The message for the first invalid value; ``valid`` lacks the event dimensions of ``value``."""
    first = value.detach()[~valid][0]
    expected = _cut(" ".join(str(constraint).split()))
    return InvalidParameter(
        message=f"{name} {_cut(str(first.tolist()))}, expected {expected}",
        value=math.nan if first.dim() else first.item(),
        is_finite=is_finite(first),
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def is_finite(value: Any) -> bool:
    """Whether a tensor is finite; True for anything else."""
    return not isinstance(value, Tensor) or bool(value.isfinite().all())


@contextmanager
def without_validation() -> Iterator[None]:
    """Make distributions without torch's validation of their arguments, unless they ask for it."""
    default = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(default)
