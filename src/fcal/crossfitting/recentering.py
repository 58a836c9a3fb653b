"""Rows with a location that comes from another model."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fcal._datasets import as_batch, get_batch


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
