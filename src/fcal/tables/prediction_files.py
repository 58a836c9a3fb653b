"""Predictions in files, streamed in chunks or read as a whole."""

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import compute
from torch import Tensor
from torch.distributions import Distribution
from torch.utils.dlpack import from_dlpack

from fcal._checks import check_integer
from fcal.distributions.functional import cat
from fcal.metrics.state import MAX_GROUPS
from fcal.tables import families
from fcal.tables.layout import Columns, Layout, layout_of
from fcal.tables.readers import Block, TableError, TableFile, file_error, shown
from fcal.tables.streams import STANDARD_INPUT, kept_standard_input, listed, suffix_of
from fcal.tables.usual_names import recognised

READERS: dict[str, type[TableFile]] = {}  # by suffix; filled in ``fcal.tables``
_OF_MANY_THINGS = (".jsonl", ".ndjson", ".pt", ".pth")
_CHUNK_ROWS = 1 << 18
_CHUNK_VALUES = 1 << 22  # of all columns in use: 32 MB of float64, however many columns there are
_NO_CLUSTER = ["", "nan", "NaN", "NA", "null", "None"]
_NO_GROUP = "(none)"  # group of rows whose label is null


@dataclass(frozen=True, eq=False)
class Labels:
    """Group of each row of a chunk.

    Attributes:
        codes: Index of each row's group in ``names``, int64. Shape ``(N,)``.
        names: Groups seen so far, in order of first appearance.
    """

    codes: Tensor
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Chunk:
    """Consecutive rows. Tensors may be views of a file's memory and must not be written to.

    Attributes:
        pred: The prediction: batch shape ``(N,)``, and event shape ``(D,)`` where there are D outputs.
        target: True values, NaN where missing. Shape ``(N,)`` or ``(N, D)``.
        group: The group of each row, where a column of groups was named.
        cluster: The cluster of each row, int64. Shape ``(N,)``.
        first_row: Number of rows of all files before it.
    """

    pred: Distribution
    target: Tensor
    group: Labels | None
    cluster: Tensor | None
    first_row: int

    def __len__(self) -> int:
        return self.target.shape[0]


