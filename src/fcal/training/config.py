"""The config of a run, as read from a TOML file, and the network and data that it names."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, get_type_hints

from torch import nn

from fcal import data, models, recalibration
from fcal._checks import check_flag, check_integer, check_number
from fcal._config import as_plain, plain, unknown_key
from fcal.training.objectives import MEAN_ONLY, ObjectiveConfig
from fcal.training.optimization import FitConfig
from fcal.training.reproducibility import derived_seed, preserved_random_state, seed_everything

_FEWEST_TEST_ROWS = 2


class ConfigError(ValueError):
    """A config that cannot be used although each value has the right type; the message names the dotted key."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The data: a name from :func:`fcal.data.names` and the options of its factory.

    Example:
        >>> from fcal.training import DataConfig
        >>> DataConfig(name="bokeh", options={"images": 100}).options["images"]
        100
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The network: a name from :func:`fcal.models.names` and the options of its factory.

    Attributes:
        start_from: Folder of a finished run whose weights to start from; random weights if empty.
        fixed_mean: Keep the mean of that run and train the error bars alone, on the validation set, which the network
            was not trained on; see :class:`fcal.models.FixedMean`.

    Example:
        >>> from fcal.training import ModelConfig
        >>> ModelConfig(name="convnet", start_from="runs/nll").start_from
        'runs/nll'
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    start_from: str = ""
    fixed_mean: bool = False

    def __post_init__(self) -> None:
        if check_flag("fixed_mean", self.fixed_mean) and not self.start_from:
            raise ValueError("expected `start_from`, the run whose mean to keep, with `fixed_mean`, got none")


@dataclass(frozen=True, kw_only=True)
class RecalibrationConfig:
    """Recalibration after training: a name from :func:`fcal.recalibration.names`, or none if empty.

    Example:
        >>> from fcal.training import RecalibrationConfig
        >>> RecalibrationConfig(method="temprature")
        Traceback (most recent call last):
        ...
        ValueError: expected `method` one of ..., got 'temprature' (did you mean 'temperature'?)
    """

    method: str = ""

    def __post_init__(self) -> None:
        if self.method:
            recalibration.by_name(self.method)


