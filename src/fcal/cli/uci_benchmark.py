"""``fcal benchmark uci``."""

import shlex
from argparse import Namespace

from fcal._checks import check_integer
from fcal._files import provenance, writable_folder, write_json
from fcal.benchmarks import uci
from fcal.benchmarks.uci.markdown import plain_tables
from fcal.cli.printing import plain_warnings, print_json, say
from fcal.sweeps import Store

_CRASHED = 1
_MOST_WORKERS = 256


def run(arguments: Namespace, words: list[str]) -> int:
    """Compute what is missing of the benchmark, print its tables and write them."""
    try:
        with plain_warnings():
            return _run(arguments, words)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; what is finished is kept: the same command goes on where it was") from None


def _run(arguments: Namespace, words: list[str]) -> int:
    check_integer("workers", arguments.workers, at_least=1, at_most=_MOST_WORKERS)
    settings = uci.preset(arguments.preset, datasets=_names(arguments.datasets), networks=_names(arguments.networks))
    methods = _names(arguments.methods)
    uci.cells_of(settings, uci.digests_of(settings, arguments.data), methods)  # mistakes are told before the work
    out = writable_folder(arguments.out)
    done = uci.benchmark(
        settings,
        arguments.data,
        store=Store(out / "cells", committed=uci.committed_cells()),
        methods=methods,
        workers=arguments.workers,
        progress=not arguments.json,
    )
    document = {
        **done.document,
        "command": f"fcal {shlex.join(words)}",
        "settings": uci.described(settings),
        "versions": provenance(),
    }
    write_json(out / "results.json", document)
    page = out / "report.html"
    uci.write_page(page, document, preset=arguments.preset)
    if arguments.json:
        print_json(document)
    else:
        print(plain_tables(document))
        print(f"page: {page}")
    for name, reason in done.crashed.items():
        say(f"fcal: {name} could not be computed: {reason}")
    return _CRASHED if done.crashed else 0


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(dict.fromkeys(name.strip() for name in text.split(",")))
