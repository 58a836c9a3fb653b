"""Rows of a dataset, whatever it is made of: single items or whole batches, tuples or mappings."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, default_collate

Batch: TypeAlias = Mapping[str, Any]
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


def get_batch(dataset: Any, indices: Sequence[int]) -> Batch:
    """Rows of a dataset as one batch: at once where its ``__getitems__`` gives them stacked, else collated.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.arange(3.0), torch.arange(3.0))
        >>> get_batch(data, [2, 0])["input"]
        tensor([2., 0.])
    """
    if not hasattr(dataset, "__getitems__"):
        return as_batch(default_collate([dataset[index] for index in indices]))
    found = dataset.__getitems__(indices)
    if isinstance(found, list):
        return as_batch(default_collate(found))  # torch's own convention: a list of samples
    batch = as_batch(found)
    _check_rows(batch, len(indices))
    return batch


def _check_rows(batch: Batch, asked: int) -> None:
    """Refuse a batch that lacks rows; one may have more, such as the nodes of graphs."""
    given = batch["input"]
    if isinstance(given, Tensor) and given.dim() and len(given) < asked:
        raise ValueError(f"expected `__getitems__` of the dataset to return {asked} rows, got {len(given)}")


def length_of(dataset: Any) -> int:
    """Number of rows of a dataset, at least 1.

    Example:
        >>> length_of([1, 2])
        2
    """
    if isinstance(dataset, DataLoader):
        raise TypeError("expected a dataset, got a DataLoader: pass its `dataset`, and `batch_size` as an option")
    try:
        rows = len(dataset)
    except TypeError:
        raise TypeError(f"expected a dataset with a length, got {type(dataset).__name__}") from None
    if rows < 1:
        raise ValueError(f"expected a dataset with at least 1 row, got {rows}")
    return rows


class BatchConcat(ConcatDataset[Any]):
    """Datasets one after another, with batches taken at once.

    Example:
        >>> parts = [torch.utils.data.TensorDataset(torch.tensor([value]), torch.zeros(1)) for value in (3.0, 4.0)]
        >>> BatchConcat(parts).__getitems__([1, 0, 1])["input"]
        tensor([4., 3., 4.])
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        super().__init__(datasets)
        entries = [set(get_batch(dataset, [0])) for dataset in datasets if len(dataset)]
        odd = sorted({name for names in entries for other in entries for name in names ^ other})
        if odd:
            raise ValueError(f"expected datasets with the same entries, got {odd[0]!r} in some alone")

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Many samples, already stacked."""
        chosen = torch.as_tensor(list(indices))
        owner = torch.bucketize(chosen, torch.tensor(self.cumulative_sizes), right=True)
        firsts = [0, *self.cumulative_sizes]
        places = [(owner == part).nonzero().squeeze(1) for part in range(len(self.datasets))]
        batches = [
            get_batch(dataset, (chosen[here] - firsts[part]).tolist())
            for part, (dataset, here) in enumerate(zip(self.datasets, places, strict=True))
            if len(here)
        ]
        back = torch.cat(places).argsort()
        return {name: _in_order([batch[name] for batch in batches], back) for name in batches[0]}


def _in_order(parts: Sequence[Any], back: Tensor) -> Any:
    """Columns of several batches as one, in another order; what is no tensor becomes a list."""
    if all(isinstance(part, Tensor) for part in parts):
        return torch.cat(list(parts))[back]
    whole = [value for part in parts for value in part]
    return [whole[place] for place in back.tolist()]
