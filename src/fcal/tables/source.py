"""A stream of predictions from files, in memory that does not grow with them."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_integer
from fcal.metrics.state import MAX_GROUPS
from fcal.tables import families
from fcal.tables.block import Block
from fcal.tables.errors import TableError, file_error, missing_column, shown
from fcal.tables.files import TableFile
from fcal.tables.labels import ClusterCodes, LabelCodes, Labels
from fcal.tables.layout import Columns, Layout, layout_of
from fcal.tables.paths import find_files, open_file

CHUNK_ROWS = 1 << 18


@dataclass(frozen=True, kw_only=True, eq=False)
class Chunk:
    """Some rows. Its tensors may be views of a file's memory: read them only.

    Attributes:
        pred: The prediction: batch shape ``(N,)``, and event shape ``(D,)`` where there are D outputs.
        target: True values, NaN where missing. Shape ``(N,)`` or ``(N, D)``.
        group: The group of each row, where a column of groups was named.
        cluster: The cluster of each row, int64. Shape ``(N,)``.
        first_row: How many rows of all files come before.
    """

    pred: Distribution
    target: Tensor
    group: Labels | None
    cluster: Tensor | None
    first_row: int

    def __len__(self) -> int:
        return self.target.shape[0]


class Predictions:
    """Predictions in files, to be iterated over as often as needed; made by :func:`open_predictions`.

    Attributes:
        files: Paths of the files, in the order they are read.
        columns: The names asked for.
        layout: The columns found.
        rows: Number of rows of all files; None where a file does not say.
        chunk_rows: Most rows of a chunk.
    """

    def __init__(self, tables: list[TableFile], columns: Columns, layout: Layout, chunk_rows: int) -> None:
        self.tables = tables
        self.files = [table.path for table in tables]
        self.columns, self.layout, self.chunk_rows = columns, layout, chunk_rows
        counts = [table.rows_of(self._names()) for table in tables]
        for table, count in zip(tables, counts, strict=True):
            if count == 0:
                raise table.no_rows()
        self.rows = None if None in counts else sum(count for count in counts if count is not None)

    def describe(self) -> str:
        """One line: how many files, the layout, the columns used."""
        files = shown(self.files[0].name) if len(self.files) == 1 else f"{len(self.files)} files"
        labels = [f"{w} {shown(n)}" for w, n in (("group", self.columns.group), ("cluster", self.columns.cluster)) if n]
        return ", ".join([f"{files}: {self.layout.describe()}", *labels])

    def __iter__(self) -> Iterator[Chunk]:
        groups, clusters = LabelCodes(MAX_GROUPS), ClusterCodes()
        first_row = 0
        for block in self.blocks():
            pred, target = self.layout.prediction(block)
            chunk = Chunk(
                pred=pred,
                target=target,
                group=self._group(block, groups),
                cluster=self._cluster(block, clusters),
                first_row=first_row,
            )
            yield chunk
            first_row += len(chunk)

    def blocks(self, *, every_column: bool = False) -> Iterator[Block]:
        """The rows before they are predictions: the columns in use, or every column as stored."""
        for table in self.tables:
            before = 0
            if every_column:
                batches = table.all_batches(self.chunk_rows)
            else:
                batches = table.batches(self.layout.numbers, self.columns.labels(), self.chunk_rows)
            for batch in batches:
                if batch.num_rows:
                    yield Block(table, batch, before)
                    before += batch.num_rows
            if not before:
                raise table.no_rows()

    def _names(self) -> tuple[str, ...]:
        return (*self.layout.numbers, *self.columns.labels())

    def _group(self, block: Block, codes: LabelCodes) -> Labels | None:
        name = self.columns.group
        if name is None:
            return None
        encoded = codes.encode(block.batch.column(name), path=block.file.path, name=name)
        return Labels(encoded, codes.names())

    def _cluster(self, block: Block, codes: ClusterCodes) -> Tensor | None:
        name = self.columns.cluster
        if name is None:
            return None
        column = block.batch.column(name)
        return codes.encode(column, path=block.file.path, name=name, before=block.before)


def open_predictions(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Columns | None = None,
    family: str = "normal",
    chunk_rows: int = CHUNK_ROWS,
) -> Predictions:
    r"""Open prediction files: CSV, Parquet, NPZ, or NPY of shape (N, 3).

    The layout is found from the columns: ``mean``, ``std``, ``target``; several outputs as ``mean_0``, ``std_0``,
    ``target_0``, ``mean_1``, ...; with a covariance as ``cov_0_0``, ``cov_1_0``, ... instead of ``std_0``; or quantiles
    as ``q05``, ``q50``, ``q97.5`` (the number is per cent) with ``target``. An NPZ array of shape ``(N, D)`` called
    ``mean`` is read as ``mean_0``, ``mean_1``, ...

    Args:
        path: A file, a folder, a pattern such as ``predictions/*.parquet``, or several of these.
        columns: Names of the columns, where they are not ``mean``, ``std`` and ``target``.
        family: Family of the predicted laws, one of ``fcal.tables.families.names()``.
        chunk_rows: Most rows in memory at once.

    Returns:
        A stream that can be iterated over again and again.

    Raises:
        TableError: There is no such file, it is broken, or a column is missing.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "predictions.csv"
        >>> _ = path.write_text("mean;std;target\n1,5;2;5\n0;1;\n")
        >>> for chunk in open_predictions(path):
        ...     print(chunk.pred.mean.tolist(), chunk.target.tolist())
        [1.5, 0.0] [5.0, nan]
    """
    rows = check_integer("chunk_rows", chunk_rows, at_least=1)
    chosen = Columns() if columns is None else columns
    maker = families.family(family)
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not paths or any(not os.fspath(one) for one in paths):
        raise TableError("expected `path` a file, a folder or a pattern of files, got an empty name")
    tables = [open_file(found) for one in paths for found in find_files(one)]
    layout = layout_of(tables[0], chosen, family, maker)
    for table in tables[1:]:
        _check_same_columns(tables[0], table)
    return Predictions(tables, chosen, layout, rows)


def _check_same_columns(first: TableFile, other: TableFile) -> None:
    for name in first.names:
        if name not in other.names:
            raise missing_column(other.path, name, other.names)
    extra = next((name for name in other.names if name not in first.names), None)
    if extra is not None:
        raise file_error(other.path, f"with the columns of {Path(first.path).name}", f"{shown(extra)} too")
