"""Validation of arguments, done once, in the public function."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution


def is_tracing() -> bool:
    """Whether ``torch.compile`` is tracing, where a check of values would break the graph."""
    return torch.compiler.is_compiling()


def check_integer(name: str, value: Any, *, at_least: int, at_most: int = 2**31) -> int:
    """An integer option within bounds; booleans and floats are rejected."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected `{name}` an int, got {type(value).__name__} {value!r}")
    if value < at_least:
        raise ValueError(f"expected `{name}` >= {at_least}, got {value}")
    if value > at_most:
        raise ValueError(f"expected `{name}` <= {at_most}, got {value if value < 10**20 else 'a far larger number'}")
    return value


def check_number(name: str, value: Any, *, low: float, high: float) -> float:
    """A finite real option within ``[low, high]``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected `{name}` a number, got {type(value).__name__} {value!r}")
    if not low <= value <= high:  # also refuses NaN
        raise ValueError(f"expected `{name}` within [{low:g}, {high:g}], got {str(value)[:40]}")
    return float(value)


def check_positions(name: str, value: int | Sequence[int], count: int) -> list[int]:
    """Some of ``count`` positions: those that are named, or as many as a number says, evenly spaced.

    Example:
        >>> check_positions("frames", 3, 60), check_positions("frames", [7], 60)
        ([10, 30, 50], [7])
    """
    if isinstance(value, int):
        parts = check_integer(name, value, at_least=1, at_most=count)
        return [(2 * part + 1) * count // (2 * parts) for part in range(parts)]
    positions = [check_integer(name, position, at_least=0, at_most=count - 1) for position in value]
    if not positions:
        raise ValueError(f"expected `{name}` with at least one, got none")
    return positions


def check_flag(name: str, value: Any) -> bool:
    """A boolean option."""
    if not isinstance(value, bool):
        raise TypeError(f"expected `{name}` a bool, got {type(value).__name__} {value!r}")
    return value


def check_pair(pred: Any, target: Any, name: str = "target") -> None:
    """Types, dtypes and shapes of a prediction and its targets.

    A prediction of scalar batch shape applies to every target; any other shape must match exactly, so that a mean of
    shape ``(N,)`` never meets a target of shape ``(N, 1)`` in an N x N loss.
    """
    if not isinstance(pred, Distribution):
        raise TypeError(f"expected `pred` a torch.distributions.Distribution, got {type(pred).__name__}")
    if not isinstance(target, Tensor):
        raise TypeError(f"expected `{name}` a torch.Tensor, got {type(target).__name__}")
    if not target.is_floating_point():
        raise TypeError(f"expected `{name}` of a floating dtype, got {target.dtype}")
    if target.layout != torch.strided or target.is_nested:
        raise TypeError(f"expected `{name}` a dense tensor, got {target.layout}")
    shape, event = target.shape, pred.event_shape
    batch_fits = len(pred.batch_shape) == 0 or shape == pred.batch_shape + event
    if not batch_fits or shape[len(shape) - len(event) :] != event:
        expected = tuple(pred.batch_shape + event)
        raise ValueError(f"expected `{name}` of shape {expected} like `pred`, got {tuple(shape)}")


def check_beside_target(name: str, value: Any, target: Tensor, rows: torch.Size) -> Tensor:
    """A mask or weight: a tensor on the target's device, shaped like the targets or like their rows."""
    if not isinstance(value, Tensor):
        raise TypeError(f"expected `{name}` a torch.Tensor, got {type(value).__name__}")
    if value.layout != torch.strided:
        raise TypeError(f"expected `{name}` a dense tensor, got {value.layout}")
    if value.device != target.device:
        raise ValueError(f"expected `{name}` on the device of `target`, {target.device}, got {value.device}")
    if value.shape not in (target.shape, rows):
        known = " or ".join(str(tuple(shape)) for shape in dict.fromkeys((target.shape, rows)))
        raise ValueError(f"expected `{name}` of shape {known} like `target`, got {tuple(value.shape)}")
    return value


def check_valid_mask(mask: Any, target: Tensor, rows: torch.Size) -> Tensor:
    """A boolean mask, True where a target counts."""
    checked = check_beside_target("valid_mask", mask, target, rows)
    if checked.dtype != torch.bool:
        raise TypeError(f"expected `valid_mask` of dtype torch.bool, got {checked.dtype}")
    return checked


def check_weight(weight: Any, target: Tensor, rows: torch.Size) -> Tensor:
    """Weights of a real dtype; their values are checked where they count."""
    checked = check_beside_target("weight", weight, target, rows)
    if checked.is_complex() or checked.dtype == torch.bool:
        raise TypeError(f"expected `weight` of a real dtype, got {checked.dtype}")
    return checked


def check_values(name: str, requirement: str, value: Tensor, good: Tensor) -> None:
    """Raise with the count and the first offending value where ``good`` is False."""
    if is_tracing() or bool(good.all()):
        return
    bad = ~good
    first = value[bad][0].item()
    raise ValueError(f"expected `{name}` {requirement}, got {first:g} ({int(bad.sum())} of {bad.numel()} values)")


def check_once(function: str) -> None:
    """Reject a second derivative in a backward pass that does not build a graph, where it would be silently wrong."""
    if torch.is_grad_enabled() and not is_tracing():
        raise RuntimeError(f"expected `create_graph` False: {function} is differentiable once, got True")


def check_count(count: float, *, at_least: int) -> None:
    """Check the number of targets that count, after masks, weights and ranks."""
    if not count >= at_least:
        needed = "1 value that counts" if at_least == 1 else f"{at_least} values that count"
        raise ValueError(f"expected `target` with at least {needed}, got {count:g}")
