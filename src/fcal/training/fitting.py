"""Training by Lightning: quiet, repeatable, and able to go on where it was interrupted."""

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fcal._checks import check_flag
from fcal._config import difference
from fcal._files import writable_folder
from fcal._memory import keep_freed_memory
from fcal._progress import is_watched
from fcal.training.batches import Batches
from fcal.training.configuration import TRAINED, FitConfig
from fcal.training.folders import alone_in
from fcal.training.module import Training, description
from fcal.training.objectives import Objective, check_objective
from fcal.training.objectives import objective as objective_of
from fcal.training.randomness import random_state_kept
from fcal.training.record import Record
from fcal.training.results import Fit
from fcal.training.weights import check_fits

try:
    from lightning.pytorch import Callback, Trainer
    from lightning.pytorch.callbacks import Checkpoint
except ModuleNotFoundError as error:
    raise ImportError("expected lightning for training; pip install 'fcal[train]'") from error

from fcal.training.checkpoints import NAME, CheckedIO, KeepCheckpoint, read_checkpoint
from fcal.training.logs import Logs, Progress

_REMARKS = (
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
    """Train a model, in place.

    The same arguments give the same weights, bit for bit: the order of the rows, dropout and all else that is drawn
    depend on ``config.seed`` and on the step alone. The caller's random state stays what it was.

    Args:
        model: ``model(batch["input"])`` is a distribution, or a tensor for a network without error bars. It ends in
            evaluation mode.
        objective: ``objective(model, batch)`` is a mapping of named scalars whose sum is minimised; the mean negative
            log-likelihood where None.
        train: Dataset whose items, collated, are mappings with ``"input"`` and ``"target"`` (also ``"valid_mask"``,
            ``"weight"``) or tuples ``(input, target)`` or ``(input, target, valid_mask)``. Its
            ``__getitems__(indices)``, if any, gives a whole batch.
        validation: Dataset on which every epoch is judged; where None, the weights of the last epoch stay.
        config: How to train.
        folder: Where checkpoints and logs go; nothing is written where None.
        resume: Go on from the checkpoint in ``folder``, if there is one: the result is the same as without the
            interruption. A finished training is returned as it is.
        callbacks: Lightning callbacks to run along.
        progress: Show a bar on stderr while a person watches.

    Returns:
        How it went. The model has the weights of the epoch with the smallest ``config.monitor``.

    Raises:
        Diverged: A term of the objective is no longer finite, or torch refuses the law that the model makes. In the
            first step a law of finite but impossible parameters is the network's own mistake, a ``ValueError``.
        ValueError: A folder that holds another training, a damaged checkpoint, or data that do not fit.

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
    _check(model, objective, config, resume, folder, callbacks)
    objective = objective_of() if objective is None else objective
    path = None if folder is None else writable_folder(folder) / NAME
    with nullcontext() if path is None else alone_in(path.parent):
        batches = Batches(train, config.batch_size, seed=config.seed, place=lambda: record.place())
        saved = _saved(path, config, objective, batches, resume)
        record = Record(dataset_rows=batches.rows) if saved is None else Record.from_state(saved["fcal"]["record"])
        if saved is not None:
            _load(path, saved, model)
        if not record.is_finished(config.passes):
            judged = None if validation is None else Batches(validation, config.batch_size)
            extra = [*callbacks, *_own_callbacks(path, config, progress)]
            with random_state_kept(), _quiet(), _frozen_but(TRAINED[config.trained](model), model):
                module = Training(model, objective, config, record, config.epochs * len(batches))
                _run(_trainer(config, extra), module, (batches, judged), path if saved is not None else None)
        if record.best_weights is not None:
            model.load_state_dict(record.best_weights)
    model.eval()
    return record.as_fit()


def _check(model: Any, objective: Any, config: Any, resume: Any, folder: Any, callbacks: Any) -> None:
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


def _saved(
    path: Path | None, config: FitConfig, objective: Objective, batches: Batches, resume: bool
) -> dict[str, Any] | None:
    """The checkpoint to go on from, if any."""
    if path is None:
        return None
    if not path.exists():
        _check_nothing_lost(path)
        return None
    if not resume:
        raise ValueError(f"expected `folder` without a training, or `resume`, got {path.parent}, which holds one")
    saved = read_checkpoint(path)
    found = difference(saved["fcal"]["config"], config)
    if found is not None:
        key, there, here = found
        raise ValueError(f"expected `folder` of the same config, got {key} = {there} there and {here} here")
    record = saved["fcal"]["record"]
    if record["dataset_rows"] != batches.rows:
        there = record["dataset_rows"]
        raise ValueError(f"expected `train` with {there} rows as in {path.parent}, got {batches.rows}")
    if record["position"] >= len(batches) or record["epoch"] > config.passes:
        raise ValueError(f"expected {path} of a place in this training, got one that is damaged: it is beyond the end")
    before, now = saved["fcal"].get("objective"), description(objective)
    if before is not None and before != now:
        raise ValueError(f"expected `objective` as in {path.parent}, {str(before)[:200]}, got {now[:200]}")
    return saved


def _check_nothing_lost(note: Path) -> None:
    """Refuse to begin anew beside a checkpoint, which the next one would replace."""
    left = next(iter(sorted(note.parent.glob(f"{note.stem}-*.ckpt"))), None)
    if left is not None:
        raise ValueError(f"expected {note} to resume from, got none beside {left.name}; remove that to begin anew")


def _load(path: Path | None, saved: dict[str, Any], model: nn.Module) -> None:
    """The weights of a checkpoint, whose names begin with where Lightning finds the model."""
    of_model = {name.removeprefix("model."): x for name, x in saved["state_dict"].items() if name[:6] == "model."}
    for state in (of_model, saved["fcal"]["record"]["best_weights"] or of_model):
        check_fits(path, state, model)
    model.load_state_dict(of_model)


def _own_callbacks(path: Path | None, config: FitConfig, progress: bool) -> list[Callback]:
    found: list[Callback] = [Progress()] if check_flag("progress", progress) and is_watched() else []
    if path is not None:
        found += [Logs(path.parent), KeepCheckpoint(path, config.checkpoint_every_steps)]
    return found


def _trainer(config: FitConfig, callbacks: list[Callback]) -> Trainer:
    """A trainer that does nothing that was not asked for."""
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


def _run(trainer: Trainer, module: Training, loaders: tuple[Batches, Batches | None], start: Path | None) -> None:
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
        # Lightning turns Ctrl-C into an exit; whoever called may still want to clean up.
        if isinstance(stopped.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


@contextmanager
def _frozen_but(trained: nn.Module, whole: nn.Module) -> Iterator[None]:
    """No gradient for what is not trained."""
    kept = {id(parameter) for parameter in trained.parameters()}
    others = [p for p in whole.parameters() if p.requires_grad and id(p) not in kept]
    for parameter in others:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Lightning's remarks on itself."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for message in _REMARKS:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        logger.setLevel(level)
