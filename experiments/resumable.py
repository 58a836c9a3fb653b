"""Command line and provenance of experiments that compute cells, stop and go on, and publish what is finished."""

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fcal._config import read_config
from fcal._files import writable_folder
from fcal.sweeps import Record

PROVENANCE = ("commit", "cpu", "cores", "torch", "python")


class Options(NamedTuple):
    """What the command line asks for: ``out`` has the pages, and ``folder``, below it, everything else."""

    config: Any
    out: Path
    folder: Path
    run: Path
    collect: bool


def from_command_line(
    name: str, description: str | None, config: type, script: str, run: Path, work: Callable[[Options], int]
) -> int:
    """Run an experiment from its command line; bad input is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--config", type=Path, default=Path(script).with_name("config.toml"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder of the page; the rest is below")
    parser.add_argument("--run", type=Path, default=run, help="folder of cells and weights")
    parser.add_argument("--collect", action="store_true", help="compute nothing: results of finished cells")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        settings: Any = read_config(arguments.config, config)
        folder = writable_folder(arguments.out / name)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return work(Options(settings, arguments.out, folder, arguments.run, arguments.collect))


def nothing_finished(options: Options) -> int:
    """Say that there is nothing to publish."""
    sys.stderr.write(f"expected finished cells in {options.run / 'cells'}, got none\n")
    return 2


def report_broken(reasons: Iterable[tuple[str, str]]) -> bool:
    """Say which cells failed and why, a line each; whether there were any."""
    lines = [f"{name}: {reason}\n" for name, reason in reasons]
    sys.stderr.writelines(lines)
    return bool(lines)


def provenance_of(records: Iterable[Record]) -> dict[str, list[str]]:
    """Commits, machines and versions that cells were computed with."""
    known = list(records)
    return {name: sorted({str(record.provenance.get(name)) for record in known}) for name in PROVENANCE}
