"""Cells of a run: their configs, addresses and outcomes."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from fcal._config import plain

_DIGITS = 20
_EXACT = 2**53  # whole floats below it are exactly an int
_LONGEST_SLUG = 40


@dataclass(frozen=True, eq=False)
class Cell:
    """Something to compute. Two cells of the same kind and config are the same cell.

    Attributes:
        kind: Kind of cell, such as ``"train"``.
        config: Everything its result depends on, as plain values.
        needs: Cells that must be finished first; the function reads their results from the store.
        artifacts: Suffixes of the files that it leaves beside its result (``Store.artifact``). If such a file is
            missing and a cell that needs this one has to be computed, this one is computed again.
        affinity: Cells with the same affinity run in the same process if possible, because it has their data in memory.
        label: Its name in a progress bar.

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
    """Outcome of a cell in a run.

    Attributes:
        cell: The cell.
        status: ``"done"`` in this run, ``"stored"`` before it or by another run, or ``"failed"``.
        result: The stored result; None for a failed cell.
        seconds: How long it took.
        reason: Why it failed, in one line.
        details: Traceback of the failure, if there is one.
    """

    cell: Cell
    status: Literal["done", "stored", "failed"]
    result: Any = None
    seconds: float | None = None
    reason: str | None = None
    details: str = ""


def key(kind: str, config: Mapping[str, Any]) -> str:
    """Address of a cell: the first 20 hexadecimal digits of the SHA-256 of its canonical JSON.

    It is the same on every machine. The order of keys does not count, a tuple is a list, and ``1`` is ``1.0``: a config
    that came through a dataclass with float fields has the address of the TOML table that it was read from. ``True`` is
    not ``1``.

    Args:
        kind: Kind of cell, such as ``"train"``.
        config: Everything its result depends on: strings, numbers, booleans, None, lists and mappings of them.

    Returns:
        20 hexadecimal digits.

    Raises:
        TypeError: A value is not plain.
        ValueError: ``kind`` is empty, or a number is not finite.

    Example:
        >>> key("train", {"lam": 1, "seed": 0}) == key("train", {"seed": 0, "lam": 1.0})
        True
        >>> text = '{"config":{"seed":0},"kind":"train"}'
        >>> key("train", {"seed": 0}) == hashlib.sha256(text.encode()).hexdigest()[:20]
        True
    """
    return hashlib.sha256(canonical(kind, config).encode()).hexdigest()[:_DIGITS]


def file_stem(kind: str, config: Mapping[str, Any]) -> str:
    """Name of a cell's files: its kind, to be readable, and its address."""
    slug = re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")[:_LONGEST_SLUG] or "cell"
    return f"{slug}-{key(kind, config)}"


def canonical(kind: str, config: Mapping[str, Any]) -> str:
    """The text that is hashed: ASCII JSON with sorted keys, no spaces, whole numbers without a fraction."""
    if not isinstance(kind, str) or not kind:
        raise ValueError(f"expected `kind` a string that is not empty, got {kind!r}")
    document = {"kind": kind, "config": _whole(plain_config(config))}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a config in JSON's own types; an error names the path of any other value."""
    if not isinstance(config, Mapping):
        raise TypeError(f"expected `config` a mapping, got {type(config).__name__}")
    copy: dict[str, Any] = plain("config", config)
    return copy


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    return value
