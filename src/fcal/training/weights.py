"""Weights of a network as safetensors."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from fcal._files import atomic_path


def write_weights(path: Path, model: nn.Module) -> None:
    """Write a network's state, atomically."""
    # Copies, because safetensors refuses tensors that share memory and formats other than contiguous.
    state = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in model.state_dict().items()
    }
    content = save(state)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def read_weights(path: Path, model: nn.Module) -> None:
    """Load a network's state, in place.

    Raises:
        ValueError: The file cannot be read, or is of another network.
    """
    try:
        state = load(path.read_bytes())
    except OSError as error:
        raise ValueError(f"expected {path} with weights, got: {error.strerror}") from None
    except SafetensorError as error:
        raise ValueError(f"expected {path} in the safetensors format, got {error}") from None
    check_fits(path, state, model)
    model.load_state_dict(state)


def check_fits(source: object, state: Mapping[str, Tensor], model: nn.Module) -> None:
    """Refuse the state of another network in one line.

    Raises:
        ValueError: A tensor is missing, is not known, or has another shape.
    """
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in {**own, **state}:
        here, there = own.get(name), tuple(state[name].shape) if name in state else None
        if here != there:
            raise ValueError(f"expected {source} with weights of this network, got {_unlike(name, there, here)}")


def _unlike(name: str, there: tuple[int, ...] | None, here: tuple[int, ...] | None) -> str:
    if there is None:
        return f"no {name}, of shape {here} here"
    return f"{name} of shape {there}, " + ("which it does not have" if here is None else f"not {here}")
