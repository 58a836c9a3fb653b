"""From a config to a finished run: train, cross-fit, recalibrate and evaluate."""

import copy
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal import data, recalibration
from fcal._config import as_plain
from fcal._datasets import BatchConcat, get_batch, length_of
from fcal._files import provenance, removed_if_empty, write_json
from fcal.crossfitting import CrossFit, crossfit, recentred
from fcal.data.folds import fold_numbers
from fcal.distributions.functional import cat
from fcal.metrics import Report
from fcal.models import FixedMean
from fcal.models.predicting import Predicted, evaluating, predict
from fcal.training import run_folder
from fcal.training.checkpoints import LOCK, exclusive
from fcal.training.config import ConfigError, RunConfig, initial_model, splits
from fcal.training.objectives import objective
from fcal.training.optimization import FitConfig
from fcal.training.predictions import evaluated
from fcal.training.record import REMEDY_OF_HARM, Fit, is_harmed
from fcal.training.reproducibility import Batches, derived_seed, preserved_random_state, seed_everything
from fcal.training.run_folder import Run, load
from fcal.training.trainer import fit

_GROUPS = "groups"  # attribute of a dataset that knows the group of every row


def train(
    config: RunConfig,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    callbacks: Sequence[Any] = (),
    progress: bool = True,
) -> Run:
    """Train, recalibrate and evaluate the network of a config.

    Args:
        config: Everything that determines the run.
        folder: Folder for ``config.toml``, ``weights.safetensors``, ``recalibrator/``, ``report.json``,
            ``SHA256SUMS``, and ``training/`` with logs and, until the run is finished, a checkpoint.
        resume: Resume the run in the folder; a finished run is loaded and returned.
        callbacks: Additional Lightning callbacks.
        progress: Show a progress bar if stderr is a terminal.

    Raises:
        Diverged: A term of the objective is not finite, or the predicted distribution has invalid parameters.
        ValueError: The folder holds a run and ``resume`` is False, or it holds the run of another config or a damaged
            one.

    Example:
        >>> import tempfile
        >>> from fcal.training import DataConfig, FitConfig, ModelConfig, RunConfig, load, train
        >>> tiny = {"size": 16}
        >>> config = RunConfig(
        ...     data=DataConfig(name="bokeh", options={"images": 20, "extra": 0, "radius": 0.2, **tiny}),
        ...     model=ModelConfig(name="convnet", options=tiny),
        ...     fit=FitConfig(epochs=1),
        ... )
        >>> run = train(config, tempfile.mkdtemp())
        >>> load(run.folder).report["test"]["n"]
        8
    """
    if not isinstance(config, RunConfig):
        raise TypeError(f"expected `config` a RunConfig, got {type(config).__name__}")
    if not os.fspath(folder) or "\0" in os.fspath(folder):
        raise ValueError(f"expected `out` the name of a folder, got {os.fspath(folder)!r}")
    folder = Path(folder)
    run_folder.check_folder(config, folder, resume)
    if run_folder.is_finished(folder):
        _remove_leftovers(folder)
        return load(folder)
    model, parts = _start_model(config), splits(config)  # errors in these leave no folder behind
    with removed_if_empty(folder), exclusive(folder):
        run_folder.check_folder(config, folder, resume)  # another process may have finished in the meantime
        if run_folder.is_finished(folder):
            return load(folder)
        with run_folder.removed_if_untrained(folder):
            run_folder.write_config(config, folder)
            training = _Training(config, parts, folder / run_folder.TRAINING, callbacks=callbacks, progress=progress)
            model, held_out, result = training.run(model)
        run_folder.write_model(folder, model)
        metrics, evaluations = _evaluation(config, model, parts, folder, held_out)
        report = {"config": as_plain(config), "seed": config.seed, **metrics}
        report |= {"fit": asdict(result), "skipped": _skipped_rows(parts), "provenance": provenance()}
        report = _json_ready(report)
        _warn_of_harm(config, report)
        write_json(folder / run_folder.REPORT, report)
        run_folder.seal(config, folder)
    return Run(folder=folder, config=config, model=model, report=report, evaluations=evaluations)


def _warn_of_harm(config: RunConfig, report: Mapping[str, Any]) -> None:
    """Warn if the mean is worse than that of the run whose weights were the start, on the same test set."""
    source = Path(config.model.start_from) / run_folder.REPORT
    if not config.model.start_from or not source.exists():
        return
    start = json.loads(source.read_text(encoding="utf-8"))
    now, before = (document["test"].get("rmse") for document in (report, start))
    same = all(start["config"][name] == report["config"][name] for name in ("data", "seed"))
    if same and now is not None and before is not None and is_harmed(now, before):
        shown = f"RMSE {now:.3g} on the test set, {before:.3g} in {config.model.start_from}"
        warnings.warn(f"the mean has become worse in training: {shown}; {REMEDY_OF_HARM}", stacklevel=3)


