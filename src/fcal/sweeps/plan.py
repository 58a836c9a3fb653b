"""Which cells are to be computed, which of them may start, and which can no longer."""

import time
from collections.abc import Callable, Collection, Iterable

from fcal.sweeps.artifacts import is_whole
from fcal.sweeps.cells import Cell, Outcome
from fcal.sweeps.store import Store

_PATIENCE = 0.5  # seconds until a cell that another run computes is tried again


class Plan:
    """The state of a run: outcomes so far, and cells that wait for others.

    Args:
        cells: What is asked for; what these need comes in by itself where it is missing.
        store: Where finished cells are.
        report: Called with every outcome that is new.
    """

    def __init__(self, cells: Iterable[Cell], store: Store, report: Callable[[Outcome], None]) -> None:
        self._store, self._report = store, report
        asked = list(dict.fromkeys(cells))
        order = _ordered(asked)
        self.outcomes: dict[Cell, Outcome] = {}
        for cell in asked:  # in the order in which they were asked for
            found = store.record(cell.kind, cell.config)
            if found is not None:
                self.outcomes[cell] = Outcome(cell=cell, status="stored", result=found.result, seconds=found.seconds)
        missing = self._missing(asked, order)
        for cell in missing:
            self.outcomes.pop(cell, None)
        self._unmet = {cell: {need for need in cell.needs if need in missing} for cell in order if cell in missing}
        self._running: set[Cell] = set()
        self._not_before: dict[Cell, float] = {}
        self.asked, self.stored = asked, list(self.outcomes.values())

    def _missing(self, asked: list[Cell], order: list[Cell]) -> set[Cell]:
        """Cells without a result, and, from the end back, what these need and cannot find."""
        missing = {cell for cell in asked if cell not in self.outcomes}
        for cell in reversed(order):
            if cell in missing:
                missing |= {need for need in cell.needs if not finished(need, self._store)}
        return missing

    @property
    def left(self) -> list[Cell]:
        """Cells that are neither finished nor failed, those at work included."""
        return [*self._running, *self._unmet]

    @property
    def waits_for_others(self) -> bool:
        """Whether a cell that another run computes is to be tried again."""
        return bool(self._not_before)

    def start(self, last: str | None = None, elsewhere: Collection[str | None] = ()) -> Cell | None:
        """Take a cell that may start now, by preference one of the data that a process has in memory.

        Args:
            last: Affinity of what the process computed last.
            elsewhere: Affinities that other processes are at; theirs are left to them where there is a choice.
        """
        now = time.monotonic()
        ready = [cell for cell, unmet in self._unmet.items() if not unmet and self._not_before.get(cell, now) <= now]
        if not ready:
            return None
        near = [cell for cell in ready if last is not None and cell.affinity == last]
        free = [cell for cell in ready if cell.affinity is None or cell.affinity not in elsewhere]
        cell = (near or free or ready)[0]
        del self._unmet[cell]
        self._not_before.pop(cell, None)
        self._running.add(cell)
        return cell

    def defer(self, cell: Cell) -> None:
        """Put back a cell that another run computes just now."""
        self._running.discard(cell)
        self._unmet[cell] = set()
        self._not_before[cell] = time.monotonic() + _PATIENCE

    def finish(self, outcome: Outcome) -> None:
        """Note an outcome; cells that need a failed one fail with it."""
        self._running.discard(outcome.cell)
        self._unmet.pop(outcome.cell, None)
        self._not_before.pop(outcome.cell, None)
        self.outcomes[outcome.cell] = outcome
        self._report(outcome)
        for cell, unmet in list(self._unmet.items()):
            if outcome.cell not in unmet or cell not in self._unmet:
                continue
            unmet.discard(outcome.cell)
            if outcome.status == "failed":
                reason = f"it needs {outcome.cell.name}, which failed: {outcome.reason}"
                self.finish(Outcome(cell=cell, status="failed", reason=reason))


def finished(cell: Cell, store: Store) -> bool:
    """Whether a cell has its result and its artifacts."""
    if store.record(cell.kind, cell.config) is None:
        return False
    return all(is_whole(store.artifact(cell.kind, cell.config, suffix)) for suffix in cell.artifacts)


def _ordered(cells: list[Cell]) -> list[Cell]:
    """The cells and all they need, each right after what it needs, so that the first ones asked for are done first.

    Needs cannot run in circles: a cell holds cells that were made before it.
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
