"""Collectives over the ranks of a data-parallel run, with the gradient of the global batch.

Every rank computes the same loss g(S), where S is a sum over ranks, and gradients are summed over ranks without
scaling. That gives world_size * dg/dS on each rank; the averaging of DistributedDataParallel cancels the factor.

A rank that raised before a collective would leave the others waiting for their timeout. Therefore failures are
communicated: all ranks take part in the collective, and then all ranks raise.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

Result = TypeVar("Result")


def world_size() -> int:
    """Number of ranks that share the batch; 1 without ``torch.distributed``."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1


def all_reduce(local: Tensor) -> Tensor:
    """Sum of a tensor over all ranks, without gradient; with one rank, the tensor itself."""
    if world_size() == 1:
        return local
    total = local.detach().contiguous().clone()
    distributed.all_reduce(total)
    return total


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        return all_reduce(local)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return all_reduce(grads[0])


def sum_over_ranks(local: Callable[[], Tensor], *, size: int, device: torch.device) -> Tensor:
    """Sum of the vectors that ``local`` returns on all ranks, with gradient; with one rank, that vector.

    Args:
        local: Computes the float64 vector of this rank. Shape ``(size,)``.
        size: Length of the vector, needed if ``local`` raises.
        device: Device of the vector.

    Returns:
        The sum, the same on every rank. Shape ``(size,)``.

    Raises:
        Exception: The exception of ``local`` on this rank; a ``RuntimeError`` if it raised on other ranks only.
    """
    if world_size() == 1:
        return local()
    try:
        flagged = torch.cat([local(), torch.zeros(1, dtype=torch.float64, device=device)])
    except Exception:
        all_reduce(_flags(size + 1, 1.0, device))
        raise
    total: Tensor = _SumOverRanks.apply(flagged)
    _raise_for_others(total[-1])
    return total[:-1]


def run_on_all_ranks(local: Callable[[], Result], *, device: torch.device, sync: bool) -> Result:
    """Run ``local`` on every rank and raise on all if it raises on one; without ``sync``, just run it."""
    if not sync or world_size() == 1:
        return local()
    try:
        result = local()
    except Exception:
        all_reduce(_flags(1, 1.0, device))
        raise
    _raise_for_others(all_reduce(_flags(1, 0.0, device))[-1])
    return result


def gather_rows(local: Callable[[], Tensor], *, columns: int, device: torch.device, sync: bool) -> tuple[Tensor, int]:
    """Concatenated rows of all ranks, without gradient, for losses that need more of a batch than its sums.

    Args:
        local: Computes the float64 rows of this rank. Shape ``(n, columns)``; n may differ between ranks.
        columns: Length of a row.
        device: Device of the rows.
        sync: If False, or with one rank, only the rows of this rank are returned.

    Returns:
        The rows, the same on every rank, and the index of the first row of this rank.
    """
    own = run_on_all_ranks(local, device=device, sync=sync).detach()
    if not sync or world_size() == 1:
        return own, 0
    rank = distributed.get_rank()
    sizes = torch.zeros(world_size(), dtype=torch.int64, device=device)
    sizes[rank] = len(own)
    distributed.all_reduce(sizes)
    padded = torch.zeros(int(sizes.max()), columns, dtype=torch.float64, device=device)
    padded[: len(own)] = own
    shards = [torch.empty_like(padded) for _ in sizes]
    distributed.all_gather(shards, padded)
    rows = torch.cat([shard[:size] for shard, size in zip(shards, sizes.tolist(), strict=True)])
    return rows, int(sizes[:rank].sum())


def _flags(size: int, last: float, device: torch.device) -> Tensor:
    """Zeros, the last of which is 1 if this rank failed; on a device that collectives support."""
    known = device if device.type in ("cpu", "cuda") else torch.device("cpu")
    flags = torch.zeros(size, dtype=torch.float64, device=known)
    flags[-1] = last
    return flags


def _raise_for_others(failed: Tensor) -> None:
    failures = int(failed.item())
    if failures:
        raise RuntimeError(f"expected a valid batch on every rank, got an error on {failures} other rank(s)")
