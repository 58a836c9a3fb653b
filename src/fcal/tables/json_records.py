"""JSON files whose content may be anything: what is wrong is one line with the file, the place and the value."""

import json
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcal.tables.readers import TableError, file_error, message_of, shown

MOST_BYTES = 1 << 31  # Python needs several times the size of a JSON file to read it

Array = NDArray[Any]
Place = Callable[[int], str]


def read_json(path: Path, kind: type, schema: str) -> Any:
    """The content of a JSON file.

    Args:
        path: The file.
        kind: Type of the document.
        schema: What the file should hold, for error messages.

    Raises:
        TableError: It cannot be read, is too large, is no JSON, or its content is of another type.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise file_error(path, "a regular file", "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or device")
        if status.st_size > MOST_BYTES:
            raise file_error(path, "of at most 2 GiB; split it by images", f"{status.st_size / 2**30:.1f} GiB")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise file_error(path, "a file to read", error.strerror or str(error)) from None
    except RecursionError:
        raise file_error(path, "a JSON file", "lists nested too deeply") from None
    except UnicodeDecodeError:
        raise file_error(path, "a JSON file", "bytes that are no text") from None
    except ValueError as error:  # no JSON, or an integer of thousands of digits
        if isinstance(error, TableError):
            raise
        raise file_error(path, "a JSON file", message_of(error)) from None
    if not isinstance(document, kind):
        raise file_error(path, schema, f"a JSON {_json_name(document)}")
    return document


def _json_name(value: Any) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def records(path: Path, document: Any, name: str, required: Sequence[str]) -> list[Any]:
    """A list of objects that have some keys; keys named ``id`` must be whole numbers."""
    rows = document.get(name)
    if not isinstance(rows, list):
        got = f"only {', '.join(map(shown, list(document)[:8])) or 'nothing'}" if rows is None else _json_name(rows)
        raise file_error(path, f"with a list `{name}`", got)
    check_records(path, rows, required, lambda index: f"{name}[{index}]")
    return rows


def check_records(path: Path, rows: list[Any], required: Sequence[str], place: Place) -> None:
    """Reject what is no object, or lacks a key, or has an ``id`` that is no whole number."""
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise file_error(path, f"an object as {place(index)}", _json_name(row))
        for key in required:
            if key not in row:
                got = f"only {', '.join(map(shown, list(row)[:8])) or 'nothing'}"
                raise file_error(path, f"`{key}` in {place(index)}", got)
            if key == "id" and (isinstance(row[key], bool) or not isinstance(row[key], int)):
                raise file_error(path, f"a whole number `id` in {place(index)}", shown(row[key]))


def numbers(path: Path, requirement: str, rows: list[Any], shape: tuple[int, ...], place: Place) -> Array:
    """Rows of finite numbers as one array of float64, of this shape each; the first bad row is named."""
    if not rows:
        return np.zeros((0, *shape))
    array = _array(rows)
    if array is None or array.shape != (len(rows), *shape) or _has_flag(rows):
        bad = next((i for i, row in enumerate(rows) if (one := _array(row)) is None or one.shape != shape), None)
        bad = next(i for i, row in enumerate(rows) if _has_flag([row])) if bad is None else bad
        raise file_error(path, requirement, f"{shown(rows[bad])[:200]} in {place(bad)}")
    exact = array.astype(np.float64)
    reject(path, f"{requirement}, finite", ~np.isfinite(exact).reshape(len(rows), -1).all(1), exact, place)
    return exact


def _array(value: Any) -> Array | None:
    """An array of real numbers; None for texts, missing values, and rows of different lengths."""
    try:
        array = np.array(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return array if array.dtype.kind in "iuf" else None


def _has_flag(values: Sequence[Any]) -> bool:
    """Whether there is True or False among numbers, which NumPy takes for 1 and 0."""
    return any(_has_flag(value) if isinstance(value, list) else isinstance(value, bool) for value in values)


def reject(path: Path, requirement: str, bad: Any, values: Array, place: Place) -> None:
    """Raise with the first bad row and the number of bad rows, if there is one."""
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        value = shown(values[first].tolist())[:200]
        raise file_error(path, requirement, f"{value} in {place(first)} ({bad.sum()} of {len(bad)})")


def indices(path: Path, requirement: str, values: list[Any], known: Sequence[int], place: Place) -> Array:
    """Index of each value among those that are known."""
    index_of = {value: index for index, value in enumerate(known)}

    def index(number: int, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value not in index_of:
            got = repr(value) if isinstance(value, float) else shown(value)  # 1.0 is not 1
            raise file_error(path, requirement, f"{got} in {place(number)}")
        return index_of[value]

    return np.array([index(number, value) for number, value in enumerate(values)], dtype=np.int64)
