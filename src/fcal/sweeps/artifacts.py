"""Files beside cells that are too large for JSON, such as weights; a checksum tells damaged ones."""

import hashlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fcal._files import atomic_path, sha256_of

if TYPE_CHECKING:  # cells are listed and read without torch; only tensors need it
    from torch import Tensor


def seal(path: str | os.PathLike[str]) -> None:
    """Write the checksum of a complete file beside it, in the format of ``sha256sum``.

    Raises:
        OSError: The file is missing, or the checksum cannot be written.
    """
    path = Path(path)
    line = f"{sha256_of(path)}  {path.name}\n"
    with atomic_path(_sidecar(path)) as temporary:
        temporary.write_text(line, encoding="utf-8")


def write_artifact(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically, then its checksum; in between it counts as damaged."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
    seal(path)


def is_whole(path: str | os.PathLike[str]) -> bool:
    """Whether a file exists and has the checksum beside it."""
    return _damage(Path(path)) is None


def read_artifact(path: str | os.PathLike[str]) -> bytes | None:
    """The content of a file, or None if it is missing; also None, with a warning, if it is damaged.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "weights.bin"
        >>> read_artifact(path) is None
        True
        >>> write_artifact(path, b"123")
        >>> read_artifact(path)
        b'123'
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        if _expected_sum(path) == hashlib.sha256(content).hexdigest():
            return content
    except FileNotFoundError:
        if not path.exists():
            return None
    except OSError:  # a folder of this name, or an unreadable file: the warning says which
        pass
    warnings.warn(f"the artifact {path} is not used: {_damage(path) or 'it was damaged'}", UserWarning, stacklevel=2)
    return None


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, "Tensor"]) -> None:
    """Write named tensors, such as a module's ``state_dict()``, as safetensors with a checksum.

    Raises:
        TypeError: A value is not a tensor, or is sparse or complex.
        OSError: They cannot be written.
    """
    import torch
    from safetensors.torch import save

    if not isinstance(tensors, Mapping):
        raise TypeError(f"expected `tensors` a mapping of names to tensors, got {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise TypeError(f"expected `tensors` of torch.Tensor by name, got {type(tensor).__name__} for {name!r}")
        if tensor.is_complex() or tensor.layout != torch.strided or tensor.is_quantized:
            raise TypeError(f"expected `tensors` dense and real, got {tensor.dtype}, {tensor.layout} for {name!r}")
    # Cloned, because safetensors refuses tensors that share memory, such as tied weights.
    write_artifact(path, save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}))


def load_tensors(path: str | os.PathLike[str]) -> dict[str, "Tensor"] | None:
    """Named tensors on the CPU, or None if the file is missing; also None, with a warning, if it is damaged.

    Example:
        >>> import tempfile, torch
        >>> path = tempfile.mkdtemp() + "/weights.safetensors"
        >>> save_tensors(path, {"scale": torch.tensor([1.0, 2.0])})
        >>> load_tensors(path)
        {'scale': tensor([1., 2.])}
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    content = read_artifact(path)
    if content is None:
        return None
    try:
        return load(content)
    except SafetensorError as error:
        warnings.warn(f"the artifact {path} is not used: {error}", UserWarning, stacklevel=2)
        return None


def _damage(path: Path) -> str | None:
    """Why a file cannot be used, or None."""
    try:
        return None if _expected_sum(path) == sha256_of(path) else "its checksum does not fit"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        return str(error.strerror)


def _expected_sum(path: Path) -> str:
    return _sidecar(path).read_bytes()[:64].decode("ascii", errors="replace")


def _sidecar(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")
