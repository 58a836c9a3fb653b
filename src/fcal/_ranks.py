"""Sums over the ranks of a data-parallel run, with the gradient of the global batch.

Every rank holds the same loss g(S), S a sum over ranks, and its gradients are summed over ranks without scaling: that
gives world_size * dg/dS on each rank, a factor that the averaging of DistributedDataParallel takes away again.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

Result = TypeVar("Result")


def world_size() -> int:
    """Number of ranks that share the batch; 1 outside of ``torch.distributed``."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1


def all_reduced(local: Tensor) -> Tensor:
    """Sum of a tensor over all ranks, without gradient; with one rank, the tensor itself."""
    if world_size() == 1:
        return local
    total = local.detach().contiguous().clone()
    distributed.all_reduce(total)
    return total


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        return all_reduced(local)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return all_reduced(grads[0])


def sum_over_ranks(local: Callable[[], Tensor], *, size: int, device: torch.device) -> Tensor:
    """Sum what ``local`` returns over all ranks, with gradient; with one rank, just return it.

    A rank that raised before the collective would leave the others waiting for their time-out, so its failure
    travels with the sum: every rank takes part, then every rank raises.

    Args:
        local: Computes this rank's float64 vector. Shape ``(size,)``.
        size: Length of that vector, needed when ``local`` raises.
        device: Device of that vector.

    Returns:
        The sum, the same on every rank. Shape ``(size,)``.

    Raises:
        Exception: What ``local`` raised on this rank; a ``RuntimeError`` where it raised on others only.
    """
    if world_size() == 1:
        return local()
    try:
        flagged = torch.cat([local(), torch.zeros(1, dtype=torch.float64, device=device)])
    except Exception:
        all_reduced(_flags(size + 1, 1.0, device))
        raise
    total: Tensor = _SumOverRanks.apply(flagged)
    _raise_for_others(total[-1])
    return total[:-1]


def together(local: Callable[[], Result], *, device: torch.device, sync: bool) -> Result:
    """Run ``local`` on every rank; where it raises on one, it raises on all. Without ``sync``, just run it."""
    if not sync or world_size() == 1:
        return local()
    try:
        result = local()
    except Exception:
        all_reduced(_flags(1, 1.0, device))
        raise
    _raise_for_others(all_reduced(_flags(1, 0.0, device))[-1])
    return result


def gathered(local: Callable[[], Tensor], *, columns: int, device: torch.device, sync: bool) -> tuple[Tensor, int]:
    """Rows of all ranks below each other, without gradient, for losses that need more of a batch than its sums.

    As with :func:`sum_over_ranks`, every rank must call it, and what raises on one rank raises on all.

    Args:
        local: Computes this rank's float64 rows. Shape ``(n, columns)``, n its own on every rank.
        columns: Their length.
        device: Their device.
        sync: Without it, or with one rank, the rows are just this rank's.

    Returns:
        The rows, the same on every rank, and where this rank's own start.
    """
    own = together(local, device=device, sync=sync).detach()
    if not sync or world_size() == 1:
        return own, 0
    rank = distributed.get_rank()
    sizes = torch.zeros(world_size(), dtype=torch.int64, device=device)
    sizes[rank] = len(own)
    distributed.all_reduce(sizes)
    padded = torch.zeros(int(sizes.max()), columns, dtype=torch.float64, device=device)
    padded[: len(own)] = own
    parts = [torch.empty_like(padded) for _ in sizes]
    distributed.all_gather(parts, padded)
    rows = torch.cat([part[:size] for part, size in zip(parts, sizes.tolist(), strict=True)])
    return rows, int(sizes[:rank].sum())


def _flags(size: int, last: float, device: torch.device) -> Tensor:
    """Zeros, the last of which says whether this rank failed; on a device that collectives know."""
    known = device if device.type in ("cpu", "cuda") else torch.device("cpu")
    flags = torch.zeros(size, dtype=torch.float64, device=known)
    flags[-1] = last
    return flags


def _raise_for_others(failed: Tensor) -> None:
    failures = int(failed.item())
    if failures:
        raise RuntimeError(f"expected a valid batch on every rank, got an error on {failures} other rank(s)")
