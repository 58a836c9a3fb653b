"""Values of label files, checked one by one; messages name the file."""

import difflib
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fcal.data.depth_frames import read_text

_LARGEST = 1e9  # of any number in a label
_SHOWN = 60  # characters of a value in a message


def inclusive_edges(numbers: Sequence[float], origin: float = 0.0) -> tuple[float, float, float, float]:
    """Edges of a box that is given by its first and last pixels.

    Args:
        numbers: First column and row, last column and row.
        origin: Number of the first pixel.

    Example:
        >>> inclusive_edges([1, 1, 640, 480], origin=1)
        (0, 0, 640, 480)
    """
    left, top, right, bottom = numbers
    return left - origin, top - origin, right - origin + 1, bottom - origin + 1


def known_class(name: Any, known: Iterable[str], where: str) -> str:
    """A name among those of known classes.

    Raises:
        ValueError: It is not; the message lists the known names.

    Example:
        >>> known_class("Caar", ["Car", "Cyclist"], "line 3 of 000000.txt")
        Traceback (most recent call last):
        ...
        ValueError: expected line 3 of 000000.txt with a class among 'Car', 'Cyclist', got 'Caar' (did you mean 'Car'?)
    """
    names = list(known)
    if isinstance(name, str) and name in names:
        return name
    near = difflib.get_close_matches(str(name)[:_SHOWN], names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"expected {where} with a class among {', '.join(map(repr, names))}, got {shown(name)}{hint}")


def finite(value: Any, what: str, where: str) -> float:
    """A finite number that a file states, as a number or as text."""
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= _LARGEST:  # also refuses NaN
        raise ValueError(f"expected {where} with {what}, got {shown(value)}")
    return number


def shown(value: Any) -> str:
    """A value in a message, shortened if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or a list within a list ...
        return f"a huge {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def read_json(path: Path, content: str, keys: Sequence[str]) -> dict[str, Any]:
    """A document of JSON that is a mapping with these keys.

    Raises:
        ValueError: The file cannot be read, is no JSON, or has another schema.
    """
    text = read_text(path, content)
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError(f"expected {path} {content}, got JSON that is nested too deeply") from None
    except ValueError as error:  # no JSON, or a number of thousands of digits
        raise ValueError(f"expected {path} {content}, got no JSON: {str(error)[: 2 * _SHOWN]}") from None
    if not isinstance(document, dict):
        raise ValueError(f"expected {path} {content}, got JSON of a {type(document).__name__}")
    missing = [key for key in keys if key not in document]
    if missing:
        known = ", ".join(repr(str(key)[:_SHOWN]) for key in list(document)[:6]) or "none"
        raise ValueError(f"expected {path} {content} with the key {missing[0]!r}, got the keys {known}")
    return document


def of_type(value: Any, kind: type, what: str, where: str) -> Any:
    """A value of a document that has this type."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"expected {where} with {what}, got {shown(value)}")
    return value
