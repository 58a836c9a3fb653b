"""A training from a config to a folder that holds all that came of it."""

import inspect
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributions import Distribution

from fcal import data, models, recalibration
from fcal._config import as_plain, difference, read_config, to_toml, unknown_key
from fcal._files import atomic_path, provenance, writable_folder, write_json
from fcal.crossfitting import CrossFit, WithScales
from fcal.metrics import evaluate
from fcal.models.predicting import Predicted, predict
from fcal.recalibration import Recalibrator
from fcal.training.configuration import FitConfig
from fcal.training.cross_fits import CrossFits
from fcal.training.fitting import fit
from fcal.training.folders import alone_in, removed_if_empty, undone_if_refused
from fcal.training.objectives import objective
from fcal.training.randomness import derived_seed, random_state_kept, seed_everything
from fcal.training.results import Fit
from fcal.training.run_configuration import ConfigError, RecalibrationConfig, RunConfig
from fcal.training.sums import SUMS, check_sums, write_sums
from fcal.training.validation import Validation
from fcal.training.weights import read_weights, write_weights

CONFIG, WEIGHTS, SCALES, REPORT, RECALIBRATOR, TRAINING = (
    "config.toml",
    "weights.safetensors",
    "scales.safetensors",
    "report.json",
    "recalibrator",
    "training",
)

_SEALED = (CONFIG, WEIGHTS, REPORT, f"{TRAINING}/history.csv")
_FEWEST_TO_JUDGE = 2  # rows


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run.

    Attributes:
        folder: Where all of it is.
        config: What determined it.
        model: The trained network; with ``crossfit.scales``, the network and that of its error bars as one.
        report: What ``report.json`` holds: ``config``, ``seed``, ``fit`` (history and more), ``test`` (the evaluation
            on the test set, after the repair if there is one), ``before`` (without the repair, else None) and
            ``provenance``.

    Example:
        See :class:`RunConfig` and :func:`train`.
    """

    folder: Path
    config: RunConfig
    model: nn.Module
    report: dict[str, Any]


def train(
    config: RunConfig,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    callbacks: Sequence[Any] = (),
    progress: bool = True,
) -> Run:
    """Train, repair and evaluate what a config says.

    Args:
        config: Everything that determines the run.
        folder: Where to: ``config.toml``, ``weights.safetensors``, ``recalibrator/``, ``report.json``, ``SHA256SUMS``,
            and ``training/`` with logs and, until the run is finished, a checkpoint.
        resume: Go on with what is in the folder; a finished run is returned as it is.
        callbacks: Lightning callbacks to run along.
        progress: Show a bar on stderr while a person watches.

    Raises:
        Diverged: Training left the finite numbers.
        ValueError: A folder with a run in it but no ``resume``, or with one of another config, or a damaged one.

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
    place = _checked_place(config, folder)
    _check_folder(config, place, resume)
    if (place / SUMS).exists():
        return load(place)
    model, splits = _first_model(config), _splits(config)  # before the folder: what is refused leaves none behind
    with removed_if_empty(place), alone_in(place):
        _check_folder(config, place, resume)  # another process may have finished meanwhile
        if (place / SUMS).exists():
            return load(place)
        with undone_if_refused([place / CONFIG, place / TRAINING], place / TRAINING):
            _begin(config, place)
            if config.crossfit.folds:
                model, held_out, result = _cross_fitted(config, model, splits, place, callbacks, progress)
            else:
                result = _fit(config, model, splits, place / TRAINING, callbacks=callbacks, progress=progress)
                held_out = None
        _write_networks(place, model)
        report = _plain(
            _judged(config, model, splits, place, held_out) | {"fit": asdict(result), "provenance": provenance()}
        )
        write_json(place / REPORT, report)
        _finish(config, place)
    return Run(folder=place, config=config, model=model, report=report)


def _cross_fitted(
    config: RunConfig, model: nn.Module, splits: data.Splits, place: Path, callbacks: Sequence[Any], progress: bool
) -> tuple[nn.Module, CrossFit, Fit]:
    """The network of all rows, what networks of the folds tell of it, and how its training went."""
    with _says_laws(model):
        trainings = CrossFits(
            config,
            model,
            splits.train,
            splits.validation,
            _how(config),
            place / TRAINING,
            callbacks=callbacks,
            progress=progress,
        )
        found, result = trainings.run()
    return found.full, found, result


def _how(config: RunConfig) -> FitConfig:
    return replace(config.fit, seed=derived_seed("fit", config.seed, config.fit.seed))


