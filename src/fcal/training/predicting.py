"""Predictions of a whole dataset."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent

from fcal._checks import check_integer
from fcal.distributions.law import law_of
from fcal.training.batches import Batches
from fcal.training.validation import prediction


class Predicted(NamedTuple):
    """A prediction of all rows of a dataset, in their order, and their targets.

    Example:
        >>> from fcal.training import predict
        >>> data = torch.utils.data.TensorDataset(torch.zeros(3, 1), torch.ones(3, 1))
        >>> predict(torch.nn.Identity(), data).target.sum()
        tensor(3.)
    """

    pred: Distribution | Tensor
    target: Tensor
    valid_mask: Tensor | None


def predict(model: nn.Module, dataset: Any, *, batch_size: int = 256, channels_last: bool = False) -> Predicted:
    """Predict a whole dataset, in evaluation mode and without gradient.

    Args:
        model: Returns a distribution of a registered family, or a tensor. It keeps its mode.
        dataset: As for :func:`fit`.
        batch_size: Rows in a batch, at most.
        channels_last: Memory format of images.

    Example:
        >>> from fcal.training import predict
        >>> data = torch.utils.data.TensorDataset(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]))
        >>> predict(torch.nn.Identity(), data, batch_size=1).pred.tolist()
        [[1.0], [2.0]]
    """
    check_integer("batch_size", batch_size, at_least=1)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    modes = [(module, module.training) for module in model.modules()]
    preds, targets, masks = [], [], []
    model.eval()
    try:
        with torch.no_grad():
            for batch in Batches(dataset, batch_size):
                given = in_format(batch["input"], channels_last)
                preds.append(prediction(model, given.to(device) if isinstance(given, Tensor) else given))
                targets.append(batch["target"].to(device))
                masks.append(batch.get("valid_mask"))
    finally:
        for module, mode in modes:
            module.training = mode
    known = [mask.to(device) for mask in masks if mask is not None]
    return Predicted(joined(preds), torch.cat(targets), torch.cat(known) if known else None)


def in_format(given: Any, channels_last: bool) -> Any:
    """Images in the memory format that was asked for; anything else as it is."""
    if not channels_last or not isinstance(given, Tensor) or given.dim() != 4:
        return given
    return given.contiguous(memory_format=torch.channels_last)


def joined(preds: Sequence[Distribution | Tensor]) -> Distribution | Tensor:
    """Predictions of consecutive batches as one.

    Raises:
        TypeError: A family that is not registered.

    Example:
        >>> from torch.distributions import Normal
        >>> joined([Normal(torch.zeros(2), 1.0), Normal(torch.ones(1), 2.0)])
        Normal(loc: torch.Size([3]), scale: torch.Size([3]))
    """
    first = preds[0]
    if isinstance(first, Tensor):
        return torch.cat([pred for pred in preds if isinstance(pred, Tensor)])
    laws = []
    for pred in preds:
        assert isinstance(pred, Distribution)
        law = law_of(pred)
        shape = pred.batch_shape + pred.event_shape
        elements = shape[: len(shape) - law.family.event_dim]
        laws.append([leaf.reshape(*elements, *leaf.shape[1:]) for leaf in law.leaves(elements)])
    whole = law_of(first).with_leaves(torch.cat(leaves) for leaves in zip(*laws, strict=True)).distribution()
    outer = len(first.event_shape) - len(whole.event_shape)
    return Independent(whole, outer, validate_args=False) if outer else whole