class Predictions:
    """Predictions in files, which can be iterated over repeatedly; made by :func:`open_predictions`.

    Attributes:
        files: Paths of the files, in the order they are read.
        columns: Names of the columns in use.
        layout: The columns in use.
        rows: Number of rows of all files; None where only reading a file would tell.
        chunk_rows: Largest number of rows of a chunk.
        family: Family of the predictions.
    """

    def __init__(
        self, tables: list[TableFile], columns: Columns, layout: Layout, chunk_rows: int, family: str = "normal"
    ) -> None:
        self.tables, self.family = tables, family
        self.files = [table.path for table in tables]
        self.columns, self.layout, self.chunk_rows = columns, layout, chunk_rows
        self.rows: int | None = 0
        for table in tables:
            count = table.count_rows((*layout.numbers, *columns.labels()))
            if count == 0:
                raise table.no_rows()
            self.rows = None if self.rows is None or count is None else self.rows + count

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process opens the files again; a layout holds functions that cannot be sent.
        options: dict[str, Any] = {"columns": self.columns, "family": self.family, "chunk_rows": self.chunk_rows}
        return partial(open_predictions, self.files, **options), ()

    def describe(self) -> str:
        """Number of files, layout and columns in one line."""
        files = shown(self.files[0].name) if len(self.files) == 1 else f"{len(self.files)} files"
        labels = [f"{w} {shown(n)}" for w, n in (("group", self.columns.group), ("cluster", self.columns.cluster)) if n]
        return ", ".join([f"{files}: {self.layout.description}", *labels])

    def __iter__(self) -> Iterator[Chunk]:
        groups, clusters = LabelCodes(MAX_GROUPS), ClusterCodes()
        group_name, cluster_name = self.columns.group, self.columns.cluster
        first_row = 0
        for block in self.blocks():
            pred, target = self.layout.prediction(block)
            group, cluster = None, None
            if group_name is not None:
                group = Labels(groups.encode(block, group_name), groups.names())
            if cluster_name is not None:
                cluster = clusters.encode(block, cluster_name)
            yield Chunk(pred=pred, target=target, group=group, cluster=cluster, first_row=first_row)
            first_row += len(target)

    def blocks(self, *, every_column: bool = False) -> Iterator[Block]:
        """Batches of rows: the columns in use, or every column as stored."""
        for table in self.tables:
            rows = 0
            if every_column:
                batches = table.all_batches(self._rows_of(len(table.names)))
            else:
                columns = len(self.layout.numbers) + len(self.columns.labels())
                batches = table.batches(self.layout.numbers, self.columns.labels(), self._rows_of(columns))
            for batch in batches:
                if batch.num_rows:
                    yield Block(table, batch, rows)
                    rows += batch.num_rows
            if not rows:
                raise table.no_rows()

    def _rows_of(self, columns: int) -> int:
        """Rows of a chunk: fewer where there are many columns, so that its memory is bounded."""
        return min(self.chunk_rows, max(_CHUNK_VALUES // max(columns, 1), 1))


def open_predictions(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Columns | None = None,
    family: str = "normal",
    chunk_rows: int = _CHUNK_ROWS,
) -> Predictions:
    r"""Open prediction files: CSV or JSON lines (also .gz or .zst), Parquet, NPZ, PT, or NPY of shape (N, 3).

    The columns determine the layout: ``mean``, ``std``, ``target``; several outputs as ``mean_0``, ``std_0``,
    ``target_0``, ``mean_1``, ...; with a covariance as ``cov_0_0``, ``cov_1_0``, ... instead of ``std_0``; or quantiles
    as ``q05``, ``q50``, ``q97.5`` (the number is per cent) with ``target``; or samples as ``s0``, ``s1``, ... with
    ``target`` (see :class:`fcal.distributions.Empirical`). An NPZ array of shape ``(N, D)`` called
    ``mean`` is read as ``mean_0``, ``mean_1``, ... Outputs may have other endings, as in ``mean_x``, ``std_x``.

    Default names that a file does not have are replaced by usual ones that it has: ``mu``, ``sigma``, ``y``;
    ``y_pred``, ``y_std``, ``y_true``; ``prediction``, ``variance``, ``label``; and so on.

    Args:
        path: A file, a folder, a pattern such as ``predictions/*.parquet``, or several of these; ``-`` is standard
            input, CSV or JSON lines.
        columns: Names of the columns; ``mean``, ``std`` and ``target`` by default.
        family: Family of the predictions, one of ``fcal.tables.families.names()``.
        chunk_rows: Largest number of rows in memory.

    Returns:
        A stream of chunks that can be iterated over repeatedly.

    Raises:
        TableError: There is no such file, it is damaged, or a column is missing.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "predictions.csv"
        >>> _ = path.write_text("mean;std;target\n1,5;2;5\n0;1;\n")
        >>> for chunk in open_predictions(path):
        ...     print(chunk.pred.mean.tolist(), chunk.target.tolist())
        [1.5, 0.0] [5.0, nan]
    """
    rows = check_integer("chunk_rows", chunk_rows, at_least=1)
    columns = Columns() if columns is None else columns
    families.family(family)  # rejects an unknown name before files are opened
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not paths or any(not os.fspath(name) for name in paths):
        raise TableError("expected `path` a file, a folder or a pattern of files, got an empty name")
    files = [file for name in paths for file in _find_files(Path(name))]
    tables = [READERS[suffix_of(file)](file) for file in files]
    columns = recognised(tables[0], columns)
    layout = layout_of(tables[0], columns, family)
    for table in tables[1:]:
        _check_same_columns(tables[0], table)
    return Predictions(tables, columns, layout, rows, family)


def _find_files(location: Path) -> list[Path]:
    """The file, all files of known suffixes in a folder, or those that match a pattern; sorted by name.

    Files whose names begin with a dot or an underscore are left out, as are sub-folders (unless a pattern has ``**``),
    and in a folder with other prediction files JSON lines and tensors, which may be logs and checkpoints.
    """
    if str(location) == STANDARD_INPUT:
        return [kept_standard_input()]
    suffixes = listed(READERS)
    if location.is_dir():
        candidates, requirement = list(location.iterdir()), f"a folder of prediction files ({suffixes})"
    elif location.exists():
        if suffix_of(location) not in READERS:
            raise file_error(location, f"with one of the suffixes {suffixes}", repr(suffix_of(location)))
        return [location]
    elif glob.has_magic(str(location)):
        matches = glob.glob(str(location), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute patterns
        candidates, requirement = list(map(Path, matches)), f"to match files ({suffixes})"
    else:
        raise file_error(location, "a file, a folder or a pattern of files", "nothing of that name")
    known = (path for path in candidates if suffix_of(path) in READERS and not path.name.startswith((".", "_")))
    files = sorted(path for path in known if path.is_file())
    if not files:
        raise file_error(location, requirement, "none")
    of_predictions = [path for path in files if not suffix_of(path).startswith(_OF_MANY_THINGS)]
    return of_predictions if location.is_dir() and of_predictions else files


def _check_same_columns(first: TableFile, other: TableFile) -> None:
    for name in first.names:
        if name not in other.names:
            raise other.missing(name)
    extra = next((name for name in other.names if name not in first.names), None)
    if extra is not None:
        raise file_error(other.path, f"with the columns of {first.path.name}", f"{shown(extra)} too")


def whole(source: Predictions, *, advance: Callable[[int], None] | None = None) -> tuple[Distribution, Tensor]:
    r"""Read all rows as one prediction.

    Args:
        source: The predictions.
        advance: Called after each chunk with its number of rows.

    Returns:
        The prediction of all rows, and their targets.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "predictions.csv"
        >>> _ = path.write_text("mean,std,target\n1,2,5\n0,1,3\n")
        >>> pred, target = whole(fcal.tables.open_predictions(path, chunk_rows=1))
        >>> pred.stddev.tolist(), target.tolist()
        ([2.0, 1.0], [5.0, 3.0])
    """
    pred, target, _ = whole_with_groups(source, advance=advance)
    return pred, target


def whole_with_groups(
    source: Predictions, *, advance: Callable[[int], None] | None = None
) -> tuple[Distribution, Tensor, Labels | None]:
    """The same as :func:`whole`, and the groups of all rows where a column of groups was named."""
    preds, targets, codes = [], [], []
    names: tuple[str, ...] = ()
    for chunk in source:
        preds.append(chunk.pred)
        targets.append(chunk.target)
        if chunk.group is not None:
            codes.append(chunk.group.codes)
            names = chunk.group.names
        if advance is not None:
            advance(len(chunk))
    pred = cat(preds)
    assert isinstance(pred, Distribution)
    return pred, torch.cat(targets), Labels(torch.cat(codes), names) if codes else None


# Group and cluster labels as integers.


class LabelCodes:
    """Integer codes of at most ``most`` labels, in order of first appearance and the same in every chunk."""

    def __init__(self, most: int | None = None) -> None:
        self._codes: dict[str, int] = {}
        self._most = most

    def encode(self, block: Block, name: str) -> Tensor:
        """Codes of a column; too many labels, or values that cannot be labels, are rejected."""
        column, path = block.batch.column(name), block.file.path
        try:
            if pa.types.is_temporal(column.type):
                column = column.cast(pa.string())  # Python's range of times is smaller
            encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
            if encoded.indices.null_count:
                encoded = encoded.cast(pa.string()).fill_null(_NO_GROUP).dictionary_encode()
            indices = compute.unique(encoded.indices)
            self._check_number(len(indices), path, name)  # before they become Python objects: there may be a million
            labels = encoded.dictionary.take(indices).to_pylist()
        except (pa.ArrowException, UnicodeDecodeError, OverflowError):  # a type without equality, or a damaged file
            raise file_error(path, f"column {shown(name)} of labels", f"{column.type} that cannot be read") from None
        table = np.zeros(len(encoded.dictionary), np.int64)
        for index, label in zip(indices.to_pylist(), labels, strict=True):
            text = _NO_GROUP if label is None else str(label)
            table[index] = self._codes.setdefault(text, len(self._codes))
        self._check_number(len(self._codes), path, name)
        return torch.from_numpy(table[encoded.indices.to_numpy(zero_copy_only=False)])

    def names(self) -> tuple[str, ...]:
        """Labels so far, in order of their codes."""
        return tuple(self._codes)

    def _check_number(self, count: int, path: Path, name: str) -> None:
        if self._most is not None and count > self._most:
            raise file_error(path, f"column {shown(name)} of at most {self._most} groups", f"{count} or more")


class ClusterCodes:
    """Clusters as int64: integers are kept, other labels get codes."""

    def __init__(self) -> None:
        self._labels = LabelCodes()
        self._whole: bool | None = None

    def encode(self, block: Block, name: str) -> Tensor:
        """Clusters of a column; rows without one, and integers in some files but text in others, are rejected."""
        column, path = block.batch.column(name), block.file.path
        if column.null_count:
            row = block.first_row + column.is_null().index(True).as_py() + 1
            raise file_error(path, f"column {shown(name)} without nulls", f"one in data row {row}")
        whole = bool(pa.types.is_integer(column.type)) and column.type != pa.uint64()
        if self._whole is None:
            self._whole = whole
        if self._whole != whole:
            before, now = ("text", "whole numbers") if whole else ("whole numbers", "text")
            raise file_error(path, f"column {shown(name)} of {before} as in the files before it", now)
        if not whole:
            _check_no_gaps(block, name)
            return self._labels.encode(block, name)
        clusters: Tensor = from_dlpack(column.cast(pa.int64()))
        return clusters


def _check_no_gaps(block: Block, name: str) -> None:
    """Reject rows without a cluster (an empty text, NaN): together they would form one cluster."""
    try:
        text = block.batch.column(name).cast(pa.string())
    except pa.ArrowException:
        return  # rejected as labels next
    row = compute.is_in(text, value_set=pa.array(_NO_CLUSTER)).index(True).as_py()
    if row >= 0:
        got = f"none in data row {block.first_row + row + 1}"
        raise file_error(block.file.path, f"column {shown(name)} with a cluster in every row", got)
