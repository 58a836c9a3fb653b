"""Training by Lightning: without output, repeatable, and resumable where it was interrupted."""

import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal._checks import check_flag
from fcal._config import as_plain
from fcal._datasets import Batch, has_target, rows_of
from fcal._executor import keep_freed_memory
from fcal._files import writable_folder
from fcal._progress import is_watched
from fcal._ranks import world_size
from fcal.models.predicting import in_format, prediction
from fcal.training.callbacks import HistoryLogger, StepProgress
from fcal.training.checkpoints import (
    NAME,
    CheckedIO,
    KeepCheckpoint,
    checkpoint_to_resume,
    exclusive,
    restore_weights,
)
from fcal.training.objective_checks import check_objective
from fcal.training.objectives import Objective, Terms, WeightedObjective, description
from fcal.training.objectives import objective as objective_of
from fcal.training.optimization import MONITORS, OPTIMIZERS, TRAINED, FitConfig, frozen_except, rate_factor
from fcal.training.predictions import InvalidParameter, Validation, invalid_parameter, is_finite, without_validation
from fcal.training.record import REMEDY_OF_HARM, Diverged, Fit, Record, is_harmed
from fcal.training.reproducibility import Batches, derived_seed, generators_in, preserved_random_state, seed_everything

_IGNORED_WARNINGS = (
    "`isinstance\\(treespec, LeafSpec\\)` is deprecated",
    "Checkpoint directory .* exists and is not empty",
    "GPU available but not used",
    "You defined a `validation_step` but have no `val_dataloader`",
    "Found .* module\\(s\\) in eval mode at the start of training",
    "`training_step` returned `None`",
)
_SUM = "loss"  # name of the sum of the terms in logs
_UNTRAINED = "no weight has changed yet, so check the network and its input first"
_LONGEST_REASON = 300  # characters
_MOST_SKIPPED = 0.01  # share of the batches of an epoch; one batch may always be skipped


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

    A batch without a target that counts (all are NaN, such as those of a frame that cannot be read) is skipped: it
    changes neither weights nor optimizer. The number of such batches is in the result and in one warning at the end.

    Args:
        model: ``model(batch["input"])`` is a distribution, or a tensor for a network without error bars. It ends in
            evaluation mode.
        objective: ``objective(model, batch)`` is a mapping of named scalars whose sum is minimised; the mean negative
            log-likelihood if None. If it has a method ``judged``, that returns what is validated (see
            :class:`Objective`).
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
        ValueError: The folder holds another training, the checkpoint is damaged, or the data do not fit; or more than
            one batch of an epoch, and more than 1 % of them, have no target that counts.

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
    checkpoint = None if folder is None else writable_folder(folder) / NAME
    with nullcontext() if checkpoint is None else exclusive(checkpoint.parent):
        batches = Batches(train, config.batch_size, seed=config.seed, position=lambda: (record.epoch, record.position))
        record, start = Record(dataset_rows=batches.rows), None
        if checkpoint is not None and (saved := checkpoint_to_resume(checkpoint, config, objective, batches, resume)):
            record, start = Record.from_state(saved["fcal"]["record"]), checkpoint
            restore_weights(saved, model, checkpoint)
        if not record.is_finished(config.passes):
            loaders = batches, None if validation is None else Batches(validation, config.batch_size)
            callbacks = [*callbacks, *_own_callbacks(checkpoint, config, progress)]
            with preserved_random_state(), _quiet(), frozen_except(TRAINED[config.trained](model), model):
                module = TrainingModule(model, objective, config, record, config.epochs * len(batches))
                _run(_trainer(config, callbacks), module, loaders, start)
            _warn_of_skipped(record)
            _warn_of_harm(record, objective)
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


def _warn_of_skipped(record: Record) -> None:
    """Warn once of batches without a target that counts."""
    in_validation = int(max((line.get("validation/skipped", 0) for line in record.history), default=0))
    skipped = [f"{record.skipped} of {record.batches} of training"] if record.skipped else []
    skipped += [f"{in_validation} of validation"] if in_validation else []
    if skipped:
        warnings.warn(f"skipped batches without a target that counts: {' and '.join(skipped)}", stacklevel=3)


