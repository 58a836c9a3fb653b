"""Checkpoints, written atomically; loading one runs no code of the file, and our own carry a checksum."""

import hashlib
import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import CheckpointIO
from torch import nn

from fcal._config import difference
from fcal._files import atomic_path, held, remove_abandoned
from fcal.training.objectives import Objective, description
from fcal.training.optimization import FitConfig
from fcal.training.record import Record
from fcal.training.reproducibility import Batches
from fcal.training.run_folder import check_weights

NAME = "checkpoint.fcal"
LOCK = ".lock"
_OLD_MANIFEST = "checkpoint.json"  # of versions whose checkpoints were two files
_LONGEST_REASON = 120  # characters


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Keep other processes from training in a folder during the block.

    Raises:
        ValueError: Another process is training there.
    """
    with held(folder / LOCK) as acquired:
        if not acquired:
            raise ValueError(f"expected a folder of its own, got {folder}: another process is training there")
        remove_abandoned(folder)
        yield


class CheckedIO(CheckpointIO):  # type: ignore[misc]
    """Writes a checkpoint atomically: whenever the process dies, its file is complete.

    Our own checkpoint, of the name ``checkpoint.fcal``, begins with a line that holds its checksum. Those of
    Lightning's callbacks are files that ``torch.load`` reads.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:  # noqa: ARG002
        """Write a checkpoint; the previous one stays readable until this one is complete."""
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        content = buffer.getvalue()
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            if Path(path).name == NAME:
                file.write(f"{hashlib.sha256(content).hexdigest()}\n".encode())
            file.write(content)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Read a checkpoint; only tensors and plain values, whatever the caller allows, and always on the CPU.

        Raises:
            ValueError: Our own checkpoint is missing or damaged.
        """
        return read_checkpoint(path) if Path(path).name == NAME else _loaded(Path(path).read_bytes())

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint."""
        Path(path).unlink(missing_ok=True)


def _loaded(content: bytes) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of old formats, which a damaged file may look like
        checkpoint: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    return checkpoint


def _check_entries(checkpoint: dict[str, Any]) -> None:
    """Refuse a file that torch can read but that is not a checkpoint of ours; Lightning checks its own entries."""
    ours = checkpoint["fcal"]
    if not isinstance(ours["config"], dict):
        raise ValueError("its config is not a mapping")
    if not all(isinstance(x, torch.Tensor) for x in checkpoint["state_dict"].values()):
        raise ValueError("its state_dict holds more than tensors")
    if not checkpoint["loops"]:
        raise ValueError("it has no loops")
    Record.from_state(ours["record"])


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint and verify its checksum.

    Raises:
        ValueError: It is missing or damaged.
    """
    try:
        checksum, _, content = Path(path).read_bytes().partition(b"\n")
    except OSError as error:
        raise ValueError(f"expected a checkpoint {path}, got: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest().encode() != checksum:
        raise ValueError(f"expected {path} with the checksum in its first line, got another: the file is damaged")
    try:
        checkpoint = _loaded(content)
        _check_entries(checkpoint)
    except Exception as error:  # torch raises errors of many types
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]
        raise ValueError(f"expected {path} a checkpoint, got one that is damaged: {reason}") from error
    return checkpoint


def checkpoint_to_resume(
    path: Path, config: FitConfig, objective: Objective, batches: Batches, resume: bool
) -> dict[str, Any] | None:
    """The checkpoint of this training, or None if there is none yet.

    Raises:
        ValueError: There is one but no ``resume``, or it is damaged, or of another config, objective or dataset.
    """
    folder = path.parent
    if (folder / _OLD_MANIFEST).exists():
        raise ValueError(f"expected {folder} without a training of an earlier version, got its {_OLD_MANIFEST}")
    if not path.exists():
        return None
    if not resume:
        raise ValueError(f"expected `folder` without a training, or `resume`, got {folder}, which holds one")
    checkpoint = read_checkpoint(path)
    changed = difference(checkpoint["fcal"]["config"], config)
    if changed is not None:
        key, there, here = changed
        raise ValueError(f"expected `folder` of the same config, got {key} = {there} there and {here} here")
    record = checkpoint["fcal"]["record"]
    if record["dataset_rows"] != batches.rows:
        raise ValueError(f"expected `train` with {record['dataset_rows']} rows as in {folder}, got {batches.rows}")
    if record["position"] >= len(batches) or record["epoch"] > config.passes:
        raise ValueError(
            f"expected {path} at a position within this training, got one past its end: the file is damaged"
        )
    saved, current = checkpoint["fcal"].get("objective"), description(objective)
    if saved is not None and saved != current:
        raise ValueError(f"expected `objective` as in {folder}, {str(saved)[:200]}, got {current[:200]}")
    return checkpoint


def restore_weights(checkpoint: dict[str, Any], model: nn.Module, path: Path) -> None:
    """Load the weights of a checkpoint, whose names Lightning prefixes by the attribute that holds the model."""
    state = checkpoint["state_dict"]
    weights = {name.removeprefix("model."): x for name, x in state.items() if name.startswith("model.")}
    for candidate in (weights, checkpoint["fcal"]["record"]["best_weights"] or weights):
        check_weights(path, candidate, model)
    model.load_state_dict(weights)


class KeepCheckpoint(Checkpoint):  # type: ignore[misc]
    """Keeps the latest checkpoint: saves every ``every`` steps and, at the end of an epoch, after validation."""

    def __init__(self, path: Path, every: int) -> None:
        self._path = path
        self._every = every
        self._saved_at = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Count from the step at which this attempt starts."""
        self._saved_at = pl_module.record.step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Save within an epoch; not after its last batch, which validation follows."""
        if pl_module.record.position < trainer.num_training_batches and self._is_due(pl_module.record):
            self._save(trainer, pl_module.record)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save between epochs and at the end of training."""
        record = pl_module.record
        if self._is_due(record) or record.is_finished(pl_module.config.passes):
            self._save(trainer, record)

    def _is_due(self, record: Record) -> bool:
        return record.step // self._every > self._saved_at // self._every

    def _save(self, trainer: Trainer, record: Record) -> None:
        trainer.save_checkpoint(self._path)
        self._saved_at = record.step
