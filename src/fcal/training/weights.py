"""Weights of a network as safetensors."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

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
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in {**own, **state}:
        there = tuple(state[name].shape) if name in state else None
        if own.get(name) != there:
            raise ValueError(
                f"expected {path} with weights of this network, got {name} of {there}, not {own.get(name)}"
            )
    model.load_state_dict(state)
