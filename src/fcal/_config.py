"""TOML to frozen dataclass: every key known, every type right, or one line that says which is not."""

import dataclasses
import difflib
import os
import tomllib
import typing
from pathlib import Path
from typing import Any, TypeVar

Config = TypeVar("Config")


def read_config(path: str | os.PathLike[str], kind: type[Config]) -> Config:
    """Read a TOML file into a dataclass whose fields are scalars.

    Args:
        path: The TOML file.
        kind: A dataclass; keys that are absent keep its defaults.

    Raises:
        ValueError: The file is not TOML, a key is unknown or missing, or a value has the wrong type.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"expected `{path}` a file to read, got: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"expected `{path}` to be TOML, got: {error}") from None
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
    types = typing.get_type_hints(kind)
    for key in table:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"expected `{source}` keys among {', '.join(map(repr, fields))}, got {key!r}{hint}")
    required = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    for name in required:
        if name not in table:
            raise ValueError(
                f"expected `{source}` to have the key {name!r}, got {', '.join(map(repr, table)) or 'none'}"
            )
    return kind(**{key: _checked(value, types[key], f"{source}: {key}") for key, value in table.items()})


def _checked(value: Any, kind: Any, name: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"expected `{name}` of type {kind.__name__}, got {value!r}")
    return value
