"""A table's splits as networks see them: standardised by the rows each is trained on, and by nothing else."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Normal

from fcal.data.folds import fold_numbers
from fcal.data.uci import UCITable

_CONSTANT = 1e-12  # a feature that varies less, beside its size, is left as it is


@dataclass(frozen=True, kw_only=True)
class Problem:
    """All splits of a table at once.

    Attributes:
        x: Standardised features of all rows, once for each split. Shape ``(splits, n, features)``, float32.
        y: Standardised targets of all rows. Shape ``(splits, n)``, float32.
        raw: Targets in original units. Shape ``(n,)``, float64.
        shift: Mean of the targets that a split trains on. Shape ``(splits,)``, float64.
        unit: Their standard deviation. Shape ``(splits,)``, float64.
        train: Rows to train on. Shape ``(splits, n_train)``.
        test: Rows to test on. Shape ``(splits, n_test)``.
        fold: Which fold holds out each row to train on. Shape ``(splits, n_train)``.
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
    def splits(self) -> int:
        """Number of splits."""
        return len(self.train)

    def seen(self, split: int, fold: int) -> Tensor:
        """Rows to train on without a fold."""
        return self.train[split][self.fold[split] != fold]

    def held_out(self, split: int, fold: int) -> Tensor:
        """Rows of a fold."""
        return self.train[split][self.fold[split] == fold]

    def original(self, pred: Normal, split: int) -> Normal:
        """A prediction for a split in original units and double precision.

        A deviation of 0 in the standardised target is its mean in original units.
        """
        unit, shift = self.unit[split], self.shift[split]
        return Normal(pred.loc.double() * unit + shift, pred.scale.double() * unit)


def problem(table: UCITable, *, folds: int, seed: int) -> Problem:
    """Standardise a table for each of its splits, and deal their rows out to folds.

    Args:
        table: What was read.
        folds: Number of folds.
        seed: Of the draw of folds; that of a split is drawn by ``seed + split``.

    Raises:
        ValueError: Splits of different sizes, or a target that does not vary.

    Example:
        >>> rows = torch.arange(30)
        >>> parts = {"train": (rows[:25],), "test": (rows[25:],)}
        >>> table = UCITable(name="line", x=rows[:, None].double(), y=rows.double(), **parts)
        >>> float(problem(table, folds=5, seed=0).y[0, :25].mean().abs()) < 1e-6
        True
    """
    for what, parts in (("train", table.train), ("test", table.test)):
        sizes = sorted({len(part) for part in parts})
        if len(sizes) > 1:
            raise ValueError(f"expected splits of {table.name} with equally many rows to {what} on, got {sizes}")
    train, test = torch.stack(table.train), torch.stack(table.test)
    seen, targets = table.x[train], table.y[train]
    centre, spread = seen.mean(1, keepdim=True), seen.std(1, keepdim=True)
    constant = spread <= _CONSTANT * (1 + centre.abs())
    shift, unit = targets.mean(1), targets.std(1)
    if not bool((unit > _CONSTANT * (1 + shift.abs())).all()):
        raise ValueError(f"expected targets of {table.name} that vary, got the same in all rows of a split")
    return Problem(
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


def same_length(parts: list[Tensor]) -> Tensor:
    """Rows of several networks as one matrix: shorter ones begin anew, which folds do by a single row.

    Example:
        >>> same_length([torch.tensor([4, 5, 6]), torch.tensor([1, 2])])
        tensor([[4, 5, 6],
                [1, 2, 1]])
    """
    longest = max(len(part) for part in parts)
    return torch.stack([part[torch.arange(longest) % len(part)] for part in parts])
