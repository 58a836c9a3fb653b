"""``fcal benchmark``."""

import shlex
from argparse import Namespace

from fcal._checks import check_integer
from fcal._files import atomic_path, provenance, writable_folder, write_json
from fcal.benchmarks import bokeh
from fcal.benchmarks.bokeh import ablations
from fcal.cli.printing import plain_warnings, print_json, say
from fcal.cli.scoreboards import print_tables
from fcal.sweeps import Store

_CRASHED = 1
_MOST_WORKERS = 256


def run(arguments: Namespace, words: list[str]) -> int:
    """Compute what is missing of a benchmark, print its tables, write them and the page."""
    try:
        with plain_warnings():
            return _run(arguments, words)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; what is finished is kept: the same command goes on where it was") from None


def _run(arguments: Namespace, words: list[str]) -> int:
    settings = _settings(arguments)
    check_integer("workers", arguments.workers, at_least=1, at_most=_MOST_WORKERS)
    if arguments.ablation is not None:
        return _ablation(settings, arguments, words)
    methods = None if arguments.methods is None else [name.strip() for name in arguments.methods.split(",")]
    bokeh.rows_of(methods)  # an unknown one is refused before the work
    out = writable_folder(arguments.out)
    store = Store(out / "cells", committed=bokeh.committed_cells())
    done = bokeh.benchmark(
        settings, store=store, methods=methods, workers=arguments.workers, progress=not arguments.json
    )
    command = f"fcal {shlex.join(words)}"
    document = {**done.document, "command": command, "settings": bokeh.described(settings), "versions": provenance()}
    write_json(out / "results.json", document)
    page = out / "report.html"
    bokeh.write_page(page, settings, done, command=command, preset=arguments.preset)
    if arguments.json:
        print_json(document)
    else:
        print_tables(document["tables"], page=str(page))
    return _complain(done.crashed)


def _ablation(settings: bokeh.Settings, arguments: Namespace, words: list[str]) -> int:
    """The same for one ablation, with a picture instead of the page."""
    name = arguments.ablation
    if arguments.methods is not None or (arguments.seeds or 1) != 1:
        raise ValueError("expected `--ablation` without `--methods`, on one seed, got more")
    ablations.ablation_cells(name, settings, arguments.noise, arguments.regime)  # a mistake is refused before the work
    out = writable_folder(arguments.out)
    done = ablations.ablation(
        name,
        settings,
        store=Store(out / "cells", committed=bokeh.committed_cells()),
        noise=arguments.noise,
        regime=arguments.regime,
        workers=arguments.workers,
        progress=not arguments.json,
    )
    document = {**done, "command": f"fcal {shlex.join(words)}", "versions": provenance()}
    write_json(out / f"ablation-{name}.json", document)
    picture = out / f"ablation-{name}.png"
    with atomic_path(picture) as temporary:
        ablations.draw(document).savefig(temporary)
    if arguments.json:
        print_json(document)
    else:
        print(ablations.markdown(document))
        print(f"picture: {picture}")
    points = [(series, point) for series, several in done["series"].items() for point in several]
    return _complain({f"{name} at {one['x']}": one["reason"] for name, one in points if one["status"] == "crashed"})


def _settings(arguments: Namespace) -> bokeh.Settings:
    return bokeh.preset(
        arguments.preset,
        noises=None if arguments.noise is None else (arguments.noise,),
        regimes=None if arguments.regime is None else (arguments.regime,),
        seeds=arguments.seeds,
    )


def _complain(crashed: dict[str, str]) -> int:
    """A line for every cell that could not be computed; what could is stored."""
    for name, reason in crashed.items():
        say(f"fcal: {name} could not be computed: {reason}")
    return _CRASHED if crashed else 0
