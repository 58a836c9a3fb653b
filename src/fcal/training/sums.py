"""Checksums of a folder, in the format that ``sha256sum -c`` reads."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from fcal._files import atomic_path, sha256_of

SUMS = "SHA256SUMS"


def write_sums(folder: Path, files: Sequence[Path]) -> None:
    r"""Write the checksums of files below a folder, atomically.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.txt").write_text("")
        >>> write_sums(folder, [folder / "a.txt"])
        >>> (folder / "SHA256SUMS").read_text()
        'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a.txt\n'
    """
    lines = [f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    with atomic_path(folder / SUMS) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def check_sums(folder: Path, *, required: Sequence[str] = (), only: str | None = None) -> list[str]:
    """Check every file that a folder's checksums name, or one of them.

    Args:
        folder: Where they are.
        required: Names that must be among them: a list that was cut vouches for nothing that it lost.
        only: The one file to check.

    Returns:
        The names.

    Raises:
        ValueError: There are none, a line is none of ours, a name is missing, or a file is missing or has another
            checksum.
    """
    named = _read(folder)
    for name in (*required, *([] if only is None else [only])):
        if name not in named:
            raise ValueError(f"expected {folder / SUMS} with a line for {name}, got none")
    for name in named if only is None else [only]:
        path = folder / name
        if not path.is_file():
            raise ValueError(f"expected {path}, got no such file")
        if sha256_of(path) != named[name]:
            raise ValueError(f"expected {path} with the checksum in {SUMS}, got another: the file is damaged")
    return list(named)


def _read(folder: Path) -> dict[str, str]:
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):  # not there, not UTF-8, or a name that no file can have
        raise ValueError(f"expected {folder} a finished run, got one without readable {SUMS}") from None
    named: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        found = re.fullmatch(r"([0-9a-f]{64})  ([^\x00]+)", line)
        if found is None or not _stays_inside(found[2]) or found[2] in named:
            raise ValueError(f"expected {folder / SUMS} of checksums and names, got {line[:100]!r} in line {number}")
        named[found[2]] = found[1]
    return named


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
