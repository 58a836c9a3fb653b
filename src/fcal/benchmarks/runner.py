"""A task is what a benchmark is; running it computes the cells that are missing and makes its tables."""

import dataclasses
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from fcal._registry import Registry
from fcal.benchmarks.methods import METHODS, Failed, Method, Problem, added, method_of
from fcal.benchmarks.scoring import COLUMNS
from fcal.benchmarks.table import CRASHED, DONE, FAILED, MISSING, Column, Table, row_of
from fcal.sweeps import Cell, Outcome, Store, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Settings = TypeVar("Settings")
Labels = tuple[str, ...]
Result = Mapping[str, Any]  # what a cell holds
Results = Mapping[str, Sequence[Result]]  # by row, one per repetition


class Task(ABC, Generic[Settings]):
    """A benchmark: data, networks, columns and settings. Methods, cells, tables and pages are those of all tasks.

    Attributes:
        name: As it is typed.
        title: Heading of its page.
        notes: Sentences on what it is, for its page.
        presets: Settings by name.
        columns: Of its tables.
        bins: Number S of bins of calibration errors.
        df: Number K of squared residuals in a sum q.
        problem: Class of its problems, which says what methods it has.
        rows: Methods in its tables, in order; None for all whose step its problems have. Methods that users add
            follow.
        changes: Options of methods that it sets otherwise than :data:`METHODS`, by name.
        version: Part of every address; raised when the same config would give other numbers.
        error: Spread that printed tables show behind a mean: ``"sd"``, or ``"se"`` for the standard error.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    notes: ClassVar[tuple[str, ...]] = ()
    presets: Mapping[str, Settings]
    columns: ClassVar[tuple[Column, ...]] = COLUMNS
    bins: ClassVar[int] = 20
    df: ClassVar[int] = 75
    problem: ClassVar[type[Problem]]
    rows: ClassVar[tuple[str, ...] | None] = None
    changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    version: ClassVar[int] = 1
    error: ClassVar[str] = "sd"

    @abstractmethod
    def problems(self, settings: Settings, store: Store, data: str | None) -> list[Problem]:
        """Every problem, repetition by repetition; those of one table have the same labels.

        Args:
            settings: Of the benchmark.
            store: Where finished trainings are kept.
            data: Folder of the data. Where it is None, a task that reads data names those that ``store`` has cells of.
        """

    @abstractmethod
    def problem_of(self, config: Mapping[str, Any], store: Store, data: str | None) -> Problem:
        """The problem of a row's address."""

    def train(self, kind: str, config: Mapping[str, Any], store: Store, data: str | None) -> dict[str, Any]:
        """Compute a training that rows share: weights become an artifact, the rest is the result."""
        raise NotImplementedError(kind)

    def methods(self, names: Sequence[str] | None = None) -> list[str]:
        """Rows of its tables.

        Args:
            names: Methods that are asked for; all where None.

        Raises:
            ValueError: A method is unknown, or needs what the task does not have.
        """
        if names is not None:
            chosen = list(dict.fromkeys(names))
            for name in chosen:
                if not self.problem.can(method_of(name).needs):
                    raise ValueError(f"expected `methods` that {self.name} has the data for, got {name!r}")
            return chosen
        known = METHODS.names() if self.rows is None else [*self.rows, *added()]
        return [name for name in known if self.problem.can(method_of(name).needs)]

    def rows_of(self, problem: Problem, methods: Sequence[str]) -> list[str]:
        """Rows in the table of a problem; a task may leave out some, or add variants."""
        del problem
        return list(methods)

    def facts(self, problem: Problem) -> Cell | None:
        """A further cell of a problem, for what its table shows and no method changes; :meth:`train` computes it."""
        del problem
        return None

    def table(self, settings: Settings, problems: Sequence[Problem], results: Results) -> Table:
        """The table of problems with the same labels, from the results of its rows."""
        del settings
        names = tuple(column.name for column in self.columns)
        known = [result["floors"] for row in results.values() for result in row if result.get("floors")]
        return Table(
            labels=problems[0].labels,
            seeds=len(problems),
            bins=self.bins,
            df=self.df,
            n_test=problems[0].n_test,
            columns=names,
            rows={row: row_of(repetitions, names) for row, repetitions in results.items()},
            floors=known[0] if known else {},
        )

    def summary(self, tables: Sequence[Table]) -> dict[str, Any]:
        """What all tables say together, beside them in the document."""
        del tables
        return {}

    def for_pictures(self, settings: Settings, table: Table, results: Results) -> dict[str, Any]:
        """What the pictures of a table on the page are drawn from: ``curves``, ``gallery``, ``learning``."""
        del settings, table
        first = {row: repetitions[0] for row, repetitions in results.items()}
        return {"curves": {row: result["curves"] for row, result in first.items() if "curves" in result}}

    def table_title(self, table: Table) -> str:
        """Heading of a table."""
        return ", ".join(table.labels.values())

    def caption(self, table: Table) -> str:
        """What stands below a table in a terminal."""
        return f"S = {table.bins}, K = {table.df}, n = {table.n_test:,}"

    def described(self, settings: Settings) -> dict[str, Any]:
        """Settings as plain values, to stand beside a result."""
        return dataclasses.asdict(settings)  # type: ignore[call-overload]

    def describe(self, settings: Settings, tables: Sequence[Table], preset: str) -> list[str]:
        """Sentences about these settings, for the page."""
        del settings, tables
        return [f"Preset {preset}."] if preset else []

    def beside(self, table: Table) -> list[list[str]]:
        """Further lines of the main table, such as published numbers: a label, and a text for every column."""
        del table
        return []

    def sections(self, table: Table) -> list[tuple[str, str]]:
        """Further tables beside the main one, as Markdown, each with a sentence before it."""
        del table
        return []

    def printed_sections(self, table: Table) -> list[tuple[str, str]]:
        """Those of them that are shown in a terminal."""
        del table
        return []

    def pictures(self, tables: Sequence[Table]) -> "Mapping[str, Figure]":
        """Pictures beside the page, by name."""
        del tables
        return {}

    def ablations(self) -> Any:
        """Module that runs its ablations, with ``LABELS``, ``ablation_cells``, ``ablation``, ``markdown``, ``draw``."""
        raise NotImplementedError


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
    """

    task: Task[Settings]
    settings: Settings
    tables: list[Table]
    results: Mapping[Labels, Results]
    crashed: Mapping[str, str]
    seconds: float
    store: Store

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


def preset(task: Task[Settings], name: str, **changes: object) -> Settings:
    """A preset of a task with some of its values replaced; those that are None stay.

    Raises:
        ValueError: The preset is unknown; the known ones are listed.
    """
    known: Registry[Settings] = Registry("preset")
    for key, settings in task.presets.items():
        known.add(key, settings)
    values = {key: value for key, value in changes.items() if value is not None}
    return dataclasses.replace(known[name], **values)  # type: ignore[type-var]


def row_cell(task: Task[Any], problem: Problem, row: str) -> Cell:
    """The cell of one row and problem. Its address has all that changes a number, and neither names nor titles."""
    return _planned(task, problem, row).cell


def _planned(task: Task[Any], problem: Problem, row: str) -> _Planned:
    method = problem.resolved(method_of(row, task.changes))
    config = {
        "version": task.version,
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
    rows = [_planned(task, problem, row) for problem in problems for row in task.rows_of(problem, names)]
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
    rows = plan(task, task.problems(settings, store, data), methods)
    facts = [cell for row in rows if (cell := task.facts(row.problem)) is not None]
    function = partial(compute, task=task, methods=methods_by_config(rows), data=data)
    outcomes = run([*facts, *(row.cell for row in rows)], function, store=store, workers=workers, progress=progress)
    results = {row.cell: _result(outcomes[row.cell]) for row in rows}
    crashed = {cell.name: str(outcome.reason) for cell, outcome in outcomes.items() if outcome.status == "failed"}
    return _finished(task, settings, store, rows, results, crashed, time.perf_counter() - start)


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
    status = {"status": FAILED, "reason": prediction.failure} if prediction.failure else {"status": DONE}
    return {**status, **problem.score(method, prediction)}


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
    tables = [task.table(settings, problems[labels], of_table) for labels, of_table in by_row.items()]
    return Benchmark(
        task=task,
        settings=settings,
        tables=tables,
        results=by_row,
        crashed=dict(crashed),
        seconds=seconds,
        store=store,
    )


def _result(outcome: Outcome) -> Result:
    if outcome.status == "failed":
        return {"status": CRASHED, "reason": outcome.reason}
    result: Result = outcome.result
    return result


def _text(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)
