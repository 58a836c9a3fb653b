"""Files of a fitted recalibrator: safetensors and JSON with checksums, never a pickle."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fcal._files import atomic_path, provenance, write_json

_DOCUMENT = "recalibrator.json"
_FORMAT = "fcal.recalibrator"
_VERSION = 1


def write(folder: str | os.PathLike[str], facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write facts and tensors; until the document is in place the earlier recalibrator stays readable.

    The tensors' file is named by its content, so a new one never overwrites what an old document refers to.
    """
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    checksum = hashlib.sha256(content).hexdigest()
    path = Path(folder) / f"recalibrator-{checksum[:12]}.safetensors"
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        **facts,
        "tensors": path.name,
        "tensors_sha256": checksum,
        "provenance": provenance(),
    }
    write_json(Path(folder) / _DOCUMENT, {**document, "sha256": _checksum(document)})
    for stale in Path(folder).glob("recalibrator-*.safetensors"):
        if stale != path:
            stale.unlink(missing_ok=True)


def read(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read facts and tensors, every byte checked.

    Raises:
        ValueError: Files are missing, damaged or of an unknown version.
    """
    document = _document(Path(folder) / _DOCUMENT)
    path = Path(folder) / Path(str(document.get("tensors"))).name
    content = _bytes(path)
    if hashlib.sha256(content).hexdigest() != document.get("tensors_sha256"):
        raise ValueError(f"expected {path} with the checksum in {_DOCUMENT}, got another: the file is damaged")
    try:
        return document, load(content)
    except SafetensorError as error:
        raise ValueError(f"expected {path} in the safetensors format, got {error}") from None


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(_bytes(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested beyond all measure
        raise ValueError(f"expected {path} a JSON document, got one that is damaged: {error}") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError(f"expected {path} a saved recalibrator, got another document")
    if document.get("version") != _VERSION:
        raise ValueError(f"expected {path} of version {_VERSION}, got {document.get('version')!r}")
    if document.pop("sha256", None) != _checksum(document):
        raise ValueError(f"expected {path} with its own checksum, got another: the file is damaged")
    return document


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"expected a recalibrator's file {path}, got {error.strerror}") from None


def _checksum(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
