"""Files beside cells that are too big to commit, each with its sha256: a flipped bit is noticed, not loaded."""

import hashlib
import os
import warnings
from pathlib import Path

from fcal._files import atomic_path, sha256_of


def seal(path: str | os.PathLike[str]) -> None:
    """Write the checksum of a file that is complete beside it, in the format of ``sha256sum``.

    Raises:
        OSError: The file is not there or the checksum cannot be written.
    """
    path = Path(path)
    line = f"{sha256_of(path)}  {path.name}\n"
    with atomic_path(_sidecar(path)) as temporary:
        temporary.write_text(line, encoding="utf-8")


def write_artifact(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically, and its checksum after it: between the two it counts as damaged, never as whole."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
    seal(path)


def is_whole(path: str | os.PathLike[str]) -> bool:
    """Whether a file is there with the checksum beside it."""
    return damage(path) is None


def read_artifact(path: str | os.PathLike[str]) -> bytes | None:
    """The content of a whole file; None where it is absent, and with a warning where it is damaged.

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
        if _written(path) == hashlib.sha256(content).hexdigest():
            return content
    except FileNotFoundError:
        if not path.exists():
            return None
    except OSError:  # a folder of this name, or a file that may not be read: told below
        pass
    warnings.warn(f"the artifact {path} is not used: {damage(path) or 'it was damaged'}", UserWarning, stacklevel=2)
    return None


def damage(path: str | os.PathLike[str]) -> str | None:
    """Why a file cannot be used; None for one that is whole."""
    path = Path(path)
    try:
        expected, found = _written(path), sha256_of(path)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        return str(error.strerror)
    return None if expected == found else "its checksum does not fit"


def _sidecar(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _written(path: Path) -> str:
    return _sidecar(path).read_bytes()[:64].decode("ascii", errors="replace")
