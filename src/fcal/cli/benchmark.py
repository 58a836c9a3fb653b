"""``fcal benchmark``: one command for every task, built-in or from a plugin."""

import shlex
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from fcal._checks import check_integer
from fcal._files import atomic_path, provenance, removed_if_empty, writable_folder, write_json
from fcal.benchmarks import TASKS, Benchmark, Task, benchmark, preset
from fcal.benchmarks.conclusion import conclusion
from fcal.benchmarks.markdown import floor_lines, spread_text
from fcal.benchmarks.methods import RECOMMENDED, row_styles
from fcal.benchmarks.page import write_page
from fcal.benchmarks.runner import plan
from fcal.benchmarks.table import DONE, FAILED, Column, Table
from fcal.cli.commands import plain_warnings, print_json, say
from fcal.cli.consoles import print_in_full
from fcal.plots.styles import footnotes
from fcal.reports.results_table import ONE_SEED
from fcal.sweeps import Store

_CRASHED = 1
_ALL = "all"  # of --methods
_MOST_WORKERS = 256
_ROOM_FOR_SPREAD = 140  # characters of a terminal


def run(arguments: Namespace, words: list[str]) -> int:
    """Compute missing cells of a benchmark, print its tables, and write them and the page."""
    try:
        with plain_warnings():
            return _run(arguments, words)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; finished cells are kept: the same command resumes the run") from None


def _run(arguments: Namespace, words: list[str]) -> int:
    entry = TASKS[arguments.task]
    task = entry.load()
    changes = entry.settings(vars(arguments))
    if getattr(arguments, "seeds", None) is not None:
        changes = {**changes, "seeds": check_integer("seeds", arguments.seeds, at_least=1)}
    settings = preset(task, arguments.preset, **changes)
    check_integer("workers", arguments.workers, at_least=1, at_most=_MOST_WORKERS)
    command = f"fcal {shlex.join(words)}"
    if getattr(arguments, "ablation", None) is not None:
        return _ablation(task, settings, arguments, command)
    methods = _methods(task, arguments.methods)
    data = getattr(arguments, "data", None)
    # Rejects bad input before a folder is created.
    plan(task, task.problems(settings, Store(f"{arguments.out}/cells"), data), methods)
    with removed_if_empty(Path(arguments.out)):  # data are read now
        out = writable_folder(arguments.out)
        done = benchmark(
            task,
            settings,
            store=Store(out / "cells"),
            data=data,
            methods=methods,
            workers=arguments.workers,
            progress=not arguments.json,
        )
    versions = provenance()
    document = {**done.document, "command": command, "settings": task.described(settings), "versions": versions}
    page = out / "report.html"
    write_page(page, done, command=command, preset=arguments.preset, versions=versions)
    write_json(out / "results.json", document)
    pictures = _draw(task, done, out)
    if arguments.json:
        print_json(document)
    else:
        _print(done)
        print("\n".join([f"page: {page}", *(f"picture: {path}" for path in pictures)]))
        for sentence in conclusion(done.tables, task.columns):
            Console(soft_wrap=True).print(Text(sentence, "bold"))
    for name in done.crashed if arguments.debug else ():
        print(done.tracebacks[name], file=sys.stderr)
    return _print_crashes(dict(done.crashed))


def _methods(task: Task[Any], typed: str | None) -> list[str] | None:
    """Methods of ``--methods``; None for all."""
    if typed is None:
        return task.usual_methods()
    return None if typed.strip() == _ALL else [name.strip() for name in typed.split(",")]


def _draw(task: Task[Any], done: Benchmark[Any], out: Path) -> list[Path]:
    figures = {out / f"{name}.png": figure for name, figure in task.pictures(done.tables).items()}
    for path, figure in figures.items():
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=110, metadata={"Software": None})
    return list(figures)