def _write_networks(place: Path, model: nn.Module) -> None:
    parts = {WEIGHTS: model.model, SCALES: model.scales} if isinstance(model, WithScales) else {WEIGHTS: model}
    for name, part in parts.items():
        assert isinstance(part, nn.Module)
        write_weights(place / name, part)


def _fit(config: RunConfig, model: nn.Module, splits: data.Splits, folder: Path, **options: Any) -> Fit:
    with _says_laws(model) if config.recalibration.method else nullcontext():
        return fit(
            model,
            objective(config.objective),
            splits.train,
            splits.validation,
            _how(config),
            folder=folder,
            resume=True,
            **options,
        )


@contextmanager
def _says_laws(model: nn.Module) -> Iterator[None]:
    """Refuse a network without error bars at its first word, not when they are to be repaired."""

    def refuse(_: nn.Module, __: Any, pred: Any) -> None:
        hook.remove()
        _check_law(pred)

    hook = model.register_forward_hook(refuse)
    try:
        yield
    finally:
        hook.remove()


def _check_law(pred: Any) -> None:
    if not isinstance(pred, Distribution):
        raise ValueError("expected a model with a distribution to recalibrate, got one that returns a tensor")


def load(folder: str | os.PathLike[str]) -> Run:
    """A finished run, every byte checked.

    Raises:
        ValueError: It is not finished, or damaged; or its data or network is not known here.

    Example:
        >>> from fcal.training import load
        >>> load("nowhere")
        Traceback (most recent call last):
        ...
        ValueError: expected nowhere a finished run, got one without readable SHA256SUMS
    """
    place = Path(folder)
    named = check_sums(place, required=_SEALED)
    config = read_config(place / CONFIG, RunConfig)
    if config.recalibration.method and not any(name.startswith(f"{RECALIBRATOR}/") for name in named):
        raise ValueError(f"expected {place / SUMS} with a line for {RECALIBRATOR}, got none")
    model = _new_model(config)
    read_weights(place / WEIGHTS, model)
    if config.crossfit.scales:
        if SCALES not in named:
            raise ValueError(f"expected {place / SUMS} with a line for {SCALES}, got none")
        scales = _new_model(config)
        read_weights(place / SCALES, scales)
        model = WithScales(model, scales)
    report: dict[str, Any] = json.loads((place / REPORT).read_text(encoding="utf-8"))
    return Run(folder=place, config=config, model=model.eval(), report=report)


def _checked_place(config: Any, folder: str | os.PathLike[str]) -> Path:
    if not isinstance(config, RunConfig):
        raise TypeError(f"expected `config` a RunConfig, got {type(config).__name__}")
    words = os.fspath(folder)
    if not words or "\0" in words:
        raise ValueError(f"expected `out` the name of a folder, got {words!r}")
    return Path(folder)


def _check_folder(config: RunConfig, place: Path, resume: bool) -> None:
    """Refuse a folder that holds something else."""
    if not place.exists():
        return
    if not place.is_dir():
        raise ValueError(f"expected `out` a folder, got the file {place}")
    if all(path.name.startswith(".") for path in place.iterdir()):  # temporaries of a killed process
        return
    if not resume:
        raise ValueError(f"expected `out` an empty folder, or --resume to go on, got {place}, which is not empty")
    if not (place / CONFIG).exists():
        raise ValueError(f"expected `out` a run to go on with, got {place} without {CONFIG}")
    _check_same(config, place)


def _check_same(config: RunConfig, place: Path) -> None:
    found = difference(read_config(place / CONFIG, RunConfig), config)
    if found is not None:
        key, there, here = found
        raise ValueError(f"expected `out` of the same config, got {key} = {there!r} there and {here!r} here")


def _begin(config: RunConfig, place: Path) -> None:
    """Write the resolved config, from then on the folder's own."""
    writable_folder(place)
    if (place / CONFIG).exists():
        _check_same(config, place)
    else:
        with atomic_path(place / CONFIG) as temporary:
            temporary.write_text(to_toml(config), encoding="utf-8")


def _new_model(config: RunConfig) -> nn.Module:
    """The network with its first weights, which depend on the seed alone."""
    with _said_of("model.name"):
        factory, options = models.by_name(config.model.name), config.model.options
    with _said_of("model.options"), random_state_kept():
        _check_options("model.options", factory, options)
        seed_everything(derived_seed("weights", config.seed))
        model = factory(**options)
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected `model` {config.model.name!r} a torch.nn.Module, got {type(model).__name__}")
    return model


