"""Errors about prediction files: one line with the file, the column, the value and the row."""

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_LONGEST = 60  # characters of a value
_LONGEST_REASON = 200
_MOST_NAMES = 12


class TableError(ValueError):
    """A prediction file that cannot be used.

    Data rows count from 1 in each file; the header and empty lines do not count.
    """


def shown(value: Any) -> str:
    """A value from a file on one line, truncated."""
    if isinstance(value, list):
        return f"[{', '.join(shown(item) for item in value)}]"
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    cut = text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
    return repr(cut) if isinstance(value, str) else cut


def file_error(path: Path, requirement: str, got: str) -> TableError:
    """An error about a whole file."""
    return TableError(f"expected `{_printable(str(path))}` {requirement}, got {got}")


def message_of(error: BaseException) -> str:
    """First line of another library's error message, truncated and printable: it may quote bytes of the file."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"an error: {_printable(lines[0][:_LONGEST_REASON])}"


def value_error(path: Path, column: str, requirement: str, value: Any, row: int, *, count: str = "") -> TableError:
    """An error about a value; ``row`` counts from 1."""
    where = f"{shown(value)} in data row {row}" + (f" ({count})" if count else "")
    return file_error(path, f"column {shown(column)} {requirement}", where)


def missing_column(path: Path, column: str, known: Sequence[str]) -> TableError:
    """An error about a missing column, with the known names and the nearest one."""
    hint = _nearest(column, known)
    if known and all(_is_number(name) for name in known):
        hint = "; the first line must name the columns"
    return file_error(path, f"with a column {shown(column)}", f"{_listed(known)}{hint}")


def duplicate_of(names: Iterable[str]) -> str | None:
    """The first name that occurs twice; None where all differ."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return (", ".join(shown(name) for name in names[:_MOST_NAMES]) or "no columns") + more


def _nearest(column: str, known: Sequence[str]) -> str:
    by_lower = {name.lower(): name for name in reversed(known)}
    near = difflib.get_close_matches(column.lower(), by_lower, n=1)
    return f" (did you mean {shown(by_lower[near[0]])}?)" if near else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
