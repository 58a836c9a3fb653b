"""Predictions of several rows as one prediction, some rows of one, and one with other parameters."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from fcal.distributions.law import law_of

Prediction = Distribution | Tensor


def cat(preds: Sequence[Prediction]) -> Prediction:
    """Predictions of consecutive rows as one.

    Raises:
        TypeError: A family that is not registered.

    Example:
        >>> from torch.distributions import Normal
        >>> cat([Normal(torch.zeros(2), 1.0), Normal(torch.ones(1), 2.0)])
        Normal(loc: torch.Size([3]), scale: torch.Size([3]))
    """
    first = preds[0]
    if isinstance(first, Tensor):
        return torch.cat([pred for pred in preds if isinstance(pred, Tensor)])
    leaves = [_leaves(pred) for pred in preds if isinstance(pred, Distribution)]
    return _with(first, [torch.cat(same) for same in zip(*leaves, strict=True)])


def stack(preds: Sequence[Distribution]) -> Distribution:
    """Predictions of the same targets in a new last dimension.

    Raises:
        ValueError: They are of several families or shapes, or of a family of vectors.

    Example:
        >>> from torch.distributions import Normal
        >>> stack([Normal(torch.zeros(3), 1.0), Normal(torch.ones(3), 2.0)]).scale.shape
        torch.Size([3, 2])
    """
    if not preds:
        raise ValueError("expected `preds` at least one prediction, got none")
    laws = [law_of(pred) for pred in preds]
    shapes = {tuple(pred.batch_shape + pred.event_shape) for pred in preds}
    if len({law.name for law in laws}) != 1 or len(shapes) != 1:
        found = ", ".join(sorted({f"{law.name} {shape}" for law in laws for shape in shapes}))
        raise ValueError(f"expected `preds` of one family and shape, got {found}")
    if laws[0].family.event_dim or preds[0].event_shape:
        raise ValueError(f"expected `preds` of a scalar family, got {laws[0].name}")
    (shape,) = shapes
    columns = zip(*(law.parameters for law in laws), strict=True)
    leaves = tuple(torch.stack([value.expand(shape) for value in same], -1) for same in columns)
    return laws[0]._replace(parameters=leaves).distribution()


def index_select(pred: Prediction, rows: Tensor) -> Prediction:
    """The prediction of some rows, in the order asked for.

    Args:
        pred: Prediction of a registered family, or a tensor.
        rows: Indices into its first dimension.

    Example:
        >>> from torch.distributions import Normal
        >>> index_select(Normal(torch.tensor([1.0, 2.0, 3.0]), 1.0), torch.tensor([2, 0])).loc
        tensor([3., 1.])
    """
    if isinstance(pred, Tensor):
        return pred[rows]
    return _with(pred, [leaf[rows] for leaf in _leaves(pred)])


def with_parameters(pred: Distribution, **changed: Tensor) -> Distribution:
    """The same prediction, but for some parameters of its family.

    Args:
        pred: Prediction of a registered family.
        changed: New values by the family's names, such as ``loc`` or ``scale``, that broadcast with the others.

    Example:
        >>> from torch.distributions import Normal
        >>> with_parameters(Normal(torch.zeros(2), 1.0), loc=torch.tensor([3.0, 4.0])).mean
        tensor([3., 4.])
    """
    law = law_of(pred)
    values = (changed.get(name, value) for name, value in zip(law.family.parameters, law.parameters, strict=True))
    return _wrapped(law._replace(parameters=tuple(values)).distribution(), pred)


def _leaves(pred: Distribution) -> list[Tensor]:
    """Every tensor of a prediction, with the shape of what is predicted."""
    law = law_of(pred)
    shape = pred.batch_shape + pred.event_shape
    elements = shape[: len(shape) - law.family.event_dim]
    return [leaf.reshape(*elements, *leaf.shape[1:]) for leaf in law.leaves(elements)]


def _with(pred: Distribution, leaves: Sequence[Tensor]) -> Distribution:
    """The same kind of prediction with other tensors."""
    return _wrapped(law_of(pred).with_leaves(leaves).distribution(), pred)


def _wrapped(law: Distribution, like: Distribution) -> Distribution:
    outer = len(like.event_shape) - len(law.event_shape)
    return Independent(law, outer, validate_args=False) if outer else law
