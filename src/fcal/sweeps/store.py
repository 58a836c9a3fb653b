"""Finished cells on disk: a small JSON file each while a benchmark runs, and one JSON-lines file when published."""

import functools
import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fcal._config import plain
from fcal._executor import one_torch_thread
from fcal._files import atomic_path, held, is_whole, provenance, remove_abandoned
from fcal.sweeps.cells import Cell, canonical, file_stem, key, plain_config

CellFunction: TypeAlias = Callable[[str, Mapping[str, Any], "Store"], Any]

_FORMAT, _VERSION = "fcal.cell", 1
_LARGEST = 200_000  # bytes; cells are committed
_DAMAGE = (ValueError, TypeError, OSError, RecursionError)
_FIELDS = ("kind", "config", "result", "seconds", "provenance")
_ARTIFACTS = "artifacts"
_PATIENCE = 0.5  # seconds between looks at a cell that another process computes


@dataclass(frozen=True, kw_only=True)
class Record:
    """A finished cell.

    Attributes:
        kind: Kind of cell.
        config: Its resolved config.
        result: Its result.
        seconds: How long it took, if known.
        provenance: Versions, commit and machine that it was computed with.
        path: The file that holds it.
    """

    kind: str
    config: dict[str, Any]
    result: Any
    seconds: float | None
    provenance: dict[str, Any]
    path: Path

    @functools.cached_property
    def stem(self) -> str:
        """Its kind and address."""
        return file_stem(self.kind, self.config)


