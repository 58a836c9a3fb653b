"""Choice by name: a mapping whose error lists the known names."""

import difflib
from collections.abc import Callable
from typing import Generic, TypeVar

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """Named entries of one kind.

    Args:
        kind: Name of the argument that takes such a name; it appears in error messages.

    Example:
        >>> colours: Registry[str] = Registry("colour")
        >>> colours.add("red", "#f00")
        >>> colours["red"]
        '#f00'
        >>> colours["rde"]
        Traceback (most recent call last):
        ...
        ValueError: expected `colour` one of 'red', got 'rde' (did you mean 'red'?)
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entries: dict[str, Entry] = {}

    def add(self, name: str, entry: Entry, *, replace: bool = False) -> None:
        """Add an entry under a new name, or replace one."""
        if not isinstance(name, str) or not name:
            raise TypeError(f"expected `{self._kind}` name a string, got {name!r}")
        if name in self._entries and not replace:
            raise ValueError(f"expected `{self._kind}` name that is not taken, got {name!r}")
        self._entries[name] = entry

    def entry(self, function: Entry) -> Entry:
        """Decorator: add a function under its own name."""
        if not isinstance(function, Callable) or not hasattr(function, "__name__"):  # type: ignore[arg-type]
            raise TypeError(f"expected `{self._kind}` a named function, got {function!r}")
        self.add(function.__name__, function)
        return function

    def names(self) -> list[str]:
        """All names, in order of registration."""
        return list(self._entries)

    def __getitem__(self, name: str) -> Entry:
        try:
            return self._entries[name]
        except (KeyError, TypeError):
            known = ", ".join(map(repr, self._entries))
            near = difflib.get_close_matches(str(name), self._entries, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"expected `{self._kind}` one of {known}, got {name!r}{hint}") from None
