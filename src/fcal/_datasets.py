"""Batches of a dataset whose items are tuples or mappings, returned one by one or stacked."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, default_collate

Batch: TypeAlias = Mapping[str, Any]
_NAMES = ("input", "target", "valid_mask")
_MORE = "for more use a mapping with the keys 'input', 'target', and perhaps 'valid_mask' and 'weight'"


def as_batch(items: Any) -> Batch:
    """A batch as a mapping with ``"input"`` and ``"target"``.

    Args:
        items: Such a mapping, or a tuple ``(input, target)`` or ``(input, target, valid_mask)`` with a boolean mask.

    Raises:
        TypeError: It is anything else; weights, for example, need a mapping.
        ValueError: A mapping lacks these keys.

    Example:
        >>> sorted(as_batch((torch.zeros(2), torch.ones(2))))
        ['input', 'target']
    """
    if isinstance(items, Mapping):
        for name in _NAMES[:2]:
            if name not in items:
                raise ValueError(f"expected a batch with 'input' and 'target', got {', '.join(map(repr, items))}")
        return items
    if not isinstance(items, tuple | list):
        raise TypeError(f"expected a batch as a mapping or a tuple (input, target), got {type(items).__name__}")
    if len(items) not in (2, 3):
        raise TypeError(
            f"expected a batch of (input, target) or (input, target, valid_mask), got {len(items)} parts; {_MORE}"
        )
    if len(items) == 3 and items[2] is not None:
        _check_mask(items[2])
    return dict(zip(_NAMES, items, strict=False))


def _check_mask(third: Any) -> None:
    """Refuse weights or row numbers in place of a mask."""
    if not isinstance(third, Tensor) or third.dtype != torch.bool:
        actual = f"one of {third.dtype}" if isinstance(third, Tensor) else type(third).__name__
        raise TypeError(f"expected a third part of a batch to be a boolean valid_mask, got {actual}; {_MORE}")


def rows_of(batch: Batch) -> int:
    """Number of rows in a batch; targets that are not of one shape, such as boxes of images, are a list.

    Example:
        >>> rows_of({"target": [{"boxes": torch.zeros(2, 4)}, {"boxes": torch.zeros(0, 4)}]})
        2
    """
    target = batch["target"]
    is_stacked = isinstance(target, Tensor) and target.dim()
    return len(target) if is_stacked or isinstance(target, list) else 1


def per_target(per_row: Tensor, target: Tensor) -> Tensor:
    """Values of rows, or of any leading dimensions of the targets, expanded to the shape of the targets.

    Example:
        >>> per_target(torch.tensor([True, False]), torch.zeros(2, 3)).sum(1)
        tensor([3, 0])
    """
    return per_row.reshape(per_row.shape + (1,) * (target.dim() - per_row.dim())).expand(target.shape)


def has_target(batch: Batch) -> bool:
    """Whether a target of a batch counts: one that is not NaN and has neither a False mask nor a weight of 0.

    Masks and weights of a wrong shape are ignored here; the loss refuses them.

    Example:
        >>> has_target({"target": torch.tensor([torch.nan, 1.0]), "valid_mask": torch.tensor([True, False])})
        False
    """
    target = batch["target"]
    if not isinstance(target, Tensor):
        return True
    counts = ~target.isnan()
    for name in ("valid_mask", "weight"):
        values = batch.get(name)
        if isinstance(values, Tensor) and values.shape == target.shape[: values.dim()]:
            counts = counts & per_target(values > 0, target)
    return bool(counts.any())


def get_batch(dataset: Any, indices: Sequence[int]) -> Batch:
    """Rows of a dataset as one batch: stacked by its ``__getitems__`` if it does so, else collated.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.arange(3.0), torch.arange(3.0))
        >>> get_batch(data, [2, 0])["input"]
        tensor([2., 0.])
    """
    if not hasattr(dataset, "__getitems__"):
        return as_batch(_collated([dataset[index] for index in indices]))
    items = dataset.__getitems__(indices)
    if isinstance(items, list):
        return as_batch(_collated(items))  # torch's own convention: a list of samples
    batch = as_batch(items)
    inputs = batch["input"]
    # A batch may have more rows than indices, such as the nodes of graphs, but not fewer.
    if isinstance(inputs, Tensor) and inputs.dim() and len(inputs) < len(indices):
        raise ValueError(f"expected `__getitems__` of the dataset to return {len(indices)} rows, got {len(inputs)}")
    return batch


def _collated(items: list[Any]) -> Any:
    """Items stacked; those with different entries are refused by the first entry that some lack."""
    entries = [set(item) for item in items if isinstance(item, Mapping)]
    odd = sorted({str(name) for names in entries for name in names ^ entries[0]})
    if odd:
        raise ValueError(f"expected `dataset` with the same entries in all rows, got {odd[0]!r} in some alone")
    return default_collate(items)


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
    """Datasets one after another, whose batches are stacked.

    Example:
        >>> datasets = [torch.utils.data.TensorDataset(torch.tensor([value]), torch.zeros(1)) for value in (3.0, 4.0)]
        >>> BatchConcat(datasets).__getitems__([1, 0, 1])["input"]
        tensor([4., 3., 4.])
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        super().__init__(datasets)
        entries = [set(get_batch(dataset, [0])) for dataset in datasets if len(dataset)]
        odd = sorted({name for names in entries for other in entries for name in names ^ other})
        if odd:
            raise ValueError(f"expected datasets with the same entries, got {odd[0]!r} in some alone")

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Several rows, stacked."""
        rows = torch.as_tensor(list(indices))
        owner = torch.bucketize(rows, torch.tensor(self.cumulative_sizes), right=True)
        starts = [0, *self.cumulative_sizes]
        positions = [(owner == number).nonzero().squeeze(1) for number in range(len(self.datasets))]
        batches = [
            get_batch(dataset, (rows[own] - start).tolist())
            for dataset, own, start in zip(self.datasets, positions, starts[:-1], strict=True)
            if len(own)
        ]
        order = torch.cat(positions).argsort()
        return {name: _merge([batch[name] for batch in batches], order) for name in batches[0]}


def _merge(columns: Sequence[Any], order: Tensor) -> Any:
    """Columns of several batches as one, reordered; a list if they are not tensors."""
    if all(isinstance(column, Tensor) for column in columns):
        return torch.cat(list(columns))[order]
    values = [value for column in columns for value in column]
    return [values[index] for index in order.tolist()]
