"""TOML files as frozen dataclasses; unknown keys and values of a wrong type raise an error of one line."""

import dataclasses
import difflib
import json
import math
import os
import re
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

Config = TypeVar("Config")

_LARGEST = 1 << 20  # bytes of a file
_DEEPEST = 50
_LONGEST = 80  # characters of a key or value in a message
_LONGEST_PATH = 500  # characters of the file and the dotted key in it


def read_config(path: str | os.PathLike[str], kind: type[Config]) -> Config:
    """Read a TOML file into a dataclass whose fields are scalars, free tables or dataclasses.

    Args:
        path: The TOML file.
        kind: The dataclass; missing keys keep its defaults.

    Raises:
        ValueError: The file is not TOML or larger than 1 MB, a key is unknown or missing, a value has the wrong type
            or is out of range, or a number is not finite.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST + 1)  # a device has no end
    except OSError as error:
        raise ValueError(f"expected `{path}` a file to read, got: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"expected `{_shown(str(path))}` a file to read, got no name of one") from None
    if len(content) > _LARGEST:
        raise ValueError(f"expected `{path}` a config of at most {_LARGEST} bytes, got more")
    try:
        table = tomllib.loads(content.decode("utf-8-sig"))  # some editors write a byte order mark
    except RecursionError:
        raise ValueError(f"expected `{path}` nested at most {_DEEPEST} deep, got more") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ValueError(f"expected `{path}` to be TOML, got: {_cut(str(error), 200)}") from None
    return config_from(table, kind, source=str(path))


def config_from(table: dict[str, Any], kind: type[Config], *, source: str = "config") -> Config:
    """Build a dataclass from a mapping; ``source`` names the mapping in error messages.

    Example:
        >>> @dataclasses.dataclass(frozen=True, kw_only=True)
        ... class Run:
        ...     steps: int = 10
        >>> config_from({"steps": 5}, Run)
        Run(steps=5)
        >>> config_from({"stepz": 5}, Run)
        Traceback (most recent call last):
        ...
        ValueError: expected `config` keys among 'steps', got 'stepz' (did you mean 'steps'?)
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    for key in table:
        if key not in fields:
            raise ValueError(unknown_key(source, key, fields))
    for name, field in fields.items():
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if is_required and name not in table:
            keys = ", ".join(map(_shown, table)) or "none"
            raise ValueError(f"expected `{source}` to have the key {name!r}, got {keys}")
    values = {key: _checked(value, hints[key], f"{source}: {key}") for key, value in table.items()}
    try:
        return kind(**values)
    except (ValueError, TypeError) as error:  # out of range; the class does not know the name of its table
        raise ValueError(f"{source}: {error}") from error


