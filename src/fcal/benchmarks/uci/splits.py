"""Splits of a table, each standardised by its own training rows."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.distributions import Normal

from fcal.data.folds import fold_numbers
from fcal.data.uci import UCITable, read_uci

_CONSTANT = 1e-12  # a feature that varies less, relative to its size, is only centred
_HELD_OUT = 0  # the fold that methods with a held-out set hold out
_FINGERPRINT_DIGITS = 16


@dataclass(frozen=True, kw_only=True)
class Splits:
    """All splits of a table at once.

    Attributes:
        x: Standardised features of all rows, once for each split. Shape ``(splits, n, features)``, float32.
        y: Standardised targets of all rows. Shape ``(splits, n)``, float32.
        raw: Targets in original units. Shape ``(n,)``, float64.
        shift: Mean of the training targets of each split. Shape ``(splits,)``, float64.
        unit: Their standard deviation. Shape ``(splits,)``, float64.
        train: Rows to train on. Shape ``(splits, n_train)``.
        test: Rows to test on. Shape ``(splits, n_test)``.
        fold: Fold that holds out each row to train on. Shape ``(splits, n_train)``.
        folds: Number of folds.
    """

    x: Tensor
    y: Tensor
    raw: Tensor
    shift: Tensor
    unit: Tensor
    train: Tensor
    test: Tensor
    fold: Tensor
    folds: int

    @property
    def count(self) -> int:
        """Number of splits."""
        return len(self.train)

    @property
    def numbers(self) -> Tensor:
        """Number of every split. Shape ``(splits,)``."""
        return torch.arange(self.count)

    def without_fold(self, split: int, fold: int = _HELD_OUT) -> Tensor:
        """Training rows without a fold; by default the one that methods with a held-out set hold out."""
        return self.train[split][self.fold[split] != fold]

    def of_fold(self, split: int, fold: int = _HELD_OUT) -> Tensor:
        """Rows of a fold."""
        return self.train[split][self.fold[split] == fold]

    @property
    def seen(self) -> Tensor:
        """Rows that methods with a held-out set train on. Shape ``(splits, rows)``."""
        return same_length([self.without_fold(split) for split in range(self.count)])

    @property
    def held_out(self) -> Tensor:
        """Rows that these methods hold out. Shape ``(splits, n_train / folds)``."""
        return same_length([self.of_fold(split) for split in range(self.count)])

    def original(self, pred: Normal, split: int) -> Normal:
        """A split's standardised prediction in original units and double precision."""
        unit, shift = self.unit[split], self.shift[split]
        return Normal(pred.loc.double() * unit + shift, pred.scale.double() * unit)


def standardised(table: UCITable, *, folds: int, seed: int) -> Splits:
    """Standardise a table for each of its splits, and assign their rows to folds.

    Args:
        table: As read from its files.
        folds: Number of folds.
        seed: Folds of a split are drawn with ``seed + split``.

    Raises:
        ValueError: Splits have different sizes, or a target does not vary.

    Example:
        >>> rows = torch.arange(30)
        >>> parts = {"train": (rows[:25],), "test": (rows[25:],)}
        >>> table = UCITable(name="line", x=rows[:, None].double(), y=rows.double(), **parts)
        >>> float(standardised(table, folds=5, seed=0).y[0, :25].mean().abs()) < 1e-6
        True
    """
    for purpose, parts in (("train", table.train), ("test", table.test)):
        sizes = sorted({len(rows) for rows in parts})
        if len(sizes) > 1:
            raise ValueError(f"expected splits of {table.name} with equally many rows to {purpose} on, got {sizes}")
    train, test = torch.stack(table.train), torch.stack(table.test)
    features, targets = table.x[train], table.y[train]
    centre, spread = features.mean(1, keepdim=True), features.std(1, keepdim=True)
    constant = spread <= _CONSTANT * (1 + centre.abs())
    shift, unit = targets.mean(1), targets.std(1)
    if not bool((unit > _CONSTANT * (1 + shift.abs())).all()):
        raise ValueError(f"expected targets of {table.name} that vary, got the same in all rows of a split")
    return Splits(
        x=((table.x - centre) / torch.where(constant, 1.0, spread)).float(),
        y=((table.y - shift[:, None]) / unit[:, None]).float(),
        raw=table.y,
        shift=shift,
        unit=unit,
        train=train,
        test=test,
        fold=torch.stack([fold_numbers(train.shape[1], folds, seed=seed + split) for split in range(len(train))]),
        folds=folds,
    )


@lru_cache(maxsize=2)
def splits_of(data: str, dataset: str, count: int, folds: int, seed: int) -> Splits:
    """The first splits of a table in a folder; those of two tables are cached."""
    return standardised(read_uci(data, dataset, splits=count), folds=folds, seed=seed)


@lru_cache(maxsize=64)
def fingerprint(data: str, dataset: str) -> str:
    """Digest of a table's numbers and splits, part of every address."""
    table, digest = read_uci(data, dataset), hashlib.sha256()
    for tensor in (table.x, table.y, *table.train, *table.test):
        digest.update(str(tuple(tensor.shape)).encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:_FINGERPRINT_DIGITS]


def same_length(rows: list[Tensor]) -> Tensor:
    """Rows of several networks as one matrix; shorter ones (folds may differ by one row) are repeated from their start.

    Example:
        >>> same_length([torch.tensor([4, 5, 6]), torch.tensor([1, 2])])
        tensor([[4, 5, 6],
                [1, 2, 1]])
    """
    longest = max(len(indices) for indices in rows)
    return torch.stack([indices[torch.arange(longest) % len(indices)] for indices in rows])
