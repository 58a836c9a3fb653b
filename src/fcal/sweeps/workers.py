"""Processes that compute cells: started once, told one cell at a time, and gone when we are, however we end."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType

from fcal.sweeps.attempts import Attempt, CellFunction, attempt
from fcal.sweeps.cells import Cell
from fcal.sweeps.store import Store, origin

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_READY = "ready"
_LOOK = 2.0  # seconds between looks at processes whose end nobody announces
_GRACE = 3.0


class Worker:
    """One process and what it is at.

    Attributes:
        cell: What it computes; None while it starts or rests.
        last: Affinity of what it computed last.
        ready: Whether it has started and rests or works.
    """

    def __init__(self, function: CellFunction, store: Store) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=_serve, args=(theirs, function, store), daemon=False)
        with _quiet_start():
            self._process.start()
        theirs.close()  # so that its end is noticed here
        self.cell: Cell | None = None
        self.last: str | None = None
        self.ready = False

    def give(self, cell: Cell) -> None:
        """Have it compute a cell."""
        self.cell, self.last = cell, cell.affinity
        with contextlib.suppress(OSError):  # one that has just died; the next look notices
            self._pipe.send((cell.kind, cell.config, cell.artifacts))

    def news(self) -> Attempt | None:
        """What it has to say, if anything.

        Raises:
            EOFError: It is dead.
        """
        try:
            if self._pipe.poll():
                message = self._pipe.recv()
                self.ready = True
                return message if isinstance(message, Attempt) else None
        except OSError as error:
            raise EOFError from error
        if not self._process.is_alive():
            raise EOFError
        return None

    @property
    def channels(self) -> tuple[Connection, int]:
        """What to wait on for news."""
        return self._pipe, self._process.sentinel

    def epitaph(self) -> str:
        """How it ended, in words."""
        self._process.join(_GRACE)
        code = self._process.exitcode
        if code is None:
            return "its process stopped answering"
        if code >= 0:
            return f"its process ended with exit code {code}"
        name = signal.Signals(-code).name
        hint = "; out of memory?" if -code == signal.SIGKILL else ""
        return f"its process was ended by signal {-code} ({name}{hint})"

    def dismiss(self) -> None:
        """Tell it that there is nothing more to do."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)

    def terminate(self) -> None:
        """End it now; what it has stored is whole."""
        self._process.terminate()

    def gone(self) -> None:
        """Wait for its end, and make sure of it."""
        self._process.join(_GRACE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()
        self._process.close()


class Pool:
    """A number of processes; on leaving the block they are gone, and at once where it is left by an exception."""

    def __init__(self, function: CellFunction, store: Store, size: int) -> None:
        self._function, self._store, self._size = function, store, size
        self.workers: list[Worker] = []

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not leave processes behind.
        with _uninterrupted():
            for worker in self.workers:
                worker.dismiss() if kind is None and worker.ready else worker.terminate()
            for worker in self.workers:
                worker.gone()

    def grow(self, wanted: int) -> None:
        """Start processes, up to the size of the pool or the number that is wanted."""
        while len(self.workers) < min(self._size, wanted):
            self.workers.append(Worker(self._function, self._store))

    def bury(self, worker: Worker) -> str:
        """Take out a dead process; says how it ended."""
        words = worker.epitaph()
        self.workers.remove(worker)
        worker.gone()
        return words

    def wait(self, seconds: float | None = None) -> None:
        """Wait for news of any process."""
        channels = [channel for worker in self.workers for channel in worker.channels]
        connection.wait(channels, timeout=_LOOK if seconds is None else min(seconds, _LOOK))


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back for a moment; only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """What a new process inherits: deaf to Ctrl-C, which is ours to handle, and one thread each before torch loads."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        with _uninterrupted():
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _serve(pipe: Connection, function: CellFunction, store: Store) -> None:
    """A process's life: a cell in, what became of it out, until told to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_follow_parent, daemon=True).start()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    origin()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send(_READY)
        while (task := pipe.recv()) is not None:
            kind, config, artifacts = task
            pipe.send(attempt(function, Cell(kind, config, artifacts=artifacts), store))


def _follow_parent() -> None:
    """End with whoever started us, also where that was killed and could not tell us."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
