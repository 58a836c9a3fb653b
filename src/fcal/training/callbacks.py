"""Lightning callbacks: calibration metrics and checkpoints for any project, and the progress bar and logs of `fit`."""
# ruff: noqa: ARG002 - Lightning dictates the signatures of hooks

import copy
import csv
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal._files import atomic_path
from fcal._progress import ProgressBar
from fcal.metrics import Calibration

Observation: TypeAlias = tuple[Distribution, Tensor] | tuple[Distribution, Tensor, Tensor | None]
_LOGGED = ("nll", "crps", "rmse", "sharpness", "ece_z", "mce_z", "ece_q", "mce_q", "ence", "ause")


class Stages(Callback):  # type: ignore[misc]
    """Keeps a copy of the model after every epoch, as :func:`fcal.crossfit` chooses from.

    Attributes:
        models: The copies, in evaluation mode.

    Example:
        >>> from fcal.training import FitConfig, Stages, fit, objective, ObjectiveConfig
        >>> x, stages = torch.linspace(-1, 1, 64).unsqueeze(1), Stages()
        >>> data = torch.utils.data.TensorDataset(x, 2 * x)
        >>> model, mse = torch.nn.Linear(1, 1), objective(ObjectiveConfig(name="mse"))
        >>> _ = fit(model, mse, data, None, FitConfig(epochs=3), callbacks=[stages])
        >>> len(stages.models)
        3
    """

    def __init__(self) -> None:
        self.models: list[nn.Module] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Copy the model."""
        self.models.append(copy.deepcopy(pl_module.model).eval())


class CalibrationLogger(Callback):  # type: ignore[misc]
    """Logs calibration metrics after every validation epoch.

    For any ``LightningModule`` whose ``validation_step`` returns ``{"pred": distribution, "target": tensor}``,
    optionally with a ``"valid_mask"``. Metrics are computed over the whole epoch and all ranks, and logged as
    ``<prefix><name>``: nll, crps, rmse, sharpness, ece_z, mce_z, ece_q, mce_q, ence, ause, z_scale, z_shift, and
    ``ece_q_floor``, the ece_q that a calibrated model is expected to have with this number of targets.

    Args:
        df: Number K of squared residuals in a sum q.
        bins: Number S of bins of the calibration errors.
        prefix: Prefix of the names.
        seen: ``(outputs, batch) -> (pred, target)`` or ``(pred, target, valid_mask)``, for modules whose
            ``validation_step`` returns something else.

    Example:
        >>> from fcal.training import BestCalibration, CalibrationLogger
        >>> callbacks = [CalibrationLogger(), BestCalibration("runs/mine", "ece_q")]
    """

    def __init__(
        self,
        df: int = 75,
        bins: int = 20,
        *,
        prefix: str = "validation/",
        seen: Callable[[Any, Any], Observation] | None = None,
    ) -> None:
        self._metric = Calibration(df=df, bins=bins)
        self._prefix = prefix
        self._seen = seen or _observation

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reset the metrics."""
        self._metric.reset()
        self._metric.to(pl_module.device)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add a batch."""
        pred, target, *mask = self._seen(outputs, batch)
        self._metric.update(pred, target, valid_mask=mask[0] if mask else None)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the metrics of the epoch."""
        if trainer.sanity_checking:
            return
        report = self._metric.compute()
        metrics = {name: getattr(report, name) for name in _LOGGED}
        metrics |= {"z_scale": report.scale.value, "z_shift": report.shift.value}
        metrics["ece_q_floor"] = report.ece_q_floor.expected
        logged = {f"{self._prefix}{name}": float(x) for name, x in metrics.items() if x is not None}
        pl_module.log_dict(logged, on_step=False, on_epoch=True)


def _observation(outputs: Any, _: Any) -> Observation:
    if not isinstance(outputs, Mapping) or not isinstance(outputs.get("pred"), Distribution):
        shown = ", ".join(map(repr, outputs)) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise TypeError(
            "expected `validation_step` to return {'pred': Distribution, 'target': Tensor}, or `seen` for "
            f"CalibrationLogger, got {shown}"
        )
    return outputs["pred"], outputs["target"], outputs.get("valid_mask")


