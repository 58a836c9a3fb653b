"""The address of a cell: a hash of its kind and its resolved config, the same on every machine."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

_DIGITS = 20
_DEEPEST = 50
_EXACT = 2**53  # whole floats below it are exactly an int
_LONGEST_SLUG = 40


def key(kind: str, config: Mapping[str, Any]) -> str:
    """Address of a cell: the first 20 hexadecimal digits of the sha256 of its canonical JSON.

    The order of keys does not count, a tuple is a list, and ``1`` is ``1.0``: a config that came through a dataclass
    with float fields has the address of the TOML table that it was read from. ``True`` is not ``1``.

    Args:
        kind: What sort of cell it is, such as ``"train"``.
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
    """Name of a cell's files: its kind for people, its address for the store."""
    slug = re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")[:_LONGEST_SLUG] or "cell"
    return f"{slug}-{key(kind, config)}"


def canonical(kind: str, config: Mapping[str, Any]) -> str:
    """The text that is hashed: ASCII JSON with sorted keys, no spaces, whole numbers without a fraction."""
    if not isinstance(kind, str) or not kind:
        raise ValueError(f"expected `kind` a string that is not empty, got {kind!r}")
    document = {"kind": kind, "config": _whole(plain_config(config))}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a config in JSON's own types; anything else in it is refused by its path."""
    if not isinstance(config, Mapping):
        raise TypeError(f"expected `config` a mapping, got {type(config).__name__}")
    copy: dict[str, Any] = plain("config", config)
    return copy


def plain(name: str, value: Any, depth: int = 0) -> Any:
    """A copy of a value in JSON's own types.

    Args:
        name: How messages call it.
        value: None, booleans, numbers, strings, lists, tuples, and mappings with string keys.
        depth: How deep inside something else it lies.

    Raises:
        TypeError: Something else is in it.
        ValueError: A number is not finite, or it is nested too deeply.

    Example:
        >>> plain("result", {"rows": [0.1, float("nan")]})
        Traceback (most recent call last):
        ...
        ValueError: expected `result.rows[1]` a finite number, got nan
    """
    if depth > _DEEPEST:
        raise ValueError(f"expected `{name[:80]}` nested at most {_DEEPEST} deep, got more")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # of a subclass, such as a string enum, its characters
    if isinstance(value, int | float):
        return _finite(name, value)
    if isinstance(value, list | tuple):
        return [plain(f"{name}[{i}]", item, depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_text(name, k): plain(f"{name}.{k}", item, depth + 1) for k, item in value.items()}
    kinds = "a string, number, boolean, None, list or mapping"
    raise TypeError(f"expected `{name}` {kinds}, got {type(value).__name__}")


def _finite(name: str, value: float) -> float:
    if isinstance(value, int):
        return int(value)
    if not math.isfinite(value):
        raise ValueError(f"expected `{name}` a finite number, got {value}")
    return float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected `{name}` with string keys, got {value!r}")
    return str.__str__(value)


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    return value