def _remove_leftovers(folder: Path) -> None:
    """Remove what is left of a training that was killed between its last file and its end."""
    if (folder / LOCK).exists():
        with suppress(OSError, ValueError), exclusive(folder):  # a copy to read alone, or a process that is at it
            run_folder.remove_checkpoints(folder)


def _start_model(config: RunConfig) -> nn.Module:
    model = initial_model(config, pretrained=not config.model.start_from)
    if config.model.start_from:
        run_folder.read_initial_weights(Path(config.model.start_from), model)
    return FixedMean(model) if config.model.fixed_mean else model


class _Training:
    """The trainings of a run, each in a folder of its own, so that an interrupted one can be resumed."""

    def __init__(self, config: RunConfig, parts: data.Splits, folder: Path, **options: Any) -> None:
        self._config = config
        self._parts = parts
        self._folder = folder
        self._options = options
        self._fit_config = replace(config.fit, seed=derived_seed("fit", config.seed, config.fit.seed))
        self._fits: dict[int, Fit] = {}  # by the id of the network

    def run(self, model: nn.Module) -> tuple[nn.Module, CrossFit | None, Fit]:
        """The trained network, the cross-fit if there are folds, and the result of the network's training."""
        if self._config.crossfit.folds:
            return self._cross_fit(model)
        rows, others = self._parts.train, self._parts.validation
        if self._config.model.fixed_mean:  # on rows that the network was trained on, its errors are too small
            return model, None, self._train(model, others, None, self._fit_config, "")
        return model, None, self._train(model, rows, others, self._fit_config, "")

    def _train(
        self, model: nn.Module, rows: Any, held_out: Any, config: FitConfig, name: str, terms: Any = None
    ) -> Fit:
        terms = objective(self._config.objective) if terms is None else terms
        recalibrates = self._config.recalibration.method or self._config.crossfit.folds
        with _requires_distribution(model) if recalibrates else nullcontext():
            return fit(model, terms, rows, held_out, config, folder=self._folder / name, resume=True, **self._options)

    def _cross_fit(self, model: nn.Module) -> tuple[nn.Module, CrossFit, Fit]:
        options, parts, batch_size = self._config.crossfit, self._parts, self._config.fit.batch_size
        rows = parts.train if parts.validation is None else BatchConcat([parts.train, parts.validation])
        groups = _groups(rows, options.groups, batch_size) if options.groups else None
        fold_numbers(length_of(rows), options.folds, groups=groups)  # refuses impossible folds before any training
        if options.early_epochs:
            shared = replace(
                self._fit_config, epochs=options.early_epochs, stop_after=0, schedule="constant", patience=0
            )
            self._train(model, rows, None, shared, "early")

        def fit_fold(rows: Any, held_out: Any, fold_models: tuple[nn.Module, ...]) -> nn.Module:
            return self._fit_fold(copy.deepcopy(model), rows, held_out, fold_models)

        result = crossfit(
            fit_fold,
            rows,
            keep="full",
            folds=options.folds,
            groups=groups,
            seed=self._config.seed,
            correct=not options.early_epochs,  # shared epochs know a little of all rows, which offsets the correction
            batch_size=batch_size,
        )
        history = self._fits[id(result.full)]
        if options.scales:
            result = result.with_scales(self._fit_scales)
        return result.full, result, history

    def _fit_fold(self, model: nn.Module, rows: Any, held_out: Any, fold_models: tuple[nn.Module, ...]) -> nn.Module:
        """Train the network of a fold, validated on it; or that of all rows, for the mean of the best epochs."""
        config = replace(self._fit_config, epochs=self._fit_config.epochs - self._config.crossfit.early_epochs)
        if fold_models:
            stop = round(fmean(self._fits[id(fold_model)].best_epoch + 1 for fold_model in fold_models))
            config = replace(config, stop_after=stop, patience=0)
        name = "" if fold_models else f"fold-{len(self._fits) + 1}"
        self._fits[id(model)] = self._train(model, rows, held_out, config, name)
        return model

    def _fit_scales(self, rows: Any, model: nn.Module) -> nn.Module:
        """Train a scale network around locations that are predicted by networks without the row."""
        options = self._config.crossfit
        # The locations are fixed, so a task loss of them would be a constant.
        scale_objective = objective(replace(self._config.objective, name=options.scales, task="nll"))

        def around_center(model: nn.Module, batch: Mapping[str, Any]) -> Mapping[str, Tensor]:
            return scale_objective(lambda x: recentred(model(x), batch["center"]), batch)  # type: ignore[arg-type]

        config = replace(
            self._fit_config,
            epochs=options.scale_epochs,
            learning_rate=options.scale_rate,
            stop_after=0,
            patience=0,
        )
        number = len(self._fits) - options.folds - 1  # 0 is the network of all rows
        name = f"scales-{number}" if number else "scales"
        self._fits[id(model)] = self._train(model, rows, None, config, name, around_center)
        return model