def _splits(config: RunConfig) -> data.Splits:
    """The data, as far as can be told before the work: all parts there, and enough rows to judge by."""
    with _said_of("data.name"):
        factory, options = data.by_name(config.data.name), config.data.options
    with _said_of("data.options"):
        _check_options("data.options", factory, options)
        splits = factory(**options)
    for part in ("train", "validation", "test"):
        if not hasattr(splits, part):
            raise ValueError(f"expected `data` {config.data.name!r} with a part {part!r}, got none")
    fewest = {"train": 1, "validation": 1, "test": _FEWEST_TO_JUDGE}
    if splits.validation is None and (config.crossfit.folds or not config.recalibration.method):
        del fewest["validation"]
    for part, rows in fewest.items():
        found = _length(part, getattr(splits, part))
        if found < rows:
            raise ValueError(f"expected `data` with at least {rows} rows in {part!r}, got {found}")
    return splits


def _length(part: str, dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError:
        raise TypeError(f"expected `data` with a dataset of some length as {part!r}, got {dataset!r:.80}") from None


@contextmanager
def _said_of(key: str) -> Iterator[None]:
    """Say of a refusal which key of the config it is about, where it does not say so itself."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error) if key in str(error) else f"{key}: {error}") from error


def _check_options(table: str, factory: Any, options: Mapping[str, Any]) -> None:
    """Refuse a misspelt option by its nearest name; Python's own complaint would not tell."""
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # of something built in, which does not say
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for key in options:
        if key not in parameters:
            raise ValueError(unknown_key(table, key, parameters))


def _first_model(config: RunConfig) -> nn.Module:
    model = _new_model(config)
    if config.model.start_from:
        with _said_of("model.start_from"):
            _read_first_weights(Path(config.model.start_from), model)
    return model


def _read_first_weights(source: Path, model: nn.Module) -> None:
    if not (source / SUMS).is_file():
        shown = f"{source}, which has no {SUMS}: not finished?" if source.is_dir() else f"no folder {source}"
        needed = f"the folder of a finished run, with {WEIGHTS} and {SUMS}"
        raise ValueError(f"expected `model.start_from` {needed}, got {shown}")
    check_sums(source, only=WEIGHTS)
    read_weights(source / WEIGHTS, model)


def _judged(
    config: RunConfig, model: nn.Module, splits: data.Splits, place: Path, held_out: CrossFit | None
) -> dict[str, Any]:
    """What the run is worth on the test set, before and after the repair."""
    test = _predicted(config, model, splits.test)
    report = {"config": as_plain(config), "seed": config.seed, "test": numbers_of(test), "before": None}
    if not config.recalibration.method:
        return report
    if held_out is not None:
        repair = held_out.calibrated(config.recalibration.method).repair
    else:
        repair = _repair(_predicted(config, model, splits.validation), config.recalibration)
    repair.save(place / RECALIBRATOR)
    _check_law(test.pred)
    assert isinstance(test.pred, Distribution)
    repaired = test._replace(pred=repair.transform(test.pred))
    return report | {"test": numbers_of(repaired), "before": report["test"]}


def _predicted(config: RunConfig, model: nn.Module, dataset: Any) -> Predicted:
    return predict(model, dataset, batch_size=config.fit.batch_size, channels_last=config.fit.channels_last)


def _repair(validation: Predicted, config: RecalibrationConfig) -> Recalibrator:
    _check_law(validation.pred)
    assert isinstance(validation.pred, Distribution)
    repair = recalibration.by_name(config.method)()
    return repair.fit(validation.pred, validation.target, valid_mask=validation.valid_mask)


def numbers_of(predicted: Predicted) -> dict[str, Any]:
    """Numbers of predictions of a whole dataset: those of :func:`fcal.evaluate`, and ``l1`` and ``mse`` of the mean."""
    seen = Validation()
    batch = {"target": predicted.target, "valid_mask": predicted.valid_mask}
    if not isinstance(predicted.pred, Distribution):
        seen.add(predicted.pred, batch)
        return seen.numbers()
    report = evaluate(predicted.pred, predicted.target, valid_mask=predicted.valid_mask).as_dict()
    seen.add_errors(predicted.pred, batch)
    return report | seen.numbers()


def _finish(config: RunConfig, place: Path) -> None:
    """Seal the run; its checkpoint is of no more use."""
    repair = sorted((place / RECALIBRATOR).glob("*")) if config.recalibration.method else []
    scales = [place / SCALES] if config.crossfit.scales else []
    write_sums(place, [*(place / name for name in _SEALED), *scales, *repair])
    for path in (place / TRAINING).rglob("checkpoint*"):
        path.unlink()


def _plain(value: Any) -> Any:
    """Without what JSON has no word for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