class Store:
    """Finished cells: those of a run, one JSON file each, and published ones.

    A file or line whose checksum does not fit is never used: a warning names it, and the cell counts as missing.

    Args:
        folder: Where new cells are written, such as ``runs/bokeh/cells``. Artifacts and locks lie beside it.
        published: Files written by :func:`write_cells`, which are only read, such as
            ``docs/results/bokeh/cells.jsonl``.

    Example:
        >>> import tempfile
        >>> store = Store(tempfile.mkdtemp() + "/cells")
        >>> store.get("train", {"seed": 0}) is None
        True
        >>> path = store.put("train", {"seed": 0}, {"ece": 0.25}, seconds=1.5)
        >>> store.get("train", {"seed": 0})
        {'ece': 0.25}
    """

    def __init__(self, folder: str | os.PathLike[str], *, published: Sequence[str | os.PathLike[str]] = ()) -> None:
        self.folder = Path(folder)
        self.published = tuple(Path(path) for path in published)
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"expected `{self.folder}` a folder of cells, got a file")
        for path in self.published:
            if path.is_dir():
                raise ValueError(f"expected `published` files of cells, got the folder {path}")

    def __repr__(self) -> str:
        return f"Store({str(self.folder)!r}, published={[str(path) for path in self.published]!r})"

    def get(self, kind: str, config: Mapping[str, Any]) -> Any:
        """The result of a finished cell, or None."""
        record = self.record(kind, config)
        return None if record is None else record.result

    def record(self, kind: str, config: Mapping[str, Any]) -> Record | None:
        """A finished cell with its seconds and provenance, or None."""
        stem, address = file_stem(kind, config), canonical(kind, config)
        record = _checked(self.folder / f"{stem}.json")
        if record is not None and canonical(record.kind, record.config) == address:
            return record
        lines = (record for path in self.published if (record := _published(path).get(stem)) is not None)
        return next((record for record in lines if canonical(record.kind, record.config) == address), None)

    def is_finished(self, cell: Cell) -> bool:
        """Whether a cell has its result and its artifacts; a result of ``"status": "failed"`` needs no artifacts."""
        record = self.record(cell.kind, cell.config)
        if record is None:
            return False
        if isinstance(record.result, dict) and record.result.get("status") == "failed":
            return True
        return all(is_whole(self.artifact(cell.kind, cell.config, suffix)) for suffix in cell.artifacts)

    def put(
        self,
        kind: str,
        config: Mapping[str, Any],
        result: Any,
        *,
        seconds: float | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a finished cell: the whole file or none.

        Args:
            kind: Kind of cell.
            config: Its resolved config.
            result: JSON in Python's types, without NaN or infinity, at most 200 kB of it.
            seconds: How long it took.
            provenance: Versions, commit and machine; those of this process if None.

        Returns:
            The file.

        Raises:
            TypeError: Something in config or result is not plain.
            ValueError: A number is not finite (the error names its path), the result is None, or it is too large.
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
            "provenance": dict(origin() if provenance is None else provenance),
        }
        text = _laid_out({**document, "sha256": _digest(document)})
        if len(text.encode()) > _LARGEST:
            raise ValueError(f"expected `result` small enough for a cell of {_LARGEST} bytes, got {len(text.encode())}")
        path = self.folder / f"{file_stem(kind, config)}.json"
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        return path

    def remove_abandoned(self) -> None:
        """Remove cells and artifacts that killed processes left half-written."""
        for folder in (self.folder, self.folder.parent / _ARTIFACTS):
            remove_abandoned(folder)

    def compute(self, cell: Cell, function: CellFunction) -> Any:
        """The result of a cell: the stored one if it and its artifacts are whole, else it is computed and stored now.

        Args:
            cell: The cell; those that it needs are computed first, likewise only if they are not finished.
            function: ``function(kind, config, store) -> result``.

        Example:
            >>> import tempfile
            >>> store = Store(tempfile.mkdtemp() + "/cells")
            >>> store.compute(Cell("square", {"x": 3}), lambda kind, config, store: config["x"] ** 2)
            9
            >>> store.get("square", {"x": 3})
            9
        """
        while not self.is_finished(cell):
            for need in cell.needs:
                self.compute(need, function)
            with held(self.lock(cell.kind, cell.config)) as ours:
                if ours:
                    if not self.is_finished(cell):
                        self.compute_held(cell, function)
                    break
            time.sleep(_PATIENCE)
        return self.get(cell.kind, cell.config)

    def compute_held(self, cell: Cell, function: CellFunction) -> None:
        """Compute a cell whose lock this process holds, with one thread of torch, and store its result."""
        origin()
        start = time.perf_counter()
        with one_torch_thread():
            result = function(cell.kind, dict(cell.config), self)
        self.put(cell.kind, cell.config, result, seconds=round(time.perf_counter() - start, 3))

    def records(self, kind: str | None = None) -> Iterator[Record]:
        """Every finished cell of one kind, or of all, sorted by kind and address."""
        records: dict[str, Record] = {}
        for file in reversed(self.published):
            records |= _published(file)
        for path in self.folder.glob("*.json"):
            # A name that begins with a dot is of a file that is being written.
            if not path.name.startswith(".") and (record := _checked(path)) is not None:
                records[path.stem] = record
        for _, record in sorted(records.items()):
            if kind in (None, record.kind):
                yield record

    def publish(
        self,
        target: str | os.PathLike[str],
        kind: str | None = None,
        *,
        only: Container[str] | None = None,
        replace: bool = False,
    ) -> list[Path]:
        """Add cells of the writable folder to a published file; those that it has already stay as they are.

        Args:
            target: File for :func:`write_cells`.
            kind: Kind of cells; None for all.
            only: Keys of the cells to add; None for all.
            replace: Whether cells that the file has already are replaced by those that were computed again.

        Returns:
            The files of the cells that were added or replaced.
        """
        path = Path(target)
        chosen = [r for r in Store(self.folder).records(kind) if only is None or key(r.kind, r.config) in only]
        known = {record.stem: record for record in read_cells(path)}
        new = [record for record in chosen if replace or record.stem not in known]
        if new:
            write_cells(path, [*known.values(), *new])
        return [record.path for record in new]

    def artifact(self, kind: str, config: Mapping[str, Any], suffix: str) -> Path:
        """Path of a file that is too large for a cell, such as weights: beside the writable folder, never published.

        Args:
            kind: Kind of the cell that it belongs to.
            config: That cell's resolved config.
            suffix: End of the file's name, such as ``".safetensors"``.

        Example:
            >>> Store("runs/bokeh/cells").artifact("train", {"seed": 0}, ".safetensors").parent.as_posix()
            'runs/bokeh/artifacts'
        """
        return self._beside(_ARTIFACTS, kind, config, suffix)

    def lock(self, kind: str, config: Mapping[str, Any]) -> Path:
        """Path of the file that is locked while this cell is computed."""
        return self._beside("locks", kind, config, ".lock")

    def _beside(self, room: str, kind: str, config: Mapping[str, Any], suffix: str) -> Path:
        if not isinstance(suffix, str):
            raise TypeError(f"expected `suffix` a string, got {type(suffix).__name__}")
        if not suffix.startswith(".") or "/" in suffix or len(suffix) < 2:
            raise ValueError(f"expected `suffix` such as '.safetensors', got {suffix!r}")
        return self.folder.parent / room / f"{file_stem(kind, config)}{suffix}"


