"""Checksums of a folder, in the format that ``sha256sum -c`` reads."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from fcal._files import atomic_path

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
    lines = [f"{_sum(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    with atomic_path(folder / SUMS) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def check_sums(folder: Path, *, only: str | None = None) -> None:
    """Check every file that a folder's checksums name, or one of them.

    Raises:
        ValueError: There are none, or a file is missing or has another checksum.
    """
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        named = {name: checksum for checksum, _, name in (line.partition("  ") for line in lines)}
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"expected {folder} a finished run, got one without readable {SUMS}") from None
    if only is not None:
        if only not in named:
            raise ValueError(f"expected {folder / SUMS} with a line for {only}, got none")
        named = {only: named[only]}
    for name, checksum in named.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"expected {path}, got no such file")
        if _sum(path) != checksum:
            raise ValueError(f"expected {path} with the checksum in {SUMS}, got another: the file is damaged")


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
