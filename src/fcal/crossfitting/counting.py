"""Which targets count."""

import torch
from torch import Tensor


def counting(target: Tensor, valid_mask: Tensor | None) -> Tensor:
    """Targets that are finite and, where there is a mask of them or of their rows, valid.

    Raises:
        ValueError: A mask of another shape, or one that is not boolean.

    Example:
        >>> counting(torch.tensor([[1.0, 2.0], [torch.nan, 4.0]]), torch.tensor([True, True])).tolist()
        [[True, True], [False, True]]
    """
    finite = target.isfinite()
    return finite if valid_mask is None else finite & of_targets(valid_mask, target)


def of_targets(mask: Tensor, target: Tensor) -> Tensor:
    """A mask of rows or of targets as one of targets."""
    if mask.dtype != torch.bool or mask.shape != target.shape[: mask.dim()]:
        wanted = f"booleans of shape {tuple(target.shape)} or its rows"
        raise ValueError(f"expected `valid_mask` of {wanted}, got {mask.dtype} of shape {tuple(mask.shape)}")
    return mask.reshape(mask.shape + (1,) * (target.dim() - mask.dim())).expand(target.shape)