@dataclass(frozen=True, kw_only=True)
class CrossfitConfig:
    """Cross-fitting, so that recalibration needs no held-out set; see :func:`fcal.crossfit`.

    Attributes:
        folds: Number of folds; 0 for none. With folds, the validation set is used for training as well.
        groups: Entry of the rows that names their group, or ``"groups"`` for the attribute of that name of the data
            (frames of depth have it: their drives); a group is held out as a whole. Each row alone if empty.
        early_epochs: Number of the ``fit.epochs`` that all networks share: cheaper, but the networks then know a
            little of the rows they hold out.
        scales: Objective by which scale networks are fitted to the errors of held-out rows, with the options of
            ``[objective]``; if empty, the network keeps its own scales.
        scale_epochs: Number of epochs of the scale networks.
        scale_rate: Learning rate of the scale networks.

    Example:
        >>> from fcal.training import CrossfitConfig
        >>> CrossfitConfig(folds=1)
        Traceback (most recent call last):
        ...
        ValueError: expected `folds` 0, or at least 2, got 1
    """

    folds: int = 0
    groups: str = ""
    early_epochs: int = 0
    scales: str = ""
    scale_epochs: int = 3
    scale_rate: float = 3e-4

    def __post_init__(self) -> None:
        if check_integer("folds", self.folds, at_least=0) == 1:
            raise ValueError("expected `folds` 0, or at least 2, got 1")
        check_integer("early_epochs", self.early_epochs, at_least=0)
        check_integer("scale_epochs", self.scale_epochs, at_least=1)
        check_number("scale_rate", self.scale_rate, low=1e-12, high=1.0)
        for name in ("groups", "scales"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"expected `{name}` a string, got {type(getattr(self, name)).__name__}")
        if self.scales:
            ObjectiveConfig(name=self.scales)
        if self.scales in MEAN_ONLY:
            raise ValueError(f"expected `scales` an objective of error bars, got {self.scales!r}, one of the mean")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that determines a run.

    Attributes:
        data: The data.
        model: The network.
        objective: What to minimise.
        fit: How to train; its seed varies the order of rows and dropout, but not the initial weights.
        recalibration: Recalibration, fitted on the validation set, or with ``crossfit`` on held-out folds.
        crossfit: Cross-fitting.
        seed: Seed of all randomness in a run.

    Example:
        >>> from fcal.training import DataConfig, ModelConfig, RunConfig
        >>> RunConfig(data=DataConfig(name="bokeh"), model=ModelConfig(name="convnet")).objective.name
        'nll'
    """

    data: DataConfig
    model: ModelConfig
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    fit: FitConfig = field(default_factory=FitConfig)
    recalibration: RecalibrationConfig = field(default_factory=RecalibrationConfig)
    crossfit: CrossfitConfig = field(default_factory=CrossfitConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, expected in get_type_hints(RunConfig).items():
            value = getattr(self, name)
            if isinstance(expected, type) and is_dataclass(expected) and not isinstance(value, expected):
                raise TypeError(f"expected `{name}` a {expected.__name__}, got {type(value).__name__}")
        check_integer("seed", self.seed, at_least=0, at_most=2**63 - 1)
        _check_crossfit(self)
        _check_fixed_mean(self)
        for name in ("data", "model"):
            _check_name_and_options(name, getattr(self, name))
        for name, table in as_plain(self).items():  # reject what TOML and JSON cannot express now, not after training
            plain(name, table)


def _check_crossfit(config: RunConfig) -> None:
    """Refuse options without folds, folds without a use, and shared epochs that leave none to train on."""
    options = config.crossfit
    fold_options = [name for name in ("groups", "early_epochs", "scales") if getattr(options, name)]
    if not options.folds and fold_options:
        raise ValueError(f"expected `crossfit.folds` for `crossfit.{fold_options[0]}`, got 0")
    if options.folds and not (config.recalibration.method or options.scales):
        raise ValueError("expected `recalibration.method` or `crossfit.scales` with `crossfit.folds`, got neither")
    if options.folds and config.objective.task == "detection":
        raise ValueError(
            "expected `crossfit.folds` 0 with the task 'detection', whose rows are not predicted one by one, "
            f"got {options.folds}"
        )
    if options.folds and options.early_epochs >= config.fit.epochs:
        shown = f"{options.early_epochs} of {config.fit.epochs}"
        raise ValueError(f"expected `crossfit.early_epochs` fewer than `fit.epochs`, got {shown}")


def _check_fixed_mean(config: RunConfig) -> None:
    """Refuse what a training of error bars alone, on the validation set, has no use for."""
    if not config.model.fixed_mean:
        return
    needed: dict[str, tuple[Any, Any, str]] = {
        "objective.task": (config.objective.task, "nll", "'nll'"),
        "recalibration.method": (config.recalibration.method, "", "'', as the validation set trains the error bars,"),
        "crossfit.folds": (config.crossfit.folds, 0, "0 (`crossfit.scales` keeps the mean, too)"),
    }
    for name, (value, usual, shown) in needed.items():
        if value != usual:
            raise ValueError(f"expected `{name}` {shown} with `model.fixed_mean`, got {value!r}")
    if config.objective.name in MEAN_ONLY:
        shown = f"{config.objective.name!r}, one of the mean"
        raise ValueError(f"expected `objective.name` of error bars (fcal) with `model.fixed_mean`, got {shown}")


def _check_name_and_options(table: str, config: DataConfig | ModelConfig) -> None:
    if not isinstance(config.name, str):
        raise TypeError(f"expected `{table}.name` a string, got {type(config.name).__name__}")
    if not isinstance(config.options, dict) or not all(isinstance(key, str) for key in config.options):
        raise TypeError(f"expected `{table}.options` a dict with string keys, got {type(config.options).__name__}")


def initial_model(config: RunConfig, *, pretrained: bool = True) -> nn.Module:
    """The network that a config names, with initial weights that depend on the seed and on pretrained ones alone.

    Without ``pretrained``, the file that the option ``factory.pretrained_option`` names, if the factory of the network
    has such an attribute, is not needed: the weights of a finished run replace all others.
    """
    options = config.model
    if not pretrained:
        with errors_name("model.name"):
            unused = getattr(models.by_name(options.name), "pretrained_option", None)
        options = replace(options, options={key: value for key, value in options.options.items() if key != unused})
    with preserved_random_state():
        seed_everything(derived_seed("weights", config.seed))
        model = _built("model", models.by_name, options)
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected `model` {config.model.name!r} a torch.nn.Module, got {type(model).__name__}")
    return model


def splits(config: RunConfig) -> data.Splits:
    """The data that a config names; splits that are missing or too small to evaluate on are rejected."""
    parts: data.Splits = _built("data", data.by_name, config.data)
    fewest_rows = {"train": 1, "validation": 1, "test": _FEWEST_TEST_ROWS}
    for name in fewest_rows:
        if not hasattr(parts, name):
            raise ValueError(f"expected `data` {config.data.name!r} with a part {name!r}, got none")
    judges = config.recalibration.method or config.model.fixed_mean
    if parts.validation is None and (config.crossfit.folds or not judges):
        del fewest_rows["validation"]
    for name, fewest in fewest_rows.items():
        dataset: Any = getattr(parts, name)
        try:
            rows = len(dataset)
        except TypeError:
            raise TypeError(f"expected `data` with a dataset of some length as {name!r}, got {dataset!r:.80}") from None
        if rows < fewest:
            raise ValueError(f"expected `data` with at least {fewest} rows in {name!r}, got {rows}")
    return parts


def _built(table: str, by_name: Callable[[str], Callable[..., Any]], config: DataConfig | ModelConfig) -> Any:
    """Call the named factory with the options; the error for a misspelt option suggests the nearest name."""
    with errors_name(f"{table}.name"):
        factory = by_name(config.name)
    with errors_name(f"{table}.options"):
        try:
            parameters = inspect.signature(factory).parameters
        except ValueError:  # some built-in callables have no signature
            return factory(**config.options)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            for key in config.options:
                if key not in parameters:
                    raise ValueError(unknown_key(f"{table}.options", key, parameters))
        return factory(**config.options)


@contextmanager
def errors_name(key: str) -> Iterator[None]:
    """Add the key of the config to errors that do not mention it."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error) if key in str(error) else f"{key}: {error}") from error
