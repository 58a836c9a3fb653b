"""JSON lines: an object with the same keys on every line, of numbers, texts and lists of numbers."""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fcal.tables.readers import TableFile, file_error, message_of, regrouped, shown, value_error
from fcal.tables.streams import open_bytes, open_to_write
from fcal.tables.writers import Repair, column_types, flat, typed

_FIRST_ROWS = 1000  # whose keys are the columns
_ROWS_AT_ONCE = 1 << 13  # as Python objects
_LONGEST_LINE = 1 << 24  # bytes
_MOST_COLUMNS = 10_000
_NUMBERS = {int, float, type(None)}


class JsonLinesFile(TableFile):
    """Reader of JSON lines; a list under a key is read as columns ``key_0``, ``key_1``, ...

    Values that are null or absent are missing. Keys that the first thousand rows do not have are not read.
    """

    is_text = True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._shapes: dict[str, tuple[int, ...]] = {}  # of the values of each key, () for a number or text
        for record in islice(self._records(), _FIRST_ROWS):
            for key, value in record.items():
                if value is not None:
                    self._shapes.setdefault(key, _shape(value))
                self._shapes = self._shapes if key in self._shapes else {**self._shapes, key: ()}
        columns = [column for key in self._shapes for column in self._columns_of(key)]
        self._columns, self.names = dict(columns), tuple(name for name, _ in columns)
        self.check_names()
        if not self.names:
            raise file_error(path, "with at least one row", "none")

    def batches(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Numbers as float64 and labels as text."""
        yield from regrouped(self._read(numbers, labels, min(rows, _ROWS_AT_ONCE)), rows)

    def _read(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        records, first_row = self._records(), 0
        names = list(dict.fromkeys([*numbers, *labels]))
        while block := list(islice(records, rows)):
            self._check(block, first_row, every_key=not numbers)
            columns = [
                self._numbers(name, block, first_row) if name in numbers else self._texts(name, block) for name in names
            ]
            yield pa.RecordBatch.from_arrays(columns, names=names)
            first_row += len(block)

    def _columns_of(self, key: str) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
        shape = self._shapes[key]
        if math.prod(shape) > _MOST_COLUMNS:
            raise file_error(
                self.path, f"lists of at most {_MOST_COLUMNS:,} values", f"{math.prod(shape):,} in {shown(key)}"
            )
        for index in np.ndindex(*shape):
            yield "_".join([key, *map(str, index)]), (key, index)

    def _at(self, name: str, block: list[dict[str, Any]]) -> Iterator[Any]:
        key, index = self._columns[name]
        for record in block:
            value = record.get(key)
            for position in index:
                value = value[position] if isinstance(value, list) and position < len(value) else None
            yield value

    def _texts(self, name: str, block: list[dict[str, Any]]) -> pa.Array:
        try:
            return pa.array([_text(value) for value in self._at(name, block)], pa.string())
        except UnicodeEncodeError:  # half of a character
            raise file_error(self.path, f"column {shown(name)} of text that is Unicode", "a lone surrogate") from None

    def _numbers(self, name: str, block: list[dict[str, Any]], first_row: int) -> pa.Array:
        values = list(self._at(name, block))
        if not set(map(type, values)) <= _NUMBERS:
            row, value = next((k, value) for k, value in enumerate(values) if type(value) not in _NUMBERS)
            raise value_error(self.path, name, "of numbers", value, first_row + row + 1)
        try:
            return pa.array(values, pa.float64())
        except (pa.ArrowException, OverflowError):  # an integer beyond 2**53
            return pa.array([None if value is None else _as_float(value) for value in values], pa.float64())

    def _check(self, block: list[dict[str, Any]], first_row: int, *, every_key: bool) -> None:
        """Reject values of another shape than in the first rows, and new keys where nothing may be lost."""
        for row, record in enumerate(block, first_row + 1):
            for key, value in record.items():
                shape = self._shapes.get(key)
                if shape is None and every_key:
                    raise file_error(self.path, "with the keys of its first rows", f"{shown(key)} in data row {row}")
                if value is not None and shape is not None and _shape(value) != shape:
                    requirement = f"{shown(key)} of {_named(shape)} in every row"
                    raise file_error(self.path, requirement, f"{_named(_shape(value))} in data row {row}")

    def _records(self) -> Iterator[dict[str, Any]]:
        """The objects, line by line."""
        row = 0
        with open_bytes(self.path) as file:
            while line := file.readline(_LONGEST_LINE + 1):
                if len(line) > _LONGEST_LINE:
                    raise file_error(self.path, "of lines of at most 16 MiB", f"a longer one in data row {row + 1}")
                if not line.strip():
                    continue
                row += 1
                yield self._record(line, row)

    def _record(self, line: bytes, row: int) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if row == 1 and line.lstrip().startswith(b"["):
                record = []
            else:
                raise file_error(self.path, f"JSON in data row {row}", message_of(error)) from None
        if isinstance(record, list):
            remedy = "a list; `jq -c '.[]'` makes lines of it"
            raise file_error(self.path, "with a JSON object on every line", f"{remedy} (data row {row})")
        if not isinstance(record, dict):
            raise file_error(self.path, "with a JSON object on every line", f"{shown(record)} in data row {row}")
        return record


def write_json_lines(temporary: Path, repair: Repair) -> None:
    """Write JSON lines, with numbers where all values of a column are numbers; missing values and NaN are null."""
    types = column_types(repair.source)
    with open_to_write(temporary, repair.out) as file:
        for block, columns in repair.chunks:
            values = {name: column.to_pylist() for name, column in zip(types, typed(block, types).columns, strict=True)}
            values |= {name: value.detach().tolist() for name, value in flat(columns).items()}
            rows = zip(*values.values(), strict=True)
            lines = (json.dumps(dict(zip(values, map(_finite, row), strict=True)), default=str) for row in rows)
            file.write("".join(f"{line}\n" for line in lines).encode())


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _shape(value: Any) -> tuple[int, ...]:
    """Lengths of lists within lists, by their first items."""
    shape: tuple[int, ...] = ()
    while isinstance(value, list):
        shape, value = (*shape, len(value)), value[0] if value else None
    return shape


def _named(shape: tuple[int, ...]) -> str:
    return f"{' x '.join(map(str, shape))} values" if shape else "one value"
