"""Groups and clusters: from names to whole numbers that mean the same in every chunk."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from fcal.tables.arrow import compute, pa
from fcal.tables.errors import TableError, file_error, shown

_NO_CLUSTER = ["", "nan", "NaN", "NA", "null", "None"]
NO_GROUP = "(none)"  # the group of rows whose label is null


@dataclass(frozen=True, eq=False)
class Labels:
    """The group of each row.

    Attributes:
        codes: Index of each row's group in ``names``, int64. Shape ``(N,)``.
        names: Groups seen so far, in order of first appearance.
    """

    codes: Tensor
    names: tuple[str, ...]


class LabelCodes:
    """Numbers for labels, given in order of first appearance.

    Args:
        most: Refuse more labels than this; any number where None.
    """

    def __init__(self, most: int | None = None) -> None:
        self._codes: dict[str, int] = {}
        self._most = most

    def encode(self, column: pa.Array, *, path: Path, name: str) -> Tensor:
        """Codes of a column of labels of any flat type; ``path`` and ``name`` are for errors.

        Raises:
            TableError: There are too many labels, or values of this type are no labels.
        """
        try:
            if pa.types.is_temporal(column.type):
                column = column.cast(pa.string())  # not all times are times of Python's
            encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
            if encoded.indices.null_count:
                encoded = encoded.cast(pa.string()).fill_null(NO_GROUP).dictionary_encode()
            seen = compute.unique(encoded.indices)
            labels = self._new_labels(encoded, seen, path, name)
        except (pa.ArrowException, UnicodeDecodeError, OverflowError):  # a type without equality, or a damaged file
            raise file_error(path, f"column {shown(name)} of labels", f"{column.type} that cannot be read") from None
        table = np.zeros(len(encoded.dictionary), np.int64)
        for index, label in zip(seen.to_pylist(), labels, strict=True):
            table[index] = self._codes.setdefault(label, len(self._codes))
        return torch.from_numpy(table[encoded.indices.to_numpy(zero_copy_only=False)])

    def names(self) -> tuple[str, ...]:
        """Labels seen so far, each at the place of its code."""
        return tuple(self._codes)

    def _new_labels(self, encoded: pa.Array, seen: pa.Array, path: Path, name: str) -> list[str]:
        """The labels at some places of a dictionary, after a look at their number: they may be a million."""
        if self._most is not None and len(seen) > self._most:
            raise self._too_many(len(seen), path, name)
        found = encoded.dictionary.take(seen).to_pylist()
        labels = [NO_GROUP if label is None else str(label) for label in found]
        count = len(self._codes.keys() | set(labels)) if self._most is not None else 0
        if self._most is not None and count > self._most:
            raise self._too_many(count, path, name)
        return labels

    def _too_many(self, count: int, path: Path, name: str) -> TableError:
        return file_error(path, f"column {shown(name)} of at most {self._most} groups", f"{count} or more")


class ClusterCodes:
    """Clusters as int64: whole numbers stand for themselves, other labels are numbered."""

    def __init__(self) -> None:
        self._labels = LabelCodes()
        self._whole: bool | None = None

    def encode(self, column: pa.Array, *, path: Path, name: str, before: int) -> Tensor:
        """Clusters of a column; ``before`` rows of the file come before it.

        Raises:
            TableError: A row has no cluster, or numbers follow on text.
        """
        if column.null_count:
            row = before + column.is_null().index(True).as_py() + 1
            raise file_error(path, f"column {shown(name)} without nulls", f"one in data row {row}")
        whole = bool(pa.types.is_integer(column.type)) and column.type != pa.uint64()
        if self._whole is None:
            self._whole = whole
        if self._whole != whole:
            kinds = ("text", "whole numbers") if whole else ("whole numbers", "text")
            raise _mixed(path, name, *kinds)
        if not whole:
            _check_no_gaps(column, path, name, before)
            return self._labels.encode(column, path=path, name=name)
        clusters: Tensor = from_dlpack(column.cast(pa.int64()))
        return clusters


def _check_no_gaps(column: pa.Array, path: Path, name: str, before: int) -> None:
    """Refuse rows whose cluster is an empty text or no number: they would all be one cluster."""
    try:
        text = column.cast(pa.string())
    except pa.ArrowException:
        return  # refused as labels next
    missing = compute.is_in(text, value_set=pa.array(_NO_CLUSTER))
    row = missing.index(True).as_py()
    if row >= 0:
        raise file_error(
            path, f"column {shown(name)} with a cluster in every row", f"none in data row {before + row + 1}"
        )


def _mixed(path: Path, name: str, before: str, now: str) -> TableError:
    return file_error(path, f"column {shown(name)} of {before} as in the files before it", now)
