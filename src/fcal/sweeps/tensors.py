"""Tensors beside cells, as safetensors with a checksum; nothing is unpickled."""

import os
import warnings
from collections.abc import Mapping

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fcal.sweeps.artifacts import read_artifact, write_artifact


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors, such as a module's ``state_dict()``, and their checksum.

    Raises:
        TypeError: A value is not a tensor.
        OSError: They cannot be written.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"expected `tensors` of torch.Tensor, got {type(tensor).__name__} for {name!r}")
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
