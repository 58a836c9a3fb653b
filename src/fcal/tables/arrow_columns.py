"""Arrow columns as tensors: numbers of any type, and group and cluster labels as integers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import compute, csv
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from fcal.tables.errors import file_error, shown, value_error

MISSING_WORDS = frozenset(csv.ConvertOptions().null_values)  # "", "NA", "NaN", "null", ...
_NO_CLUSTER = ["", "nan", "NaN", "NA", "null", "None"]
NO_GROUP = "(none)"  # group of rows whose label is null


def tensor_of(column: pa.Array, *, path: Path, name: str, first_row: int, decimal: str = ".") -> Tensor:
    """A column as a tensor: float32 stays float32, half precision becomes float32, everything else float64.

    A float32 or float64 column without nulls is not copied, so the tensor must not be written to.

    Args:
        column: Numbers of any width, decimals, a dictionary of them, or text that spells them. Length N.
        path: The file, for errors.
        name: The column, for errors.
        first_row: Number of rows of the file before these.
        decimal: Decimal point of numbers in text.

    Returns:
        Shape ``(N,)``; NaN where the column is null.

    Raises:
        TableError: The type holds no numbers, or a text is not a number.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    dtype = column.type
    if _is_text(dtype):
        column = _parsed(column, path=path, name=name, first_row=first_row, decimal=decimal)
    elif pa.types.is_float16(dtype):
        column = column.cast(pa.float32())
    elif pa.types.is_integer(dtype) or pa.types.is_decimal(dtype) or pa.types.is_null(dtype):
        column = column.cast(pa.float64(), safe=False)  # integers beyond 2^53 are rounded
    elif not pa.types.is_floating(dtype):
        raise file_error(path, f"column {shown(name)} of numbers", f"{dtype}")
    if column.null_count:
        column = column.fill_null(float("nan"))
    tensor: Tensor = from_dlpack(column)
    return tensor


def numbers_of_text(text: pa.Array, decimal: str = ".", dtype: pa.DataType = None) -> pa.Array:
    """Text as numbers, null for words such as NA; Arrow raises an error for any other text."""
    trimmed = compute.utf8_trim_whitespace(text)
    missing = compute.is_in(trimmed, value_set=pa.array(sorted(MISSING_WORDS), trimmed.type))
    if decimal != ".":
        trimmed = compute.replace_substring(trimmed, decimal, ".")
    return compute.if_else(missing, None, trimmed).cast(dtype or pa.float64())


def first_failure(column: pa.Array, convert: Callable[[pa.Array], object]) -> int | None:
    """Index of the first element that a conversion fails on, by bisection; None where it succeeds."""
    if not _fails(convert, column):
        return None
    start, stop = 0, len(column)
    while stop - start > 1:
        middle = (start + stop) // 2
        if _fails(convert, column.slice(start, middle - start)):
            stop = middle
        else:
            start = middle
    return start


def _parsed(column: pa.Array, *, path: Path, name: str, first_row: int, decimal: str) -> pa.Array:
    text = column.cast(pa.large_string())
    try:
        return numbers_of_text(text, decimal)
    except pa.ArrowInvalid:
        index = first_failure(text, lambda values: numbers_of_text(values, decimal))
        assert index is not None  # the whole column has just failed
        value = _readable(text.slice(index, 1))
        raise value_error(path, name, "of numbers", value, first_row + index + 1) from None


def _readable(text: pa.Array) -> str | bytes:
    value: bytes = text.cast(pa.large_binary())[0].as_py()
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _fails(convert: Callable[[pa.Array], object], column: pa.Array) -> bool:
    try:
        convert(column)
    except pa.ArrowInvalid:
        return True
    return False


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype))


@dataclass(frozen=True, eq=False)
class Labels:
    """Group of each row of a chunk.

    Attributes:
        codes: Index of each row's group in ``names``, int64. Shape ``(N,)``.
        names: Groups seen so far, in order of first appearance.
    """

    codes: Tensor
    names: tuple[str, ...]


