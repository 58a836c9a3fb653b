"""Outputs that can be written, checked before the work."""

from pathlib import Path

from fcal._files import writable_folder

_LONGEST_NAME = 200  # characters; temporaries and notes beside a file add some, and file systems end at 255


def check_writable(option: str, path: Path) -> None:
    """Refuse a file that could not be written.

    Raises:
        ValueError: It is a folder, its name is too long, or its folder cannot be written to.
    """
    if path.is_dir():
        raise ValueError(f"expected `{option}` a file to write, got the folder {path}")
    if len(path.name) > _LONGEST_NAME:
        raise ValueError(f"expected `{option}` a name of at most {_LONGEST_NAME} characters, got {len(path.name)}")
    try:
        writable_folder(path.parent)
    except OSError as error:
        raise ValueError(f"expected `{option}` in a folder that can be written to, got {error}") from None
