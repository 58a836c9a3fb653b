"""Randomness as a function of a seed and a place, so that there is no state to lose."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def derived_seed(purpose: str, *numbers: int) -> int:
    """A seed of its own for every purpose and place, the same on every machine.

    Example:
        >>> derived_seed("order", 0, 3) == derived_seed("order", 0, 3) != derived_seed("order", 3, 0)
        True
    """
    text = "/".join([purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def seed_everything(seed: int) -> None:
    """Seed the generators that dropout, augmentation and draws take their numbers from where nothing else is said."""
    # torch.manual_seed formats a traceback whenever CUDA is not in use yet, which costs more than a small network.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the state that a dataset may draw from
    random.seed(seed)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Whatever is drawn or seeded within, the caller's random state is afterwards what it was."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
        if on_gpus:
            torch.cuda.set_rng_state_all(on_gpus)


def generators_in(*holders: Any) -> list[torch.Generator]:
    """Generators that modules hold as attributes, in a fixed order: their state belongs in a checkpoint."""
    modules = [part for holder in holders if isinstance(holder, torch.nn.Module) for part in holder.modules()]
    return [value for part in modules for value in vars(part).values() if isinstance(value, torch.Generator)]
