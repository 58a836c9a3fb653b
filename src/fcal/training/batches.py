"""What a network is trained on: batches in an order that depends on the seed and the epoch alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from fcal.training.randomness import derived_seed, seed_everything

Batch: TypeAlias = Mapping[str, Any]
Place: TypeAlias = tuple[int, int]  # epoch, and batches of it that are done
_NAMES = ("input", "target", "valid_mask")
_MORE = "for more use a mapping with the keys 'input', 'target', and perhaps 'valid_mask' and 'weight'"


def as_batch(found: Any) -> Batch:
    """A batch as a mapping with ``"input"`` and ``"target"``.

    Args:
        found: Such a mapping, or a tuple ``(input, target)`` or ``(input, target, valid_mask)``; the mask is boolean.

    Raises:
        TypeError: Anything else, also a third part that is no mask, such as weights: these need a mapping.
        ValueError: A mapping without these keys.

    Example:
        >>> sorted(as_batch((torch.zeros(2), torch.ones(2))))
        ['input', 'target']
    """
    if isinstance(found, Mapping):
        for name in _NAMES[:2]:
            if name not in found:
                raise ValueError(f"expected a batch with 'input' and 'target', got {', '.join(map(repr, found))}")
        return found
    if not isinstance(found, tuple | list):
        raise TypeError(f"expected a batch as a mapping or a tuple (input, target), got {type(found).__name__}")
    if len(found) not in (2, 3):
        raise TypeError(
            f"expected a batch of (input, target) or (input, target, valid_mask), got {len(found)} parts; {_MORE}"
        )
    if len(found) == 3 and found[2] is not None:
        _check_mask(found[2])
    return dict(zip(_NAMES, found, strict=False))


def _check_mask(third: Any) -> None:
    """Weights or numbers of rows would else pass for a mask."""
    if not isinstance(third, Tensor) or third.dtype != torch.bool:
        shown = f"one of {third.dtype}" if isinstance(third, Tensor) else type(third).__name__
        raise TypeError(f"expected a third part of a batch to be a boolean valid_mask, got {shown}; {_MORE}")


def rows_of(batch: Batch) -> int:
    """Number of rows in a batch."""
    target = batch["target"]
    return len(target) if isinstance(target, Tensor) and target.dim() else 1


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
        if isinstance(dataset, DataLoader):
            raise TypeError("expected a dataset, got a DataLoader: pass its `dataset`, and `batch_size` in FitConfig")
        self.rows = _length(dataset)
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
            yield as_batch(self._fetched(piece.tolist()))

    def _order(self, epoch: int) -> Tensor:
        if self._seed is None:
            return torch.arange(self.rows)
        generator = torch.Generator().manual_seed(derived_seed("order", self._seed, epoch))
        return torch.randperm(self.rows, generator=generator)

    def _fetched(self, indices: Sequence[int]) -> Any:
        if hasattr(self._dataset, "__getitems__"):
            found = self._dataset.__getitems__(indices)
            if not isinstance(found, list):
                _check_rows(found, len(indices))
                return found
            return default_collate(found)  # torch's own convention: a list of samples
        return default_collate([self._dataset[index] for index in indices])

    def state_dict(self) -> dict[str, int]:
        """Nothing: the place is kept by whoever trains. Lightning asks for it of a loader that can be resumed."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Nothing to load."""


def _check_rows(found: Any, asked: int) -> None:
    """Refuse a batch that lacks rows; one may have more, such as the nodes of graphs."""
    given = as_batch(found)["input"]
    if isinstance(given, Tensor) and given.dim() and len(given) < asked:
        raise ValueError(f"expected `__getitems__` of the dataset to return {asked} rows, got {len(given)}")


def _length(dataset: Any) -> int:
    try:
        rows = len(dataset)
    except TypeError:
        raise TypeError(f"expected a dataset with a length, got {type(dataset).__name__}") from None
    if rows < 1:
        raise ValueError(f"expected a dataset with at least 1 row, got {rows}")
    return rows
