"""Pages of benchmarks on images: every set with its table, sections, goals and pictures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bars import NOT_ABOVE, Bar, bars_markdown
from matplotlib.figure import Figure

from fcal.benchmarks import Benchmark, Table, Task
from fcal.benchmarks.markdown import failures, results_markdown
from fcal.benchmarks.methods import row_styles
from fcal.plots import calibration_sheet
from fcal.plots.styles import footnotes
from fcal.sweeps import Store


@dataclass(frozen=True, kw_only=True)
class ImagePage:
    """A page of results.

    Args:
        task: The benchmark.
        title: Its heading.
        rule: How its bands are to be read.
        label: Label of its tables that names files of pictures.
        goals: Goals of a table.
        drawn: Pictures of a table, by the first part of their name, with the sentence before them.
    """

    task: Task[Any]
    title: str
    rule: str
    label: str
    goals: Callable[[Mapping[str, Any]], Sequence[Bar]]
    drawn: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], Figure]]] = field(default_factory=dict)

    def page(self, benchmark: Benchmark[Any], facts: str) -> str:
        """The page as Markdown: every table with its sections and goals."""
        name, columns = self.task.name, {column.name: column for column in self.task.columns}
        parts = [
            f"# {self.title}\n",
            f"Written by `experiments/publish.py {name}` from the cells in [{name}/cells.jsonl]({name}/cells.jsonl); "
            f"all numbers, unrounded, in [{name}/results.json]({name}/results.json). "
            f"[What is compared](../{name}.md).\n",
            *(f"{note}\n" for note in (*self.task.notes, *footnotes(columns, columns))),
            self.rule,
            *map(self._table, benchmark.tables),
        ]
        return "\n".join([*parts, facts])

    def _table(self, table: Table) -> str:
        title, name, kind = self.task.table_title(table), self.task.name, table.labels[self.label]
        spread = "; mean ± sd" if table.seeds > 1 else ""
        parts = [
            f"## {title[0].upper()}{title[1:]}\n",
            f"{self.task.caption(table)}{spread}.\n",
            results_markdown(self.task.columns, table),
            *(f"{failure}.\n" for failure in failures(table)),
        ]
        for sentence, text in self.task.sections(table):
            parts += [f"{sentence}\n", text]
        judged = bars_markdown(self.goals(table.as_dict()))
        parts += [f"Goals. {NOT_ABOVE}", judged] if judged else []
        for stem, (sentence, _) in self.drawn.items():
            parts += [f"{sentence}\n", f"![{stem}]({name}/{stem}-{kind}.png)\n"]
        return "\n".join([*parts, f"![calibration]({name}/calibration-{kind}.png)\n"])

    def pictures(self, benchmark: Benchmark[Any]) -> dict[str, Figure]:
        """Calibration of the first seed of every table, and further pictures."""
        drawn = {}
        for table in benchmark.tables:
            results = benchmark.results[tuple(table.labels.values())]
            details = self.task.for_pictures(benchmark.settings, table, results)
            shown = {self.task.table_title(table): {**table.as_dict(), **details}}
            kind = table.labels[self.label]
            drawn[f"calibration-{kind}"] = calibration_sheet(shown, rows=row_styles(table.rows))
            drawn |= {f"{stem}-{kind}": draw(table.as_dict()) for stem, (_, draw) in self.drawn.items()}
        return drawn

    def more_files(self, benchmark: Benchmark[Any], store: Store) -> dict[str, str]:
        """The part of the page of claims."""
        del store
        parts = [f"[Results](results/{self.task.name}.md).\n"]
        for table in benchmark.tables:
            judged = bars_markdown(self.goals(table.as_dict()))
            parts += [f"{self.task.table_title(table)}:\n", judged] if judged else []
        return {f"{self.task.name}/claims.md": "\n".join(parts)}
