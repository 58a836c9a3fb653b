"""``fcal train``."""

import errno
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

from fcal._config import read_config, to_toml, with_overrides
from fcal._files import provenance
from fcal.cli.commands import plain_warnings, print_json, say
from fcal.cli.plugins import load_plugin
from fcal.training import RunConfig
from fcal.training.config import ConfigError
from fcal.training.run_folder import TRAINING, is_finished

if TYPE_CHECKING:
    from fcal.training import Run

_PAGE = "report.html"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_CONFIG_PREFIX = re.compile(r"(^|`)config(: |\.)")  # name of a config that has been changed since it was read
_UNKNOWN_NAME = re.compile("expected `(model|data|objective)` one of ")
_NOTHING_LEARNT = "it proposes no object"  # of a detector, after training
_SHOWN = ("verdict", "scale", "nll", "crps", "l1", "rmse", "ece_z", "ece_q", "ence", "sharpness")


def run(arguments: Namespace, words: list[str]) -> int:
    """Train the network of a config file and print its test metrics."""
    if arguments.out == "":
        raise ValueError("expected `--out` the name of a folder, got ''")
    folder = Path("runs", Path(arguments.config).stem) if arguments.out is None else Path(arguments.out)
    with redirect_stdout(sys.stderr):  # what plugins print; stdout is for the result
        for plugin in arguments.plugin:
            load_plugin(plugin)
        with _located_errors(arguments), plain_warnings():
            was_finished, config = is_finished(folder), _resolved(arguments)
            with _remedies(config, folder):
                result = _train(config, folder, arguments)
    command = f"fcal {shlex.join(words)}"
    page = result.folder / _PAGE
    if not was_finished:
        write_page(result, page, command)
    if arguments.json:
        document = {"out": str(result.folder), "command": command, "versions": provenance()}
        print_json(document | result.report)
        return 0
    _print_report(result.report)
    if page.exists():
        print(f"page: {page}")
    say(f"{'already finished: nothing to do in' if was_finished else 'written to'} {result.folder}")
    return 0


def write_page(run: "Run", path: Path, command: str) -> None:
    """Write the page of a run that has just been trained."""
    # Imported only now, like the training: errors of the config come at once.
    from fcal.reports.page import write_html
    from fcal.reports.training import training_page

    fitted = run.report["fit"]
    text = training_page(
        fitted["history"],
        best_epoch=fitted["best_epoch"],
        config=to_toml(run.config),
        report=run.evaluations.get("test"),
        before=run.evaluations.get("before"),
        name=run.folder.name,
        command=command,
    )
    write_html(path, text)


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


@contextmanager
def _remedies(config: RunConfig, folder: Path) -> Iterator[None]:
    """Say how to go on after a training that has learnt too little: a folder is of one config, so not with --resume."""
    try:
        yield
    except ValueError as error:
        if _NOTHING_LEARNT not in str(error):
            raise
        remedy = f"--set fit.epochs=N with N above {config.fit.epochs}, and --out another folder than {folder}"
        raise ValueError(f"{error}: {remedy}") from error


def _train(config: RunConfig, folder: Path, arguments: Namespace) -> "Run":
    # Imported only now, because it takes seconds: errors of the config come at once.
    from fcal.training import train

    try:
        return train(config, folder, resume=arguments.resume, progress=not arguments.json)
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        raise OSError(f"{error.strerror} in {folder}; the same command with --resume continues") from error
    except SystemExit as error:  # raised by the network or the data: the run is not finished, whatever the code
        raise RuntimeError(f"expected a training that ends by itself, got sys.exit({error.code!r})") from error
    except KeyboardInterrupt:
        has_checkpoint = any((folder / TRAINING).rglob("checkpoint.fcal"))
        remedy = (
            "; the same command with --resume continues from the last checkpoint"
            if has_checkpoint
            else " before the first checkpoint; the same command with --resume starts again"
        )
        raise KeyboardInterrupt(f"stopped{remedy}") from None


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
