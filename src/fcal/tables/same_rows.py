"""Several files with predictions of the same rows, read side by side; files whose targets differ are refused."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal.distributions.functional import index_select
from fcal.metrics.state import folded_bits
from fcal.tables.prediction_files import Chunk, Predictions
from fcal.tables.readers import TableError

_ROUNDED = 1e-5  # relative: one file may have float32, or six digits


class _RowsTogether:
    """Chunks of several sources, of the same rows each; iterating checks that targets agree.

    Args:
        sources: Predictions of different models, of the same rows in the same order.
        names: What they are called in errors.

    Raises:
        TableError: The sources have different numbers of rows.
    """

    def __init__(self, sources: Sequence[Predictions], names: Sequence[str]) -> None:
        self.sources, self.names = list(sources), list(names)
        known = [(name, source.rows) for name, source in zip(names, sources, strict=True) if source.rows is not None]
        for name, rows in known[1:]:
            if rows != known[0][1]:
                raise self._other_count(known[0], (name, rows))

    @staticmethod
    def _other_count(first: tuple[str, int | None], other: tuple[str, int | None]) -> TableError:
        message = f"expected `{other[0]}` with the {first[1]} rows of {first[0]}, got {other[1]}"
        return TableError(f"{message}; compare predictions of the same rows, in the same order")

    def __iter__(self) -> Iterator[tuple[Chunk, ...]]:
        streams = [_Stream(source) for source in self.sources]
        while True:
            available = [stream.available() for stream in streams]
            if not all(available):
                if any(available):
                    self._check_counts()
                return
            length = min(available)
            chunks = tuple(stream.take(length) for stream in streams)
            for name, chunk in zip(self.names[1:], chunks[1:], strict=True):
                self._check_targets(chunks[0], chunk, name)
            yield chunks

    def _check_counts(self) -> None:
        """Refuse different numbers of rows, which only reading some formats tells."""
        counts = [sum(len(chunk) for chunk in source) for source in self.sources]
        for name, count in zip(self.names, counts, strict=True):
            if count != counts[0]:
                raise self._other_count((self.names[0], counts[0]), (name, count))

    def _check_targets(self, first: Chunk, other: Chunk, name: str) -> None:
        """Refuse targets that differ, and tell where."""
        if first.target.shape != other.target.shape:
            outputs = [chunk.target.shape[1] if chunk.target.dim() > 1 else 1 for chunk in (first, other)]
            raise TableError(f"expected `{name}` with {outputs[0]} outputs like {self.names[0]}, got {outputs[1]}")
        differs = _differing(first.target, other.target)
        if not bool(differs.any()):
            return
        self._check_counts()  # a row that is missing in one file is what to say first
        where = differs.reshape(len(differs), -1).any(1).nonzero()[0].item()
        values = [_value(chunk.target[int(where)], differs[int(where)]) for chunk in (first, other)]
        row = first.first_row + int(where) + 1
        message = (
            f"expected `{name}` with the targets of {self.names[0]}, got {values[1]} for {values[0]} in data row {row}"
        )
        raise TableError(f"{message}{self._hint(name)}")

    def _hint(self, name: str) -> str:
        sums = [_hash_of_targets(source) for source in (self.sources[0], self.sources[self.names.index(name)])]
        if sums[0] == sums[1]:
            return "; the rows are the same in another order: sort both files by a column that identifies a row"
        return "; compare predictions of the same rows, in the same order"


class _Stream:
    """Rows of a source, of which any number may be taken at a time."""

    def __init__(self, source: Predictions) -> None:
        self._chunks = iter(source)
        self._chunk: Chunk | None = None
        self._taken = 0

    def available(self) -> int:
        """Rows at hand; 0 at the end."""
        if self._chunk is None or self._taken == len(self._chunk):
            self._chunk, self._taken = next(self._chunks, None), 0
        return 0 if self._chunk is None else len(self._chunk) - self._taken

    def take(self, length: int) -> Chunk:
        """The next rows."""
        assert self._chunk is not None
        chunk, start = self._chunk, self._taken
        self._taken += length
        if length == len(chunk):
            return chunk
        rows = slice(start, start + length)
        pred = index_select(chunk.pred, torch.arange(start, start + length))
        assert isinstance(pred, Distribution)
        cluster = None if chunk.cluster is None else chunk.cluster[rows]
        return Chunk(
            pred=pred, target=chunk.target[rows], group=None, cluster=cluster, first_row=chunk.first_row + start
        )


def _differing(first: Tensor, other: Tensor) -> Tensor:
    """Where targets are not the same number, up to the rounding of a file; missing in both is the same."""
    a, b = first.double(), other.double()
    close = (a - b).abs() <= _ROUNDED * torch.maximum(a.abs(), b.abs())
    return ~(close | (a == b) | (a.isnan() & b.isnan()))


def _value(target: Tensor, differs: Tensor) -> str:
    value = target.reshape(-1)[differs.reshape(-1)][0].item()
    return "a missing one" if value != value else f"{value:.7g}"


def _hash_of_targets(source: Predictions) -> int:
    """The same for the same targets in any order."""
    total = 0
    for chunk in source:
        total += int(folded_bits(chunk.target.float().nan_to_num(nan=0.0)).sum())
    return total


def side_by_side(
    sources: Sequence[Predictions], names: Sequence[str], *, advance: Callable[[int], None] | None = None
) -> Iterator[tuple[Chunk, ...]]:
    r"""Chunks of several files with predictions of the same rows; their targets are compared as they are read.

    Args:
        sources: Predictions of different models.
        names: What they are called in errors.
        advance: Called after each chunk with its number of rows.

    Raises:
        TableError: Different numbers of rows, or different targets; the first such row is named.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.csv").write_text("mean,std,target\n1,2,5\n0,1,3\n")
        >>> _ = (folder / "b.csv").write_text("q05,q95,y\n1,9,5\n0,8,3\n")
        >>> files = [fcal.tables.open_predictions(folder / name) for name in ("a.csv", "b.csv")]
        >>> [len(a) for a, b in side_by_side(files, ["a.csv", "b.csv"])]
        [2]
    """
    for chunks in _RowsTogether(sources, names):
        yield chunks
        if advance is not None:
            advance(len(chunks[0]))
