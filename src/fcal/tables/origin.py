"""The note beside a repaired file that says where it comes from."""

import json
import os
from pathlib import Path
from typing import Any

from fcal._files import sha256_of, write_json
from fcal.tables.errors import file_error, in_words

_ENDING = ".origin.json"


def write_origin(out: str | os.PathLike[str], document: dict[str, Any]) -> Path:
    """Write a note beside a file, named like it with ``.origin.json`` after it.

    Args:
        out: The file, already written.
        document: What to say of it, ready for JSON; ``sha256``, of the file, is added.

    Returns:
        Path of the note.

    Example:
        >>> import pathlib, tempfile
        >>> out = pathlib.Path(tempfile.mkdtemp()) / "repaired.csv"
        >>> _ = out.write_text("mean,std,target")
        >>> write_origin(out, {"method": "temperature"}).name
        'repaired.csv.origin.json'
        >>> read_origin(out)["method"]
        'temperature'
    """
    note = _note(out)
    write_json(note, {**document, "sha256": sha256_of(out)})
    return note


def read_origin(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The note beside a file; None where there is none, or where the file is another one by now.

    Raises:
        TableError: The note is not JSON, or not one of ours.
    """
    note = _note(path)
    try:
        document = json.loads(note.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise file_error(note, "a JSON document", in_words(error)) from None
    if not isinstance(document, dict) or not isinstance(document.get("sha256"), str):
        raise file_error(note, "a JSON object with a sha256", type(document).__name__)
    return document if Path(path).is_file() and document["sha256"] == sha256_of(path) else None


def _note(path: str | os.PathLike[str]) -> Path:
    return Path(os.fspath(path) + _ENDING)