def _ablation(task: Task[Any], settings: Any, arguments: Namespace, command: str) -> int:
    """Compute one ablation, and write its picture instead of the page."""
    if arguments.methods is not None:
        raise ValueError("expected `--ablation` without `--methods`, got both")
    ablations = task.ablations()
    labels = {label: vars(arguments)[label] for label in ablations.LABELS}
    ablations.ablation_cells(arguments.ablation, settings, **labels)  # rejects bad input before a folder is created
    out = writable_folder(arguments.out)
    done = ablations.ablation(
        arguments.ablation,
        settings,
        store=Store(out / "cells"),
        **labels,
        seeds=arguments.seeds,
        workers=arguments.workers,
        progress=not arguments.json,
    )
    document = {**done, "command": command, "versions": provenance()}
    write_json(out / f"ablation-{arguments.ablation}.json", document)
    picture = out / f"ablation-{arguments.ablation}.png"
    with atomic_path(picture) as temporary:
        ablations.draw(document).savefig(temporary, dpi=110)
    if arguments.json:
        print_json(document)
    else:
        print(ablations.markdown(document))
        print(f"picture: {picture}")
    points = [(series, point) for series, curve in done["series"].items() for point in curve]
    return _print_crashes(
        {f"{series} at {point['x']}": point["reason"] for series, point in points if point["status"] == "crashed"}
    )


def _print_crashes(crashed: dict[str, str]) -> int:
    """Print a line for every cell that could not be computed; the others are stored."""
    for name, reason in crashed.items():
        say(f"fcal: {name} could not be computed: {reason}")
    return _CRASHED if crashed else 0


def _print(done: Benchmark[Any]) -> None:
    """Print every table with its sections, and footnotes on columns and rows."""
    console = Console(soft_wrap=True)
    task = done.task
    for table in done.tables:
        print_in_full(_grid(task, table, spread=table.seeds > 1 and console.width >= _ROOM_FOR_SPREAD))
        for name, row in table.rows.items():
            if row.status == FAILED:  # crashed cells are reported on stderr
                title = row_styles([name])[name].full_title
                console.print(Text(f"{title} failed: {row.reason}", style="yellow"))
        for sentence, text in task.printed_sections(table):
            console.print(Text(sentence))
            console.print(Text(text))
    rows = dict.fromkeys(name for table in done.tables for name in table.rows)
    columns = {column.name: column for column in task.columns if column.printed}
    notes = [*footnotes(columns, columns), *footnotes(row_styles(rows), rows)]
    if any(table.seeds == 1 for table in done.tables):
        notes.append(ONE_SEED)
    if RECOMMENDED in rows:
        notes.append("The recommended row is what fcal.crossfit does by default, docs/crossfitting.md.")
    notes.append(f"Rows as --methods takes them: {', '.join(rows)}.")
    for note in notes:
        console.print(Text(note, "dim"))


def _grid(task: Task[Any], table: Table, *, spread: bool) -> Grid:
    columns = [column for column in task.columns if column.printed and column.name in table.columns]
    grid = Grid(
        "",
        *(_heading(column) for column in columns),
        title=task.table_title(table),
        caption=task.caption(table),
        box=SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    for column in grid.columns:
        column.no_wrap = True
    for column in grid.columns[1:]:
        column.justify = "right"
    styles = row_styles(table.rows)
    for name, row in table.rows.items():
        values = [spread_text(column, row.columns[column.name], task.error if spread else "") for column in columns]
        style = "yellow" if row.status != DONE else "bold" if name == table.details.get("recommended") else ""
        grid.add_row(styles[name].full_title, *values, style=style)
    grid.add_section()
    further = [[text.strip("*") for text in line] for line in task.beside(table)]
    for line in (*floor_lines(columns, table, "calibrated model", "95 % below"), *further):
        grid.add_row(*line, style="dim")
    return grid


def _heading(column: Column) -> str:
    """Title above factor or unit."""
    return column.heading.replace(" x", "\nx").replace(", ", "\n").replace("(sigma)", "\nsigma")
