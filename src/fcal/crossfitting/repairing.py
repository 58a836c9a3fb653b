"""Models whose predictions are recalibrated, by a repair that is fitted to predictions of rows they have not seen."""

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution

from fcal import recalibration
from fcal.crossfitting.held_out import counted
from fcal.distributions.family import law_of
from fcal.recalibration import Recalibrator

_ENOUGH_FOR_SHAPE = 200  # targets; fewer determine a scale better than a shape


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
    """The default: scale and shape around the median for 200 scalar targets or more, the scale for fewer."""
    scalars = law_of(held_out).family.event_dim == 0
    enough = int(counted(target, valid_mask).sum()) >= _ENOUGH_FOR_SHAPE
    return recalibration.Conformal(centred=True) if scalars and enough else recalibration.Temperature()
