"""A number that tells whether two sets of targets are the same, whatever their order."""

import torch
from torch import Tensor

# Odd 64-bit constants of a multiplicative hash: golden ratio and a prime, as signed integers.
_SPREAD = 0x9E3779B97F4A7C15 - 2**64
_STIR = 0xC2B2AE3D27D4EB4F - 2**64


def mixed(bits: Tensor) -> Tensor:
    """Hash of 64-bit integers, one by one; multiplication wraps."""
    spread = bits * _SPREAD
    return spread.bitwise_xor_(spread >> 29).mul_(_STIR)


def folded(target: Tensor) -> Tensor:
    """Bits of targets as float64, folded, spread and folded: not additive in the values, not even in round ones."""
    bits = (target.double() + 0.0).view(torch.int64)  # -0.0 becomes 0.0
    spread = (bits >> 32).bitwise_xor_(bits).mul_(_SPREAD)
    return torch.bitwise_right_shift(spread, 29, out=bits).bitwise_xor_(spread)


def fingerprint_of(target: Tensor) -> Tensor:
    """Sum over targets of their folded bits; it wraps. Shape ``()``."""
    return folded(target).sum()


def fingerprint(target: Tensor, valid_mask: Tensor | None = None) -> str:
    """What a recalibrator remembers of the targets it was fitted on.

    The same values in any order, float32 or float64, give the same string.

    Args:
        target: Targets, NaN where missing. Any shape.
        valid_mask: True where a target counts; shaped like ``target`` or its leading dimensions.

    Returns:
        Number of targets and sixteen hexadecimal digits.

    Example:
        >>> one = fingerprint(torch.tensor([1.0, 2.0, torch.nan]))
        >>> one == fingerprint(torch.tensor([2.0, 1.0])), one == fingerprint(torch.tensor([2.0, 1.5]))
        (True, False)
    """
    valid = ~torch.isnan(target)
    if valid_mask is not None:
        valid = valid & valid_mask.reshape(valid_mask.shape + (1,) * (target.dim() - valid_mask.dim()))
    counted = target.detach()[valid]
    return as_text(counted.numel(), int(fingerprint_of(counted)))


def as_text(count: int, digest: int) -> str:
    """Count and hash of targets in one word."""
    return f"{count}-{int(mixed(torch.tensor(digest))) % 2**64:016x}"
