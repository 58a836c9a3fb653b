"""Running a task: the cells that are missing are computed, and tables are made of all."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic

from fcal.benchmarks.method_kinds import Method
from fcal.benchmarks.methods import RECOMMENDED, method_of
from fcal.benchmarks.problem import Failed, Prediction, Problem
from fcal.benchmarks.table import CRASHED, DONE, FAILED, MISSING, Table
from fcal.benchmarks.task import Result, Results, Settings, Task
from fcal.sweeps import Cell, Outcome, Store, run

Labels = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Benchmark(Generic[Settings]):
    """A finished benchmark.

    Attributes:
        task: What was run.
        settings: Of it.
        tables: Its tables.
        results: Results of the cells, by labels and row.
        crashed: Cells that could not be computed, with the reason; a method that fails to train is not among them.
        seconds: How long it took.
        store: Where its cells are.
        tracebacks: Where cells crashed, by the same names.
    """

    task: Task[Settings]
    settings: Settings
    tables: list[Table]
    results: Mapping[Labels, Results]
    crashed: Mapping[str, str]
    seconds: float
    store: Store
    tracebacks: Mapping[str, str] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        """What ``fcal benchmark --json`` prints."""
        return {
            "task": self.task.name,
            "tables": [table.as_dict() for table in self.tables],
            **self.task.summary(self.tables),
            "wall_s": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class _Planned:
    """A row of one problem, and its cell."""

    problem: Problem
    row: str
    method: Method
    cell: Cell


def row_cell(task: Task[Any], problem: Problem, row: str) -> Cell:
    """The cell of one row and problem. Its address has all that changes a number, and neither names nor titles."""
    return _planned(task, problem, row).cell


def _planned(task: Task[Any], problem: Problem, row: str) -> _Planned:
    method = problem.resolved(method_of(row, task.changes))
    config = {
        "version": max(task.version, problem.version),
        "problem": problem.config(method),
        "method": method.config(),
    }
    cell = Cell(
        f"{task.name}-row",
        config,
        needs=problem.trainings(method),
        affinity=problem.name,
        label=f"{row} ({problem.name})",
    )
    return _Planned(problem, row, method, cell)


def plan(task: Task[Any], problems: Sequence[Problem], methods: Sequence[str] | None) -> list[_Planned]:
    """Every row of every problem, repetition by repetition, so that an unfinished run has whole tables of fewer.

    Raises:
        ValueError: A method is unknown, or none of them is in any table.
    """
    names = task.methods(methods)
    if not problems:
        raise ValueError(f"expected settings with at least one data set and seed of {task.name}, got none")
    for problem in problems:
        labels = getattr(problem, "labels", None)
        if not isinstance(labels, Mapping) or not all(isinstance(label, str) for label in labels.values()):
            raise ValueError(f"expected `labels` of {type(problem).__name__} a mapping to strings, got {labels!r}")
    rows = [_planned(task, problem, row) for problem in problems for row in task.rows_of(problem, names)]
    if len({(*row.problem.labels.values(), row.row, row.cell) for row in rows}) < len(rows):
        raise ValueError(f"expected problems of {task.name!r} with different configs, got the same one twice")
    if not rows:
        known = " or ".join(dict.fromkeys(problem.name for problem in problems))
        raise ValueError(f"expected `methods` in the table of {known}, got {', '.join(names)}")
    return rows


def methods_by_config(rows: Sequence[_Planned]) -> dict[str, Method]:
    """Methods of planned rows, by what their cells' addresses have of them."""
    return {_text(row.method.config()): row.method for row in rows}


def benchmark(
    task: Task[Settings],
    settings: Settings,
    *,
    store: Store,
    data: str | None = None,
    methods: Sequence[str] | None = None,
    workers: int = 2,
    progress: bool = True,
) -> Benchmark[Settings]:
    """Compute what is missing of a benchmark, and make its tables.

    Args:
        task: What to run.
        settings: Of it; see :func:`preset`.
        store: Where finished cells are.
        data: Folder of the data, for a task that reads some.
        methods: Names of methods; all where None.
        workers: Processes.
        progress: Whether a bar is shown.

    Raises:
        ValueError: A method is unknown, or the data are missing or malformed.
    """
    start = time.perf_counter()
    task.check(settings, data)
    rows = plan(task, task.problems(settings, store, data), methods)
    facts = [cell for row in rows if (cell := task.facts(row.problem)) is not None]
    function = partial(compute, task=task, methods=methods_by_config(rows), data=data)
    outcomes = run([*facts, *(row.cell for row in rows)], function, store=store, workers=workers, progress=progress)
    results = {row.cell: _result(outcomes[row.cell]) for row in rows}
    failed = {cell.name: outcome for cell, outcome in outcomes.items() if outcome.status == "failed"}
    crashed = {name: str(outcome.reason) for name, outcome in failed.items()}
    done = _finished(task, settings, store, rows, results, crashed, time.perf_counter() - start)
    return replace(done, tracebacks={name: outcome.details for name, outcome in failed.items()})


