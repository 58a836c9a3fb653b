"""Shared by the speed scripts: timing in alternating blocks, peak memory, and their table."""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from fcal._checks import check_integer
from fcal._files import atomic_path, provenance, writable_folder, write_json

BLOCKS = 5
_SMALL = 0.005  # ratios that two decimals would show as 0
Step = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table; ``reach`` is the bar that ``ratio`` should meet."""

    work: str
    count: int
    against: str
    ratio: float
    unit: str
    reach: str
    met: bool
    ours_ms: float | None = None
    theirs_ms: float | None = None


def medians(steps: Sequence[Step], repeats: list[int]) -> list[float]:
    """Median seconds of each step; they alternate in short blocks, so that all have the same noise and warm caches."""
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(BLOCKS):
        for own, step, count in zip(times, steps, repeats, strict=True):
            step()  # warms caches and allocator after the other one
            own.extend(step() for _ in range(max(count // BLOCKS, 1)))
    return [statistics.median(own) for own in times]


def rounds(steps: Sequence[Step], count: int) -> list[list[float]]:
    """Seconds of each step in each of several rounds, in which every step runs once, after a round of warming up.

    Quotients within a round compare what ran within seconds: on a busy machine their median varies much less than a
    quotient of medians.
    """
    times = [[step() for step in steps] for _ in range(count + 1)]
    return [list(own) for own in zip(*times[1:], strict=True)]


def timed(work: Callable[[], object]) -> float:
    """Processor time of a step: other work on the machine would slow the longer step more than the shorter one."""
    started = time.process_time()
    work()
    return time.process_time() - started


def extra_bytes_in_fresh_process(script: str, *arguments: str, **environment: str) -> float:
    """Peak memory that a fresh process of ``script``, called with hidden arguments, reports."""
    run = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return float(run.stdout)


def extra_bytes(step: Callable[[], object]) -> int:
    """Peak of the resident memory of this process during a step, beyond what it held before."""
    before = status_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    step()
    return (status_kib("VmHWM") - before) * 1024


def faster(work: str, count: int, against: str, seconds: tuple[float, float], least: float) -> Row:
    """A line on how many times faster ours, the first of ``seconds``, is than theirs."""
    ours, theirs = seconds
    return Row(
        work=work,
        count=count,
        against=against,
        ratio=theirs / ours,
        unit="x faster",
        reach=f">= {least:g}x faster",
        met=theirs / ours >= least,
        ours_ms=1e3 * ours,
        theirs_ms=1e3 * theirs,
    )


def status_kib(name: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0])


def table(rows: list[Row]) -> Table:
    printed = Table(title="one thread; ratio of medians in one run")
    for name, side in (
        ("work", "left"),
        ("N", "right"),
        ("against", "left"),
        ("measured", "right"),
        ("our bar", "left"),
    ):
        printed.add_column(name, justify=side)  # type: ignore[arg-type]
    for row in rows:
        style = "green" if row.met else "red"
        printed.add_row(row.work, f"{row.count:.0e}", row.against, f"[{style}]{shown(row)}[/]", row.reach)
    return printed


def shown(row: Row) -> str:
    if 0 < abs(row.ratio) < _SMALL:
        return f"{row.ratio:.1e}{row.unit}"
    digits = 1 if row.ratio >= 10 else 2
    return f"{row.ratio:.{digits}f}{row.unit}"


def as_markdown(rows: list[Row]) -> str:
    lines = ["| work | N | against | measured | our bar |", "|---|---|---|---|---|"]
    for row in rows:
        met = "" if row.met else ", missed"
        lines.append(f"| {row.work} | {row.count:.0e} | {row.against} | {shown(row)} | {row.reach}{met} |")
    return "\n".join(lines) + "\n"


def check_options(options: argparse.Namespace) -> str | None:
    """Error message for an output that cannot be written, checked before the timing; None if there is no error."""
    try:
        check_integer("--shrink", options.shrink, at_least=1, at_most=10_000)
        writable_folder(options.out.parent)
        if options.out.is_dir():
            raise ValueError(f"expected `--out` a file, got the folder {options.out}")
    except (ValueError, OSError) as error:
        return str(error)
    return None


def publish(rows: list[Row], options: argparse.Namespace) -> None:
    """Write JSON and Markdown, print the table."""
    document = {"provenance": provenance(), "threads": 1, "shrink": options.shrink, "rows": [asdict(r) for r in rows]}
    write_json(options.out, document)
    with atomic_path(options.out.with_suffix(".md")) as temporary:
        temporary.write_text(as_markdown(rows), encoding="utf-8")
    Console().print(table(rows))
    sys.stdout.write(f"written to {options.out}\n")


def main(
    description: str | None,
    name: str,
    measure: Callable[[int, Console], list[Row]],
    memory_of: Callable[..., int],
) -> int:
    """Main function of every script: read the arguments, measure, publish.

    Args:
        description: Text of ``--help``.
        name: The script's name, for where the numbers go by default.
        measure: ``(shrink, console)`` to the rows of the table.
        memory_of: What a fresh process measures, of the whole numbers that it is called with.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(f"runs/bench/{name}.json"), help="where the JSON goes")
    parser.add_argument("--shrink", type=int, default=1, help="divide sizes and repeats by this, to try the script out")
    parser.add_argument("--memory-of", type=int, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory_of is not None:
        sys.stdout.write(f"{memory_of(*options.memory_of)}\n")
        return 0
    wrong = check_options(options)
    if wrong is not None:
        sys.stderr.write(f"{wrong}\n")
        return 2
    publish(measure(options.shrink, Console(stderr=True)), options)
    return 0
