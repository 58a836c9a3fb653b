"""Writing tables: the base class of all formats, the repaired file, and the note beside it about its origin."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import torch
from pyarrow import compute
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from fcal._files import atomic_path, sha256_of, write_json
from fcal._registry import Registry
from fcal.distributions import quantile
from fcal.tables.errors import TableError, file_error, message_of, shown
from fcal.tables.layout import Columns
from fcal.tables.prediction_files import Predictions
from fcal.tables.readers import Block, TableFile, first_failure, known_suffix, numbers_of_text

_TAIL = ("0.1", "0.5", "01", "2.5", "05", "10", "16", "25", "40")
QUANTILES = (
    *_TAIL,
    "50",
    *(f"{100 - float(level):g}" for level in reversed(_TAIL)),
)  # per cent, as in column names
SUFFIX = "_recalibrated"
_NOTE_SUFFIX = ".origin.json"
_LEADING_ZERO = r"^\s*[+-]?0\d"  # a code such as 007, not a number


def flat(columns: dict[str, Tensor]) -> dict[str, Tensor]:
    """One column per output of shape ``(N, D)``, and per entry of the lower triangle of shape ``(N, D, D)``.

    Example:
        >>> list(flat({"mean": torch.zeros(5, 2), "cov": torch.zeros(5, 2, 2)}))
        ['mean_0', 'mean_1', 'cov_0_0', 'cov_1_0', 'cov_1_1']
    """
    result: dict[str, Tensor] = {}
    for name, value in columns.items():
        if value.dim() == 1:
            result[name] = value
        elif value.dim() == 2:
            result.update({f"{name}_{i}": value[:, i] for i in range(value.shape[1])})
        else:
            lower = torch.tril_indices(value.shape[1], value.shape[2]).T.tolist()
            result.update({f"{name}_{i}_{j}": value[:, i, j] for i, j in lower})
    return result


class Writer(ABC):
    """Base class of writers: blocks of the input files, with new columns appended.

    Args:
        temporary: Path to write to.
        target: Final path of the file, for errors.
        tables: Files that the blocks come from.
        chunk_rows: Largest number of rows of a block.
    """

    def __init__(self, temporary: Path, target: Path, tables: Sequence[TableFile], chunk_rows: int) -> None:
        self._temporary, self._target, self._tables, self._chunk_rows = temporary, target, tables, chunk_rows
        self._names = list(tables[0].names)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if error_type is None:
                self.finish()

    @abstractmethod
    def write(self, block: Block, columns: dict[str, Tensor]) -> None:
        """Append rows and their new columns."""

    def finish(self) -> None:  # noqa: B027 - optional
        """Complete the file after the last row."""

    def _cannot_hold(self, name: str, dtype: object) -> TableError:
        return file_error(self._target, f"of a format that holds column {shown(name)}", f"{dtype}")


class TypedWriter(Writer):
    """Base class of formats with types: a column of a text format becomes int64 or float64 if all its values fit."""

    def __init__(self, temporary: Path, target: Path, tables: Sequence[TableFile], chunk_rows: int) -> None:
        super().__init__(temporary, target, tables, chunk_rows)
        self._types = {name: pa.int64() for name in self._names}
        for table in tables:
            if table.is_text:
                for batch in table.all_batches(chunk_rows):
                    self._widen_types(batch, table.decimal)

    def _widen_types(self, batch: pa.RecordBatch, decimal: str) -> None:
        for name, dtype in self._types.items():
            self._types[name] = _narrowest_type(batch.column(name), dtype, decimal)

    def _typed(self, block: Block) -> pa.RecordBatch:
        batch = block.batch.select(self._names)
        if not block.file.is_text:
            return batch
        columns = [self._converted(batch.column(name), self._types[name], block.file.decimal) for name in self._names]
        return pa.RecordBatch.from_arrays(columns, names=self._names)

    @staticmethod
    def _converted(text: pa.Array, dtype: pa.DataType, decimal: str) -> pa.Array:
        return text if dtype == pa.string() else numbers_of_text(text, decimal, dtype)


def _narrowest_type(text: pa.Array, dtype: pa.DataType, decimal: str) -> pa.DataType:
    """The narrowest of int64, float64 and text, but at least ``dtype``, that all values fit."""
    if dtype == pa.string() or compute.any(compute.match_substring_regex(text, _LEADING_ZERO)).as_py():
        return pa.string()
    for candidate in (pa.int64(), pa.float64()) if dtype == pa.int64() else (pa.float64(),):
        if first_failure(text, partial(numbers_of_text, decimal=decimal, dtype=candidate)) is None:
            return candidate
    return pa.string()


WRITERS: Registry[type[Writer]] = Registry("suffix")


def write_repaired(
    source: Predictions,
    out: str | os.PathLike[str],
    transform: Callable[[Distribution], Distribution],
    *,
    advance: Callable[[int], None] | None = None,
) -> int:
    r"""Write the rows of files with their recalibrated predictions in new columns.

    New columns are ``mean_recalibrated`` and ``std_recalibrated`` (with the names of the original columns), with
    ``_0``, ``_1``, ... for several outputs; ``cov_recalibrated_0_0``, ... for a multivariate normal prediction; and
    the quantiles ``q2.5_recalibrated``, ``q05_recalibrated``, ... of a distribution that is not normal, which its mean
    and standard deviation do not determine. The other columns keep their names, order, values and types; text of a CSV
    file becomes numbers only in a format that has types.

    Args:
        source: The predictions.
        out: The file to write, atomically. Its suffix chooses the format; it may be one of the inputs.
        transform: Function from a prediction to a recalibrated one.
        advance: Called after each chunk with its number of rows.

    Returns:
        Number of rows written.

    Raises:
        TableError: A value is invalid, a new column exists already, or the format cannot hold a column.

    Example:
        >>> import pathlib, tempfile
        >>> from torch.distributions import Normal
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "predictions.csv"
        >>> _ = path.write_text("id,mean,std,target\n007,1,2,5\n")
        >>> source = fcal.tables.open_predictions(path)
        >>> write_repaired(source, path, lambda pred: Normal(pred.mean, 2 * pred.stddev))
        1
        >>> print(path.read_text())
        id,mean,std,target,mean_recalibrated,std_recalibrated
        007,1,2,5,1,4
        <BLANKLINE>
    """
    target = Path(out)
    writer_type = WRITERS[check_out(target)]
    rows = 0
    with atomic_path(target) as temporary, writer_type(temporary, target, source.tables, source.chunk_rows) as writer:
        for block, columns in _repaired(source, transform, target):
            writer.write(block, columns)
            rows += block.batch.num_rows
            if advance is not None:
                advance(block.batch.num_rows)
    return rows


def recalibrated_columns(pred: Distribution, columns: Columns) -> dict[str, Tensor]:
    """New columns of a recalibrated prediction, by name.

    Args:
        pred: Batch shape ``(N,)``, and event shape ``(D,)`` where there are D outputs.
        columns: Names of the original columns.

    Returns:
        Tensors of shape ``(N,)``, or ``(N, D)``, and covariances of shape ``(N, D, D)``.
    """
    mean = {columns.mean + SUFFIX: pred.mean}
    base = pred.base_dist if isinstance(pred, Independent) else pred
    if isinstance(base, MultivariateNormal):
        return {**mean, columns.covariance_prefix() + SUFFIX: base.covariance_matrix}
    moments = {**mean, columns.std + SUFFIX: pred.stddev}
    if isinstance(base, Normal):
        return moments
    return {**moments, **{f"q{level}{SUFFIX}": _quantile(pred, float(level) / 100) for level in QUANTILES}}


def _repaired(
    source: Predictions, transform: Callable[[Distribution], Distribution], out: Path
) -> Iterator[tuple[Block, dict[str, Tensor]]]:
    for block in source.blocks(every_column=True):
        pred, target = source.layout.prediction(block)
        columns = recalibrated_columns(transform(pred), source.columns)
        for name, value in columns.items():
            if value.shape[: target.dim()] != target.shape:
                raise ValueError(f"expected `transform` to keep shape {tuple(target.shape)}, got {tuple(value.shape)}")
            _check_new(name, value, block, out)
        yield block, columns


def _check_new(name: str, value: Tensor, block: Block, out: Path) -> None:
    taken = next((n for n in (name, *flat({name: value})) if n in block.file.names), None)
    if taken is not None:
        reason = f"{shown(taken)} already in {block.file.path.name}: is it repaired already?"
        raise file_error(out, "with new columns", reason)


def check_out(out: Path) -> str:
    """The suffix of a file that can be written.

    Raises:
        TableError: Its format has no column names, or it is a folder.
    """
    suffix = known_suffix(out)
    if suffix not in WRITERS.names():
        known = ", ".join(WRITERS.names())
        raise file_error(out, f"with one of the suffixes {known}", f"{suffix!r}, which has no names of columns")
    if out.is_dir():
        raise file_error(out, "a file to write", "a folder")
    return suffix


def _quantile(pred: Distribution, level: float) -> Tensor:
    try:
        return quantile(pred, level)
    except TypeError:  # not a registered family, but it may have an icdf
        return pred.icdf(torch.full(pred.batch_shape + pred.event_shape, level, dtype=pred.mean.dtype))


def write_origin(out: str | os.PathLike[str], document: dict[str, Any]) -> Path:
    """Write a note about the origin of a file beside it, as ``<file>.origin.json``.

    Args:
        out: The file, already written.
        document: How the file was made, ready for JSON; the ``sha256`` of the file is added.

    Returns:
        Path of the note.

    Example:
        >>> import pathlib, tempfile
        >>> out = pathlib.Path(tempfile.mkdtemp()) / "repaired.csv"
        >>> _ = out.write_text("mean,std,target")
        >>> write_origin(out, {"method": "temperature"}).name
        'repaired.csv.origin.json'
        >>> read_origin(out)["method"]
        'temperature'
    """
    note = _note_path(out)
    write_json(note, {**document, "sha256": sha256_of(out)})
    return note


def read_origin(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The note beside a file; None where there is none, or the file has changed since.

    Raises:
        TableError: The note is not JSON, or not written by :func:`write_origin`.
    """
    note = _note_path(path)
    try:
        document = json.loads(note.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise file_error(note, "a JSON document", message_of(error)) from None
    if not isinstance(document, dict) or not isinstance(document.get("sha256"), str):
        raise file_error(note, "a JSON object with a sha256", type(document).__name__)
    return document if Path(path).is_file() and document["sha256"] == sha256_of(path) else None


def _note_path(path: str | os.PathLike[str]) -> Path:
    return Path(os.fspath(path) + _NOTE_SUFFIX)
