"""The HTML page of a benchmark."""

import os
from collections.abc import Mapping
from typing import Any

from fcal.benchmarks.conclusion import conclusion
from fcal.benchmarks.methods import row_styles
from fcal.benchmarks.runner import Benchmark
from fcal.reports.benchmark import benchmark_page
from fcal.reports.page import write_html


def write_page(
    path: str | os.PathLike[str],
    benchmark: Benchmark[Any],
    *,
    command: str,
    preset: str = "",
    versions: Mapping[str, Any] | None = None,
) -> None:
    """Write one self-contained page of all tables.

    Args:
        path: File to write.
        benchmark: Finished benchmark.
        command: Command that was run.
        preset: Name of the preset of the settings, if any.
        versions: Versions, commit and machine; those of this process by default.
    """
    task, settings = benchmark.task, benchmark.settings
    tables = []
    for table in benchmark.tables:
        results = benchmark.results[tuple(table.labels.values())]
        pictures = task.for_pictures(settings, table, results)
        tables.append({"paper": {}, **table.as_dict(), "title": task.table_title(table), **pictures})
    notes = [*task.notes, *task.describe(settings, benchmark.tables, preset)] if tables else list(task.notes)
    shares = [f'"{column.title}"' for column in task.columns if column.percent and column.printed]
    if shares:
        notes.append(f"Shares ({', '.join(shares)}) are from 0 to 1 on this page; the terminal shows them in per cent.")
    text = benchmark_page(
        tables,
        command=command,
        title=task.title or task.name,
        conclusion=conclusion(benchmark.tables, task.columns),
        notes=notes,
        seconds=benchmark.seconds,
        versions=versions,
        rows=row_styles(name for table in benchmark.tables for name in table.rows),
        columns={column.name: column for column in task.columns},
    )
    write_html(path, text)
