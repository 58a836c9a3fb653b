"""Checkpoints: whole or absent, checked byte by byte, never unpickled."""

import hashlib
import io
import json
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import CheckpointIO

from fcal._files import atomic_path, write_json
from fcal.training.record import Record

NAME = "checkpoint.json"
_FORMAT = "fcal.checkpoint"
_LONGEST_REASON = 120


class CheckedIO(CheckpointIO):  # type: ignore[misc]
    """How checkpoints are written: to a file that is named by its content, and a note ``*.json`` with its checksum.

    The note is replaced last, in one go: whenever the process dies, it names a whole checkpoint. A path of another
    name, as callbacks of Lightning's own ask for, gets the checkpoint itself.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:  # noqa: ARG002
        """Write a checkpoint; the one before stays readable until this one is."""
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        note, content = Path(path), buffer.getvalue()
        if note.suffix != ".json":
            _write(note, content)
            return
        checksum = hashlib.sha256(content).hexdigest()
        whole = note.with_name(f"{note.stem}-{checksum[:12]}.ckpt")
        _write(whole, content)
        write_json(note, {"format": _FORMAT, "file": whole.name, "sha256": checksum})
        for stale in note.parent.glob(f"{note.stem}-*.ckpt"):
            if stale != whole:
                stale.unlink(missing_ok=True)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Read a checkpoint; tensors and plain values only, whatever the caller would allow.

        Raises:
            ValueError: Files are missing or damaged.
        """
        return read_checkpoint(path) if Path(path).suffix == ".json" else _loaded(Path(path).read_bytes())

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint."""
        note = Path(path)
        beside = note.parent.glob(f"{note.stem}-*.ckpt") if note.suffix == ".json" else ()
        for file in (note, *beside):
            file.unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def _loaded(content: bytes) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's remarks on old formats, which a damaged file may look like
        checkpoint: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    return checkpoint


_PARTS = {"state_dict": dict, "fcal": dict, "optimizer_states": list, "loops": dict}
_OWN_PARTS = {"config": dict, "record": dict}


def _check_parts(checkpoint: Any) -> None:
    """Refuse what torch can read but no training has written."""
    if not isinstance(checkpoint, dict):
        raise ValueError("it is no mapping")
    for parts, found in ((_PARTS, checkpoint), (_OWN_PARTS, checkpoint.get("fcal"))):
        for name, kind in parts.items():
            if not isinstance(found, dict) or not isinstance(found.get(name), kind):
                raise ValueError(f"it has no {name}")
    if not all(isinstance(x, torch.Tensor) for x in checkpoint["state_dict"].values()):
        raise ValueError("its state_dict holds more than tensors")
    Record.from_state(checkpoint["fcal"]["record"])


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A checkpoint, every byte checked.

    Raises:
        ValueError: Files are missing or damaged.
    """
    note = Path(path)
    try:
        document = json.loads(note.read_text(encoding="utf-8"))
        file, checksum = note.with_name(Path(str(document["file"])).name), document["sha256"]
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(f"expected a checkpoint {note}, got: {error.strerror} ({error.filename})") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"expected {note} a note of a checkpoint, got one that is damaged: {error}") from None
    if hashlib.sha256(content).hexdigest() != checksum:
        raise ValueError(f"expected {file} with the checksum in {note.name}, got another: the file is damaged")
    try:
        checkpoint = _loaded(content)
        _check_parts(checkpoint)
    except Exception as error:  # of whatever kind: torch raises many
        reason = " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__
        raise ValueError(f"expected {file} a checkpoint, got one that is damaged: {reason}") from error
    return checkpoint


class KeepCheckpoint(Checkpoint):  # type: ignore[misc]
    """Keeps one checkpoint, the latest.

    Args:
        path: The note that names it.
        every: Steps between checkpoints. One that falls on the end of an epoch comes after its validation.
    """

    def __init__(self, path: Path, every: int) -> None:
        self._path = path
        self._every = every
        self._saved_at = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Count from where this attempt begins."""
        self._saved_at = pl_module.record.step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Within an epoch; not after its last batch, which validation follows."""
        if pl_module.record.position < trainer.num_training_batches and self._is_due(pl_module.record):
            self._save(trainer, pl_module.record)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Between epochs, and when all is done."""
        record = pl_module.record
        if self._is_due(record) or record.is_finished(pl_module.config.passes):
            self._save(trainer, record)

    def _is_due(self, record: Record) -> bool:
        return record.step // self._every > self._saved_at // self._every

    def _save(self, trainer: Trainer, record: Record) -> None:
        trainer.save_checkpoint(self._path)
        self._saved_at = record.step
