"""Concatenate, stack and index predictions along their batch dimensions, and replace their parameters."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from fcal.distributions.family import law_of

Prediction = Distribution | Tensor


def cat(preds: Sequence[Prediction]) -> Prediction:
    """Concatenate predictions along the first dimension, as ``torch.cat`` does for tensors.

    Raises:
        TypeError: The family is not registered.

    Example:
        >>> from torch.distributions import Normal
        >>> cat([Normal(torch.zeros(2), 1.0), Normal(torch.ones(1), 2.0)])
        Normal(loc: torch.Size([3]), scale: torch.Size([3]))
    """
    first = preds[0]
    if isinstance(first, Tensor):
        return torch.cat([pred for pred in preds if isinstance(pred, Tensor)])
    leaves = [_leaves(pred) for pred in preds if isinstance(pred, Distribution)]
    return _with_leaves(first, [torch.cat(values) for values in zip(*leaves, strict=True)])


def stack(preds: Sequence[Distribution]) -> Distribution:
    """Stack predictions of the same targets along a new last dimension.

    Raises:
        ValueError: The predictions differ in family or shape, or are multivariate.

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
        kinds = ", ".join(sorted({f"{law.name} {shape}" for law in laws for shape in shapes}))
        raise ValueError(f"expected `preds` of one family and shape, got {kinds}")
    if laws[0].family.event_dim or preds[0].event_shape:
        raise ValueError(f"expected `preds` of a scalar family, got {laws[0].name}")
    (shape,) = shapes
    by_name = zip(*(law.parameters for law in laws), strict=True)
    parameters = tuple(torch.stack([value.expand(shape) for value in values], -1) for values in by_name)
    return laws[0]._replace(parameters=parameters).distribution()


def index_select(pred: Prediction, rows: Tensor) -> Prediction:
    """Select rows of a prediction, as ``torch.index_select`` does for tensors.

    Args:
        pred: Prediction of a registered family, or a tensor.
        rows: Indices into the first dimension.

    Example:
        >>> from torch.distributions import Normal
        >>> index_select(Normal(torch.tensor([1.0, 2.0, 3.0]), 1.0), torch.tensor([2, 0])).loc
        tensor([3., 1.])
    """
    if isinstance(pred, Tensor):
        return pred[rows]
    return _with_leaves(pred, [leaf[rows] for leaf in _leaves(pred)])


def with_parameters(pred: Distribution, **changed: Tensor) -> Distribution:
    """Replace parameters of a prediction.

    Args:
        pred: Prediction of a registered family.
        changed: New values of parameters such as ``loc`` or ``scale``; they broadcast with the others.

    Example:
        >>> from torch.distributions import Normal
        >>> with_parameters(Normal(torch.zeros(2), 1.0), loc=torch.tensor([3.0, 4.0])).mean
        tensor([3., 4.])
    """
    law = law_of(pred)
    values = (changed.get(name, value) for name, value in zip(law.family.parameters, law.parameters, strict=True))
    return _like(law._replace(parameters=tuple(values)).distribution(), pred)


def _leaves(pred: Distribution) -> list[Tensor]:
    """All parameters of a prediction, expanded to its shape."""
    law = law_of(pred)
    shape = pred.batch_shape + pred.event_shape
    elements = shape[: len(shape) - law.family.event_dim]
    return [leaf.reshape(*elements, *leaf.shape[1:]) for leaf in law.leaves(elements)]


def _with_leaves(pred: Distribution, leaves: Sequence[Tensor]) -> Distribution:
    return _like(law_of(pred).with_leaves(leaves).distribution(), pred)


def _like(pred: Distribution, other: Distribution) -> Distribution:
    """Wrap a prediction in ``Independent`` so that it has as many event dimensions as another one."""
    outer = len(other.event_shape) - len(pred.event_shape)
    return Independent(pred, outer, validate_args=False) if outer else pred
