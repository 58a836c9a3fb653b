"""What a network is trained on: batches in an order that depends on the seed and the epoch alone."""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fcal._datasets import Batch, get_batch, length_of
from fcal.training.randomness import derived_seed, seed_everything

Place: TypeAlias = tuple[int, int]  # epoch, and batches of it that are done


class Batches:
    """Batches of a dataset, all of about the same size, so that none is too small for a loss that couples its rows.

    Args:
        dataset: Has ``__len__`` and ``__getitem__``; where it has ``__getitems__(indices)``, that gives a whole batch.
        size: Rows in a batch at most.
        seed: Of the order and of what the dataset draws; None for rows in the order they are in.
        place: Says where to begin: the epoch, and the number of its batches that are done.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.arange(5.0), torch.arange(5.0))
        >>> [batch["input"].tolist() for batch in Batches(data, 2)]
        [[0.0, 1.0], [2.0, 3.0], [4.0]]
        >>> [len(batch["input"]) for batch in Batches(data, 4, seed=0)]
        [3, 2]
    """

    def __init__(
        self,
        dataset: Any,
        size: int,
        *,
        seed: int | None = None,
        place: Callable[[], Place] | None = None,
    ) -> None:
        self.rows = length_of(dataset)
        self._dataset = dataset
        self._size = size
        self._seed = seed
        self._place = place or (lambda: (0, 0))

    def __len__(self) -> int:
        return -(-self.rows // self._size)

    def __iter__(self) -> Iterator[Batch]:
        epoch, done = self._place()  # asked for when the first batch is: by then a checkpoint has been read
        pieces = self._order(epoch).tensor_split(len(self))
        for number, piece in enumerate(pieces[done:], start=done):
            if self._seed is not None:
                seed_everything(derived_seed("data", self._seed, epoch, number))
            yield get_batch(self._dataset, piece.tolist())

    def _order(self, epoch: int) -> Tensor:
        if self._seed is None:
            return torch.arange(self.rows)
        generator = torch.Generator().manual_seed(derived_seed("order", self._seed, epoch))
        return torch.randperm(self.rows, generator=generator)

    def state_dict(self) -> dict[str, int]:
        """Nothing: the place is kept by whoever trains. Lightning asks for it of a loader that can be resumed."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Nothing to load."""
