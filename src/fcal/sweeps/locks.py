"""One run computes a cell while others wait: the kernel frees the lock when its holder dies, however it dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Try to hold a lock for the block; gives whether we do. A file that nobody holds is no obstacle.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "cell.lock"
        >>> with held(path) as ours, held(path) as again:
        ...     print(ours, again)
        True False
    """
    handle = _acquired(path)
    if handle is None:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(FileNotFoundError):
            path.unlink()  # while it is ours; whoever waits on the old file notices below
        os.close(handle)


def _acquired(path: Path) -> int | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        if _still_there(path, handle):
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())  # for people who look
            return handle
        os.close(handle)


def _still_there(path: Path, handle: int) -> bool:
    """Whether the file that is locked is the one of this name: its last holder may have removed it meanwhile."""
    try:
        return path.stat().st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False
