"""What is minimised: named terms whose sum is the loss."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal import losses
from fcal._checks import check_count, check_flag, check_integer, check_number
from fcal._datasets import Batch
from fcal._registry import Registry
from fcal.training.validation import mean_of

Terms: TypeAlias = Mapping[str, Tensor]


class Objective(Protocol):
    """Anything that maps a model and a batch to named terms, scalars whose sum is minimised.

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
    r"""Which objective, and its options; an option that an objective does not have is ignored.

    Attributes:
        name: One of :func:`names`.
        lam: Weight :math:`\lambda` of a calibration loss beside the likelihood.
        form: ``"convex"``, :math:`(1 - \lambda) L_{nll} + \lambda L_{cal}`, or ``"additive"``,
            :math:`L_{nll} + \lambda L_{cal}`.
        warmup_steps: Training steps over which the weight grows linearly from 0.
        divergence: f-Cal: a name from :func:`fcal.divergences.names`.
        df: f-Cal: degrees of freedom K.
        on: What is constrained: f-Cal ``"q"``, ``"z"`` or ``"both"``; calibration loss ``"variance"`` or ``"std"``.
            The first of them where empty.
        strata: f-Cal: parts of a batch that are each to follow the law; 1 for the batch as a whole.
        by: f-Cal: what the strata are of, ``"sigma"`` or the ``"group"`` of the batch; see
            :class:`fcal.losses.StratifiedLoss`.
        detach_mean: f-Cal and calibration loss: let no gradient of the calibration term reach the mean.
        beta: beta-NLL: power of the variance.
        p: Calibration loss and PCE: 1 or 2.
        draws: MMD and energy: draws per prediction.

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

    def __post_init__(self) -> None:
        _FORMS[self.form]
        check_number("lam", self.lam, low=0.0, high=1.0 if self.form == "convex" else 1e100)
        check_integer("warmup_steps", self.warmup_steps, at_least=0)
        check_flag("detach_mean", self.detach_mean)
        objective(self)  # what else is wrong, the losses say


class TermOf(nn.Module):
    """One loss of prediction and target as an objective.

    Args:
        name: What the term is called in logs.
        loss: ``(pred, target, *, valid_mask, weight) -> scalar``.
    """

    config: ObjectiveConfig | None = None

    def __init__(self, name: str, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.name = name
        self.loss = loss

    def forward(self, model: nn.Module, batch: Batch) -> Terms:
        """The term of a batch."""
        return {self.name: self.loss(model(batch["input"]), batch["target"], **_beside(batch))}

    def extra_repr(self) -> str:
        """What it was made from, for ``print`` and for checkpoints, which are of this objective alone."""
        return self.name if self.config is None else str(self.config)


class Mixed(nn.Module):
    r"""Likelihood and a calibration loss as an objective, both weighted by :math:`\lambda`.

    Args:
        name: What the calibration term is called in logs.
        calibration: ``(pred, target, *, valid_mask, weight) -> scalar``.
        config: Weight, form and warm-up.
    """

    step: Tensor
    config: ObjectiveConfig | None = None

    def __init__(self, name: str, calibration: Callable[..., Tensor], config: ObjectiveConfig) -> None:
        super().__init__()
        self.name = name
        self.nll = losses.NLLLoss()
        self.calibration = calibration
        self.lam = config.lam
        self.warmup_steps = config.warmup_steps
        self._weights = _FORMS[config.form]
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def current_lam(self) -> float:
        """The weight of the calibration loss at this step."""
        if not self.warmup_steps:
            return self.lam
        return self.lam * min(int(self.step) / self.warmup_steps, 1.0)

    def forward(self, model: nn.Module, batch: Batch) -> Terms:
        """The terms of a batch; in training mode this counts as a step of the warm-up."""
        pred, target, beside = model(batch["input"]), batch["target"], _beside(batch)
        of_nll, of_calibration = self._weights(self.current_lam())
        terms = {}
        if of_nll:  # what has no weight need not be computed
            terms["nll"] = of_nll * self.nll(pred, target, **beside)
        if of_calibration:
            terms[self.name] = of_calibration * self.calibration(
                pred, target, **beside, **_group(batch, self.calibration)
            )
        if self.warmup_steps and self.training and torch.is_grad_enabled():
            self.step += 1
        return terms

    def extra_repr(self) -> str:
        """What it was made from, for ``print`` and for checkpoints, which are of this objective alone."""
        return self.name if self.config is None else str(self.config)


def _beside(batch: Batch) -> dict[str, Any]:
    return {"valid_mask": batch.get("valid_mask"), "weight": batch.get("weight")}


def _group(batch: Batch, loss: Callable[..., Tensor]) -> dict[str, Any]:
    """The groups of a batch, for a loss of each of them."""
    if not isinstance(loss, losses.StratifiedLoss) or loss.by != "group":
        return {}
    if batch.get("group") is None:
        raise ValueError("expected batches with a 'group' for strata by group, got none")
    return {"group": batch["group"]}


def _of_mean(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss of the mean alone, for networks with and without a distribution."""

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
        share = known.to(target.dtype)
        for beside in (valid_mask, weight):
            share = share if beside is None else share * _like(beside, target)
        check_count(int(share.count_nonzero()), at_least=1)
        each = loss(mean, torch.where(share > 0, target, mean.detach()), reduction="none")
        return (share * each).sum() / share.sum()

    return of_mean


def _like(beside: Tensor, target: Tensor) -> Tensor:
    return beside.reshape(beside.shape + (1,) * (target.dim() - beside.dim())).expand(target.shape).to(target.dtype)


