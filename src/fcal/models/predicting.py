"""Predictions of a whole dataset."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal._checks import check_integer
from fcal._datasets import get_batch, length_of
from fcal.distributions.functional import cat


class Predicted(NamedTuple):
    """Predictions of all rows of a dataset, in order, and their targets.

    Example:
        >>> from fcal.models import predict
        >>> data = torch.utils.data.TensorDataset(torch.zeros(3, 1), torch.ones(3, 1))
        >>> predict(torch.nn.Identity(), data).target.sum()
        tensor(3.)
    """

    pred: Distribution | Tensor
    target: Tensor
    valid_mask: Tensor | None


def predict(
    model: Callable[[Any], Distribution | Tensor],
    dataset: Any,
    *,
    batch_size: int = 256,
    channels_last: bool = False,
) -> Predicted:
    """Predict a whole dataset, in evaluation mode and without gradients.

    Args:
        model: Returns a distribution of a registered family, or a tensor. The training mode of a network is restored.
        dataset: Items are mappings with ``"input"`` and ``"target"``, or tuples of these.
        batch_size: Largest number of rows in a batch.
        channels_last: Memory format of images.

    Example:
        >>> from fcal.models import predict
        >>> data = torch.utils.data.TensorDataset(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]))
        >>> predict(torch.nn.Identity(), data, batch_size=1).pred.tolist()
        [[1.0], [2.0]]
    """
    rows, size = length_of(dataset), check_integer("batch_size", batch_size, at_least=1)
    device = _device_of(model)
    preds, targets, masks = [], [], []
    with evaluating(model), torch.no_grad():
        for indices in torch.arange(rows).tensor_split(-(-rows // size)):
            batch = get_batch(dataset, indices.tolist())
            inputs = in_format(batch["input"], channels_last)
            preds.append(prediction(model, inputs.to(device) if isinstance(inputs, Tensor) else inputs))
            targets.append(batch["target"].to(device))
            masks.append(batch.get("valid_mask"))
        valid_masks = [mask.to(device) for mask in masks if mask is not None]
        return Predicted(cat(preds), torch.cat(targets), torch.cat(valid_masks) if valid_masks else None)


def _device_of(model: Any) -> torch.device:
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    return next((parameter.device for parameter in parameters), torch.device("cpu"))


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put a network into evaluation mode, and restore the mode of each submodule afterwards."""
    modes = [(module, module.training) for module in model.modules()] if isinstance(model, nn.Module) else []
    for module, _ in modes[:1]:
        module.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def prediction(model: Callable[[Any], Any], inputs: Any) -> Distribution | Tensor:
    """Call a model and check that it returns a distribution or a tensor."""
    pred = model(inputs)
    if not isinstance(pred, Distribution | Tensor):
        raise TypeError(f"expected `model` to return a Distribution or a tensor, got {type(pred).__name__}")
    return pred


def in_format(inputs: Any, channels_last: bool) -> Any:
    """Convert images to the ``channels_last`` memory format, if requested; other inputs are returned unchanged."""
    if not channels_last or not isinstance(inputs, Tensor) or inputs.dim() != 4:
        return inputs
    return inputs.contiguous(memory_format=torch.channels_last)
