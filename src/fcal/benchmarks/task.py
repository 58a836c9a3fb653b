"""What a benchmark is: a task makes problems, lists the methods of its tables, and turns finished cells into tables."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from fcal._registry import Registry
from fcal.benchmarks.methods import METHODS, added, method_of
from fcal.benchmarks.problem import Problem
from fcal.benchmarks.scoring import COLUMNS
from fcal.benchmarks.table import Column, Table, row_of
from fcal.sweeps import Cell, Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Settings = TypeVar("Settings")
Result = Mapping[str, Any]  # what a cell holds
Results = Mapping[str, Sequence[Result]]  # by row, one per repetition


class Task(ABC, Generic[Settings]):
    """A benchmark: data, networks, columns and settings. Methods, cells, tables and pages are those of all tasks.

    Attributes:
        name: As it is typed.
        title: Heading of its page; its name where empty.
        notes: Sentences on what it is, for its page.
        presets: Settings by name.
        columns: Of its tables.
        problem: Class of its problems, whose steps determine the available methods.
        rows: Methods in its tables, in order; None for all whose step its problems have. Methods that users add
            follow.
        usual: Methods that the command computes unless it is told otherwise, at most a dozen; None for all.
        changes: Options of methods that it sets otherwise than :data:`fcal.benchmarks.METHODS`, by name.
        version: Part of every address; raised when the same config would give other numbers.
        error: Spread that printed tables show behind a mean: ``"sd"``, or ``"se"`` for the standard error.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    notes: ClassVar[tuple[str, ...]] = ()
    presets: Mapping[str, Settings]
    columns: ClassVar[tuple[Column, ...]] = COLUMNS
    problem: ClassVar[type[Problem]]
    rows: ClassVar[tuple[str, ...] | None] = None
    usual: ClassVar[tuple[str, ...] | None] = None
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

    def check(self, settings: Settings, data: str | None) -> None:
        """Refuse settings and data that cannot be computed, before anything is; nothing to check by default.

        Raises:
            ValueError: Data are missing or malformed.
        """
        del settings, data

    @abstractmethod
    def problem_of(self, config: Mapping[str, Any], store: Store, data: str | None) -> Problem:
        """The problem of a row's address."""

    def train(self, kind: str, config: Mapping[str, Any], store: Store, data: str | None) -> dict[str, Any]:
        """Compute a training that rows share: weights become an artifact, the rest is the result."""
        del data
        return self.problem.train(kind, config, store)

    def methods(self, names: Sequence[str] | None = None) -> list[str]:
        """Rows of its tables.

        Args:
            names: Requested methods; all if None.

        Raises:
            ValueError: A method is unknown, or needs what the task does not have.
        """
        if names is not None:
            chosen = list(dict.fromkeys(names))
            if not any(chosen):
                raise ValueError("expected `methods` with the name of a row, got none")
            for name in chosen:
                step = method_of(name).needs
                if not self.problem.can(step):
                    needed = f"{name!r}, which needs `{step}`"
                    raise ValueError(f"expected `methods` whose step the benchmark {self.name!r} has, got {needed}")
            return chosen
        known = dict.fromkeys(METHODS.names() if self.rows is None else [*self.rows, *added()])
        return [name for name in known if self.problem.can(method_of(name).needs)]

    def usual_methods(self) -> list[str] | None:
        """Methods that the command computes by default, those that users have added among them; None for all."""
        return None if self.usual is None else [*self.usual, *self._added()]

    def _added(self) -> list[str]:
        return [name for name in added() if self.problem.can(method_of(name).needs)]

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
        counts = [result["n"] for row in results.values() for result in row if result.get("n")]
        known = [result["floors"] for row in results.values() for result in row if result.get("floors")]
        return Table(
            labels=problems[0].labels,
            seeds=len(problems),
            bins=problems[0].bins,
            df=problems[0].df,
            n_test=problems[0].n_test or next(iter(counts), 0),
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


def preset(task: Task[Settings], name: str, **changes: object) -> Settings:
    """A preset of a task with some of its values replaced; those that are None stay.

    Raises:
        ValueError: The preset is unknown; the known ones are listed.
    """
    known: Registry[Settings] = Registry("preset")
    for key, settings in task.presets.items():
        known.add(key, settings)
    values = {key: value for key, value in changes.items() if value is not None}
    unknown = [key for key in values if not hasattr(known[name], key)]
    if unknown:
        raise ValueError(f"expected settings of {task.name!r} with the field {unknown[0]!r}, got none")
    return dataclasses.replace(known[name], **values)  # type: ignore[type-var]
