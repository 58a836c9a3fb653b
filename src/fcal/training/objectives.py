"""Training objectives by name: functions of model and batch that return named terms, whose sum is minimised."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal import losses
from fcal._checks import check_count, check_flag, check_integer, check_number
from fcal._datasets import Batch, per_target
from fcal._registry import Registry
from fcal.losses.trimmed import mask_without_wild
from fcal.training.predictions import mean_of

Terms: TypeAlias = Mapping[str, Tensor]


class Objective(Protocol):
    """A callable from a model and a batch to named scalars, the terms, whose sum is minimised.

    Where ``model(batch["input"])`` is not what should be validated, such as with detectors, an objective may also have
    a method ``judged(model, batch)``, which returns the terms, a prediction, and a mapping with its ``"target"``.

    Example:
        >>> def squared_error(model, batch):
        ...     return {"error": (model(batch["input"]) - batch["target"]).square().mean()}
        >>> squared_error(torch.nn.Identity(), {"input": torch.zeros(2), "target": torch.ones(2)})
        {'error': tensor(1.)}
    """

    def __call__(self, model: nn.Module, batch: Batch, /) -> Terms:
        """The terms of a batch."""
        ...


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    r"""An objective and its options; options that an objective does not have are ignored.

    Attributes:
        name: One of :func:`fcal.training.objectives.names`.
        lam: Weight :math:`\lambda` of a calibration loss beside the task loss.
        form: ``"convex"``, :math:`(1 - \lambda) L_{task} + \lambda L_{cal}`, or ``"additive"``,
            :math:`L_{task} + \lambda L_{cal}`.
        warmup_steps: Number of training steps over which the weight grows linearly from 0.
        divergence: f-Cal: a name from :func:`fcal.divergences.names`.
        df: f-Cal: degrees of freedom K.
        on: What is constrained: f-Cal ``"q"``, ``"z"`` or ``"both"``; calibration loss ``"variance"`` or ``"std"``.
            The first of them if empty.
        strata: f-Cal: number of strata of a batch that are constrained separately; 1 for the batch as a whole.
        by: f-Cal: stratify by ``"sigma"``, by the ``"region"`` of an image or by the ``"group"`` of the batch; see
            :class:`fcal.losses.StratifiedLoss`.
        detach_mean: f-Cal and calibration loss: no gradient of the calibration term reaches the mean.
        beta: beta-NLL: exponent of the variance.
        p: Calibration loss and PCE: 1 or 2.
        draws: MMD and energy: number of draws per prediction.
        task: Task loss beside a calibration loss: ``"nll"``, the likelihood, or ``"silog"``, ``"smooth-l1"`` or
            ``"mse"``, losses of the predicted values alone, or ``"detection"``, those of a detector (see
            :class:`fcal.training.BoxObjective`). With one of these, a likelihood or score (``"nll"``, ``"beta-nll"``,
            ``"crps"``, ``"energy"``) counts as the calibration loss beside it, too.
        pixels: Number of targets of a batch, drawn in every step, that the calibration loss sees; 0 for all of them.
            See :class:`fcal.losses.SubsampledLoss`.
        trim: Largest share of the targets of a batch to leave out of both terms, those that are far beyond all others;
            0 for none. See :class:`fcal.losses.TrimmedLoss`.

    Example:
        >>> from fcal.training import ObjectiveConfig
        >>> ObjectiveConfig(name="fcal", lam=1.5)
        Traceback (most recent call last):
        ...
        ValueError: expected `lam` within [0, 1], got 1.5
    """

    name: str = "nll"
    lam: float = 0.5
    form: str = "convex"
    warmup_steps: int = 0
    divergence: str = "wasserstein"
    df: int = 75
    on: str = ""
    strata: int = 1
    by: str = "sigma"
    detach_mean: bool = False
    beta: float = 0.5
    p: int = 1
    draws: int = 8
    task: str = "nll"
    pixels: int = 0
    trim: float = 0.0

    def __post_init__(self) -> None:
        _FORMS[self.form]
        _COMPOSED[self.task]
        check_integer("pixels", self.pixels, at_least=0)
        check_number("lam", self.lam, low=0.0, high=1.0 if self.form == "convex" else 1e100)
        check_integer("warmup_steps", self.warmup_steps, at_least=0)
        check_flag("detach_mean", self.detach_mean)
        check_number("trim", self.trim, low=0.0, high=0.5)
        objective(self)  # the losses check the other options


def options_of(config: ObjectiveConfig) -> dict[str, Any]:
    """The options of an objective for the addresses of results, which must not change when options are added.

    Options that are newer than some published results are left out where they have no effect.

    Example:
        >>> from fcal.training import ObjectiveConfig
        >>> "task" in options_of(ObjectiveConfig()), options_of(ObjectiveConfig(name="fcal", task="silog"))["task"]
        (False, 'silog')
    """
    newer = {"task": "nll", "pixels": 0, "trim": 0.0}
    return {name: value for name, value in asdict(config).items() if name not in newer or value != newer[name]}


class NamedObjective(nn.Module):
    """An objective with a name and, where it was made from one, its config."""

    config: ObjectiveConfig | None = None

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def extra_repr(self) -> str:
        """The config, for ``print`` and for checkpoints, which store it to recognise the objective."""
        return self.name if self.config is None else str(self.config)


class TermOf(NamedObjective):
    """A loss of prediction and target as an objective with one term.

    Args:
        name: Name of the term in logs.
        loss: ``(pred, target, *, valid_mask, weight) -> scalar``.
    """

    def __init__(self, name: str, loss: Callable[..., Tensor]) -> None:
        super().__init__(name)
        self.loss = loss

    def forward(self, model: nn.Module, batch: Batch) -> Terms:
        """The term of a batch."""
        return {self.name: self.loss(model(batch["input"]), batch["target"], **_mask_and_weight(batch))}


class WeightedObjective(NamedObjective):
    r"""Base class of objectives with a task and a calibration loss that is weighted by :math:`\lambda`.

    Args:
        name: Name of the calibration term in logs.
        calibration: ``(pred, target, *, valid_mask, weight) -> scalar``.
        config: Weight, form, warm-up and number of pixels.
    """

    step: Tensor

    def __init__(self, name: str, calibration: Callable[..., Tensor], config: ObjectiveConfig) -> None:
        super().__init__(name)
        self.task_name = config.task
        self.task = self.task_loss(config)
        self.calibration = losses.SubsampledLoss(calibration, config.pixels) if config.pixels else calibration
        self.lam = config.lam
        self.warmup_steps = config.warmup_steps
        self._weights = _FORMS[config.form]
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def task_loss(self, config: ObjectiveConfig) -> Callable[..., Tensor] | None:  # noqa: ARG002
        """The loss of the task; None if the network has losses of its own."""
        return None

    def current_lam(self) -> float:
        """The weight of the calibration loss at the current step."""
        if not self.warmup_steps:
            return self.lam
        return self.lam * min(int(self.step) / self.warmup_steps, 1.0)

    def current_weights(self) -> tuple[float, float]:
        """The weights of task and calibration loss; in training mode the call counts as a step of the warm-up."""
        weights = self._weights(self.current_lam())
        if self.warmup_steps and self.training and torch.is_grad_enabled():
            self.step += 1
        return weights


class Mixed(WeightedObjective):
    r"""A task loss and a calibration loss, weighted by :math:`\lambda`, as an objective.

    Args:
        name: Name of the calibration term in logs.
        calibration: ``(pred, target, *, valid_mask, weight) -> scalar``.
        config: Task, weight, form, warm-up, number of pixels and share of wild rows.
    """

    task: Callable[..., Tensor]

    def __init__(self, name: str, calibration: Callable[..., Tensor], config: ObjectiveConfig) -> None:
        super().__init__(name, calibration, config)
        self.trim = config.trim

    def task_loss(self, config: ObjectiveConfig) -> Callable[..., Tensor]:
        """The loss of the task."""
        return _TASKS[config.task]()

    def forward(self, model: nn.Module, batch: Batch) -> Terms:
        """The terms of a batch; in training mode the call counts as a step of the warm-up."""
        pred, target, options = model(batch["input"]), batch["target"], _mask_and_weight(batch)
        if self.trim:
            options["valid_mask"] = mask_without_wild(pred, target, share=self.trim, **options)
        task_weight, calibration_weight = self.current_weights()
        terms = {}
        if task_weight:  # a term without weight is not computed
            terms[self.task_name] = task_weight * self.task(pred, target, **options)
        if calibration_weight:
            options |= _group(batch, self.calibration)
            terms[self.name] = calibration_weight * self.calibration(pred, target, **options)
        return terms


def _mask_and_weight(batch: Batch) -> dict[str, Any]:
    return {"valid_mask": batch.get("valid_mask"), "weight": batch.get("weight")}


def _group(batch: Batch, loss: Callable[..., Tensor]) -> dict[str, Any]:
    """The groups of a batch, for a loss that is stratified by them."""
    loss = loss.loss if isinstance(loss, losses.SubsampledLoss) else loss
    if not isinstance(loss, losses.StratifiedLoss) or loss.by != "group":
        return {}
    if batch.get("group") is None:
        raise ValueError("expected batches with a 'group' for strata by group, got none")
    return {"group": batch["group"]}


def _of_mean(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss of the predicted mean; the prediction may be a tensor."""

    def of_mean(
        pred: Distribution | Tensor, target: Tensor, *, valid_mask: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        mean = mean_of(pred)
        if mean is None or mean.shape != target.shape:
            shown = "no mean" if mean is None else str(tuple(mean.shape))
            raise ValueError(f"expected `pred` with a mean of shape {tuple(target.shape)}, got {shown}")
        known = ~target.isnan()
        if valid_mask is None and weight is None and bool(known.all()):
            return loss(mean, target)
        weights = known.to(target.dtype)
        for factor in (valid_mask, weight):
            weights = weights if factor is None else weights * per_target(factor, target).to(target.dtype)
        check_count(int(weights.count_nonzero()), at_least=1)
        values = loss(mean, torch.where(weights > 0, target, mean.detach()), reduction="none")
        return (weights * values).sum() / weights.sum()

    return of_mean


_FORMS: Registry[Callable[[float], tuple[float, float]]] = Registry("form")
_FORMS.add("convex", lambda lam: (1 - lam, lam))
_FORMS.add("additive", lambda lam: (1.0, lam))

_TASKS: Registry[Callable[[], Callable[..., Tensor]]] = Registry("task")
_TASKS.add("nll", losses.NLLLoss)
_TASKS.add("silog", losses.SiLogLoss)
_TASKS.add("smooth-l1", lambda: _of_mean(F.smooth_l1_loss))
_TASKS.add("mse", lambda: _of_mean(F.mse_loss))

Composed: TypeAlias = Callable[[str, Callable[..., Tensor], ObjectiveConfig], Objective]
_COMPOSED: Registry[Composed] = Registry("task")  # a task and a named loss as one objective
for _name in _TASKS.names():
    _COMPOSED.add(_name, Mixed)


def register_task(name: str, composed: Composed) -> None:
    """Register a task whose losses are not those of one prediction and its target.

    Args:
        name: Name of the task in configs.
        composed: Maps a name, a loss of that name and a config to the objective.
    """
    _COMPOSED.add(name, composed)


def _composed(name: str, loss: Callable[..., Tensor], config: ObjectiveConfig) -> Objective:
    return _COMPOSED[config.task](name, loss, config)


Factory: TypeAlias = Callable[[ObjectiveConfig], Objective]
_FACTORIES: Registry[Factory] = Registry("objective")


def register(name: str, factory: Factory, *, replace: bool = False) -> None:
    """Register an objective under a name that configs may use.

    Args:
        name: The name.
        factory: Maps an :class:`ObjectiveConfig` to the objective.
        replace: Whether the name may be in use already.
    """
    if not callable(factory):
        raise TypeError(f"expected `factory` to call with the options, got {type(factory).__name__}")
    _FACTORIES.add(name, factory, replace=replace)


def names() -> list[str]:
    """Names of all objectives.

    Example:
        >>> "fcal" in names()
        True
    """
    return _FACTORIES.names()


def by_name(name: str) -> Factory:
    """The factory of an objective, which maps an :class:`ObjectiveConfig` to it.

    Raises:
        ValueError: No objective has this name; the message lists the known ones.

    Example:
        >>> by_name("mse")(ObjectiveConfig()).name
        'mse'
    """
    return _FACTORIES[name]


def objective(config: ObjectiveConfig | None = None) -> Objective:
    """The objective of a config; the mean negative log-likelihood if None.

    Raises:
        ValueError: An unknown name (the message lists the known ones) or an option out of range.

    Example:
        >>> from torch.distributions import Normal
        >>> class Fixed(torch.nn.Module):
        ...     def forward(self, x):
        ...         return Normal(x, torch.ones_like(x))
        >>> batch = {"input": torch.zeros(4), "target": torch.tensor([-1.0, 1.0, -2.0, 2.0])}
        >>> {k: round(v.item(), 3) for k, v in objective(ObjectiveConfig(name="fcal", df=2))(Fixed(), batch).items()}
        {'nll': 1.084, 'fcal': 1.15}
    """
    config = ObjectiveConfig() if config is None else config
    if not isinstance(config, ObjectiveConfig):
        raise TypeError(f"expected `config` an ObjectiveConfig, got {type(config).__name__}")
    terms = by_name(config.name)(config)
    if isinstance(terms, NamedObjective):
        terms.config = config
    return terms


def description(objective: Objective) -> str:
    """Text that identifies an objective in every process: the ``repr`` of a module, the name of a function.

    Example:
        >>> from fcal.training import ObjectiveConfig, objective
        >>> description(objective(ObjectiveConfig(name="nll")))
        "TermOf( ObjectiveConfig(name='nll', lam=0.5, form='convex', ...) (loss): NLLLoss() )"
    """
    if isinstance(objective, nn.Module):
        return re.sub(r" at 0x[0-9a-f]+", "", " ".join(repr(objective).split()))
    named: Any = objective if hasattr(objective, "__qualname__") else type(objective)
    return f"{named.__module__}.{named.__qualname__}"


def _fcal(config: ObjectiveConfig) -> Objective:
    loss = losses.FCalLoss(config.divergence, config.df, on=config.on or "q", detach_mean=config.detach_mean)
    strata = losses.StratifiedLoss(loss, config.strata, config.by)  # checks strata and by
    return _composed("fcal", loss if config.strata == 1 else strata, config)


def _calibration_loss(config: ObjectiveConfig) -> Objective:
    loss = losses.CalibrationLoss(config.on or "variance", config.p, detach_mean=config.detach_mean)
    return _composed("calibration", loss, config)


def _score(name: str, loss_of: Callable[[ObjectiveConfig], nn.Module]) -> Factory:
    """A likelihood or score, which is an objective by itself unless the config has another task."""

    def factory(config: ObjectiveConfig) -> Objective:
        loss = loss_of(config)
        return TermOf(name, loss) if config.task == "nll" else _composed(name, loss, config)

    return factory


def _task(name: str) -> Factory:
    """A task loss alone, unless the task has other predictions than those of a loss."""

    def factory(config: ObjectiveConfig) -> Objective:
        loss = _TASKS[name]()
        return TermOf(name, loss) if config.task in _TASKS.names() else _composed(name, loss, config)

    return factory


MEAN_ONLY = ("smooth-l1", "mse", "silog")  # objectives that ignore the error bars

register("nll", _score("nll", lambda config: losses.NLLLoss()))  # noqa: ARG005
register("fcal", _fcal)
register("calibration-loss", _calibration_loss)
register("beta-nll", _score("beta-nll", lambda config: losses.BetaNLLLoss(config.beta)))
register("mmd", lambda config: _composed("mmd", losses.MMDLoss(draws=config.draws), config))
register("pce-kde", lambda config: _composed("pce", losses.PCELoss("kde", p=config.p), config))
register("pce-sort", lambda config: _composed("pce", losses.PCELoss("sort", p=config.p), config))
register("crps", _score("crps", lambda config: losses.CRPSLoss()))  # noqa: ARG005
register("energy", _score("energy", lambda config: losses.EnergyLoss(draws=config.draws)))
for _name in MEAN_ONLY:
    register(_name, _task(_name))
