"""Assignment of rows to folds of about equal size, by row or by group."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcal._checks import check_integer


def fold_numbers(rows: int, folds: int, *, groups: Sequence[Any] | Tensor | None = None, seed: int = 0) -> Tensor:
    """Fold in which each row is held out.

    Rows are assigned at random. With ``groups``, all rows of a group go to one fold: frames of a sequence, readings of
    a track or houses of a street are dependent, and holding out only some of them would leak information.

    Args:
        rows: Number of rows.
        folds: Number of folds.
        groups: Group of each row, as numbers or strings. Length ``rows``.
        seed: Seed of the assignment.

    Returns:
        Fold numbers from 0 to ``folds - 1``, each of which occurs. Shape ``(rows,)``.

    Raises:
        ValueError: There are fewer rows or groups than folds, or ``groups`` has the wrong length.

    Example:
        >>> fold_numbers(6, 3, groups=["a", "a", "b", "b", "c", "c"]).tolist()
        [1, 1, 2, 2, 0, 0]
    """
    check_integer("rows", rows, at_least=1)
    check_integer("folds", folds, at_least=2)
    generator = torch.Generator().manual_seed(check_integer("seed", seed, at_least=0))
    if groups is None:
        _check_enough(folds, rows, "rows")
        fold = torch.empty(rows, dtype=torch.long)
        fold[torch.randperm(rows, generator=generator)] = torch.arange(rows) % folds
        return fold
    members = group_numbers(groups, rows)
    sizes = torch.bincount(members)
    _check_enough(folds, len(sizes), "groups")
    return _folds_of_groups(sizes, folds, generator)[members]


def _check_enough(folds: int, count: int, units: str) -> None:
    if count < folds:
        raise ValueError(f"expected `folds` at most the number of {units}, {count}, got {folds}")


def group_numbers(groups: Sequence[Any] | Tensor, rows: int) -> Tensor:
    """Consecutive numbers of groups, from 0.

    Example:
        >>> group_numbers(["b", "a", "b"], 3)
        tensor([1, 0, 1])
    """
    try:
        labels = np.asarray(groups.detach().cpu().tolist() if isinstance(groups, Tensor) else groups)
    except ValueError:
        raise ValueError("expected `groups` with one entry for each row, got entries of several lengths") from None
    if labels.dtype.kind not in "biufUSM":
        raise TypeError(f"expected `groups` of numbers or strings, got {labels.dtype}")
    if labels.shape != (rows,):
        raise ValueError(f"expected `groups` with one entry for each of {rows} rows, got shape {labels.shape}")
    return torch.from_numpy(np.unique(labels, return_inverse=True)[1])


def _folds_of_groups(sizes: Tensor, folds: int, generator: torch.Generator) -> Tensor:
    """Fold of each group: largest groups first, each to the fold with the fewest rows; ties are random."""
    order = torch.randperm(len(sizes), generator=generator)
    order = order[sizes[order].argsort(descending=True, stable=True)]
    filled = [0] * folds
    fold_of = torch.empty(len(sizes), dtype=torch.long)
    for group in order.tolist():
        emptiest = min(range(folds), key=filled.__getitem__)
        fold_of[group] = emptiest
        filled[emptiest] += int(sizes[group])
    return fold_of
