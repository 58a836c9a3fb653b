"""Finished cells as small JSON files, addressed by their config: none is computed twice, none is trusted unread."""

import functools
import hashlib
import json
import os
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcal._files import atomic_path, provenance
from fcal.sweeps.keys import canonical, file_stem, key, plain, plain_config

_FORMAT, _VERSION = "fcal.cell", 1
_LARGEST = 200_000  # bytes; cells are committed
_DAMAGE = (ValueError, TypeError, OSError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class Record:
    """A finished cell as it lies on disk.

    Attributes:
        kind: What sort of cell it is.
        config: Its resolved config.
        result: What it found.
        seconds: How long it took; None where nobody said.
        provenance: Versions, commit and machine that it was made with.
        path: Its file.
    """

    kind: str
    config: dict[str, Any]
    result: Any
    seconds: float | None
    provenance: dict[str, Any]
    path: Path


class Store:
    """Finished cells, one JSON file each.

    A file whose config does not hash to its name, or whose checksum does not fit, is never used: a warning names it,
    and the cell counts as absent.

    Args:
        folder: Where new cells are written, such as ``runs/bokeh/cells``. Artifacts and locks lie beside it.
        committed: Folders that are read too and never written, such as ``docs/results/bokeh/cells``.

    Example:
        >>> import tempfile
        >>> store = Store(tempfile.mkdtemp() + "/cells")
        >>> store.get("train", {"seed": 0}) is None
        True
        >>> path = store.put("train", {"seed": 0}, {"ece": 0.25}, seconds=1.5)
        >>> store.get("train", {"seed": 0})
        {'ece': 0.25}
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        committed: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    ) -> None:
        self.folder = Path(folder)
        further = () if committed is None else (committed,) if isinstance(committed, str | os.PathLike) else committed
        self.committed = tuple(Path(path) for path in further)
        for path in (self.folder, *self.committed):
            if path.exists() and not path.is_dir():
                raise ValueError(f"expected `{path}` a folder of cells, got a file")

    def __repr__(self) -> str:
        return f"Store({str(self.folder)!r}, committed={[str(path) for path in self.committed]!r})"

    def get(self, kind: str, config: Mapping[str, Any]) -> Any:
        """The result of a finished cell, or None."""
        record = self.record(kind, config)
        return None if record is None else record.result

    def record(self, kind: str, config: Mapping[str, Any]) -> Record | None:
        """A finished cell with its seconds and provenance, or None."""
        stem, asked = file_stem(kind, config), canonical(kind, config)
        for folder in (self.folder, *self.committed):
            record = _checked(folder / f"{stem}.json")
            if record is not None and canonical(record.kind, record.config) == asked:
                return record
        return None

    def put(self, kind: str, config: Mapping[str, Any], result: Any, *, seconds: float | None = None) -> Path:
        """Write a finished cell: the whole file or none.

        Args:
            kind: What sort of cell it is.
            config: Its resolved config.
            result: JSON in Python's types, without NaN or infinity, at most 200 kB of it.
            seconds: How long it took.

        Returns:
            The file.

        Raises:
            TypeError: Something in config or result is not plain.
            ValueError: A number is not finite (its path is named), the result is None, or it is too large.
            OSError: It cannot be written.
        """
        if result is None:
            raise ValueError("expected `result` something to keep, got None")
        if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
            raise TypeError(f"expected `seconds` a number, got {type(seconds).__name__} {seconds!r}")
        document = {
            "format": _FORMAT,
            "version": _VERSION,
            "kind": kind,
            "config": plain_config(config),
            "result": plain("result", result),
            "seconds": plain("seconds", seconds),
            "provenance": dict(origin()),
        }
        text = _laid_out({**document, "sha256": _digest(document)})
        if len(text.encode()) > _LARGEST:
            raise ValueError(f"expected `result` small enough for a cell of {_LARGEST} bytes, got {len(text.encode())}")
        path = self.folder / f"{file_stem(kind, config)}.json"
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        return path

    def records(self, kind: str | None = None) -> Iterator[Record]:
        """Every finished cell, of one kind or of all, by file name; the writable folder comes before the others."""
        paths: dict[str, list[Path]] = {}
        for folder in (self.folder, *self.committed):
            for path in folder.glob("*.json"):
                if not path.name.startswith("."):  # one that is being written
                    paths.setdefault(path.name, []).append(path)
        for name in sorted(paths):
            record = next((found for path in paths[name] if (found := _checked(path)) is not None), None)
            if record is not None and kind in (None, record.kind):
                yield record

    def publish(
        self, folder: str | os.PathLike[str], kind: str | None = None, *, only: Container[str] | None = None
    ) -> list[Path]:
        """Copy cells of the writable folder to one that is committed; whole ones that are there stay.

        Args:
            folder: Where to.
            kind: What sort of cells; all where None.
            only: Keys of the cells to copy; all where None.

        Returns:
            The files that are new.
        """
        written = []
        for record in Store(self.folder).records(kind):
            target = Path(folder) / record.path.name
            wanted = only is None or key(record.kind, record.config) in only
            if wanted and _checked(target) is None:
                with atomic_path(target) as temporary:
                    temporary.write_bytes(record.path.read_bytes())
                written.append(target)
        return written

    def artifact(self, kind: str, config: Mapping[str, Any], suffix: str) -> Path:
        """Where something too big for a cell lies, such as weights: beside the writable folder, never committed.

        Args:
            kind: What sort of cell it belongs to.
            config: That cell's resolved config.
            suffix: End of the file's name, such as ``".safetensors"``.

        Example:
            >>> Store("runs/bokeh/cells").artifact("train", {"seed": 0}, ".safetensors").parent.as_posix()
            'runs/bokeh/artifacts'
        """
        return self._beside("artifacts", kind, config, suffix)

    def lock(self, kind: str, config: Mapping[str, Any]) -> Path:
        """The file that whoever computes this cell holds locked."""
        return self._beside("locks", kind, config, ".lock")

    def _beside(self, room: str, kind: str, config: Mapping[str, Any], suffix: str) -> Path:
        if not isinstance(suffix, str):
            raise TypeError(f"expected `suffix` a string, got {type(suffix).__name__}")
        if not suffix.startswith(".") or "/" in suffix or len(suffix) < 2:
            raise ValueError(f"expected `suffix` such as '.safetensors', got {suffix!r}")
        return self.folder.parent / room / f"{file_stem(kind, config)}{suffix}"


@functools.cache
def origin() -> Mapping[str, Any]:
    """Provenance of this process, asked once: what it has loaded does not change when somebody commits meanwhile."""
    return provenance()


def _checked(path: Path) -> Record | None:
    """A cell's file if it is there and whole; a warning names one that is damaged."""
    try:
        return _read(path)
    except FileNotFoundError:
        return None
    except _DAMAGE as error:
        reason = " ".join(str(error).split())[:200]
        warnings.warn(f"the cell {path} is not used: {reason}", UserWarning, stacklevel=3)
        return None


def _read(path: Path) -> Record:
    try:
        document = json.loads(path.read_bytes().decode("utf-8"))
    except ValueError as error:  # not UTF-8, or not JSON
        raise ValueError(f"it is damaged ({error})") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT or document.get("version") != _VERSION:
        raise ValueError(f"it is no cell of version {_VERSION}")
    if document.pop("sha256", None) != _digest(document):
        raise ValueError("its checksum does not fit: it was edited or damaged")
    fields: dict[str, Any] = {
        name: document.get(name) for name in ("kind", "config", "result", "seconds", "provenance")
    }
    if path.name != f"{file_stem(fields['kind'], fields['config'])}.json":
        raise ValueError("its config does not hash to its name")
    return Record(**fields, path=path)


def _digest(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _laid_out(document: Mapping[str, Any]) -> str:
    """JSON with a line for every entry of the two outer levels: readable, and small where lists are long."""
    return "{\n" + ",\n".join(f' "{name}": {_lines(value)}' for name, value in document.items()) + "\n}\n"


def _lines(value: Any) -> str:
    if not isinstance(value, dict) or not value:
        return json.dumps(value, allow_nan=False)
    return "{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in value.items()) + "\n }"
