"""One try at one cell, in whatever process: lock, look again, compute, write."""

import errno
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from fcal._files import held
from fcal.sweeps.cells import Cell
from fcal.sweeps.plan import finished
from fcal.sweeps.store import Store

CellFunction = Callable[[str, Mapping[str, Any], Store], Any]

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_LONGEST_REASON = 300
_LONGEST_DETAILS = 10_000


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What came of it: ``busy`` where another run has the cell, ``no-room`` where nothing can be written any more."""

    status: Literal["done", "stored", "busy", "failed", "no-room"]
    seconds: float | None = None
    reason: str | None = None
    details: str = ""


def attempt(function: CellFunction, cell: Cell, store: Store) -> Attempt:
    """Compute a cell and store its result, unless another run does so or has done so."""
    try:
        with held(store.lock(cell.kind, cell.config)) as ours:
            if not ours:
                return Attempt(status="busy")
            if finished(cell, store):
                return Attempt(status="stored")
            seconds = _compute(function, cell, store)
        return Attempt(status="done", seconds=seconds)
    except (Exception, SystemExit) as error:
        return _failure(error)


def _compute(function: CellFunction, cell: Cell, store: Store) -> float:
    start = time.perf_counter()
    with one_thread():
        result = function(cell.kind, dict(cell.config), store)
    seconds = time.perf_counter() - start
    store.put(cell.kind, cell.config, result, seconds=round(seconds, 3))
    return seconds


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch, where it is loaded: two cells at a time fill two cores, and numbers repeat bit for bit."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _failure(error: BaseException) -> Attempt:
    words = " ".join(str(error).split())
    reason = f"{type(error).__name__}: {words}"[:_LONGEST_REASON] if words else type(error).__name__
    details = "".join(traceback.format_exception(error))[-_LONGEST_DETAILS:]
    no_room = isinstance(error, OSError) and error.errno in _NO_ROOM
    return Attempt(status="no-room" if no_room else "failed", reason=reason, details=details)
