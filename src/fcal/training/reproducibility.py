"""Seeds derived from a position in training, and batches in an order that depends on the seed and the epoch alone."""

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcal._datasets import Batch, get_batch, length_of


def derived_seed(purpose: str, *numbers: int) -> int:
    """A seed for a purpose and a position, the same on every machine.

    Example:
        >>> derived_seed("order", 0, 3) == derived_seed("order", 0, 3) != derived_seed("order", 3, 0)
        True
    """
    text = "/".join([purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def seed_everything(seed: int) -> None:
    """Seed the global generators of torch, NumPy and Python."""
    # torch.manual_seed formats a traceback whenever CUDA is not in use yet, which costs more than a small network.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - datasets may draw from the global state
    random.seed(seed)


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Restore the global random state at the end of the block."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    gpu_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
        if gpu_states:
            torch.cuda.set_rng_state_all(gpu_states)


def generators_in(*holders: Any) -> list[torch.Generator]:
    """Generators that modules hold as attributes, in a fixed order; checkpoints store their states."""
    modules = [module for holder in holders if isinstance(holder, torch.nn.Module) for module in holder.modules()]
    return [value for module in modules for value in vars(module).values() if isinstance(value, torch.Generator)]


class Batches:
    """Batches of a dataset, all of about the same size, so that none is too small for a loss that couples its rows.

    Args:
        dataset: Has ``__len__`` and ``__getitem__``; if it has ``__getitems__(indices)``, that returns a whole batch.
        size: Maximum number of rows in a batch.
        seed: Seed of the order and of the dataset's own randomness; None keeps the rows in their order.
        position: Returns the position to start from: the epoch, and the number of its batches that are done.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.arange(5.0), torch.arange(5.0))
        >>> [batch["input"].tolist() for batch in Batches(data, 2)]
        [[0.0, 1.0], [2.0, 3.0], [4.0]]
        >>> [len(batch["input"]) for batch in Batches(data, 4, seed=0)]
        [3, 2]
    """

    def __init__(
        self, dataset: Any, size: int, *, seed: int | None = None, position: Callable[[], tuple[int, int]] | None = None
    ) -> None:
        self.rows = length_of(dataset)
        self._dataset = dataset
        self._size = size
        self._seed = seed
        self._position = position or (lambda: (0, 0))

    def __len__(self) -> int:
        return -(-self.rows // self._size)

    def __iter__(self) -> Iterator[Batch]:
        epoch, done = self._position()  # evaluated only now: a checkpoint may have been loaded before
        chunks = self._order(epoch).tensor_split(len(self))
        for number, indices in enumerate(chunks[done:], start=done):
            if self._seed is not None:
                seed_everything(derived_seed("data", self._seed, epoch, number))
            yield get_batch(self._dataset, indices.tolist())

    def _order(self, epoch: int) -> Tensor:
        if self._seed is None:
            return torch.arange(self.rows)
        generator = torch.Generator().manual_seed(derived_seed("order", self._seed, epoch))
        return torch.randperm(self.rows, generator=generator)

    def state_dict(self) -> dict[str, int]:
        """Empty, because the record holds the position; Lightning asks resumable loaders for their state."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do nothing: there is no state."""
