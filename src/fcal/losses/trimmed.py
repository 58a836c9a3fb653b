"""A loss without the few rows that are far beyond all others."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal._checks import check_number
from fcal.losses.batch import Batch, counting
from fcal.residuals import residuals_of

_FEWEST = 10  # rows of which one may be left out
_BEYOND = 4.0  # times the largest of the other residuals; normal residuals of a million rows do not come near


class TrimmedLoss(nn.Module):
    """A loss of all rows of a batch but a few wild ones.

    One target that is off by a hundred sigmas outweighs a thousand good ones, in a normal likelihood and more so in
    moments of squared residuals. At most ``share`` of the rows of a batch (one, of 10 to 100) are left out: those whose
    residuals are more than 4 times as large as any of the others. Most batches have no such row, and the loss is then
    the one that is wrapped.

    Args:
        loss: A callable ``(pred, target, *, valid_mask, weight) -> scalar``, such as :class:`CombinedLoss`.
        share: Largest share of the rows to leave out, from 0 to 0.5.

    Shape:
        As for the loss; scalar result.

    Note:
        Under ``torch.distributed`` every rank judges its own rows. Distributions with heavy tails (StudentT with few
        degrees of freedom) expect wild rows, whose residuals are then not large. It cannot be traced by
        ``torch.compile(fullgraph=True)``.

    Example:
        >>> from torch.distributions import Normal
        >>> target = torch.tensor([-1.0, 1.0] * 50 + [100.0])
        >>> pred = Normal(torch.zeros(101), torch.ones(101))
        >>> fcal.losses.NLLLoss()(pred, target), TrimmedLoss(fcal.losses.NLLLoss())(pred, target)
        (tensor(50.9189), tensor(1.4189))
    """

    loss: Callable[..., Tensor]

    def __init__(self, loss: Callable[..., Tensor], share: float = 0.01) -> None:
        super().__init__()
        if isinstance(loss, type) or not callable(loss):
            raise TypeError(f"expected `loss` a loss to call, got {loss!r}")
        self.loss = loss
        self.share = check_number("share", share, low=0.0, high=0.5)

    def forward(
        self,
        pred: Distribution,
        target: Tensor,
        *,
        valid_mask: Tensor | None = None,
        weight: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """The loss of a batch.

        Args:
            pred: Prediction of any registered family.
            target: Targets, shaped like samples of ``pred``; NaN where missing.
            valid_mask: True where a target counts; shaped like ``target`` or its rows.
            weight: Non-negative weights, shaped like ``target`` or its rows.
            options: Passed to the loss, such as ``group``.

        Returns:
            A scalar of the dtype of the inputs, float32 at least.
        """
        kept = mask_without_wild(pred, target, share=self.share, valid_mask=valid_mask, weight=weight)
        return self.loss(pred, target, valid_mask=kept, weight=weight, **options)

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"share={self.share}"


@torch.no_grad()
def mask_without_wild(
    pred: Distribution, target: Tensor, *, share: float, valid_mask: Tensor | None = None, weight: Tensor | None = None
) -> Tensor | None:
    """Mask of the elements that count and are not wild, as :class:`TrimmedLoss` defines it; ``valid_mask`` if none is.

    Example:
        >>> from torch.distributions import Normal
        >>> target = torch.tensor([1.0] * 10 + [100.0])
        >>> mask_without_wild(Normal(torch.zeros(11), torch.ones(11)), target, share=0.01)[-2:]
        tensor([ True, False])
    """
    observation = Batch(pred, target, valid_mask, weight).observe()
    if not share or not observation.count():
        return valid_mask
    size = residuals_of(observation).abs()
    if size.dim() > len(observation.elements()):  # vectors are left out as a whole
        size = size.amax(-1)
    counted = counting(size, observation)
    most = max(int(share * len(counted)), int(len(counted) >= _FEWEST))
    is_wild = size > _BEYOND * counted.kthvalue(len(counted) - most).values
    if observation.valid is not None:
        is_wild &= observation.valid
    if not bool(is_wild.any()):
        return valid_mask
    return ~is_wild if observation.valid is None else observation.valid & ~is_wild