def _warn_of_harm(record: Record, objective: Objective) -> None:
    """Warn once if a calibration loss has traded the mean for calibration."""
    errors = [line.get("validation/rmse", math.nan) for line in record.history]
    # The errors of a detector, which has losses of its own, are of the boxes that it finds: more of them may be worse.
    weighted = isinstance(objective, WeightedObjective) and objective.task is not None and objective.lam > 0
    if not weighted or not all(map(math.isfinite, errors)):
        return
    kept, best = errors[record.best_epoch], min(errors)
    if is_harmed(kept, best):
        warnings.warn(
            f"the mean has become worse in training: RMSE {kept:.3g} on the validation set, {best:.3g} after epoch "
            f"{errors.index(best) + 1}; {REMEDY_OF_HARM}",
            stacklevel=3,
        )


def _own_callbacks(checkpoint: Path | None, config: FitConfig, progress: bool) -> list[Callback]:
    callbacks: list[Callback] = [StepProgress()] if check_flag("progress", progress) and is_watched() else []
    if checkpoint is not None:
        callbacks += [HistoryLogger(checkpoint.parent), KeepCheckpoint(checkpoint, config.checkpoint_every_steps)]
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


def _run(
    trainer: Trainer, module: "TrainingModule", loaders: tuple[Batches, Batches | None], start: Path | None
) -> None:
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


# Model and objective as a Lightning module.


