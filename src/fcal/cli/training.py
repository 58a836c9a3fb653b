"""``fcal train``."""

import importlib
import importlib.util
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fcal._config import read_config, with_overrides
from fcal._files import provenance
from fcal.cli.printing import print_json, say
from fcal.training import RunConfig

_SHOWN = ("verdict", "scale", "nll", "crps", "l1", "rmse", "ece_z", "ece_q", "ence", "sharpness")


def run(arguments: Namespace, words: list[str]) -> int:
    """Train what a file says, print what came of it."""
    for plugin in arguments.plugin:
        load_plugin(plugin)
    config = with_overrides(read_config(arguments.config, RunConfig), arguments.set)
    folder = Path("runs", Path(arguments.config).stem) if arguments.out is None else Path(arguments.out)
    # Loaded only now, for it takes seconds: what is wrong with a config is said at once.
    from fcal.training import train

    finished = train(config, folder, resume=arguments.resume, progress=not arguments.json)
    if arguments.json:
        document = {"out": str(finished.folder), "command": f"fcal {shlex.join(words)}", "versions": provenance()}
        print_json(document | finished.report)
        return 0
    _print_report(finished.report)
    say(f"written to {finished.folder}")
    return 0


def load_plugin(name: str) -> None:
    """Import a user's module, which makes networks, data and objectives known by name.

    Args:
        name: An importable module, or the path of a Python file.

    Raises:
        ValueError: It is not there, or what it imports is not.
    """
    try:
        if not name.endswith(".py"):
            importlib.import_module(name)
            return
        path = Path(name)
        if not path.is_file():
            raise ValueError(f"expected `--plugin` a Python file, got {name}, which is not there")
        _import_file(path)
    except ImportError as error:
        raise ValueError(f"expected `--plugin` a module to import, got {name}: {error}") from error


def _import_file(path: Path) -> None:
    name = f"fcal_plugin_{path.stem}"  # of its own, so that a file called torch.py does no harm
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _print_report(report: Mapping[str, Any]) -> None:
    """Numbers on the test set, before and after the repair where there is one."""
    test, before, fitted = report["test"], report["before"], report["fit"]
    columns = ["test"] if before is None else ["before", "after"]
    told = f"epoch {fitted['best_epoch'] + 1} of {fitted['epochs_run']}, {fitted['step_count']:,} steps"
    table = Table("", *columns, caption=f"weights of {told}, {fitted['seconds']:.1f} s")
    for name in _SHOWN:
        values = [numbers.get(name) for numbers in (before, test) if numbers is not None]
        if any(value is not None for value in values):
            table.add_row(name, *(_shown(value) for value in values))
    Console(soft_wrap=True).print(table)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{value['value']:.4g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