_FORMS: Registry[Callable[[float], tuple[float, float]]] = Registry("form")
_FORMS.add("convex", lambda lam: (1 - lam, lam))
_FORMS.add("additive", lambda lam: (1.0, lam))

Factory: TypeAlias = Callable[[ObjectiveConfig], Objective]
_OBJECTIVES: Registry[Factory] = Registry("objective")


def register(name: str, factory: Factory, *, replace: bool = False) -> None:
    """Add an objective of one's own, which a config may then name.

    Args:
        name: A name that is still free, or may be replaced.
        factory: From the options to the objective.
        replace: Whether the name may be taken.
    """
    if not callable(factory):
        raise TypeError(f"expected `factory` to call with the options, got {type(factory).__name__}")
    _OBJECTIVES.add(name, factory, replace=replace)


def names() -> list[str]:
    """Every known objective.

    Example:
        >>> "fcal" in names()
        True
    """
    return _OBJECTIVES.names()


def objective(config: ObjectiveConfig | None = None) -> Objective:
    """The objective that a config names; the mean negative log-likelihood where None.

    Raises:
        ValueError: An unknown name (the known ones are listed) or an option out of range.

    Example:
        >>> from torch.distributions import Normal
        >>> class Fixed(torch.nn.Module):
        ...     def forward(self, x):
        ...         return Normal(x, torch.ones_like(x))
        >>> batch = {"input": torch.zeros(4), "target": torch.tensor([-1.0, 1.0, -2.0, 2.0])}
        >>> {k: round(v.item(), 3) for k, v in objective(ObjectiveConfig(name="fcal", df=2))(Fixed(), batch).items()}
        {'nll': 1.084, 'fcal': 1.15}
    """
    options = ObjectiveConfig() if config is None else config
    if not isinstance(options, ObjectiveConfig):
        raise TypeError(f"expected `config` an ObjectiveConfig, got {type(options).__name__}")
    made = _OBJECTIVES[options.name](options)
    if isinstance(made, TermOf | Mixed):
        made.config = options
    return made


def check_objective(given: Any) -> None:
    """Refuse what is no objective but is easily taken for one, and say how to make one of it.

    Raises:
        TypeError: A config, a name, a loss of prediction and target, or nothing to call.

    Example:
        >>> check_objective(ObjectiveConfig())
        Traceback (most recent call last):
        ...
        TypeError: expected `objective` to call with model and batch, got an ObjectiveConfig; pass objective(config)
    """
    if isinstance(given, ObjectiveConfig):
        shown = "an ObjectiveConfig; pass objective(config)"
    elif isinstance(given, str):
        shown = f"{given!r}; pass objective(ObjectiveConfig(name={given!r}))"
    elif _is_loss(given):
        shown = _shown_loss(given)
    elif isinstance(given, type) or not callable(given):
        shown = repr(given)
    else:
        return
    raise TypeError(f"expected `objective` to call with model and batch, got {shown}")


def _is_loss(given: Any) -> bool:
    """Whether it is called with a prediction and a target, as losses of this library and of torch are."""
    first, second, *_ = (*_arguments(given), "", "")
    return first in ("pred", "input") and second == "target"


def _arguments(given: Any) -> list[str]:
    """Names of what something is called with; none where it does not say."""
    called = getattr(given, "forward", given)  # a module's own call says nothing
    try:
        names = list(inspect.signature(called).parameters)
    except (TypeError, ValueError):  # nothing to call, or something built in
        return []
    return [name for name in names if name != "self"]


def _shown_loss(loss: Any) -> str:
    """A loss, and how to make an objective of it; one of this library's modules takes masks and weights."""
    kind = loss if isinstance(loss, type) else type(loss)
    name = getattr(loss, "__name__", kind.__name__)
    wrapped = f"lambda model, batch: {{{name!r}: loss(model(batch['input']), batch['target']).mean()}}"
    if issubclass(kind, nn.Module) and "valid_mask" in _arguments(loss):
        wrapped = f"fcal.training.objectives.TermOf({name!r}, loss)"
    return f"{name}, a loss of prediction and target; pass {wrapped}"


def _fcal(config: ObjectiveConfig) -> Objective:
    loss = losses.FCalLoss(config.divergence, config.df, on=config.on or "q", detach_mean=config.detach_mean)
    strata = losses.StratifiedLoss(loss, config.strata, config.by)  # refuses what is wrong
    return Mixed("fcal", loss if config.strata == 1 else strata, config)


def _calibration_loss(config: ObjectiveConfig) -> Objective:
    loss = losses.CalibrationLoss(config.on or "variance", config.p, detach_mean=config.detach_mean)
    return Mixed("calibration", loss, config)


OF_THE_MEAN = ("smooth-l1", "mse")  # which say nothing of error bars

register("nll", lambda config: TermOf("nll", losses.NLLLoss()))  # noqa: ARG005
register("fcal", _fcal)
register("calibration-loss", _calibration_loss)
register("beta-nll", lambda config: TermOf("beta-nll", losses.BetaNLLLoss(config.beta)))
register("mmd", lambda config: Mixed("mmd", losses.MMDLoss(draws=config.draws), config))
register("pce-kde", lambda config: Mixed("pce", losses.PCELoss("kde", p=config.p), config))
register("pce-sort", lambda config: Mixed("pce", losses.PCELoss("sort", p=config.p), config))
register("crps", lambda config: TermOf("crps", losses.CRPSLoss()))  # noqa: ARG005
register("energy", lambda config: TermOf("energy", losses.EnergyLoss(draws=config.draws)))
register("smooth-l1", lambda config: TermOf("smooth-l1", _of_mean(F.smooth_l1_loss)))  # noqa: ARG005
register("mse", lambda config: TermOf("mse", _of_mean(F.mse_loss)))  # noqa: ARG005
