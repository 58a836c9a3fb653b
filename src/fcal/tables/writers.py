"""Writing tables: the repaired file, what all formats need for it, and the note beside it about its origin."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from pyarrow import compute
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from fcal._files import atomic_path, sha256_of, write_json
from fcal.distributions import quantile
from fcal.metrics.state import MAX_GROUPS
from fcal.tables.layout import Columns
from fcal.tables.prediction_files import READERS, LabelCodes, Labels, Predictions
from fcal.tables.readers import Block, TableError, fails, file_error, message_of, numbers_of_text, shown
from fcal.tables.streams import listed, suffix_of

_QUANTILES = "0.1 0.5 01 2.5 05 10 16 25 40 50 60 75 84 90 95 97.5 99 99.5 99.9"  # per cent, as in column names
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


@dataclass(frozen=True, eq=False)
class Repair:
    """Rows to write.

    Attributes:
        out: Final path of the file, for errors.
        source: The predictions that the rows come from.
        chunks: Blocks with all columns of the source, and the new columns of each, to be read once.
    """

    out: Path
    source: Predictions
    chunks: Iterator[tuple[Block, dict[str, Tensor]]]

    def cannot_hold(self, name: str, dtype: object) -> TableError:
        """The error about a column whose type the format lacks."""
        return file_error(self.out, f"of a format that holds column {shown(name)}", f"{dtype}")


# A format's writer writes a repair to a temporary path.
WRITERS: dict[str, Callable[[Path, Repair], None]] = {}  # by suffix; filled in ``fcal.tables``


def column_types(source: Predictions) -> dict[str, pa.DataType]:
    """The narrowest of int64, float64 and text that all values of a column fit, in the files of a text format."""
    types = dict.fromkeys(source.tables[0].names, pa.int64())
    for table in source.tables:
        for batch in table.all_batches(source.chunk_rows) if table.is_text else ():
            for name, dtype in types.items():
                types[name] = _narrowest_type(batch.column(name), dtype, table.decimal)
    return types


def _narrowest_type(text: pa.Array, dtype: pa.DataType, decimal: str) -> pa.DataType:
    """The narrowest of int64, float64 and text, but at least ``dtype``, that all values fit."""
    if dtype == pa.string() or compute.any(compute.match_substring_regex(text, _LEADING_ZERO)).as_py():
        return pa.string()
    for candidate in (pa.int64(), pa.float64()) if dtype == pa.int64() else (pa.float64(),):
        if not fails(text, partial(numbers_of_text, decimal=decimal, dtype=candidate)):
            return candidate
    return pa.string()


def typed(block: Block, types: dict[str, pa.DataType]) -> pa.RecordBatch:
    """The columns of a block, with these types where they come from a text format."""
    batch = block.batch.select(list(types))
    if not block.file.is_text:
        return batch
    columns = [
        column if dtype == pa.string() else numbers_of_text(column, block.file.decimal, dtype)
        for column, dtype in zip(batch.columns, types.values(), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(types))


def write_repaired(
    source: Predictions,
    out: str | os.PathLike[str],
    transform: Callable[..., Distribution],
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
        transform: Function from a prediction to a recalibrated one; if the source has a column of groups, of the
            :class:`Labels` of its rows too.
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
    check_out(target)
    rows, groups = 0, LabelCodes(MAX_GROUPS)

    def chunks() -> Iterator[tuple[Block, dict[str, Tensor]]]:
        nonlocal rows
        for block in source.blocks(every_column=True):
            own = transform
            if source.columns.group is not None:
                codes = groups.encode(block, source.columns.group)
                own = partial(_with_labels, transform, Labels(codes, groups.names()))
            yield block, _new_columns(source, block, own, target)
            rows += block.batch.num_rows
            if advance is not None:
                advance(block.batch.num_rows)

    with atomic_path(target) as temporary:
        WRITERS[suffix_of(target)](temporary, Repair(target, source, chunks()))
    return rows


def _with_labels(transform: Callable[..., Distribution], labels: Labels, pred: Distribution) -> Distribution:
    return transform(pred, labels)


def _recalibrated_columns(pred: Distribution, columns: Columns) -> dict[str, Tensor]:
    """New columns by name, of shape ``(N,)`` or, of D outputs, ``(N, D)``, and covariances of shape ``(N, D, D)``."""
    mean = {columns.mean + SUFFIX: pred.mean}
    base = pred.base_dist if isinstance(pred, Independent) else pred
    if isinstance(base, MultivariateNormal):
        return {**mean, columns.covariance_prefix() + SUFFIX: base.covariance_matrix}
    moments = {**mean, columns.std + SUFFIX: pred.stddev}
    if isinstance(base, Normal):
        return moments
    return {**moments, **{f"q{level}{SUFFIX}": _quantile(pred, float(level) / 100) for level in _QUANTILES.split()}}


def _new_columns(
    source: Predictions, block: Block, transform: Callable[[Distribution], Distribution], out: Path
) -> dict[str, Tensor]:
    pred, target = source.layout.prediction(block)
    columns = _recalibrated_columns(transform(pred), source.columns)
    for name, value in columns.items():
        if value.shape[: target.dim()] != target.shape:
            raise ValueError(f"expected `transform` to keep shape {tuple(target.shape)}, got {tuple(value.shape)}")
        taken = next((n for n in (name, *flat({name: value})) if n in block.file.names), None)
        if taken is not None:
            reason = f"{shown(taken)} already in {block.file.path.name}: is it repaired already?"
            raise file_error(out, "with new columns", reason)
    return columns


def check_out(out: Path) -> None:
    """Reject a file that cannot be written.

    Raises:
        TableError: Its format is not known or has no column names, or it is a folder.
    """
    suffix = suffix_of(out)
    if suffix not in WRITERS:
        reason = ", which has no names of columns" if suffix == ".npy" else ", which is only read" * (suffix in READERS)
        raise file_error(out, f"with one of the suffixes {listed(WRITERS)}", f"{suffix!r}{reason}")
    if out.is_dir():
        raise file_error(out, "a file to write", "a folder")


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
    note = Path(os.fspath(out) + _NOTE_SUFFIX)
    write_json(note, {**document, "sha256": sha256_of(out)})
    return note


def read_origin(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The note beside a file; None where there is none, or the file has changed since.

    Raises:
        TableError: The note is not JSON, or not written by :func:`write_origin`.
    """
    note = Path(os.fspath(path) + _NOTE_SUFFIX)
    try:
        document = json.loads(note.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise file_error(note, "a JSON document", message_of(error)) from None
    if not isinstance(document, dict) or not isinstance(document.get("sha256"), str):
        raise file_error(note, "a JSON object with a sha256", type(document).__name__)
    return document if Path(path).is_file() and document["sha256"] == sha256_of(path) else None