class BestCalibration(ModelCheckpoint):  # type: ignore[misc]
    """Keeps the checkpoint of the epoch with the smallest calibration metric, as ``best-<metric>.ckpt``.

    A calibration error alone does not reward sharpness: large error bars may fit on average. ``"nll"`` and ``"crps"``
    reward both.

    Args:
        folder: Folder of the checkpoint.
        metric: A metric of :class:`CalibrationLogger`, which must be among the callbacks as well.
        prefix: Its prefix.
        **options: Options of Lightning's ``ModelCheckpoint``.

    Raises:
        ValueError: At the end of the first epoch, if the metric has not been logged.

    Example:
        >>> from fcal.training import BestCalibration
        >>> BestCalibration("runs/mine", "crps").monitor
        'validation/crps'
    """

    def __init__(
        self, folder: str | os.PathLike[str], metric: str = "ece_q", *, prefix: str = "validation/", **options: Any
    ) -> None:
        defaults = {"monitor": f"{prefix}{metric}", "mode": "min", "save_top_k": 1, "filename": f"best-{metric}"}
        super().__init__(dirpath=folder, enable_version_counter=False, **(defaults | options))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the checkpoint if it is the best so far."""
        with self._explained(trainer):
            super().on_validation_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the checkpoint if Lightning saves at the end of the training epoch."""
        with self._explained(trainer):
            super().on_train_epoch_end(trainer, pl_module)

    @contextmanager
    def _explained(self, trainer: Trainer) -> Iterator[None]:
        """Name the missing callback; Lightning's message asks for a ``log`` call in the user's module."""
        try:
            yield
        except MisconfigurationException as error:
            logged = trainer.callback_metrics
            if self.monitor in logged:
                raise
            raise ValueError(
                f"expected `callbacks` with a CalibrationLogger beside BestCalibration, to log {self.monitor!r}, got "
                f"{', '.join(map(repr, logged)) or 'nothing'} logged"
            ) from error


class StepProgress(Callback):  # type: ignore[misc]
    """Progress bar of the steps, with the monitored metric of the last epoch."""

    _bar: ProgressBar | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the bar."""
        self._bar = ProgressBar("training", total=pl_module.steps, completed=pl_module.record.batches, unit="steps")
        self._bar.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Advance the bar."""
        if self._bar is not None:
            record, name = pl_module.record, f"validation/{pl_module.config.monitor}"
            value = record.history[-1].get(name) if record.history else None
            self._bar.update(completed=record.batches, note="" if value is None else f"{name} {value:.4g}")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove the bar, if training had begun."""
        self.on_train_end(trainer, pl_module)


class HistoryLogger(Checkpoint):  # type: ignore[misc]
    """Writes the history to ``history.csv`` and TensorBoard after every epoch.

    It is a ``Checkpoint`` because Lightning calls those last, when the module has closed the epoch.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._columns: list[str] = []
        self._writer: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open TensorBoard's file and hide what an interrupted attempt wrote after its last checkpoint."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:  # history.csv is still written
            return
        self._writer = SummaryWriter(str(self._folder / "tensorboard"), purge_step=pl_module.record.epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the line of the epoch."""
        history = pl_module.record.history
        self._write(history)
        if self._writer is not None:
            for name in history[-1].keys() - {"epoch"}:
                self._writer.add_scalar(name, history[-1][name], global_step=history[-1]["epoch"])
            self._writer.flush()

    def _write(self, history: Sequence[dict[str, float]]) -> None:
        """Append the last line to the file; write all lines first, and whenever a column is new."""
        path = self._folder / "history.csv"
        if set(history[-1]) <= set(self._columns):
            with path.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, self._columns).writerow(history[-1])
            return
        self._columns = list(dict.fromkeys(name for line in history for name in line))
        with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(history)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close TensorBoard's file."""
        if self._writer is not None:
            self._writer.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close TensorBoard's file."""
        self.on_train_end(trainer, pl_module)
