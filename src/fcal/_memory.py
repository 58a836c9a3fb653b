"""Settings of the memory allocator."""

import torch

_LARGE_BLOCK = 24 << 20  # bytes; glibc learns from blocks up to 32 MB


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks of memory for reuse, by freeing one large block; without glibc this does nothing.

    Otherwise the buffers of every chunk or step are returned to the system and mapped again in the next, which takes a
    third to a half of the time of training small networks and of a pass over a file.
    """
    torch.empty(_LARGE_BLOCK, dtype=torch.uint8)