def _groups(rows: Any, name: str, batch_size: int) -> list[Any]:
    """The group of every row: an entry of the rows, or the attribute ``groups`` of the data, which reads no row."""
    parts: list[Any] = list(rows.datasets) if isinstance(rows, BatchConcat) else [rows]
    if name == _GROUPS and all(hasattr(part, _GROUPS) for part in parts):
        groups = [group for part in parts for group in part.groups]
        if len(groups) != length_of(rows):
            raise ConfigError(f"expected `groups` of the data for {length_of(rows)} rows, got {len(groups)}")
        return groups
    groups = []
    for indices in torch.arange(length_of(rows)).split(batch_size):
        batch = get_batch(rows, indices.tolist())
        if name not in batch:
            known = sorted(batch) + [_GROUPS] * all(hasattr(part, _GROUPS) for part in parts)
            raise ConfigError(f"expected `crossfit.groups` an entry of the rows, got {name!r}, not in {known}")
        groups += batch[name].tolist() if isinstance(batch[name], Tensor) else list(batch[name])
    return groups


@contextmanager
def _requires_distribution(model: nn.Module) -> Iterator[None]:
    """Refuse a network without error bars at its first prediction, not after training."""

    def check(_: nn.Module, __: Any, pred: Any) -> None:
        hook.remove()
        _distribution(pred)

    hook = model.register_forward_hook(check)
    try:
        yield
    finally:
        hook.remove()


def _distribution(pred: Any) -> Distribution:
    if not isinstance(pred, Distribution):
        raise ValueError("expected a model with a distribution to recalibrate, got one that returns a tensor")
    return pred


def _evaluation(
    config: RunConfig, model: nn.Module, parts: data.Splits, folder: Path, held_out: CrossFit | None
) -> tuple[dict[str, Any], dict[str, Report]]:
    """Metrics on the test set, before and after recalibration, whose recalibrator is saved; and their reports."""
    test = _predicted(config, model, parts.test)
    before, report_before = evaluated(test)
    if not config.recalibration.method:
        return {"test": before, "before": None}, {} if report_before is None else {"test": report_before}
    if held_out is not None:
        recalibrator = held_out.calibrated(config.recalibration.method).repair
    else:
        validation = _predicted(config, model, parts.validation)
        recalibrator = recalibration.by_name(config.recalibration.method)()
        recalibrator.fit(_distribution(validation.pred), validation.target, valid_mask=validation.valid_mask)
    recalibrator.save(folder / run_folder.RECALIBRATOR)
    recalibrated = test._replace(pred=recalibrator.transform(_distribution(test.pred)))
    after, report_after = evaluated(recalibrated)
    reports = {"test": report_after, "before": report_before}
    return {"test": after, "before": before}, {name: report for name, report in reports.items() if report is not None}


def _predicted(config: RunConfig, model: nn.Module, dataset: Any) -> Predicted:
    """Predictions of a dataset, as the objective judges them."""
    terms: Any = objective(config.objective)
    if not hasattr(terms, "judged"):
        return predict(model, dataset, batch_size=config.fit.batch_size, channels_last=config.fit.channels_last)
    preds, targets = [], []
    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad(), preserved_random_state():
        for number, batch in enumerate(Batches(dataset, config.fit.batch_size)):
            seed_everything(derived_seed("judged", config.seed, number))
            _, pred, judged = terms.judged(model, move_data_to_device(batch, device))
            if len(judged["target"]):
                preds.append(pred)
                targets.append(judged["target"])
    if not preds:
        raise ValueError("expected `model` to predict targets, got none: it proposes no object; train it for longer")
    return Predicted(cat(preds), torch.cat(targets), None)


def _skipped_rows(parts: data.Splits) -> list[str]:
    """Why rows could not be read, of datasets that skip such rows and know which."""
    datasets = (getattr(parts, name) for name in ("train", "validation", "test"))
    return [reason for dataset in datasets for _, reason in getattr(dataset, "skipped", [])]


def _json_ready(value: Any) -> Any:
    """Replace numbers that JSON cannot express by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _json_ready(item) for key, item in value.items()}
    return [_json_ready(item) for item in value] if isinstance(value, list) else value
