"""Runs of many cells: stored ones are skipped, failures are reported, and finished ones are never lost."""

import errno
import pickle
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from fcal._executor import Executor, Job, WorkerError, check_workers, signal_handler
from fcal._files import held
from fcal._progress import ProgressBar
from fcal.sweeps.cells import Cell, Outcome
from fcal.sweeps.store import CellFunction, Store

_PATIENCE = 0.5  # seconds until a cell that another run computes is tried again
_SHORT = 0.1  # seconds between looks while another run computes a cell that this one waits for
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_LONGEST_REASON = 300
_LONGEST_DETAILS = 10_000
_LONGEST_NAMES = 60


def run(
    cells: Iterable[Cell],
    function: CellFunction,
    *,
    store: Store,
    workers: int = 2,
    progress: bool = True,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> dict[Cell, Outcome]:
    """Compute the cells that are not stored yet, after those that they need; each is stored as soon as it is finished.

    A cell that raises, or whose process is killed, is a failed outcome, and so are those that need it; the others
    continue. Ctrl-C and SIGTERM end every process at once and raise ``KeyboardInterrupt``; the same call later resumes
    the run. Two runs on the same store share the work: neither computes a cell that the other is computing.

    Args:
        cells: Cells to compute. Those that they need are computed too, but only if they are missing and still needed.
        function: ``function(kind, config, store) -> result``, which can be imported by its name. It reads the results
            of needed cells from the store, and writes what is too large for JSON to ``store.artifact(...)``.
        store: Where results are looked up and written.
        workers: Number of processes, each with one thread of torch; 1 computes in this process.
        progress: Show a progress bar on stderr, if that is a terminal.
        on_outcome: Called in this process with every new outcome, not with those stored before.

    Returns:
        An outcome for every cell: those in ``cells`` in their order, then those that they needed.

    Raises:
        TypeError: ``cells`` contains something else, or ``function`` cannot be imported by its name.
        ValueError: ``workers`` is out of range.
        OSError: The disk is full or read-only; cells that were finished before are stored.
        RuntimeError: Worker processes cannot import ``function``.
    """
    cells = list(cells)
    _check(cells, function, workers, store)
    store.remove_abandoned()

    def report(outcome: Outcome) -> None:
        bar.count(outcome)
        if on_outcome is not None:
            on_outcome(outcome)

    schedule = Schedule(cells, store, report)
    bar = Progress(schedule.stored, schedule.left, workers=workers, show=progress)
    with bar.bar, _sigterm_as_interrupt(), Executor(workers if schedule.left else 1) as pool:
        _compute_all(schedule, pool, function, store, bar)
    return {cell: schedule.outcomes[cell] for cell in dict.fromkeys([*schedule.asked, *schedule.outcomes])}


def _check(cells: list[Cell], function: CellFunction, workers: int, store: Store) -> None:
    if not isinstance(store, Store):
        raise TypeError(f"expected `store` a Store, got {type(store).__name__}")
    for cell in cells:
        if not isinstance(cell, Cell):
            raise TypeError(f"expected `cells` of Cell, got {type(cell).__name__}")
    check_workers(workers)
    if not callable(function):
        raise TypeError(f"expected `function` callable, got {type(function).__name__}")
    if workers > 1:
        try:
            pickle.dumps(function)
        except (pickle.PicklingError, AttributeError, TypeError):
            raise TypeError(f"expected `function` one that can be imported by its name, got {function!r}") from None


def _compute_all(schedule: "Schedule", pool: Executor, function: CellFunction, store: Store, bar: "Progress") -> None:
    jobs: dict[Job, Cell] = {}
    while schedule.left:
        for cell in schedule.start_ready():
            alone = replace(cell, needs=())  # the function finds what it needs in the store
            job = pool.submit(attempt, function, alone, store, affinity=cell.affinity, priority=schedule.position[cell])
            jobs[job] = cell
        pool.start()
        bar.show([jobs[job] for job in pool.running])
        for job in pool.completed(_SHORT if schedule.waits_for_others else None):
            _settle(schedule, jobs.pop(job), job, store)


def _settle(schedule: "Schedule", cell: Cell, job: Job, store: Store) -> None:
    """Record the outcome of a cell; its result is read back from the store, which verifies it."""
    try:
        tried: Attempt = job.result()
    except WorkerError as error:
        tried = Attempt(status="failed", reason=str(error))
    except pickle.PicklingError as error:
        raise RuntimeError(f"expected `function` one that worker processes can import, got {error}") from None
    if tried.status == "no-room":
        raise OSError(f"{tried.reason}; finished cells are stored, and the same run continues from there")
    if tried.status == "busy":
        schedule.defer(cell)
        return
    record = None if tried.status == "failed" else store.record(cell.kind, cell.config)
    if record is None:
        reason = tried.reason or "its result was stored and is gone"
        schedule.finish(Outcome(cell=cell, status="failed", reason=reason, details=tried.details))
        return
    status: Literal["done", "stored"] = "stored" if tried.status == "stored" else "done"
    schedule.finish(Outcome(cell=cell, status=status, result=record.result, seconds=record.seconds))


def _sigterm_as_interrupt() -> AbstractContextManager[None]:
    """Treat SIGTERM as Ctrl-C, so that worker processes end too; a handler that is already set stays."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return nullcontext()
    return signal_handler(signal.SIGTERM, signal.default_int_handler)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Outcome of one try at a cell: ``busy`` if another run computes it, ``no-room`` if the disk cannot be written."""

    status: Literal["done", "stored", "busy", "failed", "no-room"]
    reason: str | None = None
    details: str = ""


def attempt(function: CellFunction, cell: Cell, store: Store) -> Attempt:
    """Compute a cell and store its result, unless another run computes it or has done so; runs in any process."""
    try:
        with held(store.lock(cell.kind, cell.config)) as ours:
            if not ours:
                return Attempt(status="busy")
            if store.is_finished(cell):
                return Attempt(status="stored")
            store.compute_held(cell, function)
        return Attempt(status="done")
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        reason = f"{type(error).__name__}: {message}"[:_LONGEST_REASON] if message else type(error).__name__
        details = "".join(traceback.format_exception(error))[-_LONGEST_DETAILS:]
        no_room = isinstance(error, OSError) and error.errno in _NO_ROOM
        return Attempt(status="no-room" if no_room else "failed", reason=reason, details=details)


class Schedule:
    """The state of a run: outcomes so far, each reported when it is new, and cells that wait for others."""

    def __init__(self, cells: Iterable[Cell], store: Store, report: Callable[[Outcome], None]) -> None:
        self._report = report
        self.asked = list(dict.fromkeys(cells))
        self.outcomes: dict[Cell, Outcome] = {}
        for cell in self.asked:
            record = store.record(cell.kind, cell.config)
            if record is not None:
                self.outcomes[cell] = Outcome(cell=cell, status="stored", result=record.result, seconds=record.seconds)
        order = _needs_first(self.asked)
        self.position = {cell: number for number, cell in enumerate(order)}
        missing = {cell for cell in self.asked if cell not in self.outcomes}
        for cell in reversed(order):
            if cell in missing:
                missing |= {need for need in cell.needs if not store.is_finished(need)}
        for cell in missing:
            self.outcomes.pop(cell, None)
        self._unmet = {cell: {need for need in cell.needs if need in missing} for cell in order if cell in missing}
        self._started: set[Cell] = set()
        self._not_before: dict[Cell, float] = {}
        self.stored = list(self.outcomes.values())

    @property
    def left(self) -> list[Cell]:
        """Cells that are neither finished nor failed, including those that have been started."""
        return [*self._started, *self._unmet]

    @property
    def waits_for_others(self) -> bool:
        """Whether a cell that another run computes has to be tried again."""
        return bool(self._not_before)

    def start_ready(self) -> list[Cell]:
        """Cells whose needs are finished; they count as started from now on."""
        now = time.monotonic()
        ready = [cell for cell, unmet in self._unmet.items() if not unmet and self._not_before.get(cell, now) <= now]
        for cell in ready:
            del self._unmet[cell]
            self._not_before.pop(cell, None)
        self._started.update(ready)
        return ready

    def defer(self, cell: Cell) -> None:
        """Put back a cell that another run is computing."""
        self._started.discard(cell)
        self._unmet[cell] = set()
        self._not_before[cell] = time.monotonic() + _PATIENCE

    def finish(self, outcome: Outcome) -> None:
        """Note an outcome; cells that need a failed one fail with it."""
        self._started.discard(outcome.cell)
        self._unmet.pop(outcome.cell, None)
        self.outcomes[outcome.cell] = outcome
        self._report(outcome)
        for cell, unmet in list(self._unmet.items()):
            if outcome.cell not in unmet or cell not in self._unmet:
                continue
            unmet.discard(outcome.cell)
            if outcome.status == "failed":
                reason = f"it needs {outcome.cell.name}, which failed: {outcome.reason}"
                self.finish(Outcome(cell=cell, status="failed", reason=reason))


def _needs_first(cells: list[Cell]) -> list[Cell]:
    """The cells and all that they need, each right after its needs, so that the first cells are finished first.

    Needs cannot form a cycle: a cell holds cells that were made before it.
    """
    order: dict[Cell, None] = {}
    todo = list(reversed(cells))
    while todo:
        cell = todo[-1]
        open_needs = [need for need in cell.needs if need not in order]
        if cell in order or not open_needs:
            order[todo.pop()] = None
        else:
            todo += reversed(open_needs)
    return list(order)


class Progress:
    """Cells done, cells being computed, and the time left, estimated from how long cells of each kind took."""

    def __init__(self, stored: Sequence[Outcome], left: Sequence[Cell], *, workers: int, show: bool) -> None:
        self._left, self._workers = Counter(cell.kind for cell in left), workers
        self._seconds: dict[str, list[float]] = {}
        self._failed, self._names = 0, ""
        for outcome in stored:
            self._learn(outcome)
        self.bar = ProgressBar(
            "cells", total=len(stored) + len(left), completed=len(stored), estimate=False, show=show and bool(left)
        )

    def count(self, outcome: Outcome) -> None:
        """Count a cell that is finished or has failed."""
        self._left[outcome.cell.kind] -= 1
        self._failed += outcome.status == "failed"
        self._learn(outcome)
        self.bar.advance()
        self._write()

    def show(self, running: Sequence[Cell]) -> None:
        """Name the cells that are being computed."""
        names = ", ".join("".join(c for c in cell.name if c.isprintable()) for cell in running)[:_LONGEST_NAMES]
        if names != self._names:
            self._names = names
            self._write()

    def _learn(self, outcome: Outcome) -> None:
        if outcome.seconds is not None:
            self._seconds.setdefault(outcome.cell.kind, []).append(outcome.seconds)

    def _write(self) -> None:
        failed = f" ({self._failed} failed)" if self._failed else ""
        self.bar.update(description=f"cells{failed}", note=f"{self.remaining()} {self._names}".strip())

    def remaining(self) -> str:
        """The time left as text; empty as long as no cell has a known duration.

        Example:
            >>> cells = [Cell("train", {"seed": seed}) for seed in range(5)]
            >>> progress = Progress([], cells, workers=2, show=False)
            >>> progress.count(Outcome(cell=cells[0], status="done", seconds=100.0))
            >>> progress.remaining()
            '3 min 20 s left'
        """
        if not self._seconds:
            return ""
        usual = fmean(fmean(took) for took in self._seconds.values())
        expected = sum(n * fmean(self._seconds.get(kind, [usual])) for kind, n in self._left.items())
        seconds = round(expected / self._workers)
        minutes, hours = seconds // 60, seconds // 3600
        return f"{hours} h {minutes % 60:02d} min left" if hours else f"{minutes} min {seconds % 60:02d} s left"
