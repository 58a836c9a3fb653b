"""The repaired file: the columns as they were, and the recalibrated ones."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from fcal._files import atomic_path
from fcal.distributions import quantile
from fcal.tables.block import Block
from fcal.tables.errors import file_error, shown
from fcal.tables.layout import Columns
from fcal.tables.paths import known_suffix
from fcal.tables.source import Predictions
from fcal.tables.writers import WRITERS, flat

_TAIL = ("0.1", "0.5", "01", "2.5", "05", "10", "16", "25", "40")
QUANTILES = (
    *_TAIL,
    "50",
    *(f"{100 - float(level):g}" for level in reversed(_TAIL)),
)  # per cent, as in names of columns
SUFFIX = "_recalibrated"


def write_repaired(
    source: Predictions,
    out: str | os.PathLike[str],
    transform: Callable[[Distribution], Distribution],
    *,
    advance: Callable[[int], None] | None = None,
) -> int:
    r"""Write the rows of files again, with what a recalibrator makes of their predictions.

    New columns are ``mean_recalibrated`` and ``std_recalibrated`` (after the names that were asked for), with ``_0``,
    ``_1``, ... where there are several outputs; ``cov_recalibrated_0_0``, ... for a multivariate normal law; and the
    quantiles ``q2.5_recalibrated``, ``q05_recalibrated``, ... where the law is not normal, so that its mean and
    standard deviation do not say all. The other columns keep their names, order, values and types; text of a CSV file
    becomes numbers only in a format that has types.

    Args:
        source: The predictions; streamed once more.
        out: The file to write, whole or not at all. Its suffix chooses the format; it may be one of the inputs.
        transform: From a prediction to a recalibrated one.
        advance: Called after each chunk with its number of rows.

    Returns:
        The number of rows written.

    Raises:
        TableError: A value is not what it must be, a new column is there already, or the format cannot hold a column.

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
    make = WRITERS[check_out(target)]
    done = 0
    with atomic_path(target) as temporary, make(temporary, target, source) as writer:
        for block, columns in _repaired(source, transform, target):
            writer.write(block, columns)
            done += block.batch.num_rows
            if advance is not None:
                advance(block.batch.num_rows)
    return done


def recalibrated_columns(pred: Distribution, columns: Columns) -> dict[str, Tensor]:
    """What is written of a recalibrated prediction, by name.

    Args:
        pred: Batch shape ``(N,)``, and event shape ``(D,)`` where there are D outputs.
        columns: Names of the original columns, which the new names follow.

    Returns:
        Tensors of shape ``(N,)``, or ``(N, D)``, and covariances of shape ``(N, D, D)``.
    """
    mean = {columns.mean + SUFFIX: pred.mean}
    law = pred.base_dist if isinstance(pred, Independent) else pred
    if isinstance(law, MultivariateNormal):
        return {**mean, columns.covariance_prefix() + SUFFIX: law.covariance_matrix}
    moments = {**mean, columns.std + SUFFIX: pred.stddev}
    if isinstance(law, Normal):
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
        TableError: Its format has no names of columns, or it is a folder.
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
    except TypeError:  # a law of somebody else's: it may know its own quantiles
        return pred.icdf(torch.full(pred.batch_shape + pred.event_shape, level, dtype=pred.mean.dtype))
