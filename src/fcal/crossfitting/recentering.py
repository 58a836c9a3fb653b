"""Predictions around a location that comes from another model."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._datasets import as_batch, get_batch
from fcal.distributions.family import law_of
from fcal.distributions.functional import with_parameters


def has_location(pred: Distribution) -> bool:
    """Whether one parameter of the prediction moves it in the unit of the target.

    This is not so for a LogNormal distribution, whose location is a logarithm, for a GeneralizedPareto distribution,
    whose location is the end of its support, and for mixtures, which have several.

    Example:
        >>> from torch.distributions import LogNormal, Normal
        >>> has_location(Normal(0.0, 1.0)), has_location(LogNormal(0.0, 1.0))
        (True, False)
    """
    family = law_of(pred).family
    return family.location == "loc" and family.component is None and family.support is None


def location_of(pred: Distribution) -> Tensor:
    """The location parameter of a prediction.

    Raises:
        ValueError: The family has none in the unit of the target.

    Example:
        >>> from torch.distributions import Normal
        >>> location_of(Normal(torch.tensor([2.0]), 1.0))
        tensor([2.])
    """
    law = law_of(pred)
    if not has_location(pred):
        raise ValueError(f"expected `pred` of a family with a location in the target's unit, got {law.name}")
    return dict(zip(law.family.parameters, law.parameters, strict=True))["loc"]


def recentred(pred: Distribution, center: Tensor) -> Distribution:
    """The same prediction around another location.

    Example:
        >>> from torch.distributions import Normal
        >>> recentred(Normal(torch.zeros(1), 3.0), torch.tensor([2.0])).loc
        tensor([2.])
    """
    location_of(pred)  # refuses a family without one
    shape = pred.batch_shape + pred.event_shape
    if center.shape != shape:
        raise ValueError(f"expected `center` of shape {tuple(shape)} like the prediction, got {tuple(center.shape)}")
    return with_parameters(pred, loc=center)


class Centered:
    """A subset of a dataset whose rows are mappings with an additional entry ``"center"``.

    Args:
        dataset: Its items are mappings with ``"input"`` and ``"target"``, or tuples of these.
        indices: Rows of the subset, in this order.
        center: A location for every row of ``dataset``, predicted by a model that has not seen the row.

    Example:
        >>> whole = torch.utils.data.TensorDataset(torch.arange(3.0), torch.arange(3.0))
        >>> Centered(whole, torch.tensor([2, 0]), torch.tensor([5.0, 6.0, 7.0]))[0]["center"]
        tensor(7.)
    """

    def __init__(self, dataset: Any, indices: Tensor, center: Tensor) -> None:
        self.dataset = dataset
        self.indices = indices
        self.center = center

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        row = int(self.indices[index])
        return {**as_batch(self.dataset[row]), "center": self.center[row]}

    def __getitems__(self, indices: list[int]) -> Any:
        """Rows as the dataset returns them: one stacked batch, or a list."""
        rows = self.indices[torch.as_tensor(indices, dtype=torch.long)]
        is_stacked = hasattr(self.dataset, "__getitems__") and isinstance(
            self.dataset.__getitems__(rows[:1].tolist()), Mapping
        )
        if not is_stacked:
            return [self[index] for index in indices]
        return {**get_batch(self.dataset, rows.tolist()), "center": self.center[rows]}
