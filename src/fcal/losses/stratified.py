"""A loss of batches, stratum by stratum: what holds on the whole must hold of small and of large error bars."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal._checks import check_integer
from fcal._ranks import sum_over_ranks
from fcal._registry import Registry
from fcal.losses.batch import Batch, BatchLoss

_FEWEST = 2  # residuals that have a variance


class StratifiedLoss(nn.Module):
    r"""Mean of a loss over strata of the batch, weighted by how many targets each has.

    A batch is calibrated on the whole also where its small error bars are too small and its large ones too large. Where
    the constraint is put on every stratum, each must be true by itself:

    .. math:: L = \sum_s \frac{n_s}{n} L(\text{stratum } s)

    Args:
        loss: A loss of this library that takes a ``valid_mask``, :class:`~fcal.FCalLoss` say.
        strata: How many strata.
        by: ``"sigma"``, equally many targets in each, from the smallest predicted standard deviations to the largest;
            or ``"group"``, whose number from 0 to ``strata - 1`` comes with every call.

    Shape:
        As the loss has; scalar result.

    Note:
        Every stratum has fewer targets than the batch, so its moments are noisier: of a calibrated batch f-Cal is about
        :math:`K S / n` in place of :math:`K / n`. Take larger batches, or fewer strata. A stratum with fewer than two
        targets is left out. Under ``torch.distributed`` strata by sigma are of each rank's own batch, then taken
        together.

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
        _NUMBERED[by]
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
            target: Targets, shaped like the prediction's samples; NaN where missing.
            valid_mask: True where a target counts; shaped like ``target`` or its rows.
            weight: Non-negative weights, shaped like ``target`` or its rows.
            group: For ``by="group"``: the group of every target, integers shaped like ``target`` or its rows.

        Returns:
            A scalar of the inputs' dtype, float32 at least.
        """
        valid, losses = self._valid(Batch(pred, target, valid_mask, weight)), []
        number = _NUMBERED[self.by](pred, valid, group, self.strata)
        parts = [valid & (number == stratum) for stratum in range(self.strata)]
        share = self._shares(parts)
        for part, of_all in zip(parts, share.tolist(), strict=True):
            if of_all:
                losses.append(of_all * self.loss(pred, target, valid_mask=part, weight=weight))
        if not losses:
            self._refuse(int(valid.sum()))
        return torch.stack(losses).sum()

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"strata={self.strata}, by={self.by!r}"

    def _valid(self, batch: Batch) -> Tensor:
        """Which elements count: scalars, or rows of a vector family."""
        observed = batch.observe()
        if observed.valid is not None:
            return observed.valid
        return torch.ones(observed.elements(), dtype=torch.bool, device=batch.device())

    def _refuse(self, found: int) -> None:
        shown = f"{found} for {self.strata} strata"
        raise ValueError(f"expected `target` with at least {_FEWEST} values that count in a stratum, got {shown}")

    def _shares(self, parts: Sequence[Tensor]) -> Tensor:
        """What part of all targets every stratum has, on all ranks that share the batch; 0 where they are too few."""

        def own() -> Tensor:
            return torch.stack([part.sum() for part in parts]).to(torch.float64)

        counts = sum_over_ranks(own, size=self.strata, device=parts[0].device) if self.loss.sync else own()
        enough = torch.where(counts >= _FEWEST, counts, 0.0)
        return enough / enough.sum().clamp_min(1)


def _by_sigma(pred: Distribution, valid: Tensor, group: Tensor | None, strata: int) -> Tensor:
    """Strata by rank of the predicted standard deviation among what counts."""
    if group is not None:
        raise ValueError("expected no `group` for strata by sigma, got one; see `by`")
    sigma = pred.stddev.detach().to(torch.float64)
    if sigma.dim() > valid.dim():  # a vector counts by its mean variance
        sigma = sigma.square().mean(-1).sqrt()
    counting = sigma.expand(valid.shape)[valid]  # infinite ones, of heavy tails, are the largest
    rank = counting.argsort(stable=True).argsort()
    number = torch.zeros(valid.shape, dtype=torch.long, device=valid.device)
    number[valid] = rank * strata // max(len(rank), 1)
    return number


def _by_group(pred: Distribution, valid: Tensor, group: Tensor | None, strata: int) -> Tensor:  # noqa: ARG001
    """Strata as they are given, checked."""
    if not isinstance(group, Tensor) or group.is_floating_point() or group.is_complex():
        shown = group.dtype if isinstance(group, Tensor) else type(group).__name__
        raise TypeError(f"expected `group` a tensor of integers for strata by group, got {shown}")
    if group.shape != valid.shape[: group.dim()]:
        raise ValueError(f"expected `group` of shape {tuple(valid.shape)} or its rows, got {tuple(group.shape)}")
    if group.numel() and not 0 <= int(group.min()) <= int(group.max()) < strata:
        raise ValueError(f"expected `group` within 0 to {strata - 1}, got {int(group.min())} to {int(group.max())}")
    return group.reshape(group.shape + (1,) * (valid.dim() - group.dim())).expand(valid.shape)


Numbered = Callable[[Distribution, Tensor, Tensor | None, int], Tensor]
_NUMBERED: Registry[Numbered] = Registry("by")
_NUMBERED.add("sigma", _by_sigma)
_NUMBERED.add("group", _by_group)
