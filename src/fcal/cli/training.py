"""``fcal train``."""

import errno
import importlib
import importlib.util
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from fcal._config import read_config, with_overrides
from fcal._files import provenance
from fcal.cli.printing import print_json, say
from fcal.training import RunConfig
from fcal.training.config import ConfigError
from fcal.training.run_folder import TRAINING, is_finished

if TYPE_CHECKING:
    from fcal.training import Run

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_LONGEST_NAME = 200  # characters
_CONFIG_PREFIX = re.compile(r"(^|`)config(: |\.)")  # name of a config that has been changed since it was read
_UNKNOWN_NAME = re.compile("expected `(model|data|objective)` one of ")
_SHOWN = ("verdict", "scale", "nll", "crps", "l1", "rmse", "ece_z", "ece_q", "ence", "sharpness")


def run(arguments: Namespace, words: list[str]) -> int:
    """Train the network of a config file and print its test metrics."""
    if arguments.out == "":
        raise ValueError("expected `--out` the name of a folder, got ''")
    folder = Path("runs", Path(arguments.config).stem) if arguments.out is None else Path(arguments.out)
    with redirect_stdout(sys.stderr):  # what plugins print; stdout is for the result
        for plugin in arguments.plugin:
            load_plugin(plugin)
        with _located_errors(arguments):
            was_finished = is_finished(folder)
            result = _train(_resolved(arguments), folder, arguments)
    if arguments.json:
        document = {"out": str(result.folder), "command": f"fcal {shlex.join(words)}", "versions": provenance()}
        print_json(document | result.report)
        return 0
    _print_report(result.report)
    say(f"{'already finished: nothing to do in' if was_finished else 'written to'} {result.folder}")
    return 0


def _resolved(arguments: Namespace) -> RunConfig:
    """The config of the file, with the overrides of the command line."""
    config = read_config(arguments.config, RunConfig)
    try:
        return with_overrides(config, arguments.set)
    except ValueError as error:
        raise ConfigError(_CONFIG_PREFIX.sub(r"\1", str(error), count=1)) from error  # the file is named below


@contextmanager
def _located_errors(arguments: Namespace) -> Iterator[None]:
    """Add the file to errors of the config, and a hint at ``--plugin`` to errors of unknown names."""
    try:
        yield
    except ValueError as error:
        message = f"{arguments.config}: {error}" if isinstance(error, ConfigError) else str(error)
        if _UNKNOWN_NAME.search(message) and not arguments.plugin:
            message += "; for one of your own, --plugin names the module or .py file that registers it"
        raise ValueError(message) from error


def _train(config: RunConfig, folder: Path, arguments: Namespace) -> "Run":
    # Imported only now, because it takes seconds: errors of the config come at once.
    from fcal.training import train

    try:
        return train(config, folder, resume=arguments.resume, progress=not arguments.json)
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        raise OSError(f"{error.strerror} in {folder}; the same command with --resume goes on") from error
    except SystemExit as error:  # raised by the network or the data: the run is not finished, whatever the code
        raise RuntimeError(f"expected a training that ends by itself, got sys.exit({error.code!r})") from error
    except KeyboardInterrupt:
        has_checkpoint = any((folder / TRAINING).rglob("checkpoint.json"))
        remedy = (
            "; the same command with --resume goes on from the last checkpoint"
            if has_checkpoint
            else " before the first checkpoint; the same command with --resume starts again"
        )
        raise KeyboardInterrupt(f"stopped{remedy}") from None


def load_plugin(name: str) -> None:
    """Import a user's module, which registers networks, data and objectives.

    Args:
        name: A module that is installed or in the current folder, or the path of a Python file, which may import its
            neighbours.

    Raises:
        ValueError: It does not exist, or importing it raises an error.
    """
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
    is_file = name.endswith(".py")
    if not is_file and not all(word.isidentifier() for word in name.split(".")):
        raise ValueError(f"expected `--plugin` a module or the path of a .py file, got {shown!r}")
    if is_file and not _is_file(Path(name)):
        raise ValueError(f"expected `--plugin` a Python file, got {shown}, which is not there")
    home = str(Path(name).resolve().parent if is_file else Path.cwd())
    if home not in sys.path:
        sys.path.append(home)  # last, so that nothing there hides an installed package
    try:
        _import_file(Path(name)) if is_file else importlib.import_module(name)
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        hint = " (a .py file, or a module that is installed or in the current folder)" if is_missing else ""
        raise ValueError(f"expected `--plugin` a module to import, got {shown}: {error}{hint}") from error
    except (Exception, SystemExit) as error:
        raised = f"{type(error).__name__}: {error}"
        raise ValueError(f"expected `--plugin` a module to import, got {shown}, which raised {raised}") from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is too long
        return False


def _import_file(path: Path) -> None:
    name = f"fcal_plugin_{path.stem}"  # the prefix keeps a file called torch.py from hiding torch
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _print_report(report: Mapping[str, Any]) -> None:
    """Print the test metrics, before and after recalibration if there is one."""
    test, before, fitted = report["test"], report["before"], report["fit"]
    columns = ["test"] if before is None else ["before", "after"]
    training = f"epoch {fitted['best_epoch'] + 1} of {fitted['epochs_run']}, {fitted['step_count']:,} steps"
    table = Table("", *columns, caption=f"weights of {training}, {fitted['seconds']:.1f} s")
    for name in _SHOWN:
        values = [metrics.get(name) for metrics in (before, test) if metrics is not None]
        if any(value is not None for value in values):
            table.add_row(name, *(_shown(value) for value in values))
    Console(soft_wrap=True).print(table)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{value['value']:.4g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
