"""Numbers of a validation set, batch by batch."""

import math

import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Cauchy, Distribution, HalfCauchy

from fcal._datasets import Batch, rows_of
from fcal.metrics.evaluation import checked_grid
from fcal.metrics.gathering import gathered
from fcal.metrics.reporting import Options, report_of
from fcal.metrics.state import State, empty_state

_DF, _BINS = 75, 20
_OF_REPORT = (
    "nll", "crps", "rmse", "bias", "sharpness", "ece_z", "mce_z", "ece_q", "mce_q", "kld_z", "wdist_z", "kld_q",
    "wdist_q", "ence", "ause",
)  # fmt: skip


class Validation:
    """Collects predictions of one pass and tells their numbers.

    Args:
        df: Number K of squared residuals in a sum q.
        bins: Number S of bins of the calibration errors.

    Example:
        >>> from torch.distributions import Normal
        >>> seen = Validation()
        >>> seen.add(Normal(torch.zeros(2), torch.ones(2)), {"target": torch.tensor([1.0, -1.0])})
        >>> numbers = seen.numbers()
        >>> numbers["z_sq"], numbers["rmse"], numbers["l1"]
        (1.0, 1.0, 0.5)
    """

    def __init__(self, df: int = _DF, bins: int = _BINS) -> None:
        self._grid = checked_grid(df, bins)
        self._state: State | None = None
        self._sums = dict.fromkeys(("l1", "mse", "loss"), 0.0)
        self._count = 0  # of targets
        self._rows = 0  # whose loss is known

    def add(self, pred: Distribution | Tensor, batch: Batch, loss: float | None = None) -> None:
        """Count a batch.

        Args:
            pred: Prediction of a batch; a plain tensor has errors, but no calibration.
            batch: Its targets, and what of them counts.
            loss: The objective on it, a mean over rows.
        """
        target, mask = batch["target"], batch.get("valid_mask")
        if isinstance(pred, Distribution):
            state = gathered(pred, target, self._grid, valid_mask=mask)
            self._state = empty_state(self._grid, device=target.device) if self._state is None else self._state
            self._state.add_(state)
        self.add_errors(pred, batch)
        if loss is not None:
            self._sums["loss"] += loss * rows_of(batch)
            self._rows += rows_of(batch)

    def add_errors(self, pred: Distribution | Tensor, batch: Batch) -> None:
        """Count only the errors of the mean, if there is one."""
        mean, target, mask = mean_of(pred), batch["target"], batch.get("valid_mask")
        if mean is None:
            return
        if mean.shape != target.shape:
            raise ValueError(f"expected a prediction of shape {tuple(target.shape)}, got {tuple(mean.shape)}")
        counts = target.isfinite() if mask is None else target.isfinite() & _beside(mask, target)
        given, true = mean[counts].double(), target[counts].double()
        self._sums["l1"] += float(F.smooth_l1_loss(given, true, reduction="sum"))
        self._sums["mse"] += float(F.mse_loss(given, true, reduction="sum"))
        self._count += given.numel()

    def numbers(self) -> dict[str, float]:
        """Every number that exists for these predictions.

        Raises:
            ValueError: Fewer than 2 targets count.
        """
        found: dict[str, float] = {}
        if self._rows:
            found["loss"] = self._sums["loss"] / self._rows
        if self._count:
            found |= {name: self._sums[name] / self._count for name in ("l1", "mse")}
            found["rmse"] = found["mse"] ** 0.5
        return found | self._of_residuals()

    def _of_residuals(self) -> dict[str, float]:
        if self._state is None:
            return {}
        report = report_of(self._state, Options(grid=self._grid))
        told = {name: getattr(report, name) for name in _OF_REPORT}
        told["z_scale"], told["z_shift"] = report.scale.value, report.shift.value
        told["z_sq"] = report.scale.value**2 + report.shift.value**2
        if report.nll is not None and told["z_sq"] > 0:  # with all sigmas times the root of z_sq
            told["nll_scaled"] = report.nll - (told["z_sq"] - 1 - math.log(told["z_sq"])) / 2
        return {name: float(value) for name, value in told.items() if value is not None}


def mean_of(pred: Distribution | Tensor) -> Tensor | None:
    """The predicted mean; None where a law has none."""
    if not isinstance(pred, Distribution):
        return pred
    if isinstance(pred, Cauchy | HalfCauchy):  # torch's word for it is NaN, which a divergence would be too
        return None
    try:
        return pred.mean
    except NotImplementedError:
        return None


def _beside(mask: Tensor, target: Tensor) -> Tensor:
    """A mask of rows as one of targets."""
    return mask.reshape(mask.shape + (1,) * (target.dim() - mask.dim())).expand(target.shape)
