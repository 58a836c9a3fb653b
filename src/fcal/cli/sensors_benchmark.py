"""``fcal benchmark sensors``."""

import shlex
from argparse import Namespace

from fcal._checks import check_integer
from fcal._files import atomic_path, provenance, writable_folder, write_json
from fcal.benchmarks import sensors
from fcal.benchmarks.sensors import markdown, picture
from fcal.cli.printing import plain_warnings, print_json, say
from fcal.sweeps import Store

_CRASHED = 1
_MOST_WORKERS = 256


def run(arguments: Namespace, words: list[str]) -> int:
    """Compute what is missing, print the tables, write them and the picture."""
    try:
        with plain_warnings():
            return _run(arguments, words)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; what is finished is kept: the same command goes on where it was") from None


def _run(arguments: Namespace, words: list[str]) -> int:
    chosen = None if arguments.sensors is None else tuple(name.strip() for name in arguments.sensors.split(","))
    settings = sensors.preset(arguments.preset, tables=chosen)
    check_integer("workers", arguments.workers, at_least=1, at_most=_MOST_WORKERS)
    sensors.checksums(arguments.data, settings.tables)  # a missing file is told before a folder is made
    out = writable_folder(arguments.out)
    done = sensors.benchmark(
        arguments.data,
        settings,
        store=Store(out / "cells", committed=sensors.committed_cells()),
        workers=arguments.workers,
        progress=not arguments.json,
    )
    command = f"fcal {shlex.join(words)}"
    document = {**done.document, "command": command, "settings": sensors.described(settings), "versions": provenance()}
    write_json(out / "results.json", document)
    path = out / "sensors.png"
    if document["tables"]:
        with atomic_path(path) as temporary:
            picture.draw(document["tables"]).savefig(temporary, dpi=110)
    if arguments.json:
        print_json(document)
    else:
        print(markdown.everything(document["tables"]))
        print(f"picture: {path}")
    for name, reason in done.crashed.items():
        say(f"fcal: {name} could not be computed: {reason}")
    return _CRASHED if done.crashed else 0
