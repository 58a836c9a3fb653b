"""Callbacks for anyone's Lightning project: calibration in the log, and the best calibrated weights on disk."""
# ruff: noqa: ARG002 - Lightning dictates the signatures of hooks

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from torch import Tensor
from torch.distributions import Distribution

from fcal.metrics import Calibration

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.utilities.exceptions import MisconfigurationException
except ModuleNotFoundError as error:
    raise ImportError("expected lightning for training; pip install 'fcal[train]'") from error

Seen: TypeAlias = tuple[Distribution, Tensor] | tuple[Distribution, Tensor, Tensor | None]
_LOGGED = ("nll", "crps", "rmse", "sharpness", "ece_z", "mce_z", "ece_q", "mce_q", "ence", "ause")


class CalibrationLogger(Callback):  # type: ignore[misc]
    """Logs after every validation epoch how true the error bars are.

    For any ``LightningModule`` whose ``validation_step`` returns ``{"pred": distribution, "target": tensor}``, perhaps
    with a ``"valid_mask"``. Numbers are of the whole epoch, and of all ranks together; each goes by
    ``<prefix><name>``: nll, crps, rmse, sharpness, ece_z, mce_z, ece_q, mce_q, ence, ause, z_scale and z_shift, and
    ``ece_q_floor``, what a calibrated model would score on so many targets.

    Args:
        df: Number K of squared residuals in a sum q.
        bins: Number S of bins of the calibration errors.
        prefix: What the names begin with.
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
        seen: Callable[[Any, Any], Seen] | None = None,
    ) -> None:
        self._metric = Calibration(df=df, bins=bins)
        self._prefix = prefix
        self._seen = seen or _of_mapping

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to collect."""
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
        """Count a batch."""
        pred, target, *mask = self._seen(outputs, batch)
        self._metric.update(pred, target, valid_mask=mask[0] if mask else None)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the numbers of the epoch."""
        if trainer.sanity_checking:
            return
        report = self._metric.compute()
        numbers = {name: getattr(report, name) for name in _LOGGED}
        numbers |= {"z_scale": report.scale.value, "z_shift": report.shift.value}
        numbers["ece_q_floor"] = report.ece_q_floor.expected
        found = {f"{self._prefix}{name}": float(x) for name, x in numbers.items() if x is not None}
        pl_module.log_dict(found, on_step=False, on_epoch=True)


def _of_mapping(outputs: Any, _: Any) -> Seen:
    if not isinstance(outputs, Mapping) or not isinstance(outputs.get("pred"), Distribution):
        shown = ", ".join(map(repr, outputs)) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise TypeError(
            "expected `validation_step` to return {'pred': Distribution, 'target': Tensor}, or `seen` for "
            f"CalibrationLogger, got {shown}"
        )
    return outputs["pred"], outputs["target"], outputs.get("valid_mask")


class BestCalibration(ModelCheckpoint):  # type: ignore[misc]
    """Keeps the checkpoint of the epoch with the smallest calibration metric, as ``best-<metric>.ckpt``.

    A calibration error alone rewards large error bars that fit on average; ``"nll"`` and ``"crps"`` ask for sharp ones
    too.

    Args:
        folder: Where it goes.
        metric: A name that :class:`CalibrationLogger` logs; that callback must run as well.
        prefix: As there.
        **options: Of Lightning's ``ModelCheckpoint``.

    Raises:
        ValueError: At the end of the first epoch, where nothing has logged the metric.

    Example:
        >>> from fcal.training import BestCalibration
        >>> BestCalibration("runs/mine", "crps").monitor
        'validation/crps'
    """

    def __init__(
        self, folder: str | os.PathLike[str], metric: str = "ece_q", *, prefix: str = "validation/", **options: Any
    ) -> None:
        settled = {"monitor": f"{prefix}{metric}", "mode": "min", "save_top_k": 1, "filename": f"best-{metric}"}
        super().__init__(dirpath=folder, enable_version_counter=False, **(settled | options))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the checkpoint, where it is the best so far."""
        with self._explained(trainer):
            super().on_validation_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the checkpoint, where Lightning is told to look for the best one only here."""
        with self._explained(trainer):
            super().on_train_epoch_end(trainer, pl_module)

    @contextmanager
    def _explained(self, trainer: Trainer) -> Iterator[None]:
        """Lightning asks for a ``log`` in the user's module, which is not what is missing."""
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
