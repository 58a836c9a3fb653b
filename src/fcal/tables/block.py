"""Rows of one file at hand, and the checks of their values."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from fcal.tables.arrow import pa
from fcal.tables.errors import TableError, value_error
from fcal.tables.files import TableFile
from fcal.tables.numbers import tensor_of


@dataclass(frozen=True, eq=False)
class Block:
    """A batch of rows.

    Attributes:
        file: Where it comes from.
        batch: Its columns.
        before: Number of rows of the file that come before it.
    """

    file: TableFile
    batch: pa.RecordBatch
    before: int

    def numbers(self, name: str) -> Tensor:
        """A column of numbers, NaN where null. Shape ``(N,)``."""
        column = self.batch.column(name)
        return tensor_of(column, path=self.file.path, name=name, before=self.before, decimal=self.file.decimal)

    def finite(self, name: str) -> Tensor:
        """A column that must have a finite number in every row."""
        value = self.numbers(name)
        # One sum proves that all are finite; where it does not (it may overflow), each is looked at.
        if not math.isfinite(value.sum().item()):
            self.check((name,), "finite", lambda v: ~torch.isfinite(v))
        return value

    def positive(self, name: str) -> Tensor:
        """A column that must have a positive, finite number in every row."""
        value = self.finite(name)
        if value.numel() and not value.amin().item() > 0:
            self.check((name,), "> 0", lambda v: ~(v > 0))
        return value

    def target(self, name: str) -> Tensor:
        """A column of targets: finite, or NaN where missing."""
        value = self.numbers(name)
        if not math.isfinite(value.sum().item()):
            self.check((name,), "finite (NaN where missing)", torch.isinf)
        return value

    def check(self, names: Sequence[str], requirement: str, bad: Callable[..., Tensor]) -> None:
        """Refuse rows in which some columns together are bad.

        Args:
            names: The columns; the first and the last are named in the error.
            requirement: What they must be, in words.
            bad: From their values to True where they are bad.

        Raises:
            TableError: With the number of bad rows in the file and the first of them.
        """
        values = [self.numbers(name) for name in names]
        wrong = bad(*values)
        if bool(wrong.any()):
            self._refuse(names, requirement, bad, int(wrong.nonzero()[0].item()), int(wrong.sum().item()))

    def _refuse(
        self, names: Sequence[str], requirement: str, bad: Callable[..., Tensor], first: int, so_far: int
    ) -> NoReturn:
        found = [float(self.numbers(name)[first].item()) for name in names]
        value = found[0] if len(names) == 1 else found
        column = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        count = self._count(names, bad) or f"{so_far} rows so far"
        raise value_error(self.file.path, column, requirement, value, self.before + first + 1, count=count) from None

    def _count(self, names: Sequence[str], bad: Callable[..., Tensor]) -> str | None:
        """How many rows of the whole file are bad; None where a later row cannot even be read."""
        wrong = rows = 0
        try:
            for batch in self.file.batches(names, (), self.batch.num_rows):
                block = Block(self.file, batch, rows)
                wrong += int(bad(*(block.numbers(name) for name in names)).sum().item())
                rows += batch.num_rows
        except TableError:
            return None
        return f"{wrong} of {rows} rows"
