"""Losses made of other losses: a task loss with a calibration loss, a loss by strata, a loss of drawn targets."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal._checks import check_integer, check_number, is_tracing
from fcal._datasets import per_target
from fcal._ranks import run_on_all_ranks, sum_over_ranks
from fcal._registry import Registry
from fcal.constraints import BatchSums
from fcal.losses._fused import fused_loss
from fcal.losses.baselines import NLLLoss
from fcal.losses.batch import Batch, BatchLoss, check_generator
from fcal.losses.fcal_loss import FCalLoss

_FEWEST = 2  # targets of a stratum; fewer residuals have no variance
_IMAGE_DIMS = 2

Form = Callable[[Any, Any, Any], Any]
_FORMS: Registry[Form] = Registry("form")
_FORMS.add("convex", lambda task, calibration, lam: (1 - lam) * task + lam * calibration)
_FORMS.add("additive", lambda task, calibration, lam: task + lam * calibration)


class CombinedLoss(BatchLoss):
    r"""Task loss and calibration loss, weighted by :math:`\lambda`.

    .. math:: (1 - \lambda) \, L_{task} + \lambda \, L_{cal} \quad\text{(convex)} \qquad
        L_{task} + \lambda \, L_{cal} \quad\text{(additive)}

    The negative log-likelihood and an exact f-Cal loss are computed in one pass over the batch. With the defaults and a
    warm-up over all steps, it is the recommended loss for the error bars of :class:`fcal.models.FixedMean`.

    Args:
        calibration: The calibration loss, a callable like ``task``; ``FCalLoss()`` if None.
        task: Any callable ``(pred, target, *, valid_mask, weight) -> scalar``; the mean negative log-likelihood if
            None.
        lam: Weight :math:`\lambda`: within [0, 1] in the convex form, non-negative in the additive one.
        form: ``"convex"`` or ``"additive"``.
        warmup_steps: Number of training steps over which the weight grows linearly from 0 to ``lam``. A step is a
            forward call in training mode with gradients enabled (so a micro-batch is one, too); the count is part of
            the state dict and belongs in a checkpoint.

    Example:
        The task loss may be any function of this signature, here the mean squared error:

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
        _FORMS[form]  # refuse an unknown name here, not in the first step
        self.lam = check_number("lam", lam, low=0.0, high=1.0 if form == "convex" else 1e100)
        self.warmup_steps = check_integer("warmup_steps", warmup_steps, at_least=0)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def current_lam(self) -> Tensor | float:
        """The weight of the calibration loss at this step."""
        if not self.warmup_steps:
            return self.lam
        return self.lam * (self.step.to(torch.float64) / self.warmup_steps).clamp(max=1.0)

    def of_batch(self, batch: Batch) -> Tensor:
        """The combined loss of a batch."""
        lam = self.current_lam()
        loss = self._fused(batch, float(lam)) if self._can_be_fused() else self._term_by_term(batch, lam)
        if self.training and self.warmup_steps and torch.is_grad_enabled():
            self.step = self.step + 1  # not in place: a compiled backward pass may still need the old one
        return loss

    def _term_by_term(self, batch: Batch, lam: Tensor | float) -> Tensor:
        sync = getattr(self.calibration, "sync", True)
        task = NLLLoss(sync=sync) if self.task is None else self.task
        task_value, calibration_value = (
            run_on_all_ranks(partial(_scalar, name, term, batch), device=batch.device(), sync=sync)
            for name, term in (("task", task), ("calibration", self.calibration))
        )
        loss: Tensor = _FORMS[self.form](task_value, calibration_value, lam)
        return loss.to(batch.dtype())

    def _can_be_fused(self) -> bool:
        criterion = self.calibration
        if is_tracing() or self.task is not None or not isinstance(criterion, FCalLoss):
            return False
        kind = type(criterion)  # a subclass may compute something else
        inherited = kind.forward is FCalLoss.forward and kind.of_batch is FCalLoss.of_batch
        return inherited and criterion.is_exact()

    def _fused(self, batch: Batch, lam: float) -> Tensor:
        """Likelihood per prediction and calibration, both from the same sums."""
        assert isinstance(self.calibration, FCalLoss)
        calibration, form = self.calibration.sums_objective(), _FORMS[self.form]

        def of_sums(sums: BatchSums[Any]) -> Any:
            return form(sums.nll * batch.pred.event_shape.numel() / sums.total, calibration.of_sums(sums), lam)

        by = None if calibration.by is None else (*calibration.by, "nll")
        return fused_loss(batch, calibration._replace(of_sums=of_sums, by=by, with_nll=True))

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"lam={self.lam}, form={self.form!r}, warmup_steps={self.warmup_steps}"


