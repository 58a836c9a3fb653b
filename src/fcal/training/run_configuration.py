"""Everything that determines a run, as a TOML file says it."""

from dataclasses import dataclass, field
from typing import Any

from fcal import recalibration
from fcal._checks import check_integer, check_number
from fcal._config import as_plain, check_plain
from fcal.training.configuration import FitConfig
from fcal.training.objectives import OF_THE_MEAN, ObjectiveConfig


class ConfigError(ValueError):
    """What a config asks for cannot be had, although each of its values is of the right kind; names the dotted key."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which data: a name from :func:`fcal.data.names` and the options of its factory.

    Example:
        >>> from fcal.training import DataConfig
        >>> DataConfig(name="bokeh", options={"images": 100}).options["images"]
        100
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which network: a name from :func:`fcal.models.names` and the options of its factory.

    Attributes:
        start_from: Folder of a finished run whose weights to start from; random ones where empty.

    Example:
        >>> from fcal.training import ModelConfig
        >>> ModelConfig(name="convnet", start_from="runs/nll").start_from
        'runs/nll'
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    start_from: str = ""


@dataclass(frozen=True, kw_only=True)
class RecalibrationConfig:
    """Which repair after training: a name from :func:`fcal.recalibration.names`, or none where empty.

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
    """Whether every row is held out once, so that the repair needs no held-out set; see :func:`fcal.crossfit`.

    Attributes:
        folds: Number of folds; 0 for none. The rows of the validation set are then trained on, too.
        groups: Entry of the rows that says which belong together and are held out together; none where empty.
        early_epochs: Of ``fit.epochs``, how many all networks have in common: cheaper, and a little is known of the
            rows held out.
        scales: Objective by which networks of error bars are fitted to the errors of held-out rows, with the options
            of ``[objective]``; where empty, the network keeps its own.
        scale_epochs: Epochs of it.
        scale_rate: Learning rate of it.

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
        if self.scales in OF_THE_MEAN:
            raise ValueError(f"expected `scales` an objective of error bars, got {self.scales!r}, one of the mean")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that determines a run.

    Attributes:
        data: What to learn from.
        model: The network.
        objective: What to minimise.
        fit: How; its own seed varies the order of rows and dropout while the first weights stay.
        recalibration: The repair, fitted on the validation set, or with ``crossfit`` to held-out rows.
        crossfit: Folds, where every row is to be held out once.
        seed: Of all that is random in a run.

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
        for part, kind in _PARTS.items():
            value = getattr(self, part)
            if not isinstance(value, kind):
                raise TypeError(f"expected `{part}` a {kind.__name__}, got {type(value).__name__}")
        check_integer("seed", self.seed, at_least=0, at_most=2**63 - 1)
        _check_folds(self)
        for part in ("data", "model"):
            _check_words(part, getattr(self, part))
        for name, table in as_plain(self).items():  # what TOML and JSON cannot say is refused now, not after the work
            check_plain(name, table)


_PARTS: dict[str, type] = {
    "data": DataConfig,
    "model": ModelConfig,
    "objective": ObjectiveConfig,
    "fit": FitConfig,
    "recalibration": RecalibrationConfig,
    "crossfit": CrossfitConfig,
}


def _check_folds(config: RunConfig) -> None:
    """Refuse folds that nothing is learnt from, and what is left of the training after a common start."""
    options = config.crossfit
    asked = [name for name in ("groups", "early_epochs", "scales") if getattr(options, name)]
    if not options.folds and asked:
        raise ValueError(f"expected `crossfit.folds` for `crossfit.{asked[0]}`, got 0")
    if options.folds and not (config.recalibration.method or options.scales):
        raise ValueError("expected `recalibration.method` or `crossfit.scales` with `crossfit.folds`, got neither")
    if options.folds and options.early_epochs >= config.fit.epochs:
        shown = f"{options.early_epochs} of {config.fit.epochs}"
        raise ValueError(f"expected `crossfit.early_epochs` fewer than `fit.epochs`, got {shown}")


def _check_words(name: str, config: DataConfig | ModelConfig) -> None:
    if not isinstance(config.name, str):
        raise TypeError(f"expected `{name}.name` a string, got {type(config.name).__name__}")
    if not isinstance(config.options, dict) or not all(isinstance(key, str) for key in config.options):
        raise TypeError(f"expected `{name}.options` a dict with string keys, got {type(config.options).__name__}")
