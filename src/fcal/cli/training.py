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
from fcal.training.run_configuration import ConfigError
from fcal.training.sums import SUMS

if TYPE_CHECKING:
    from fcal.training import Run

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_LONGEST_NAME = 200
_NO_FILE = re.compile(r"(^|`)config(: |\.)")  # what a config is called that has been changed since it was read
_UNKNOWN = re.compile("expected `(model|data|objective)` one of ")
_SHOWN = ("verdict", "scale", "nll", "crps", "l1", "rmse", "ece_z", "ece_q", "ence", "sharpness")


def run(arguments: Namespace, words: list[str]) -> int:
    """Train what a file says, print what came of it."""
    if arguments.out == "":
        raise ValueError("expected `--out` the name of a folder, got ''")
    folder = Path("runs", Path(arguments.config).stem) if arguments.out is None else Path(arguments.out)
    with redirect_stdout(sys.stderr):  # what a plugin prints; stdout is for what came of it
        for plugin in arguments.plugin:
            load_plugin(plugin)
        with _told_of(arguments):
            was_finished = (folder / SUMS).exists()
            finished = _train(_resolved(arguments), folder, arguments)
    if arguments.json:
        document = {"out": str(finished.folder), "command": f"fcal {shlex.join(words)}", "versions": provenance()}
        print_json(document | finished.report)
        return 0
    _print_report(finished.report)
    say(f"{'already finished: nothing to do in' if was_finished else 'written to'} {finished.folder}")
    return 0


def _resolved(arguments: Namespace) -> RunConfig:
    """The config of the file, with what the command line replaces in it."""
    config = read_config(arguments.config, RunConfig)
    try:
        return with_overrides(config, arguments.set)
    except ValueError as error:
        raise ConfigError(_NO_FILE.sub(r"\1", str(error), count=1)) from error  # the file is named below


@contextmanager
def _told_of(arguments: Namespace) -> Iterator[None]:
    """Say of a refused config which file it is, and of an unknown name where those of one's own come from."""
    try:
        yield
    except ValueError as error:
        told = f"{arguments.config}: {error}" if isinstance(error, ConfigError) else str(error)
        if _UNKNOWN.search(told) and not arguments.plugin:
            told += "; for one of your own, --plugin names the module or .py file that registers it"
        raise ValueError(told) from error


def _train(config: RunConfig, folder: Path, arguments: Namespace) -> "Run":
    # Loaded only now, for it takes seconds: what is wrong with a config is said at once.
    from fcal.training import train

    try:
        return train(config, folder, resume=arguments.resume, progress=not arguments.json)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise OSError(f"{error.strerror} in {folder}; the same command with --resume goes on") from error
    except SystemExit as error:  # of the network or the data: nothing is finished, whatever it says
        raise RuntimeError(f"expected a training that ends by itself, got sys.exit({error.code!r})") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped{_how_to_go_on(folder)}") from None


def _how_to_go_on(folder: Path) -> str:
    if any((folder / "training").rglob("checkpoint.json")):
        return "; the same command with --resume goes on from the last checkpoint"
    return " before the first checkpoint; the same command with --resume begins anew"


def load_plugin(name: str) -> None:
    """Import a user's module, which makes networks, data and objectives known by name.

    Args:
        name: An importable module, also of the current folder, or the path of a Python file, which may import its
            neighbours.

    Raises:
        ValueError: It is not there, or it cannot be imported, for whatever reason.
    """
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
    is_file = name.endswith(".py")
    if not is_file and not all(word.isidentifier() for word in name.split(".")):
        raise ValueError(f"expected `--plugin` a module or the path of a .py file, got {shown!r}")
    if is_file and not _is_there(Path(name)):
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
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"expected `--plugin` a module to import, got {shown}, which raised {said}") from error


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # too long a name
        return False


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