def _scalar(name: str, term: Callable[..., Tensor], batch: Batch) -> Tensor:
    """One term of the loss, which must be a scalar."""
    value = term(batch.pred, batch.target, valid_mask=batch.valid_mask, weight=batch.weight)
    if not isinstance(value, Tensor) or value.dim():
        shown = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"expected `{name}` to return a scalar tensor, got {shown}")
    return value


class StratifiedLoss(nn.Module):
    r"""Mean of a loss over strata of the batch, weighted by their numbers of targets.

    A batch can be calibrated as a whole although its small error bars are too small and its large ones too large. Here
    every stratum must be calibrated by itself:

    .. math:: L = \sum_s \frac{n_s}{n} L(\text{stratum } s)

    Args:
        loss: A loss of this library that takes a ``valid_mask``, such as :class:`~fcal.FCalLoss`.
        strata: Number of strata.
        by: ``"sigma"`` for strata of equally many targets in order of the predicted standard deviation, ``"region"``
            for tiles of images, or ``"group"`` for groups, whose numbers from 0 to ``strata - 1`` are passed with every
            call. Tiles form a grid, as square as the number of strata allows and not higher than wide: 6 are 2 rows of
            3. Rows and columns of an image are the last two dimensions of ``target``; a stratum is the same tile of all
            images of the batch.

    Shape:
        As for the loss; scalar result.

    Note:
        A stratum has fewer targets than the batch, so its moments are noisier: f-Cal of a calibrated batch is about
        :math:`K S / n` instead of :math:`K / n`. Use larger batches, or fewer strata. A stratum with fewer than two
        targets is left out. Under ``torch.distributed``, strata by sigma are formed on each rank and then joined.

    Example:
        >>> from torch.distributions import Normal
        >>> pred = Normal(torch.zeros(8), torch.tensor([1.0, 1, 1, 1, 2, 2, 2, 2]))
        >>> target = torch.tensor([-1.6, 1.6, -1.6, 1.6, -1.6, 1.6, -1.6, 1.6])
        >>> whole = fcal.FCalLoss("wasserstein", df=2)
        >>> round(whole(pred, target).item(), 2), round(StratifiedLoss(whole, strata=2)(pred, target).item(), 2)
        (0.44, 2.28)
    """

    def __init__(self, loss: BatchLoss, strata: int = 4, by: str = "sigma") -> None:
        super().__init__()
        if not isinstance(loss, BatchLoss):
            raise TypeError(f"expected `loss` a loss of batches, got {type(loss).__name__}")
        self.loss = loss
        self.strata = check_integer("strata", strata, at_least=1, at_most=10_000)
        _STRATA[by]
        self.by = by

    def forward(
        self,
        pred: Distribution,
        target: Tensor,
        *,
        valid_mask: Tensor | None = None,
        weight: Tensor | None = None,
        group: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch.

        Args:
            pred: Prediction of any registered family.
            target: Targets, shaped like samples of ``pred``; NaN where missing.
            valid_mask: True where a target counts; shaped like ``target`` or its rows.
            weight: Non-negative weights, shaped like ``target`` or its rows.
            group: For ``by="group"``: the group of every target, integers shaped like ``target`` or its rows.

        Returns:
            A scalar of the dtype of the inputs, float32 at least.
        """
        batch = Batch(pred, target, valid_mask, weight)
        # An error in here is one on all ranks: none of them waits for another in the losses below.
        masks = run_on_all_ranks(partial(self._masks, batch, group), device=batch.device(), sync=self.sync)
        losses = [
            share * self.loss(pred, target, valid_mask=mask, weight=weight)
            for mask, share in zip(masks, self._shares(masks).tolist(), strict=True)
            if share
        ]
        if not losses:
            shown = f"{int(torch.stack(masks).sum())} for {self.strata} strata"
            raise ValueError(f"expected `target` with at least {_FEWEST} values that count in a stratum, got {shown}")
        return torch.stack(losses).sum()

    @property
    def sync(self) -> bool:
        """Whether the loss is that of all ranks."""
        return self.loss.sync

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"strata={self.strata}, by={self.by!r}"

    def _masks(self, batch: Batch, group: Tensor | None) -> list[Tensor]:
        """Elements of each stratum that count."""
        valid = _counting_elements(batch)
        stratum = _STRATA[self.by](batch.pred, valid, group, self.strata)
        return [valid & (stratum == number) for number in range(self.strata)]

    def _shares(self, masks: Sequence[Tensor]) -> Tensor:
        """Fraction of the targets of all ranks in every stratum; 0 for strata with too few."""

        def local() -> Tensor:
            return torch.stack([mask.sum() for mask in masks]).to(torch.float64)

        counts = sum_over_ranks(local, size=self.strata, device=masks[0].device) if self.sync else local()
        enough = torch.where(counts >= _FEWEST, counts, 0.0)
        return enough / enough.sum().clamp_min(1)


def _counting_elements(batch: Batch) -> Tensor:
    """Mask of the elements that count: scalars, or rows of a vector family."""
    observation = batch.observe()
    if observation.valid is not None:
        return observation.valid
    return torch.ones(observation.elements(), dtype=torch.bool, device=batch.device())


def _by_sigma(pred: Distribution, valid: Tensor, group: Tensor | None, strata: int) -> Tensor:
    """Strata by the rank of the predicted standard deviation among the elements that count."""
    _check_no_group(group, "sigma")
    sigma = pred.stddev.detach().to(torch.float64)
    if sigma.dim() > valid.dim():  # the root mean variance of a vector
        sigma = sigma.square().mean(-1).sqrt()
    counting = sigma.expand(valid.shape)[valid]  # infinite ones, of heavy tails, are the largest
    rank = counting.argsort(stable=True).argsort()
    stratum = torch.zeros(valid.shape, dtype=torch.long, device=valid.device)
    stratum[valid] = rank * strata // max(len(rank), 1)
    return stratum


def _by_group(pred: Distribution, valid: Tensor, group: Tensor | None, strata: int) -> Tensor:  # noqa: ARG001
    """The groups, checked and expanded to the elements."""
    if not isinstance(group, Tensor) or group.is_floating_point() or group.is_complex():
        shown = group.dtype if isinstance(group, Tensor) else type(group).__name__
        raise TypeError(f"expected `group` a tensor of integers for strata by group, got {shown}")
    if group.shape != valid.shape[: group.dim()]:
        raise ValueError(f"expected `group` of shape {tuple(valid.shape)} or its rows, got {tuple(group.shape)}")
    if group.numel() and not 0 <= int(group.min()) <= int(group.max()) < strata:
        raise ValueError(f"expected `group` within 0 to {strata - 1}, got {int(group.min())} to {int(group.max())}")
    return per_target(group, valid)


def _by_region(pred: Distribution, valid: Tensor, group: Tensor | None, strata: int) -> Tensor:  # noqa: ARG001
    """The tile of every pixel, in a grid whose rows divide the number of strata."""
    _check_no_group(group, "region")
    if valid.dim() < _IMAGE_DIMS:
        raise ValueError(f"expected `target` of images for strata by region, got shape {tuple(valid.shape)}")
    rows = max(count for count in range(1, math.isqrt(strata) + 1) if strata % count == 0)
    columns = strata // rows
    height, width = valid.shape[-2:]
    row = torch.arange(height, device=valid.device) * rows // max(height, 1)
    column = torch.arange(width, device=valid.device) * columns // max(width, 1)
    return (columns * row.unsqueeze(1) + column).expand(valid.shape)


def _check_no_group(group: Tensor | None, by: str) -> None:
    if group is not None:
        raise ValueError(f"expected no `group` for strata by {by}, got one; see `by`")


_STRATA: Registry[Callable[[Distribution, Tensor, Tensor | None, int], Tensor]] = Registry("by")
_STRATA.add("sigma", _by_sigma)
_STRATA.add("group", _by_group)
_STRATA.add("region", _by_region)


class SubsampledLoss(nn.Module):
    """A loss of some targets of the batch, drawn at random without replacement.

    Errors of neighbouring pixels are alike, but losses such as :class:`~fcal.FCalLoss` assume independent residuals.
    Pixels drawn from all images of a batch are farther apart, and fewer cost less. The mean of a loss over the drawn
    targets is an unbiased estimate of its mean over all of them.

    Args:
        loss: A callable ``(pred, target, *, valid_mask, weight) -> scalar``, such as :class:`~fcal.FCalLoss` or
            :class:`StratifiedLoss`.
        count: Number of targets to draw; all, if fewer count.
        generator: Source of randomness, torch's default if None. Under ``torch.distributed`` every rank draws this many
            from its own batch; give each rank its own seed.

    Shape:
        As for the loss; scalar result.

    Example:
        >>> from torch.distributions import Normal
        >>> pred, target = Normal(torch.zeros(100), torch.ones(100)), torch.full((100,), 2.0)
        >>> SubsampledLoss(fcal.losses.NLLLoss(), 10)(pred, target) == fcal.nll(pred, target).mean()
        tensor(True)
    """

    loss: Callable[..., Tensor]

    def __init__(self, loss: Callable[..., Tensor], count: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        if isinstance(loss, type) or not callable(loss):
            raise TypeError(f"expected `loss` a loss to call, got {loss!r}")
        self.loss = loss
        self.count = check_integer("count", count, at_least=1)
        self.generator = check_generator(generator)

    def forward(
        self,
        pred: Distribution,
        target: Tensor,
        *,
        valid_mask: Tensor | None = None,
        weight: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """The loss of drawn targets.

        Args:
            pred: Prediction of any registered family.
            target: Targets, shaped like samples of ``pred``; NaN where missing.
            valid_mask: True where a target may be drawn; shaped like ``target`` or its rows.
            weight: Non-negative weights, shaped like ``target`` or its rows; targets of weight 0 are not drawn.
            options: Passed to the loss, such as ``group``.

        Returns:
            A scalar of the dtype of the inputs, float32 at least.
        """
        batch = Batch(pred, target, valid_mask, weight)
        drawn = run_on_all_ranks(lambda: self._drawn(_counting_elements(batch)), device=batch.device(), sync=self.sync)
        return self.loss(pred, target, valid_mask=drawn, weight=weight, **options)

    @property
    def sync(self) -> bool:
        """Whether the loss is that of all ranks; True for a callable that does not say so."""
        return bool(getattr(self.loss, "sync", True))

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"count={self.count}"

    def _drawn(self, valid: Tensor) -> Tensor:
        """Mask of the drawn elements."""
        candidates = valid.reshape(-1).nonzero().squeeze(1)
        if len(candidates) <= self.count:
            return valid
        order = torch.randperm(len(candidates), generator=self.generator, device=valid.device)
        drawn = torch.zeros_like(valid).reshape(-1)
        drawn[candidates[order[: self.count]]] = True
        return drawn.reshape(valid.shape)