class TrainingModule(LightningModule):  # type: ignore[misc]
    """Trains a model by an objective for a number of steps, with a record from which training can be resumed."""

    def __init__(self, model: nn.Module, objective: Objective, config: FitConfig, record: Record, steps: int) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.config = config
        self.record = record
        self.steps = steps
        self.started = False
        self._description = description(objective)
        self._trained = TRAINED[config.trained](model)
        self._validation = Validation()
        self._validation_batches = 0
        self._validation_skipped = 0
        self._metrics: dict[str, float] = {}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer of the trained parameters, including those of the objective."""
        parameters = [*self._trained.parameters()]
        if isinstance(self.objective, nn.Module):
            parameters += self.objective.parameters()
        parameters = [parameter for parameter in parameters if parameter.requires_grad]
        if not parameters:
            raise ValueError(f"expected `model` with parameters to train, got none in {type(self.model).__name__}")
        return OPTIMIZERS[self.config.optimizer](
            parameters,
            lr=self.config.learning_rate,
            weight_decay=self.config.weight_decay,
            fused=all(parameter.is_floating_point() for parameter in parameters),  # one pass over the weights, not ten
        )

    def on_train_start(self) -> None:
        """Put the trained part in training mode and the rest in evaluation mode."""
        self.started = True
        self.eval()
        self._trained.train()
        if isinstance(self.objective, nn.Module):
            self.objective.train()

    def on_train_batch_start(self, *_: Any) -> None:
        """Set learning rate and seed, which depend on the position in training alone."""
        rate = self.config.learning_rate * rate_factor(self.config.schedule, self.record.batches, self.steps)
        for group in self.optimizers(use_pl_optimizer=False).param_groups:
            group["lr"] = rate
        self._seed_step()

    def _seed_step(self) -> None:
        seed_everything(derived_seed("step", self.config.seed, self.record.epoch, self.record.position))

    def training_step(self, batch: Batch, *_: Any) -> Tensor | None:
        """Loss of a batch: the sum of its terms, which must be finite; None for a batch that is skipped.

        Without a loss there are no gradients, so that the optimizer changes nothing, not even its own state.
        """
        if _is_skipped(batch):
            self.record.skip()
            _check_skipped("training", self.record.skipped_in_epoch, int(self.trainer.num_training_batches))
            return None
        batch = self._in_memory_format(batch)
        try:
            terms = self.objective(self.model, batch)
        except (ValueError, StopIteration) as error:
            raise self._explained(error, batch) from error
        values = _values(terms)
        for name, value in values.items():
            if not math.isfinite(value):
                raise Diverged(self.record.step, name, value)
        if not any(term.requires_grad for term in terms.values()):
            raise ValueError(f"expected `objective` with a gradient, got none in {', '.join(map(repr, terms))}")
        self.record.count(values, rows_of(batch))
        return torch.stack(tuple(terms.values())).sum() if len(terms) > 1 else next(iter(terms.values()))

    def on_validation_epoch_start(self) -> None:
        """Reset the metrics."""
        self._validation, self._validation_batches, self._validation_skipped = Validation(), 0, 0

    def validation_step(self, batch: Batch, index: int) -> dict[str, Any]:
        """Add a batch to the metrics; return its prediction, for callbacks."""
        batch = self._in_memory_format(batch)
        seed_everything(derived_seed("validation", self.config.seed, self.record.epoch, index))
        judged: Batch = batch
        try:
            if _is_skipped(batch):
                pred = prediction(self.model, batch["input"])
                self._validation_skipped += 1
            else:
                terms, pred, judged = self._judged(batch)
                self._validation.add(pred, judged, sum(_values(terms).values()), rows=rows_of(batch))
        except (ValueError, StopIteration) as error:
            raise self._explained(error, batch) from error
        self._validation_batches += 1
        return {"pred": pred, "target": judged["target"], "valid_mask": judged.get("valid_mask")}

    def _judged(self, batch: Batch) -> tuple[Terms, Distribution | Tensor, Batch]:
        """Terms, the prediction they are computed from, and its targets.

        The model runs once unless the objective hides its call.
        """
        if hasattr(self.objective, "judged"):
            judged: tuple[Terms, Distribution | Tensor, Batch] = self.objective.judged(self.model, batch)
            return judged
        preds: list[Any] = []

        def keep(_: nn.Module, inputs: tuple[Any, ...], pred: Any) -> None:
            preds.extend([pred] if inputs and inputs[0] is batch["input"] else [])

        hook = self.model.register_forward_hook(keep)
        try:
            terms = self.objective(self.model, batch)
        finally:
            hook.remove()
        return terms, preds[0] if len(preds) == 1 else prediction(self.model, batch["input"]), batch

    def on_validation_epoch_end(self) -> None:
        """Compute the metrics of the whole validation set."""
        _check_complete("validation", self._validation_batches, int(sum(self.trainer.num_val_batches)))
        _check_skipped("validation", self._validation_skipped, self._validation_batches)
        self._metrics = self._validation.metrics()
        if self._validation_skipped:
            self._metrics["skipped"] = self._validation_skipped
        loss = self._metrics.get("loss", 0.0)
        if not math.isfinite(loss):
            raise Diverged(self.record.step, "validation/loss", loss)

    def on_train_epoch_end(self) -> None:
        """Close the epoch; keep the weights if they are the best so far."""
        if not self.trainer.should_stop:  # a callback may stop training within an epoch
            _check_complete("training", self.record.position, int(self.trainer.num_training_batches))
        rate = self.optimizers(use_pl_optimizer=False).param_groups[0]["lr"]
        self.record.close_epoch(rate, self._metrics)
        self._keep_if_best()
        if self.record.stopped_early:
            self.trainer.should_stop = True

    def _keep_if_best(self) -> None:
        record, metrics = self.record, self._metrics
        if not metrics:  # no validation set: the last epoch is the best
            record.best_epoch = record.epoch - 1
            return
        is_unknown = self.config.monitor not in metrics
        if is_unknown and not self._validation.is_empty():
            known = ", ".join(repr(name) for name in metrics if name in MONITORS.names())
            raise ValueError(f"expected `monitor` one of {known} for this model, got {self.config.monitor!r}")
        value = math.inf if is_unknown else metrics[self.config.monitor]
        if record.best_value is None or value < record.best_value:
            record.best_value, record.best_epoch, record.waited = value, record.epoch - 1, 0
            record.best_weights = {name: x.detach().clone() for name, x in self.model.state_dict().items()}
            return
        record.waited += 1
        record.stopped_early = bool(self.config.patience) and record.waited >= self.config.patience

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the record to what Lightning saves."""
        self.record.generators = [source.get_state() for source in generators_in(self.model, self.objective)]
        checkpoint["fcal"] = {
            "config": as_plain(self.config),
            "objective": self._description,
            "record": self.record.state(),
        }

    def on_load_checkpoint(self, _: dict[str, Any]) -> None:
        """Restore the generators of model and objective; the record has been read before."""
        for source, state in zip(generators_in(self.model, self.objective), self.record.generators, strict=True):
            source.set_state(state)

    def _in_memory_format(self, batch: Batch) -> Batch:
        return {**batch, "input": in_format(batch["input"], True)} if self.config.channels_last else batch

    def _explained(self, error: Exception, batch: Batch) -> Exception:
        """The error to raise for a failed step: a divergence if the prediction is invalid, else ``error`` itself.

        torch refuses to make a distribution with invalid parameters. The step is therefore repeated without torch's
        validation, and the parameters of the prediction are checked here.
        """
        if isinstance(error, StopIteration):  # Lightning would take it for the end of the data
            return RuntimeError("expected model and objective to return, got a StopIteration from them")
        step = self.record.step
        with without_validation(), torch.no_grad():
            invalid = self._invalid_parameter(batch)
            if invalid is None:
                return (self._diverged_term(batch, error) if step else None) or error
        if not is_finite(batch["input"]):
            return ValueError(f"expected `input` of finite values, got a batch for which the model returns {invalid}")
        if step == 0 and invalid.is_finite:
            return ValueError(f"expected `model` to return a valid distribution, got {invalid}; {_UNTRAINED}")
        hint = "" if step else f"; {_UNTRAINED}"
        return Diverged(step, "prediction", invalid.value, f"invalid prediction after {step} steps: {invalid}{hint}")

    def _invalid_parameter(self, batch: Batch) -> InvalidParameter | None:
        self._seed_step()
        try:
            is_judged = hasattr(self.objective, "judged")
            return invalid_parameter(self._judged(batch)[1] if is_judged else self.model(batch["input"]))
        except Exception:  # the first error is the one to report, unless the weights explain it
            names = [name for name, weight in self.model.named_parameters() if not is_finite(weight)]
            message = f"a model whose weight {names[0]} is not finite" if names else ""
            return InvalidParameter(message=message, value=math.nan, is_finite=False) if names else None

    def _diverged_term(self, batch: Batch, error: Exception) -> Diverged | None:
        """A divergence if a term is not finite without validation: the objective made an invalid distribution."""
        self._seed_step()
        try:
            values = _values(self.objective(self.model, batch))
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # a covariance matrix is not positive definite
            values = {"prediction": math.nan}
        except Exception:  # the first error is the one to report
            return None
        for name, value in values.items():
            if not math.isfinite(value):
                reason = " ".join(str(error).split())[:_LONGEST_REASON]
                why = f"{name} = {value} after {self.record.step} steps: {reason}"
                return Diverged(self.record.step, name, value, why)
        return None