def write_cells(path: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Write cells to a JSON-lines file, atomically: one compact document with its checksum per line.

    Args:
        path: The file, replaced as a whole.
        records: Finished cells, in any order; they are sorted by kind and address. The last one of an address counts.
    """
    lines = []
    for _, record in sorted({record.stem: record for record in records}.items()):
        document = {name: getattr(record, name) for name in _FIELDS}
        lines.append(_compact({**document, "sha256": _digest(document)}) + "\n")
    with atomic_path(path) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def read_cells(path: str | os.PathLike[str]) -> list[Record]:
    """Cells of a file of :func:`write_cells`, in its order; a warning names each damaged line, which is skipped."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_record(_parsed(line), Path(path)))
        except _DAMAGE as error:
            _warn(f"in line {number} of {path}", error)
    return records


def _published(path: Path) -> Mapping[str, Record]:
    """Cells of a published file by kind and address; the file is read again only after it has changed."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return {}
    return _index(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=16)
def _index(path: Path, changed: int, size: int) -> Mapping[str, Record]:  # noqa: ARG001 - part of the cache's key
    return {record.stem: record for record in read_cells(path)}


@functools.cache
def origin() -> Mapping[str, Any]:
    """Provenance of this process, read once: the code that it has loaded stays the same when somebody commits."""
    return provenance()


def _checked(path: Path) -> Record | None:
    """The record in a cell's file; None if it is missing and, with a warning, if it is damaged."""
    try:
        document = _parsed(path.read_bytes())
        if document.pop("format", None) != _FORMAT or document.pop("version", None) != _VERSION:
            raise ValueError(f"it is no cell of version {_VERSION}")
        record = _record(document, path, format=_FORMAT, version=_VERSION)
        if path.stem != record.stem:
            raise ValueError("its config does not hash to its name")
        return record
    except FileNotFoundError:
        return None
    except _DAMAGE as error:
        _warn(str(path), error)
        return None


def _warn(source: str, error: Exception) -> None:
    reason = " ".join(str(error).split())[:200]
    warnings.warn(f"the cell {source} is not used: {reason}", UserWarning, stacklevel=4)


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content.decode("utf-8"))
    except ValueError as error:  # not UTF-8, or not JSON
        raise ValueError(f"it is damaged ({error})") from None
    if not isinstance(document, dict):
        raise ValueError(f"it is no cell of version {_VERSION}")
    return document


def _record(document: dict[str, Any], path: Path, **header: Any) -> Record:
    """The record of a document whose checksum, over the header and all fields, fits."""
    if document.pop("sha256", None) != _digest({**header, **document}):
        raise ValueError("its checksum does not fit: it was edited or damaged")
    fields: dict[str, Any] = {name: document.get(name) for name in _FIELDS}
    record = Record(**fields, path=path)
    _ = record.stem  # raises if kind or config are not those of a cell
    return record


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(_compact(document, sort_keys=True).encode()).hexdigest()


def _compact(document: Mapping[str, Any], *, sort_keys: bool = False) -> str:
    return json.dumps(document, sort_keys=sort_keys, separators=(",", ":"), allow_nan=False)


def _laid_out(document: Mapping[str, Any]) -> str:
    """JSON with a line for every entry of the two outer levels: readable, and small where lists are long."""
    return "{\n" + ",\n".join(f' "{name}": {_lines(value)}' for name, value in document.items()) + "\n}\n"


def _lines(value: Any) -> str:
    if not isinstance(value, dict) or not value:
        return json.dumps(value, allow_nan=False)
    return "{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in value.items()) + "\n }"
