"""Running many cells: what is stored is skipped, what fails is told, what is finished is never lost."""

import contextlib
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from fcal.sweeps.attempts import Attempt, CellFunction, attempt
from fcal.sweeps.bars import Progress
from fcal.sweeps.cells import Cell, Outcome
from fcal.sweeps.plan import Plan
from fcal.sweeps.store import Store
from fcal.sweeps.workers import Pool, Worker

_MOST_WORKERS = 256
_SHORT = 0.1  # seconds between looks while another run computes what we wait for
_FALSE_STARTS = 3


def run(
    cells: Iterable[Cell],
    function: CellFunction,
    *,
    store: Store,
    workers: int = 2,
    progress: bool = True,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> dict[Cell, Outcome]:
    """Compute the cells that are not stored yet, what they need first, each written to the store as it is finished.

    A cell that raises, or whose process is killed, is a failed outcome, and so are those that need it; the others go
    on. Ctrl-C and SIGTERM end every process at once and raise ``KeyboardInterrupt``; the same call later goes on where
    this one stopped. Two runs on the same store share the work: neither computes a cell that the other is at.

    Args:
        cells: What is wanted. What they need is computed too, but only where it is missing and still needed.
        function: ``function(kind, config, store) -> result``, which can be imported by its name. It finds the results
            of needed cells in the store, and keeps what is too big for JSON in ``store.artifact(...)``.
        store: Where results are looked up and written.
        workers: Processes at a time, each with one thread of torch; 1 computes in this process.
        progress: Show a bar on stderr, if that is a terminal.
        on_outcome: Called here with every outcome as it comes, not with what was stored before.

    Returns:
        An outcome for every cell: those asked for in their order, then what these needed.

    Raises:
        TypeError: ``cells`` holds something else, or ``function`` cannot be imported by name.
        ValueError: ``workers`` is out of range.
        OSError: There is no room to write to; what was finished before is stored.
        RuntimeError: New processes end before they have begun.
    """
    cells = list(cells)
    _check(cells, function, workers, store)
    plan = Plan(cells, store, report=lambda outcome: _tell(outcome, bar, on_outcome))
    bar = Progress(plan.stored, plan.left, workers=workers, show=progress)
    with bar.bar, _stoppable():
        if workers == 1 or not plan.left:
            _here(plan, function, store, bar)
        else:
            _in_processes(plan, function, store, bar, workers)
    further = (cell for cell in plan.outcomes if cell not in set(plan.asked))
    return {cell: plan.outcomes[cell] for cell in [*plan.asked, *further]}


def _check(cells: list[Cell], function: CellFunction, workers: int, store: Store) -> None:
    if not isinstance(store, Store):
        raise TypeError(f"expected `store` a Store, got {type(store).__name__}")
    for cell in cells:
        if not isinstance(cell, Cell):
            raise TypeError(f"expected `cells` of Cell, got {type(cell).__name__}")
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise TypeError(f"expected `workers` an int, got {type(workers).__name__} {workers!r}")
    if not 1 <= workers <= _MOST_WORKERS:
        raise ValueError(f"expected `workers` within [1, {_MOST_WORKERS}], got {workers}")
    if not callable(function):
        raise TypeError(f"expected `function` callable, got {type(function).__name__}")
    if workers > 1:
        try:
            pickle.dumps(function)  # by its name, as processes get it
        except (pickle.PicklingError, AttributeError, TypeError):
            raise TypeError(f"expected `function` one that can be imported by its name, got {function!r}") from None


def _tell(outcome: Outcome, bar: Progress, on_outcome: Callable[[Outcome], None] | None) -> None:
    bar.count(outcome)
    if on_outcome is not None:
        on_outcome(outcome)


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM as Ctrl-C, so that processes do not outlive us; a handler that somebody else has set stays."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _here(plan: Plan, function: CellFunction, store: Store, bar: Progress) -> None:
    last = None
    while plan.left:
        cell = plan.start(last)
        if cell is None:  # another run is at it
            time.sleep(_SHORT)
            continue
        last = cell.affinity
        bar.show([cell])
        _note(plan, cell, attempt(function, cell, store), store)


def _in_processes(plan: Plan, function: CellFunction, store: Store, bar: Progress, workers: int) -> None:
    false_starts = 0
    with Pool(function, store, workers) as pool:
        while plan.left:
            pool.grow(len(plan.left))
            _hand_out(plan, pool)
            bar.show([worker.cell for worker in pool.workers if worker.cell is not None])
            pool.wait(_SHORT if plan.waits_for_others else None)
            for worker in list(pool.workers):
                try:
                    _hear(plan, worker, store)
                except EOFError:
                    false_starts += not worker.ready
                    _mourn(plan, worker, pool.bury(worker), false_starts)


def _hand_out(plan: Plan, pool: Pool) -> None:
    for worker in pool.workers:
        if worker.ready and worker.cell is None:
            elsewhere = {other.last for other in pool.workers if other is not worker}
            cell = plan.start(worker.last, elsewhere)
            if cell is not None:
                worker.give(cell)


def _hear(plan: Plan, worker: Worker, store: Store) -> None:
    news, cell = worker.news(), worker.cell
    if news is not None and cell is not None:
        worker.cell = None
        _note(plan, cell, news, store)


def _mourn(plan: Plan, worker: Worker, words: str, false_starts: int) -> None:
    if worker.cell is not None:
        plan.finish(Outcome(cell=worker.cell, status="failed", reason=words))
    elif false_starts >= _FALSE_STARTS:
        raise RuntimeError(f"expected processes that begin to work, got {false_starts} that did not: {words}")


def _note(plan: Plan, cell: Cell, news: Attempt, store: Store) -> None:
    """Enter what became of a cell; its result is read back from the store, which checks it."""
    if news.status == "no-room":
        raise OSError(f"{news.reason}; what is finished is stored, and the same run goes on from there")
    if news.status == "busy":
        plan.defer(cell)
        return
    record = None if news.status == "failed" else store.record(cell.kind, cell.config)
    if record is None:
        reason = news.reason or "its result was stored and is gone"
        plan.finish(Outcome(cell=cell, status="failed", reason=reason, details=news.details))
        return
    known = Outcome(cell=cell, status="done", result=record.result, seconds=record.seconds)
    plan.finish(replace(known, status="stored") if news.status == "stored" else known)
