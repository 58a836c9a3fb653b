"""Atomic files, checksums beside files, locks, and the provenance of results."""

import errno
import fcntl
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # cells are listed and read without torch; only tensors need it
    from torch import Tensor

_MARK, _RANDOM = ".fcal-", 8  # characters that tempfile draws
_TEMPORARY = re.compile(rf"\..*{re.escape(_MARK)}[a-z0-9_]{{{_RANDOM}}}(\.[^.]*)?")


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path in the same folder that is renamed to ``path`` if the block ends without an error.

    Readers see the old file or the whole new one; after an error or a kill the old file remains. What a killed process
    left half-written in the folder is removed when the next one writes there.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "numbers.txt"
        >>> with atomic_path(target) as temporary:
        ...     _ = temporary.write_text("1 2 3")
        >>> target.read_text()
        '1 2 3'
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    _tidied(target.parent, os.getpid())
    handle, temporary = _locked_temporary(target)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask())
        temporary.replace(target)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
        os.close(handle)  # and with it the lock


@contextmanager
def temporary_folder(beside: Path) -> Iterator[Path]:
    """A folder beside a file for as long as the block takes; one that a killed process left is removed later."""
    folder = Path(tempfile.mkdtemp(prefix=f".{beside.stem}-", dir=beside.parent))
    handle = os.open(folder, os.O_RDONLY)
    try:
        folder = _marked(folder, handle, beside.stem, "")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def is_temporary(name: str) -> bool:
    """Whether a file is named as one that is being written, or was when its process was killed."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder and below it; never what a living one is writing."""
    for root, folders, files in os.walk(folder):
        _remove_unlocked(Path(root), [*folders, *files])


@functools.lru_cache(maxsize=256)
def _tidied(folder: Path, process: int) -> None:  # noqa: ARG001 - once in every process, also in a forked one
    """Remove what killed processes left in a folder, once."""
    with suppress(OSError):
        _remove_unlocked(folder, os.listdir(folder))  # noqa: PTH208 - names are all that is needed, of many files


def _remove_unlocked(folder: Path, names: Iterable[str]) -> None:
    for path in (folder / name for name in names if is_temporary(name)):
        with suppress(OSError):  # a living process has locked it, or has just renamed it
            handle = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
            finally:
                os.close(handle)


def _locked_temporary(target: Path) -> tuple[int, Path]:
    """A new temporary file beside a target, and the handle that locks it until it is closed or its process dies."""
    # The suffix is kept: matplotlib and others choose the format by it.
    handle, name = tempfile.mkstemp(prefix=f".{target.stem}-", suffix=target.suffix, dir=target.parent)
    try:
        return handle, _marked(Path(name), handle, target.stem, target.suffix)
    except BaseException:
        os.close(handle)
        Path(name).unlink(missing_ok=True)
        raise


def _marked(path: Path, handle: int, stem: str, suffix: str) -> Path:
    """Lock a temporary and rename it to the pattern that is removed if nobody has locked it: in this order."""
    with suppress(OSError):  # a file system without locks, where nothing is removed either
        fcntl.flock(handle, fcntl.LOCK_EX)
    own = path.name[: len(path.name) - len(suffix)][-_RANDOM:]
    return path.rename(path.with_name(f".{stem}{_MARK}{own}{suffix}"))


@contextmanager
def removed_if_empty(folder: Path) -> Iterator[None]:
    """After an error, remove a folder that was created in the block and is empty."""
    existed = folder.exists()
    try:
        yield
    except BaseException:
        if not existed:
            with suppress(OSError):
                folder.rmdir()
        raise


def writable_folder(path: str | os.PathLike[str]) -> Path:
    """Create a folder if it does not exist; one that cannot be written to is rejected before any work is done.

    Raises:
        OSError: It cannot be created or written to.
        ValueError: The name is empty.
    """
    if not os.fspath(path):
        raise ValueError("expected the name of a folder, got ''")
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"expected a folder, got the file {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return folder


