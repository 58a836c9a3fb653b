"""Tensors beside cells, as safetensors with a checksum; nothing is unpickled."""

import os
import warnings
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fcal.sweeps.artifacts import read_artifact, write_artifact


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors, such as a module's ``state_dict()``, and their checksum.

    Raises:
        TypeError: A value is not a tensor, or a sparse or complex one.
        OSError: They cannot be written.
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(f"expected `tensors` a mapping of names to tensors, got {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise TypeError(f"expected `tensors` of torch.Tensor by name, got {type(tensor).__name__} for {name!r}")
        if tensor.is_complex() or tensor.layout != torch.strided or tensor.is_quantized:
            raise TypeError(f"expected `tensors` dense and real, got {tensor.dtype}, {tensor.layout} for {name!r}")
    # Cloned, because safetensors refuses tensors that share memory, such as tied weights.
    write_artifact(path, save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}))


def load_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor] | None:
    """Named tensors on the CPU; None where the file is absent, and with a warning where it is damaged.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/weights.safetensors"
        >>> save_tensors(path, {"scale": torch.tensor([1.0, 2.0])})
        >>> load_tensors(path)
        {'scale': tensor([1., 2.])}
    """
    content = read_artifact(path)
    if content is None:
        return None
    try:
        return load(content)
    except SafetensorError as error:
        warnings.warn(f"the artifact {path} is not used: {error}", UserWarning, stacklevel=2)
        return None