def _values(terms: Terms) -> dict[str, float]:
    """The terms as numbers, transferred at once."""
    if not isinstance(terms, Mapping) or not terms:
        raise TypeError(f"expected `objective` to return named terms, got {type(terms).__name__}")
    for name, term in terms.items():
        if not isinstance(name, str) or name == _SUM:
            raise ValueError(
                f"expected `objective` to name its terms, and none {_SUM!r}, which is their sum, got {name!r}"
            )
        if not isinstance(term, Tensor) or term.dim():
            shown = f"shape {tuple(term.shape)}" if isinstance(term, Tensor) else type(term).__name__
            raise TypeError(f"expected `objective` to return scalar tensors, got {name!r} of {shown}")
    values = [term.detach() for term in terms.values()]
    return dict(zip(terms, torch.stack(values).tolist() if len(values) > 1 else [values[0].item()], strict=True))


def _is_skipped(batch: Batch) -> bool:
    """Whether no target of a batch counts.

    With several ranks nothing is skipped here, as one rank cannot leave out a backward pass that the others wait in.
    Losses sum over ranks, so that a rank without targets takes part, and all ranks raise if none has a target.
    """
    return world_size() == 1 and not has_target(batch)


def _check_skipped(stage: str, skipped: int, batches: int) -> None:
    """Refuse an epoch of which too many batches have no target that counts."""
    if skipped == batches:
        raise ValueError(f"expected `target` with at least 1 value that counts, got 0 in {stage}")
    if skipped > max(1.0, _MOST_SKIPPED * batches):
        raise ValueError(
            f"expected at most {_MOST_SKIPPED:.0%} of the batches of {stage} without a target that counts, got "
            f"{skipped} of {batches}"
        )


def _check_complete(stage: str, seen: int, expected: int) -> None:
    """Refuse an epoch that Lightning's loop ended early without an error, as it does on a StopIteration."""
    if seen != expected:
        raise RuntimeError(f"expected {expected} batches of {stage} in an epoch, got {seen}: something ended the loop")