def _checked(value: Any, kind: Any, name: str) -> Any:
    """The value of a field; an int may be a float, and any other value of another type is rejected."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return config_from(_checked(value, dict, name), kind, source=name)
    kind = typing.get_origin(kind) or kind  # dict[str, Any] is a dict
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"expected `{name}` a finite number, got one of {len(str(value))} digits") from None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"expected `{name}` of type {'table' if kind is dict else kind.__name__}, got {_shown(value)}")
    try:
        return plain(name, value)
    except TypeError as error:  # a date of TOML
        raise ValueError(str(error)) from None


def plain(name: str, value: Any, depth: int = 0) -> Any:
    """A copy of a value in JSON's own types; an error names the dotted path of any other value.

    Args:
        name: Its name in error messages.
        value: None, booleans, numbers, strings, lists, tuples, and mappings with string keys.
        depth: Its depth in the value that it is part of.

    Raises:
        TypeError: It contains a value of another type.
        ValueError: A number is not finite, or it is nested more than 50 deep.

    Example:
        >>> plain("result", {"rows": [0.1, float("nan")]})
        Traceback (most recent call last):
        ...
        ValueError: expected `result.rows[1]` a finite number, got nan
    """
    if depth > _DEEPEST:
        raise ValueError(f"expected `{_cut(name, _LONGEST_PATH)}` nested at most {_DEEPEST} deep, got more")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # the characters of a subclass such as a string enum
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"expected `{_cut(name, _LONGEST_PATH)}` a finite number, got {value}")
        return float(value)
    if isinstance(value, list | tuple):
        return [plain(f"{name}[{i}]", item, depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"expected `{name}` with string keys, got {key!r}")
        return {str.__str__(key): plain(f"{name}.{key}", item, depth + 1) for key, item in value.items()}
    kinds = "a string, number, boolean, None, list or mapping"
    raise TypeError(f"expected `{name}` {kinds}, got {type(value).__name__}")


def _shown(value: Any) -> str:
    """A value in an error message, shortened if it is long."""
    try:
        return _cut(repr(value))
    except (ValueError, RecursionError):  # Python does not print an int of thousands of digits
        return f"a huge {type(value).__name__}"


def _cut(text: str, most: int = _LONGEST) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def as_plain(config: Any) -> Any:
    """A config as dictionaries, lists and scalars, to be written, compared or hashed.

    Example:
        >>> @dataclasses.dataclass(frozen=True, kw_only=True)
        ... class Run:
        ...     sizes: tuple[int, ...] = (1, 2)
        >>> as_plain(Run())
        {'sizes': [1, 2]}
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: as_plain(getattr(config, field.name)) for field in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {str(key): as_plain(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [as_plain(value) for value in config]
    if config is None or isinstance(config, str | int | float):
        return config
    raise TypeError(f"expected a config of scalars, lists and tables, got {type(config).__name__}")


def with_overrides(config: Config, assignments: Sequence[str]) -> Config:
    """A config with some values replaced.

    Args:
        config: A dataclass.
        assignments: ``"key=value"``, with a dotted key for nested values. The value is read as TOML, or as a string if
            it is not TOML.

    Raises:
        ValueError: There is no ``=``, a key is unknown, or a value has the wrong type.

    Example:
        >>> @dataclasses.dataclass(frozen=True, kw_only=True)
        ... class Run:
        ...     steps: int = 10
        ...     name: str = "a"
        >>> with_overrides(Run(), ["steps=5", "name=b"])
        Run(steps=5, name='b')
    """
    table = as_plain(config)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"expected `--set` of the form key=value, got {_shown(assignment)}")
        _assign(table, key.strip().split("."), _value(text.strip()))
    return config_from(_without_none(table), type(config), source="config")


def _assign(table: dict[str, Any], path: list[str], value: Any) -> None:
    *outer, last = path
    if len(outer) > _DEEPEST:
        raise ValueError(f"expected `--set` with a key nested at most {_DEEPEST} deep, got {len(outer)}")
    for depth, name in enumerate(outer, start=1):
        if table.get(name) is None:
            table[name] = {}
        table = table[name]
        if not isinstance(table, dict):
            raise ValueError(f"expected `{'.'.join(path[:depth])}` a table, got {_shown(table)}")
    table[last] = value


def unknown_key(source: str, key: str, known: Iterable[str]) -> str:
    """Error message for an unknown key, with the nearest known one.

    Example:
        >>> unknown_key("fit", "epoch", ["epochs", "seed"])
        "expected `fit` keys among 'epochs', 'seed', got 'epoch' (did you mean 'epochs'?)"
    """
    names = list(known)
    near = difflib.get_close_matches(key[:_LONGEST], names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"expected `{source}` keys among {', '.join(map(repr, names))}, got {_shown(key)}{hint}"


def _value(text: str) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except RecursionError:
        raise ValueError(f"expected `--set` with a value nested at most {_DEEPEST} deep, got {_shown(text)}") from None
    except ValueError:  # not TOML, or a number of thousands of digits
        return text
    return table["value"] if list(table) == ["value"] else text


def _without_none(table: Any) -> Any:
    """A table without the keys whose value is None, which TOML lacks."""
    if isinstance(table, dict):
        return {key: _without_none(value) for key, value in table.items() if value is not None}
    return table


def to_toml(config: Any) -> str:
    """A config as TOML that :func:`read_config` reads back; keys whose value is None are omitted.

    Example:
        >>> @dataclasses.dataclass(frozen=True, kw_only=True)
        ... class Run:
        ...     rate: float = 1e-3
        ...     name: str = "a"
        >>> print(to_toml(Run()), end="")
        rate = 0.001
        name = "a"
    """
    return "\n".join(_lines(_without_none(as_plain(config)), ())).lstrip("\n") + "\n"


def _lines(table: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Lines of a table, scalars first: those after a header would belong to it."""
    for key, value in table.items():
        if not isinstance(value, dict):
            yield f"{_key(key)} = {_literal(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            inner = (*path, key)
            yield f"\n[{'.'.join(map(_key, inner))}]"
            yield from _lines(value, inner)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _literal(key)


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, float):
        return repr(value)  # JSON would write Infinity
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def difference(config: Any, other: Any, path: tuple[str, ...] = ()) -> tuple[str, Any, Any] | None:
    """The first dotted key in which two configs differ, with both values; None if they are equal.

    Args:
        config: A dataclass, or its :func:`as_plain`.
        other: Likewise; a missing key counts as None.
        path: Keys of the tables that hold them.

    Example:
        >>> difference({"fit": {"epochs": 3}}, {"fit": {"epochs": 4}})
        ('fit.epochs', 3, 4)
    """
    config, other = as_plain(config), as_plain(other)
    if isinstance(config, dict) and isinstance(other, dict):
        differences = (difference(config.get(key), other.get(key), (*path, key)) for key in {**config, **other})
        return next((changed for changed in differences if changed is not None), None)
    same = type(config) is type(other) and (config == other or (config != config and other != other))
    return None if same else (".".join(path), config, other)
