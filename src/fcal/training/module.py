"""Model and objective as one Lightning module."""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal._config import as_plain
from fcal._datasets import Batch, rows_of
from fcal.models.predicting import in_format, prediction
from fcal.training.configuration import MONITORS, TRAINED, FitConfig
from fcal.training.laws import Refusal, is_finite, is_sane, refusal_of
from fcal.training.objectives import Objective, Terms
from fcal.training.randomness import derived_seed, generators_in, seed_everything
from fcal.training.record import Record
from fcal.training.results import Diverged
from fcal.training.schedules import OPTIMIZERS, rate_factor
from fcal.training.validation import Validation

try:
    from lightning.pytorch import LightningModule
except ModuleNotFoundError as error:
    raise ImportError("expected lightning for training; pip install 'fcal[train]'") from error


_SUM = "loss"  # what the sum of the terms is called in logs
_BEFORE_TRAINING = "no weight has changed yet, so look at the network and its input first"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Training(LightningModule):  # type: ignore[misc]
    """What Lightning trains: the model by its objective, with a record from which it can go on.

    Args:
        model: Returns a distribution or a tensor.
        objective: From model and batch to named terms.
        config: How.
        record: Where to begin.
        steps: Optimizer steps of the whole training.
    """

    def __init__(self, model: nn.Module, objective: Objective, config: FitConfig, record: Record, steps: int) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.config = config
        self.record = record
        self.steps = steps
        self._trained = TRAINED[config.trained](model)
        self._seen = Validation()
        self._judged = 0
        self._numbers: dict[str, float] = {}
        self.described = description(objective)
        self.started = False

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer of what is trained."""
        learned = [*self._trained.parameters()]
        if isinstance(self.objective, nn.Module):
            learned += self.objective.parameters()
        learned = [parameter for parameter in learned if parameter.requires_grad]
        if not learned:
            raise ValueError(f"expected `model` with parameters to train, got none in {type(self.model).__name__}")
        return OPTIMIZERS[self.config.optimizer](
            learned,
            lr=self.config.learning_rate,
            weight_decay=self.config.weight_decay,
            fused=all(parameter.is_floating_point() for parameter in learned),  # one pass over the weights, not ten
        )

    def on_train_start(self) -> None:
        """The trained part in training mode, the rest as in evaluation."""
        self.started = True
        self.eval()
        self._trained.train()
        if isinstance(self.objective, nn.Module):
            self.objective.train()

    def on_train_batch_start(self, *_: Any) -> None:
        """Learning rate and randomness of a step are functions of where it is."""
        record, config = self.record, self.config
        rate = config.learning_rate * rate_factor(config.schedule, record.step, self.steps)
        for group in self.optimizers(use_pl_optimizer=False).param_groups:
            group["lr"] = rate
        seed_everything(derived_seed("step", config.seed, record.epoch, record.position))

    def training_step(self, batch: Batch, *_: Any) -> Tensor:
        """Loss of a batch."""
        batch = self._prepared(batch)
        try:
            terms = self.objective(self.model, batch)
        except (ValueError, StopIteration) as error:
            raise self._explained(error, batch) from error
        return self._counted(terms, rows_of(batch))

    def _counted(self, terms: Terms, rows: int) -> Tensor:
        """The sum of the terms, which are noted and must be finite."""
        values = _plain(terms)
        for name, value in values.items():
            if not math.isfinite(value):
                raise Diverged(self.record.step, name, value)
        if not any(term.requires_grad for term in terms.values()):
            raise ValueError(f"expected `objective` with a gradient, got none in {', '.join(map(repr, terms))}")
        self.record.count(values, rows)
        return torch.stack(tuple(terms.values())).sum() if len(terms) > 1 else next(iter(terms.values()))

    def _explained(self, error: Exception, batch: Batch) -> Exception:
        """A refusal of numbers that the model itself made is a divergence; any other is the user's."""
        if isinstance(error, StopIteration):  # Lightning would take it for the end of the data
            return RuntimeError("expected model and objective to return, got a StopIteration from them")
        refusal = refusal_of(error)
        if refusal is not None:
            return self._of_refusal(refusal, batch)
        if is_finite(batch["input"]) and not is_sane(self.model, batch["input"]):
            return Diverged(self.record.step, "prediction", math.nan)
        return error

    def _of_refusal(self, refusal: Refusal, batch: Batch) -> Exception:
        """A law that torch refuses: by training, unless the data or the network as it was given made it so."""
        step = self.record.step
        if not is_finite(batch["input"]):
            return ValueError(f"expected `input` of finite numbers, got a batch of which the model made {refusal}")
        if step == 0 and refusal.is_finite:
            return ValueError(f"expected `model` to make a law, got {refusal}; {_BEFORE_TRAINING}")
        hint = "" if step else f"; {_BEFORE_TRAINING}"
        why = f"prediction is no law after {step} steps: {refusal}{hint}"
        return Diverged(step, "prediction", refusal.value, why)

    def on_validation_epoch_start(self) -> None:
        """Begin to collect."""
        self._seen, self._judged = Validation(), 0

    def validation_step(self, batch: Batch, index: int) -> dict[str, Any]:
        """Prediction of a batch, collected; also returned, for callbacks."""
        batch = self._prepared(batch)
        seed_everything(derived_seed("validation", self.config.seed, self.record.epoch, index))
        try:
            terms, pred = self._observed(batch)
            loss = sum(_plain(terms).values())
            self._seen.add(pred, batch, loss)
        except (ValueError, StopIteration) as error:
            raise self._explained(error, batch) from error
        self._judged += 1
        return {"pred": pred, "target": batch["target"], "valid_mask": batch.get("valid_mask")}

    def _observed(self, batch: Batch) -> tuple[Terms, Distribution | Tensor]:
        """Terms, and the prediction that they were made from: the model runs once, unless the objective hides it."""
        seen: list[Any] = []

        def note(_: nn.Module, given: tuple[Any, ...], pred: Any) -> None:
            seen.extend([pred] if given and given[0] is batch["input"] else [])

        hook = self.model.register_forward_hook(note)
        try:
            terms = self.objective(self.model, batch)
        finally:
            hook.remove()
        return terms, seen[0] if len(seen) == 1 else prediction(self.model, batch["input"])

    def on_validation_epoch_end(self) -> None:
        """Numbers of the whole set."""
        _check_all_came("validation", self._judged, int(sum(self.trainer.num_val_batches)))
        self._numbers = self._seen.numbers()
        loss = self._numbers.get("loss", 0.0)
        if not math.isfinite(loss):
            raise Diverged(self.record.step, "validation/loss", loss)

    def on_train_epoch_end(self) -> None:
        """Close the epoch; keep the weights where they are the best so far."""
        if not self.trainer.should_stop:  # by a callback, which may do so within an epoch
            _check_all_came("training", self.record.position, int(self.trainer.num_training_batches))
        rate = self.optimizers(use_pl_optimizer=False).param_groups[0]["lr"]
        self.record.close_epoch(rate, self._numbers)
        self._note_whether_best()
        if self.record.stopped_early:
            self.trainer.should_stop = True

    def _note_whether_best(self) -> None:
        record, numbers = self.record, self._numbers
        if not numbers:  # no validation set: the last is the best
            record.best_epoch = record.epoch - 1
            return
        if self.config.monitor not in numbers:
            known = ", ".join(repr(name) for name in numbers if name in MONITORS.names())
            raise ValueError(f"expected `monitor` one of {known} for this model, got {self.config.monitor!r}")
        value = numbers[self.config.monitor]
        if record.best_value is None or value < record.best_value:
            record.best_value, record.best_epoch, record.waited = value, record.epoch - 1, 0
            record.best_weights = {name: x.detach().clone() for name, x in self.model.state_dict().items()}
            return
        record.waited += 1
        record.stopped_early = bool(self.config.patience) and record.waited >= self.config.patience

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Beside what Lightning saves: the record."""
        self.record.generators = [source.get_state() for source in generators_in(self.model, self.objective)]
        checkpoint["fcal"] = {
            "config": as_plain(self.config),
            "objective": self.described,
            "record": self.record.state(),
        }

    def on_load_checkpoint(self, _: dict[str, Any]) -> None:
        """Generators of model and objective as they were; the record has been read before."""
        for source, state in zip(generators_in(self.model, self.objective), self.record.generators, strict=True):
            source.set_state(state)

    def _prepared(self, batch: Batch) -> Batch:
        return {**batch, "input": in_format(batch["input"], True)} if self.config.channels_last else batch


def _plain(terms: Terms) -> dict[str, float]:
    """Numbers of the terms, fetched in one go."""
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


def _check_all_came(what: str, seen: int, expected: int) -> None:
    """Whatever ends Lightning's loop early without an error, such as a StopIteration, is one."""
    if seen != expected:
        raise RuntimeError(f"expected {expected} batches of {what} in an epoch, got {seen}: something ended the loop")


def description(objective: Objective) -> str:
    """An objective in words, the same in every process: what it is called, or how it prints.

    Example:
        >>> from fcal.training import ObjectiveConfig, objective
        >>> description(objective(ObjectiveConfig(name="nll")))
        "TermOf( ObjectiveConfig(name='nll', lam=0.5, form='convex', ...) (loss): NLLLoss() )"
    """
    if isinstance(objective, nn.Module):
        return _ADDRESS.sub("", " ".join(repr(objective).split()))
    kind = objective if hasattr(objective, "__qualname__") else type(objective)
    return f"{kind.__module__}.{kind.__qualname__}"
