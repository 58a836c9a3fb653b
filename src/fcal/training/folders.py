"""Folders that one process at a time trains in, and that a refused training leaves as they were."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fcal._files import held

_LOCK = ".lock"


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other trainings out of a folder for the block.

    Raises:
        ValueError: Another process is at work there.
    """
    with held(folder / _LOCK) as ours:
        if not ours:
            raise ValueError(f"expected a folder of its own, got {folder}: another process is training there")
        yield


@contextmanager
def removed_if_empty(folder: Path) -> Iterator[None]:
    """Remove a folder that was not there before, if after an error nothing is in it."""
    ours = not folder.exists()
    try:
        yield
    except BaseException:
        if ours:
            with suppress(OSError):
                folder.rmdir()
        raise


@contextmanager
def undone_if_refused(made: list[Path], kept: Path) -> Iterator[None]:
    """After an error, remove what the block has made: it would be in the way of the corrected command.

    Args:
        made: Files and folders; those that were there before stay.
        kept: A folder; once it, or one in it, has a checkpoint or the line of an epoch, nothing is removed.
    """
    ours = [path for path in made if not path.exists()]
    try:
        yield
    except BaseException:
        if not any(kept.rglob("checkpoint*")) and not any(kept.rglob("history.csv")):
            for path in ours:
                _remove(path)
        raise


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
