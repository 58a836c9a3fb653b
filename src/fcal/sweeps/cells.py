"""What is computed, and what became of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from fcal.sweeps.keys import file_stem, key, plain_config


@dataclass(frozen=True, eq=False)
class Cell:
    """Something to compute. Two cells of the same kind and config are the same cell.

    Attributes:
        kind: What sort of cell it is.
        config: Everything its result depends on, as plain values.
        needs: Cells that must be finished first; the function finds their results in the store.
        artifacts: Suffixes of the files it leaves beside its result (``Store.artifact``). Where a cell that needs this
            one is still to be computed and such a file is missing, this one is computed again.
        affinity: Cells with the same word go to the same process where possible, because it has their data in memory.
        label: What a progress bar calls it.

    Example:
        >>> Cell("train", {"seed": 0}) == Cell("train", {"seed": 0.0}, label="first")
        True
    """

    kind: str
    config: Mapping[str, Any]
    needs: tuple["Cell", ...] = ()
    artifacts: tuple[str, ...] = ()
    affinity: str | None = None
    label: str = ""

    def __post_init__(self) -> None:
        # A copy: the address stays right when the caller's mapping changes.
        object.__setattr__(self, "config", plain_config(self.config))
        object.__setattr__(self, "needs", tuple(self.needs))
        if isinstance(self.artifacts, str) or not all(isinstance(suffix, str) for suffix in self.artifacts):
            raise TypeError(
                f"expected `artifacts` a tuple of suffixes such as ('.safetensors',), got {self.artifacts!r}"
            )
        object.__setattr__(self, "artifacts", tuple(self.artifacts))
        if not all(isinstance(cell, Cell) for cell in self.needs):
            raise TypeError(f"expected `needs` of Cell, got {self.needs!r}")
        _ = self.key

    @cached_property
    def key(self) -> str:
        """Its address."""
        return key(self.kind, self.config)

    @property
    def name(self) -> str:
        """Its label, or the name of its file."""
        return self.label or file_stem(self.kind, self.config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a cell.

    Attributes:
        cell: The cell.
        status: ``"done"`` now, ``"stored"`` before (or by another run meanwhile), or ``"failed"``.
        result: What is stored; None for a failed cell.
        seconds: How long it took.
        reason: One line, for a failed cell.
        details: Where it failed, as a traceback; empty where there is none.
    """

    cell: Cell
    status: Literal["done", "stored", "failed"]
    result: Any = None
    seconds: float | None = None
    reason: str | None = None
    details: str = ""