class LabelCodes:
    """Integer codes of labels, in order of first appearance and the same in every chunk.

    Args:
        most: Largest number of labels; None for no limit.
    """

    def __init__(self, most: int | None = None) -> None:
        self._codes: dict[str, int] = {}
        self._most = most

    def encode(self, column: pa.Array, *, path: Path, name: str) -> Tensor:
        """Codes of a column of labels; ``path`` and ``name`` appear in errors.

        Raises:
            TableError: There are too many labels, or values of this type cannot be labels.
        """
        try:
            if pa.types.is_temporal(column.type):
                column = column.cast(pa.string())  # Python's range of times is smaller
            encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
            if encoded.indices.null_count:
                encoded = encoded.cast(pa.string()).fill_null(NO_GROUP).dictionary_encode()
            indices = compute.unique(encoded.indices)
            labels = self._labels_at(encoded, indices, path, name)
        except (pa.ArrowException, UnicodeDecodeError, OverflowError):  # a type without equality, or a damaged file
            raise file_error(path, f"column {shown(name)} of labels", f"{column.type} that cannot be read") from None
        table = np.zeros(len(encoded.dictionary), np.int64)
        for index, label in zip(indices.to_pylist(), labels, strict=True):
            table[index] = self._codes.setdefault(label, len(self._codes))
        return torch.from_numpy(table[encoded.indices.to_numpy(zero_copy_only=False)])

    def names(self) -> tuple[str, ...]:
        """Labels so far, in order of their codes."""
        return tuple(self._codes)

    def _labels_at(self, encoded: pa.Array, indices: pa.Array, path: Path, name: str) -> list[str]:
        """Labels at some indices of the dictionary; their number is checked first, as there may be a million."""
        self._check_number(len(indices), path, name)
        values = encoded.dictionary.take(indices).to_pylist()
        labels = [NO_GROUP if label is None else str(label) for label in values]
        if self._most is not None:
            self._check_number(len(self._codes.keys() | set(labels)), path, name)
        return labels

    def _check_number(self, count: int, path: Path, name: str) -> None:
        if self._most is not None and count > self._most:
            raise file_error(path, f"column {shown(name)} of at most {self._most} groups", f"{count} or more")


class ClusterCodes:
    """Clusters as int64: integers are kept, other labels get codes."""

    def __init__(self) -> None:
        self._labels = LabelCodes()
        self._whole: bool | None = None

    def encode(self, column: pa.Array, *, path: Path, name: str, first_row: int) -> Tensor:
        """Clusters of a column; ``first_row`` rows of the file come before it.

        Raises:
            TableError: A row has no cluster, or some files have integers and others text.
        """
        if column.null_count:
            row = first_row + column.is_null().index(True).as_py() + 1
            raise file_error(path, f"column {shown(name)} without nulls", f"one in data row {row}")
        whole = bool(pa.types.is_integer(column.type)) and column.type != pa.uint64()
        if self._whole is None:
            self._whole = whole
        if self._whole != whole:
            before, now = ("text", "whole numbers") if whole else ("whole numbers", "text")
            raise file_error(path, f"column {shown(name)} of {before} as in the files before it", now)
        if not whole:
            _check_no_gaps(column, path, name, first_row)
            return self._labels.encode(column, path=path, name=name)
        clusters: Tensor = from_dlpack(column.cast(pa.int64()))
        return clusters


def _check_no_gaps(column: pa.Array, path: Path, name: str, first_row: int) -> None:
    """Reject rows without a cluster (an empty text, NaN): together they would form one cluster."""
    try:
        text = column.cast(pa.string())
    except pa.ArrowException:
        return  # rejected as labels next
    missing = compute.is_in(text, value_set=pa.array(_NO_CLUSTER))
    row = missing.index(True).as_py()
    if row >= 0:
        got = f"none in data row {first_row + row + 1}"
        raise file_error(path, f"column {shown(name)} with a cluster in every row", got)
