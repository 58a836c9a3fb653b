"""The task's loss and a calibration loss as one objective."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_integer, check_number, is_tracing
from fcal._ranks import together
from fcal._registry import Registry
from fcal.constraints import BatchSums
from fcal.losses.batch import Batch, BatchLoss
from fcal.losses.fcal_loss import FCalLoss
from fcal.losses.one_pass import evaluate
from fcal.losses.rivals import NLLLoss
from fcal.losses.scalar_stage import Objective

Mix = Callable[[Any, Any, Any], Any]
_FORMS: Registry[Mix] = Registry("form")
_FORMS.add("convex", lambda task, calibration, lam: (1 - lam) * task + lam * calibration)
_FORMS.add("additive", lambda task, calibration, lam: task + lam * calibration)


def _objective(mix: Mix, calibration: Objective, pred: Distribution, lam: Any, sums: BatchSums[Any]) -> Any:
    """Likelihood per prediction and calibration, both from the same sums."""
    return mix(sums.nll * pred.event_shape.numel() / sums.total, calibration(sums), lam)


def _scalar(name: str, term: Callable[..., Tensor], batch: Batch, beside: dict[str, Tensor | None]) -> Tensor:
    """One term of the objective, which must be a number."""
    value = term(batch.pred, batch.target, **beside)
    if not isinstance(value, Tensor) or value.dim():
        shown = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"expected `{name}` to return a scalar tensor, got {shown}")
    return value


class CombinedLoss(BatchLoss):
    r"""Task loss and calibration loss, weighted by :math:`\lambda`.

    .. math:: (1 - \lambda) \, L_{task} + \lambda \, L_{cal} \quad\text{(convex)} \qquad
        L_{task} + \lambda \, L_{cal} \quad\text{(additive)}

    Negative log-likelihood and an exact f-Cal loss share one pass over the batch.

    Args:
        calibration: The calibration loss, a callable like ``task``; ``FCalLoss()`` where None.
        task: Any callable ``(pred, target, *, valid_mask, weight) -> scalar``; the mean negative log-likelihood where
            None.
        lam: Weight :math:`\lambda`: within [0, 1] in the convex form, non-negative in the additive one.
        form: ``"convex"`` or ``"additive"``.
        warmup_steps: Number of training steps over which the weight grows linearly from 0 to ``lam``. A step is a
            forward call in training mode with gradients enabled (so a micro-batch is one, too); the count is part of
            the state dict and belongs in a checkpoint.

    Example:
        The task's loss may be any function of this signature, here the mean squared error:

        >>> def squared_error(pred, target, *, valid_mask=None, weight=None):
        ...     return (pred.mean - target).square().mean()
        >>> objective = fcal.losses.CombinedLoss(task=squared_error, lam=0.1, form="additive")

        >>> from torch.distributions import Normal
        >>> pred, target = Normal(torch.zeros(4), torch.ones(4)), torch.tensor([-1.0, 1.0, -2.0, 2.0])
        >>> fcal.losses.CombinedLoss(fcal.FCalLoss(df=2), lam=0.5)(pred, target)
        tensor(2.2347)
        >>> 0.5 * fcal.nll(pred, target).mean() + 0.5 * fcal.FCalLoss(df=2)(pred, target)
        tensor(2.2347)
    """

    step: Tensor
    calibration: Callable[..., Tensor]
    task: Callable[..., Tensor] | None

    def __init__(
        self,
        calibration: Callable[..., Tensor] | None = None,
        *,
        task: Callable[..., Tensor] | None = None,
        lam: float = 0.5,
        form: str = "convex",
        warmup_steps: int = 0,
    ) -> None:
        super().__init__()
        for name, loss in (("calibration", calibration), ("task", task)):
            if loss is not None and (isinstance(loss, type) or not callable(loss)):
                raise TypeError(f"expected `{name}` a loss to call, got {loss!r}")
        self.calibration = FCalLoss() if calibration is None else calibration
        self.task = task
        self.form = form
        _FORMS[form]  # an unknown name is refused here, not in the first step
        self.lam = check_number("lam", lam, low=0.0, high=1.0 if form == "convex" else 1e100)
        self.warmup_steps = check_integer("warmup_steps", warmup_steps, at_least=0)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def current_lam(self) -> Tensor | float:
        """The weight of the calibration loss at this step."""
        if not self.warmup_steps:
            return self.lam
        return self.lam * (self.step.to(torch.float64) / self.warmup_steps).clamp(max=1.0)

    def of_batch(self, batch: Batch) -> Tensor:
        """The objective of a batch."""
        lam = self.current_lam()
        loss = self._in_one_pass(batch, lam) if self._shares_a_pass() else self._term_by_term(batch, lam)
        if self.training and self.warmup_steps and torch.is_grad_enabled():
            self.step = self.step + 1  # not in place: a compiled backward pass may still need the old one
        return loss

    def _shares_a_pass(self) -> bool:
        criterion = self.calibration
        if self.task is not None or not isinstance(criterion, FCalLoss):
            return False
        kind = type(criterion)  # a subclass may compute something else
        ours = kind.forward is FCalLoss.forward and kind.of_batch is FCalLoss.of_batch
        return ours and criterion.estimator == "exact" and criterion.is_of_moments()

    def _in_one_pass(self, batch: Batch, lam: Tensor | float) -> Tensor:
        criterion = self.calibration
        assert isinstance(criterion, FCalLoss)
        plan = criterion.plan()
        weight = lam if is_tracing() else float(lam)
        objective = partial(_objective, _FORMS[self.form], plan.objective, batch.pred, weight)
        by = None if plan.by is None else (*plan.by, "nll")
        return evaluate(batch, plan._replace(objective=objective, by=by, with_nll=True))

    def _term_by_term(self, batch: Batch, lam: Tensor | float) -> Tensor:
        sync = getattr(self.calibration, "sync", True)
        task = NLLLoss(sync=sync) if self.task is None else self.task
        beside = {"valid_mask": batch.valid_mask, "weight": batch.weight}
        task_value, calibration_value = (
            together(partial(_scalar, name, term, batch, beside), device=batch.device(), sync=sync)
            for name, term in (("task", task), ("calibration", self.calibration))
        )
        loss: Tensor = _FORMS[self.form](task_value, calibration_value, lam)
        return loss.to(batch.dtype())

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"lam={self.lam}, form={self.form!r}, warmup_steps={self.warmup_steps}"
