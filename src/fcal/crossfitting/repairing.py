"""Models whose predictions are recalibrated, by a repair that is fitted to predictions of rows they have not seen."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal import recalibration
from fcal.crossfitting.held_out import as_distribution, counted, tame
from fcal.distributions.family import law_of
from fcal.distributions.functional import index_select
from fcal.recalibration import Recalibrator
from fcal.residuals import standardize
from fcal.scores import nll

_ENOUGH_FOR_SHAPE = 200  # targets
_FOLDS = 5
_MOST_COMPARED = 200_000  # targets: more would not change the choice


class Calibrated(nn.Module):
    """A model whose predictions are recalibrated.

    Args:
        model: Returns a distribution.
        repair: Recalibrator fitted to predictions of the same family.

    Example:
        >>> from torch.distributions import Normal
        >>> pred = Normal(torch.zeros(2), torch.ones(2))
        >>> repair = fcal.recalibration.Temperature().fit(pred, torch.tensor([3.0, -3.0]))
        >>> Calibrated(lambda x: Normal(x, 1.0), repair)(torch.zeros(1)).scale
        tensor([3.])
    """

    def __init__(self, model: Callable[[Any], Distribution], repair: Recalibrator) -> None:
        super().__init__()
        self.model = model
        self.repair = repair

    def forward(self, inputs: Any) -> Distribution:
        """The recalibrated prediction."""
        return self.repair.transform(self.model(inputs))


def calibrated(
    model: Callable[[Any], Distribution],
    repair: str | Recalibrator,
    held_out: Distribution,
    target: Tensor,
    valid_mask: Tensor | None,
) -> Calibrated:
    """A model with a repair fitted to held-out predictions.

    Args:
        model: Returns a distribution of the same family.
        repair: Name of a method of :mod:`fcal.recalibration`, a recalibrator that is not fitted yet (and stays so), or
            ``"auto"``.
        held_out: Predictions for rows that the networks behind them have not seen.
        target: Their targets.
        valid_mask: True where a target counts.
    """
    method: object = copy.deepcopy(repair)
    if repair == "auto":
        method = usual_repair(held_out, target, valid_mask)
    elif isinstance(repair, str):
        method = recalibration.by_name(repair)()
    if not isinstance(method, Recalibrator):
        raise TypeError(f"expected `repair` a name or a Recalibrator, got {type(repair).__name__}")
    method.fit(held_out, target, valid_mask=valid_mask)
    return Calibrated(model, method)


def usual_repair(held_out: Distribution, target: Tensor, valid_mask: Tensor | None = None) -> Recalibrator:
    """The default repair: of the scale, or of scale and shape around the median, whichever predicts better.

    ``Temperature()`` and ``Conformal(centred=True)`` are compared by the cross-validated likelihood of the rows that
    are not too far out for either. For vectors, and for fewer than 200 targets, which determine a scale better than a
    shape, it is ``Temperature()``. Neither moves the median, and neither follows wild rows.

    Args:
        held_out: Predictions for rows that the networks behind them have not seen.
        target: Their targets.
        valid_mask: True where a target counts.

    Returns:
        The recalibrator, not yet fitted.

    Example:
        >>> from torch.distributions import Laplace, Normal
        >>> target = Laplace(0.0, 1.0).icdf(torch.arange(1, 1000) / 1000)
        >>> type(usual_repair(Normal(torch.zeros(999), 1.0), target)).__name__  # the shape is wrong
        'Conformal'
    """
    counts = counted(target, valid_mask)
    if law_of(held_out).family.event_dim or int(counts.sum()) < _ENOUGH_FOR_SHAPE:
        return recalibration.Temperature()
    counts &= tame(standardize(held_out, target, valid_mask=valid_mask))
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    order = order[: max(_FOLDS, _MOST_COMPARED * len(target) // target.numel())]
    folds = [rows for rows in order.tensor_split(_FOLDS) if bool(counts[rows].any())]

    def nll_of(repair: Recalibrator) -> float:
        total = 0.0
        for rows in folds:
            others = order[torch.isin(order, rows, invert=True)]
            repair.fit(as_distribution(index_select(held_out, others)), target[others], valid_mask=counts[others])
            repaired = repair.transform(as_distribution(index_select(held_out, rows)))
            total += float(nll(repaired, target[rows], valid_mask=counts[rows], reduction="sum"))
        return total

    candidates = (recalibration.Temperature, partial(recalibration.Conformal, centred=True))
    return min((make() for make in candidates), key=nll_of)
