"""Training by Lightning: without output, repeatable, and resumable where it was interrupted."""

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import nn

from fcal._checks import check_flag
from fcal._executor import keep_freed_memory
from fcal._files import writable_folder
from fcal._progress import is_watched
from fcal.training.callbacks import HistoryLogger, StepProgress
from fcal.training.checkpoints import (
    NAME,
    CheckedIO,
    KeepCheckpoint,
    checkpoint_to_resume,
    exclusive,
    restore_weights,
)
from fcal.training.module import TrainingModule
from fcal.training.objectives import Objective, check_objective
from fcal.training.objectives import objective as objective_of
from fcal.training.optimization import TRAINED, FitConfig, frozen_except
from fcal.training.record import Fit, Record
from fcal.training.reproducibility import Batches, preserved_random_state

_IGNORED_WARNINGS = (
    "`isinstance\\(treespec, LeafSpec\\)` is deprecated",
    "Checkpoint directory .* exists and is not empty",
    "GPU available but not used",
    "You defined a `validation_step` but have no `val_dataloader`",
    "Found .* module\\(s\\) in eval mode at the start of training",
)


def fit(
    model: nn.Module,
    objective: Objective | None,
    train: Any,
    validation: Any,
    config: FitConfig | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> Fit:
    """Train a model in place.

    The same arguments give the same weights, bit for bit: the order of the rows, dropout and all other randomness
    depend on ``config.seed`` and on the step alone. The caller's random state is restored.

    Args:
        model: ``model(batch["input"])`` is a distribution, or a tensor for a network without error bars. It ends in
            evaluation mode.
        objective: ``objective(model, batch)`` is a mapping of named scalars whose sum is minimised; the mean negative
            log-likelihood if None.
        train: Dataset whose items, collated, are mappings with ``"input"`` and ``"target"`` (also ``"valid_mask"``,
            ``"weight"``) or tuples ``(input, target)`` or ``(input, target, valid_mask)``. If it has
            ``__getitems__(indices)``, that returns a whole batch.
        validation: Dataset on which every epoch is evaluated; if None, the model keeps the weights of the last epoch.
        config: How to train.
        folder: Folder of checkpoints and logs; nothing is written if None.
        resume: Resume from the checkpoint in ``folder``, if there is one: the result is the same as without the
            interruption. The result of a finished training is returned at once.
        callbacks: Additional Lightning callbacks.
        progress: Show a progress bar if stderr is a terminal.

    Returns:
        The result. The model has the weights of the epoch with the smallest ``config.monitor``.

    Raises:
        Diverged: A term of the objective is not finite, or the predicted distribution has invalid parameters. Before
            the first step, parameters that are finite but invalid are a mistake in the network: a ``ValueError``.
        ValueError: The folder holds another training, the checkpoint is damaged, or the data do not fit.

    Example:
        >>> from fcal.training import FitConfig, ObjectiveConfig, fit, objective
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> data = torch.utils.data.TensorDataset(x, 2 * x)
        >>> config = FitConfig(epochs=40, learning_rate=0.2, monitor="mse")
        >>> result = fit(torch.nn.Linear(1, 1), objective(ObjectiveConfig(name="mse")), data, data, config)
        >>> result.best()["validation/mse"] < 1e-3
        True
    """
    config = FitConfig() if config is None else config
    _check_arguments(model, objective, config, resume, folder, callbacks)
    objective = objective_of() if objective is None else objective
    manifest = None if folder is None else writable_folder(folder) / NAME
    with nullcontext() if manifest is None else exclusive(manifest.parent):
        batches = Batches(train, config.batch_size, seed=config.seed, place=lambda: (record.epoch, record.position))
        record, start = Record(dataset_rows=batches.rows), None
        if manifest is not None and (saved := checkpoint_to_resume(manifest, config, objective, batches, resume)):
            record, start = Record.from_state(saved["fcal"]["record"]), manifest
            restore_weights(saved, model, manifest)
        if not record.is_finished(config.passes):
            loaders = batches, None if validation is None else Batches(validation, config.batch_size)
            callbacks = [*callbacks, *_own_callbacks(manifest, config, progress)]
            with preserved_random_state(), _quiet(), frozen_except(TRAINED[config.trained](model), model):
                module = TrainingModule(model, objective, config, record, config.epochs * len(batches))
                _run(_trainer(config, callbacks), module, loaders, start)
        if record.best_weights is not None:
            model.load_state_dict(record.best_weights)
    model.eval()
    return record.as_fit()


def _check_arguments(model: Any, objective: Any, config: Any, resume: Any, folder: Any, callbacks: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected `model` a torch.nn.Module, got {type(model).__name__}")
    if objective is not None:
        check_objective(objective)
    if not isinstance(config, FitConfig):
        raise TypeError(f"expected `config` a FitConfig, got {type(config).__name__}")
    if check_flag("resume", resume) and folder is None:
        raise ValueError("expected `folder` to resume from, got None")
    if not isinstance(callbacks, Sequence):
        raise TypeError(f"expected `callbacks` a list, got {type(callbacks).__name__}")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise TypeError(f"expected `callbacks` of lightning's Callback, got {type(callback).__name__}")


def _own_callbacks(manifest: Path | None, config: FitConfig, progress: bool) -> list[Callback]:
    callbacks: list[Callback] = [StepProgress()] if check_flag("progress", progress) and is_watched() else []
    if manifest is not None:
        callbacks += [HistoryLogger(manifest.parent), KeepCheckpoint(manifest, config.checkpoint_every_steps)]
    return callbacks


def _trainer(config: FitConfig, callbacks: Sequence[Callback]) -> Trainer:
    """A trainer on one device, without Lightning's own output, logs and checkpoints."""
    return Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=1,
        max_epochs=config.passes,
        gradient_clip_val=config.clip_norm or None,
        callbacks=callbacks,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        plugins=[CheckedIO()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )


def _run(trainer: Trainer, module: TrainingModule, loaders: tuple[Batches, Batches | None], start: Path | None) -> None:
    keep_freed_memory()
    if module.config.channels_last:
        module.model.to(memory_format=torch.channels_last)
    module.train()
    try:
        trainer.fit(module, *loaders, ckpt_path=start)
    except (KeyError, IndexError, TypeError, AttributeError, RuntimeError) as error:
        if start is None or module.started:
            raise
        raise ValueError(f"expected {start} a checkpoint of this training, got one that is damaged: {error}") from error
    except SystemExit as stopped:
        # Lightning turns Ctrl-C into an exit; the caller may still want to clean up.
        if isinstance(stopped.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Lightning's log messages and its warnings about itself."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for message in _IGNORED_WARNINGS:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        logger.setLevel(level)