def is_utf8(name: str | os.PathLike[str]) -> bool:
    r"""Whether the name of a file is UTF-8, as Arrow and JSON need it; Linux allows any bytes.

    Example:
        >>> is_utf8("größe.csv"), is_utf8(os.fsdecode(b"gr\xf6\xdfe.csv"))
        (True, False)
    """
    try:
        os.fspath(name).encode("utf-8")
    except UnicodeEncodeError:  # Python keeps other bytes as half characters
        return False
    return True


def is_link_loop(name: str) -> bool:
    """Whether a path goes through a symbolic link that leads back to itself."""
    try:
        os.stat(name)  # noqa: PTH116 - also of names that are no path, such as those of columns
    except OSError as error:
        return error.errno == errno.ELOOP
    except ValueError:  # a null character
        return False
    return False


def write_json(path: str | os.PathLike[str], document: Any) -> None:
    """Write a JSON document atomically; NaN and infinity, which JSON lacks, are rejected."""
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256_of(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def held(path: str | os.PathLike[str]) -> Iterator[bool]:
    """Try to hold a lock during the block; yields whether this succeeded. A file that nobody has locked is no obstacle.

    The kernel releases the lock when its holder ends, even if it is killed.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "cell.lock"
        >>> with held(path) as ours, held(path) as again:
        ...     print(ours, again)
        True False
    """
    handle = _acquired(Path(path))
    if handle is None:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(FileNotFoundError):
            Path(path).unlink()  # while we hold it; whoever waits for the old file notices below
        os.close(handle)


def _acquired(path: Path) -> int | None:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        if _is_current(path, handle):
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())  # shows a reader who holds it
            return handle
        os.close(handle)


def _is_current(path: Path, handle: int) -> bool:
    """Whether the locked file still has this name: its last holder may have removed it."""
    try:
        return path.stat().st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def provenance() -> dict[str, Any]:
    """Versions, commit and machine, which are written beside every result."""
    return {
        "fcal": metadata.version("fcal"),
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
    }


def _commit() -> str | None:
    """Commit of the checkout that this package runs from, marked if it has changes; None if it is installed."""
    here = Path(__file__)
    tracked, describe = ["git", "ls-files", "--error-unmatch", here.name], ["git", "describe", "--always", "--dirty"]
    try:
        for command in (tracked, [*describe, "--exclude=*"]):
            run = subprocess.run(  # noqa: S603
                command, capture_output=True, text=True, check=True, timeout=10, cwd=here.parent
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


# Files beside cells that are too large for JSON, such as weights; a checksum detects damaged ones.


def seal(path: str | os.PathLike[str]) -> None:
    """Write the checksum of a complete file beside it, in the format of ``sha256sum``.

    Raises:
        OSError: The file is missing, or the checksum cannot be written.
    """
    path = Path(path)
    with atomic_path(_sidecar(path)) as temporary:
        temporary.write_bytes(_line(path, sha256_of(path)))


def write_artifact(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically, then its checksum; in between it counts as damaged."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
    seal(path)


def is_whole(path: str | os.PathLike[str]) -> bool:
    """Whether a file exists and has the checksum beside it."""
    try:
        return _line(Path(path), sha256_of(path)) == _sidecar(Path(path)).read_bytes()
    except OSError:
        return False


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
        return _verified(path)
    except FileNotFoundError as error:
        if not path.exists():
            return None
        reason = f"{Path(error.filename).name} is missing"
    except (OSError, ValueError) as error:  # a folder of this name, or an unreadable or damaged file
        reason = getattr(error, "strerror", None) or str(error)
    warnings.warn(f"the artifact {path} is not used: {reason}", UserWarning, stacklevel=2)
    return None


def _verified(path: Path) -> bytes:
    line, content = _sidecar(path).read_bytes(), path.read_bytes()
    if _line(path, hashlib.sha256(content).hexdigest()) != line:
        raise ValueError("its checksum does not fit")
    return content


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


def _line(path: Path, digest: str) -> bytes:
    """What ``sha256sum`` prints for a file; the whole line is compared, so that a flipped bit in the name counts."""
    return f"{digest}  {path.name}\n".encode()


def _sidecar(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")
