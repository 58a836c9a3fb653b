"""How the allocator treats what is freed."""

import torch

_LARGE_BLOCK = 24 << 20  # bytes; glibc learns from blocks up to 32 MB


def keep_freed_memory() -> None:
    """Free one large block: from then on glibc keeps freed blocks below its size instead of returning them.

    Otherwise the buffers of every chunk or step go back to the system and are faulted in again in the next, which
    takes a third to a half of the time of small networks and of a pass over a file. Elsewhere this does nothing.
    """
    torch.empty(_LARGE_BLOCK, dtype=torch.uint8)