def collect(
    task: Task[Settings], settings: Settings, *, store: Store, methods: Sequence[str] | None = None
) -> Benchmark[Settings]:
    """The tables of what is finished, without computing anything; rows without any finished cell are left out."""
    rows = plan(task, task.problems(settings, store, None), methods)
    known = {row.cell: store.get(row.cell.kind, row.cell.config) for row in rows}
    results = {cell: {"status": MISSING} if result is None else result for cell, result in known.items()}
    return _finished(task, settings, store, rows, results, {}, 0.0)


def compute(
    kind: str,
    config: Mapping[str, Any],
    store: Store,
    *,
    task: Task[Any],
    methods: Mapping[str, Method],
    data: str | None,
) -> dict[str, Any]:
    """The result of a cell: of a row, or of a training that rows share."""
    if kind != f"{task.name}-row":
        return task.train(kind, config, store, data)
    problem = task.problem_of(config["problem"], store, data)
    method = methods[_text(config["method"])]
    try:
        prediction = method.predict(problem)
    except Failed as failure:
        return {"status": FAILED, "reason": str(failure)}
    if not isinstance(prediction, Prediction):
        raise TypeError(f"expected `predict` to return a Prediction, got {type(prediction).__name__}")
    status = {"status": FAILED, "reason": prediction.failure} if prediction.failure else {"status": DONE}
    return {**status, **_checked(problem.score(method, prediction))}


def _checked(scores: Any) -> dict[str, Any]:
    """Refuse scores that no table can show, before they are stored."""
    columns = scores.get("columns") if isinstance(scores, Mapping) else None
    if not isinstance(columns, Mapping) or not columns:
        raise TypeError(f"expected `score` to return a mapping with `columns`, got {scores!r:.80}")
    for name, values in columns.items():
        numbers = values if isinstance(values, list | tuple) else [values]
        if numbers is not values or not all(value is None or isinstance(value, int | float) for value in numbers):
            raise TypeError(f"expected `score` with a list of numbers as column {name!r}, got {values!r:.80}")
    return dict(scores)


def _finished(
    task: Task[Settings],
    settings: Settings,
    store: Store,
    rows: Sequence[_Planned],
    results: Mapping[Cell, Result],
    crashed: Mapping[str, str],
    seconds: float,
) -> Benchmark[Settings]:
    problems: dict[Labels, list[Problem]] = {}
    by_row: dict[Labels, dict[str, list[Result]]] = {}
    for planned in rows:
        labels = tuple(planned.problem.labels.values())
        known = problems.setdefault(labels, [])
        if planned.problem not in known:
            known.append(planned.problem)
        by_row.setdefault(labels, {}).setdefault(planned.row, []).append(results[planned.cell])
    for labels, of_table in by_row.items():
        by_row[labels] = {
            row: repetitions
            for row, repetitions in of_table.items()
            if any(result["status"] != MISSING for result in repetitions)
        }
    by_row = {labels: of_table for labels, of_table in by_row.items() if of_table}
    tables = [_recommending(task.table(settings, problems[labels], rows)) for labels, rows in by_row.items()]
    return Benchmark(
        task=task,
        settings=settings,
        tables=tables,
        results=by_row,
        crashed=dict(crashed),
        seconds=seconds,
        store=store,
    )


def _recommending(table: Table) -> Table:
    """A table that names the recommended row, if it has it."""
    if RECOMMENDED not in table.rows:
        return table
    return replace(table, details={**table.details, "recommended": RECOMMENDED})


def _result(outcome: Outcome) -> Result:
    if outcome.status == "failed":
        return {"status": CRASHED, "reason": outcome.reason}
    result: Result = outcome.result
    return result


def _text(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)
