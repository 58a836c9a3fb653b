"""All rows of files as one prediction, for what must see them together."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from fcal.distributions.law import law_of
from fcal.tables.source import Predictions


def whole(source: Predictions, *, advance: Callable[[int], None] | None = None) -> tuple[Distribution, Tensor]:
    r"""Read all rows into memory.

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
    preds, targets = [], []
    for chunk in source:
        preds.append(chunk.pred)
        targets.append(chunk.target)
        if advance is not None:
            advance(len(chunk))
    return _joined(preds), torch.cat(targets)


def _joined(preds: Sequence[Distribution]) -> Distribution:
    """Predictions of one layout below each other: every parameter has one row per prediction."""
    first = preds[0]
    if len(preds) == 1:
        return first
    laws = [law_of(pred) for pred in preds]
    parameters = tuple(torch.cat(parts) for parts in zip(*(law.parameters for law in laws), strict=True))
    pred = laws[0]._replace(parameters=parameters).distribution()
    outer = len(first.event_shape) - len(pred.event_shape)
    return Independent(pred, outer, validate_args=False) if isinstance(first, Independent) else pred
