"""Publish a benchmark in the docs: its finished cells in one file, and the page of results written from them.

``python experiments/publish.py bokeh`` adds the finished cells of ``runs/bokeh`` to ``docs/results/bokeh/cells.jsonl``
and writes the page, the pictures and ``results.json`` from that file alone. ``--restore`` goes the other way: it puts
the published cells into the run, so that ``fcal benchmark`` computes only what is missing. ``--replace`` publishes rows
that were computed again, for instance because they have a new column.
"""

import argparse
import dataclasses
import importlib
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from claims_page import write_claims
from resumable import provenance_of

from fcal._config import to_toml
from fcal._files import atomic_path, write_json
from fcal.benchmarks import TASKS, Benchmark, collect, preset
from fcal.benchmarks.runner import plan
from fcal.sweeps import Cell, Record, Store, read_cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS.names())
    parser.add_argument("--run", type=Path, help="folder of the run (default runs/TASK)")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--preset", help="size of the published tables (default: the largest)")
    parser.add_argument("--seeds", type=int, help="seeds of the tables (default: as the preset says)")
    parser.add_argument("--restore", action="store_true", help="put the published cells into the run, and stop")
    parser.add_argument("--replace", action="store_true", help="cells of the run replace published ones")
    arguments = parser.parse_args()
    run, folder = arguments.run or Path("runs") / arguments.task, arguments.out / arguments.task
    if arguments.restore:
        return restore(run / "cells", folder / "cells.jsonl")
    mpl.use("agg")
    task = TASKS[arguments.task].load()
    sizes = [arguments.preset] if arguments.preset else published_presets(task)
    for size in sizes:
        add_cells(task, preset(task, size), run / "cells", folder / "cells.jsonl", replace=arguments.replace)
    settings = [preset(task, size, seeds=arguments.seeds) for size in sizes]
    with tempfile.TemporaryDirectory() as empty:  # from here on the docs' own cells are all there is
        publish(task, settings, Store(Path(empty) / "cells", published=[folder / "cells.jsonl"]), arguments.out)
    return None


def published_presets(task: Any) -> Sequence[str]:
    """Presets whose tables a page shows: those it names, or the largest one."""
    presets: Sequence[str] = getattr(page_of(task), "PRESETS", [list(task.presets)[-1]])
    return presets


def restore(cells: Path, published: Path) -> None:
    """Put published cells into a run, where they are missing."""
    store, count = Store(cells), 0
    for record in read_cells(published):
        if store.get(record.kind, record.config) is None:
            store.put(record.kind, record.config, record.result, seconds=record.seconds, provenance=record.provenance)
            count += 1
    print(f"{cells}: {count} cells restored")


def add_cells(task: Any, settings: Any, cells: Path, published: Path, *, replace: bool = False) -> None:
    """Add the finished cells of a run that the tables are made of, also those of seeds that are not complete."""
    both = Store(cells, published=[published])
    wanted = {cell.key for cell in cells_of(task, settings, both)}
    Store(cells).publish(published, only=wanted, replace=replace)


def cells_of(task: Any, settings: Any, store: Store) -> list[Cell]:
    """Rows of all tables, and what else a page of results shows."""
    rows = plan(task, task.problems(settings, store, None), None)
    page = page_of(task)
    more = page.more_cells(settings, rows) if hasattr(page, "more_cells") else []
    return list(dict.fromkeys([*(row.cell for row in rows), *more]))


def publish(task: Any, settings: Sequence[Any], store: Store, out: Path) -> None:
    """Write results, pictures and pages from published cells."""
    page, folder = page_of(task), out / task.name
    done = together([collect(task, each, store=store) for each in settings])
    done = page.with_comparisons(done) if hasattr(page, "with_comparisons") else done
    if not done.tables:
        raise SystemExit(f"expected finished cells of {task.name}, got none")
    cells = [cell for each in settings for cell in cells_of(task, each, store)]
    records = [store.record(cell.kind, cell.config) for cell in cells]
    folder.mkdir(parents=True, exist_ok=True)
    document = {name: value for name, value in done.document.items() if name != "wall_s"}  # nothing ran
    described = [task.described(each) for each in settings]
    write_json(folder / "results.json", {**document, "settings": described[0] if len(described) == 1 else described})
    for name, figure in page.pictures(done).items():
        with atomic_path(folder / f"{name}.png") as temporary:
            figure.savefig(temporary, dpi=110, metadata={"Software": None})
    text = page.page(done, facts(settings, [record for record in records if record is not None]))
    more = page.more_files(done, store) if hasattr(page, "more_files") else {}
    for path, content in {f"{task.name}.md": text, **more}.items():
        with atomic_path(out / path) as temporary:
            temporary.write_text(content, encoding="utf-8")
    write_claims(out)
    print(f"{out / task.name}.md: {len(done.tables)} tables")


def together(finished: Sequence[Benchmark[Any]]) -> Benchmark[Any]:
    """Tables of several settings as one benchmark, with the settings of the first."""
    tables = [table for done in finished for table in done.tables]
    results = {labels: rows for done in finished for labels, rows in done.results.items()}
    return dataclasses.replace(finished[0], tables=tables, results=results)


def page_of(task: Any) -> Any:
    """The module that writes a task's page.

    It has ``page`` and ``pictures``, and may have ``PRESETS``, ``with_comparisons``, ``more_cells`` and ``more_files``.
    """
    return importlib.import_module(f"{task.name}.page")


def facts(settings: Sequence[Any], records: Iterable[Record]) -> str:
    """Commits, machines, time and settings of the cells, as Markdown."""
    known = list(records)
    lines = [f"- {name}: {', '.join(values)}" for name, values in provenance_of(known).items()]
    seconds = sum(record.seconds or 0.0 for record in known)
    lines.append(f"- {len(known)} cells, {seconds / 3600:.1f} hours of one process, without trainings that rows share")
    blocks = [line for each in settings for line in ("", "```toml", to_toml(each).strip(), "```")]
    return "\n".join([*lines, *blocks, ""])


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
