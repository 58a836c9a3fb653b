"""A training as a cell: its weights are stored under the address of its config."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from fcal.sweeps import Cell, Store, load_tensors, save_tensors

WEIGHTS = ".safetensors"
Network = TypeVar("Network", bound=nn.Module)


def training_cell(
    kind: str, config: Mapping[str, Any], *, needs: tuple[Cell, ...] = (), affinity: str | None = None, label: str = ""
) -> Cell:
    """A cell that stores weights in addition to its result."""
    return Cell(kind, config, needs=needs, artifacts=(WEIGHTS,), affinity=affinity, label=label)


def save_networks(store: Store, kind: str, config: Mapping[str, Any], networks: Sequence[nn.Module]) -> None:
    """Write the weights of a training's networks into one file."""
    weights = {
        f"{number}.{name}": value
        for number, network in enumerate(networks)
        for name, value in network.state_dict().items()
    }
    save_tensors(store.artifact(kind, config, WEIGHTS), weights)


def load_networks(
    store: Store, kind: str, config: Mapping[str, Any], new: Callable[[], Network], count: int = 1
) -> list[Network]:
    """Load the weights of a training into new networks, in evaluation mode.

    Raises:
        FileNotFoundError: There are no weights, or they are damaged.
    """
    path = store.artifact(kind, config, WEIGHTS)
    weights = load_tensors(path)
    if weights is None:
        raise FileNotFoundError(f"expected the weights of {kind} in {path}")
    networks = [new() for _ in range(count)]
    for number, network in enumerate(networks):
        network.load_state_dict({name: weights[f"{number}.{name}"] for name in network.state_dict()})
    return [network.eval() for network in networks]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator, which initial weights and some objectives draw from, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def in_order(networks: Sequence[Network]) -> Callable[..., Network]:
    """A replacement of the function that trained networks in this order: it returns the stored ones."""
    waiting = iter(networks)
    return lambda *_: next(waiting)
