"""The commands: arguments, what they print, errors as one line, exit codes.

Imports nothing heavy, so that ``--help`` is fast; the commands themselves are imported when they run.
"""

import argparse
import errno
import importlib
import json
import os
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeAlias

import fcal
from fcal._files import is_link_loop, is_utf8
from fcal.benchmarks.catalogue import TASKS, Entry
from fcal.cli.plugins import load_plugin

Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"  # argparse has no public name for it
_METHODS = ("auto", "temperature", "scale-and-shape", "affine", "power", "isotonic", "gp-beta", "conformal")
_BAD_INPUT = 2
_FAILED = 1
_INTERRUPTED = 130  # exit code of a process stopped by Ctrl-C, as in shells
_WRONG_PATHS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_WRONG_NAMES = (errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
_MAX_MESSAGE = 2000  # characters
_MOST_FOLDERS = 200  # in a path: Python's functions of folders call themselves for each
_SHOWN_NAME = 60  # characters
_BAD_INPUT_ERRORS = (ValueError, TypeError, ImportError, *_WRONG_PATHS)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        hint = "; --plugin FILE.py behind the name adds one of your own" if "TASK: invalid choice" in message else ""
        self.exit(2, f"{self.prog}: {message}{hint} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line.

    Example:
        >>> parser().parse_args(["evaluate", "predictions.csv"]).bins
        20
    """
    top = _Parser(prog="fcal", description="Check and repair the error bars of any regressor.")
    top.add_argument("--version", action="version", version=f"fcal {fcal.__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    _add_evaluate(commands)
    _add_compare(commands)
    _add_recalibrate(commands)
    _add_train(commands)
    _add_predict(commands)
    _add_benchmark(commands)
    _add_data(commands)
    return top


def _command(commands: Commands, name: str, module: str, purpose: str, example: str) -> _Parser:
    command = commands.add_parser(
        name,
        help=purpose,
        description=purpose[0].upper() + purpose[1:] + ".",
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.set_defaults(module=module)
    command.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    command.add_argument("--debug", action="store_true", help="show where an error comes from")
    return command


def _add_evaluate(commands: Commands) -> None:
    command = _command(
        commands,
        "evaluate",
        "fcal.cli.evaluate",
        "tell whether the error bars of predictions, or of detected boxes, in files are true",
        "fcal evaluate predictions.csv --group city --out report.html\n"
        "         fcal evaluate --format rvc1 detections.json --truth coco.json   (docs/detection.md has the formats)",
    )
    command.add_argument(
        "path",
        nargs="+",
        metavar="FILE|GLOB|DIR",
        help="CSV or JSON lines (also .gz, .zst), Parquet, NPZ, PT or NPY (N, 3): mean, std, target; "
        "- is standard input; with --format, JSON",
    )
    _add_columns(command)
    groups = command.add_mutually_exclusive_group()
    groups.add_argument("--group", metavar="COL", help="report on each value of this column too")
    groups.add_argument("--by-output", action="store_true", help="report on each of several outputs too")
    groups.add_argument("--by-sigma", action="store_true", help="report on each factor of two of the predicted sd too")
    _add_grid(command)
    command.add_argument(
        "--tolerance",
        metavar="X",
        type=float,
        default=0.05,
        help="relative error that still counts as calibrated (default 0.05)",
    )
    command.add_argument("--out", metavar="PAGE.html", help="write a page with pictures")
    detection = command.add_argument_group("detections, instead of a table of predictions")
    detection.add_argument(
        "--format", choices=("rvc1", "coco"), help="FILE is a JSON of detections: RVC1, COCO results"
    )
    detection.add_argument("--truth", metavar="COCO.json", help="annotations of the images, in COCO's format")
    detection.add_argument("--masks", action="store_true", help="pixels of objects by their segmentations, not boxes")
    detection.add_argument(
        "--inclusive", action="store_true", help="x2 and y2 are the last pixel of a box, as in RVC1's own files"
    )


def _add_grid(command: _Parser) -> None:
    command.add_argument("--cluster", metavar="COL", help="rows of one value belong together (an image, a drive)")
    command.add_argument("--df", metavar="K", type=int, default=75, help="squared residuals in a sum q (default 75)")
    command.add_argument("--bins", metavar="S", type=int, default=20, help="bins of ECE and MCE (default 20)")


def _add_compare(commands: Commands) -> None:
    command = _command(
        commands,
        "compare",
        "fcal.cli.compare",
        "tell which of several models is better on the same targets, and whether that is more than chance",
        "fcal compare old.csv new.csv --out page.html",
    )
    command.add_argument(
        "path",
        nargs="+",
        metavar="FILE|GLOB|DIR",
        help="predictions of one model each, for the same rows in the same order; the first is the reference",
    )
    _add_columns(command)
    _add_grid(command)
    command.add_argument("--out", metavar="PAGE.html", help="write a page with pictures")


def _add_recalibrate(commands: Commands) -> None:
    command = _command(
        commands,
        "recalibrate",
        "fcal.cli.recalibrate",
        "repair the error bars of predictions in files without retraining",
        "fcal recalibrate --fit val.csv --apply test.csv --out repaired.csv",
    )
    command.add_argument(
        "--method", choices=_METHODS, help="how (default auto: chosen on the rows of --fit); see docs/recalibration.md"
    )
    learnt = command.add_mutually_exclusive_group(required=True)
    learnt.add_argument("--fit", metavar="VAL_FILE", help="predictions with targets to learn from")
    learnt.add_argument("--load", metavar="DIR", help="a repair that --save kept, instead of --fit")
    command.add_argument("--apply", required=True, metavar="TEST_FILE", help="predictions to repair")
    command.add_argument(
        "--out", required=True, metavar="OUT_FILE", help="CSV, JSON lines, Parquet or NPZ: all columns and new ones"
    )
    command.add_argument(
        "--per-output", action="store_true", help="temperature, affine: a repair of its own for each output"
    )
    command.add_argument(
        "--group", metavar="COL", help="repair each value of this column, small groups drawn to the others"
    )
    command.add_argument(
        "--cluster", metavar="COL", help="rows of one value belong together, in the table that is printed"
    )
    command.add_argument("--save", metavar="DIR", help="keep the fitted repair for --load and fcal.recalibration.load")
    _add_columns(command)


def _add_train(commands: Commands) -> None:
    command = _command(
        commands,
        "train",
        "fcal.cli.training",
        "train a network as a file says, repair and evaluate it",
        "fcal train config.toml --set fit.epochs=10 --out runs/mine",
    )
    command.add_argument("config", metavar="CONFIG.toml", help="what to train; see docs/training.md")
    command.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="replace a value of the file, as fit.epochs=10"
    )
    command.add_argument(
        "--plugin",
        metavar="MODULE",
        action="append",
        default=[],
        help="module or .py file that registers networks, data or objectives of your own",
    )
    command.add_argument("--out", metavar="DIR", help="empty folder for the run (default runs/ and the file's name)")
    command.add_argument("--resume", action="store_true", help="go on with the run in the folder")


def _add_predict(commands: Commands) -> None:
    command = _command(
        commands,
        "predict",
        "fcal.cli.predict",
        "predict new inputs with a trained network: of images, depth and its uncertainty",
        "fcal predict runs/depth image.png --out predictions",
    )
    command.add_argument("model", metavar="RUN_DIR", help="finished run of fcal train")
    command.add_argument("inputs", nargs="+", metavar="IMAGE", help="PNG or JPEG, or a folder of them")
    command.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="folder for NAME_depth.png, NAME_sigma.png (both 16 bits, metres x 256) and NAME.png",
    )
    command.add_argument(
        "--focal", metavar="PIXELS", type=float, help="focal length of the images, if they are of another camera"
    )
    command.add_argument("--overwrite", action="store_true", help="replace earlier results")
    command.add_argument(
        "--plugin",
        metavar="MODULE",
        action="append",
        default=[],
        help="module or .py file that registers the network or data of the run",
    )


def _add_columns(command: _Parser) -> None:
    for name, content in (("mean", "predicted means"), ("std", "predicted sd"), ("target", "true values")):
        text = f"column of {content} (default {name}, or a usual name that the file has)"
        command.add_argument(f"--{name}", metavar="COL", default=name, help=text)
    for name, content in (("variance", "predicted variances"), ("log-variance", "their logarithms")):
        command.add_argument(f"--{name}", metavar="COL", help=f"column of {content}, instead of std")
    for name in ("lower", "upper"):
        command.add_argument(f"--{name}", metavar="COL", help=f"{name} bounds of intervals, instead of mean and std")
    command.add_argument(
        "--level", metavar="P", type=float, default=0.9, help="probability of these intervals (default 0.9)"
    )
    command.add_argument("--quantiles", metavar="PATTERN", help="columns of quantiles instead of mean and std, as 'q*'")
    command.add_argument(
        "--samples",
        metavar="PATTERN",
        help="columns of samples (MC dropout, ensemble) instead of mean and std, as 's*'",
    )
    command.add_argument(
        "--family", default="normal", help="law of mean and std: normal, laplace, student-t:5, ... (default normal)"
    )


def _add_benchmark(commands: Commands) -> None:
    command = commands.add_parser(
        "benchmark",
        help="every method beside every other, on data whose truth is known",
        epilog="a benchmark of your own: fcal benchmark NAME --plugin FILE.py",
    )
    tasks = command.add_subparsers(metavar="TASK", required=True)
    for name in TASKS.names():
        _add_task(tasks, name, TASKS[name])


def _add_task(tasks: Commands, name: str, entry: Entry) -> None:
    example = entry.example or f"fcal benchmark {name}"
    task = _command(tasks, name, "fcal.cli.benchmark", entry.purpose, example)
    task.set_defaults(task=name)
    if entry.data:
        task.add_argument("--data", required=entry.needs_data, metavar="DIR", help=entry.data)
    task.add_argument("--preset", default=entry.preset, help=entry.presets)
    for option in entry.options:
        task.add_argument(option.flag, metavar=option.metavar, type=option.type, help=option.help)
    task.add_argument("--methods", metavar="A,B", help="rows to compute, or all (default: a dozen at most)")
    if entry.seeds:
        task.add_argument("--seeds", metavar="N", type=int, help=entry.seeds)
    if entry.ablations:
        task.add_argument("--ablation", help=entry.ablations)
    task.add_argument("--workers", metavar="N", type=int, default=2, help="processes (default 2)")
    task.add_argument(
        "--plugin",
        metavar="FILE.py",
        action="append",
        default=[],
        help="module or .py file that registers a benchmark or methods of your own",
    )
    task.add_argument("--out", metavar="DIR", default=f"runs/{name}", help=f"{entry.out} (default runs/{name})")


def _add_data(commands: Commands) -> None:
    command = commands.add_parser("data", help="make data whose noise is known")
    kinds = command.add_subparsers(metavar="KIND", required=True)
    street = _command(
        kinds,
        "street",
        "fcal.cli.street",
        "render streets with measured depth, boxes and instances, in the layout of KITTI or Cityscapes",
        "fcal data street --out streets --frames 200",
    )
    street.add_argument("--out", required=True, metavar="DIR", help="empty folder; a stopped run in it is completed")
    street.add_argument("--frames", metavar="N", type=int, default=800, help="number of frames (default 800)")
    street.add_argument("--layout", default="kitti-depth", help="kitti-depth (default), kitti-object or cityscapes")
    street.add_argument("--seed", metavar="S", type=int, default=0, help="seed of everything (default 0)")
    street.add_argument("--height", metavar="PIXELS", type=int, default=64, help="height of frames (default 64)")
    street.add_argument("--width", metavar="PIXELS", type=int, default=208, help="width of frames (default 208)")
    street.add_argument(
        "--density", metavar="X", type=float, default=0.25, help="share of measured pixels (default 0.25)"
    )
    street.add_argument(
        "--frames-per-drive", metavar="N", type=int, help="frames of one street (default 20, or a fifth of all frames)"
    )


def plugins_of(words: Sequence[str]) -> list[str]:
    """Plugins of a benchmark's command line, which are loaded before it is parsed: they may name the benchmark.

    Example:
        >>> plugins_of(["benchmark", "line", "--plugin", "line.py"])
        ['line.py']
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--plugin", action="append", nargs="?", default=[])  # a missing value is reported later
    plugins = finder.parse_known_args(words)[0].plugin if words[:1] == ["benchmark"] else []
    return [plugin for plugin in plugins if plugin is not None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments after the program's name; those of the process by default.

    Returns:
        0 for success, 2 for bad input, 1 for any other error; an error is one line on stderr.

    Example:
        >>> main(["evaluate", "nowhere.csv"])
        2
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        for name in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.default_int_handler)  # like Ctrl-C: partial files are removed
    try:
        for plugin in plugins_of(words):
            load_plugin(plugin)
        arguments = parser().parse_args(words)
        _check_names(arguments)
        # Imported only now: `fcal --help` needs neither torch nor Arrow.
        return int(importlib.import_module(arguments.module).run(arguments, words))
    except KeyboardInterrupt as stop:
        code = _print_error(str(stop) or "stopped", _INTERRUPTED)  # a command may say how to resume
        if argv is None:
            _end_at_once(code)
        return code
    except BrokenPipeError:
        # The reader has closed the pipe; without this, Python would report it again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        if isinstance(error, ModuleNotFoundError) and not (error.name or "fcal").startswith("fcal"):
            return _print_error(f"expected {error.name} for this command; pip install 'fcal[cli]'", _BAD_INPUT)
        if isinstance(error, _BAD_INPUT_ERRORS) or (isinstance(error, OSError) and error.errno in _WRONG_NAMES):
            return _print_error(f"{error}{_remedy(words, error)}", _BAD_INPUT)
        return _print_error(f"{type(error).__name__}: {error} (--debug shows where)", _FAILED)


def _end_at_once(code: int) -> NoReturn:
    """End the process, whose files and workers are tidied up, without the interpreter's own end.

    That searches a million objects of torch for garbage, which takes seconds on a busy machine.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            stream.flush()
    os._exit(code)


def _check_names(arguments: argparse.Namespace) -> None:
    """Refuse names of files that no command could read or write, before any work.

    Raises:
        ValueError: The name is not UTF-8, has too many folders, or is a loop of links.
    """
    values = (value if isinstance(value, list) else [value] for value in vars(arguments).values())
    for name in (name for names in values for name in names if isinstance(name, str)):
        shown = repr(name if len(name) <= _SHOWN_NAME else f"{name[:_SHOWN_NAME]}...")
        if not is_utf8(name):
            raise ValueError(f"expected names in UTF-8, got {shown}; rename the file or folder")
        if name.count("/") > _MOST_FOLDERS:
            raise ValueError(f"expected a path of at most {_MOST_FOLDERS} folders, got {name.count('/')} in {shown}")
        if is_link_loop(name):
            raise ValueError(f"expected a file or folder, got {shown}, a link that leads to itself")


def _remedy(words: Sequence[str], error: BaseException) -> str:
    """The whole command that works, for an error that knows the names of columns which do.

    Example:
        >>> error = ValueError("...")
        >>> error.options = {"std": None, "variance": "var"}
        >>> _remedy(["evaluate", "a.csv", "--std", "var"], error)
        '; type: fcal evaluate a.csv --variance var'
    """
    options = getattr(error, "options", None)
    if not options:
        return ""
    flags = {f"--{role.replace('_', '-')}": name for role, name in options.items()}
    kept: list[str] = []
    for word, before in zip(words, ("", *words), strict=False):
        if before not in flags and word not in flags and word.split("=")[0] not in flags:
            kept.append(word)
    named = [part for flag, name in flags.items() if name is not None for part in (flag, name)]
    return f"; type: fcal {shlex.join([*kept, *named])}"


def _print_error(message: str, code: int) -> int:
    line = " ".join(message.split())
    if len(line) > _MAX_MESSAGE:
        line = f"{line[:_MAX_MESSAGE]}..."
    if sys.stderr is not None:
        say(f"fcal: {line}")
    return code


def say(message: str) -> None:
    """Print a line on stderr."""
    print(printable(message), file=sys.stderr)


def printable(text: str) -> str:
    """Text without control characters, which a terminal would interpret."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(document, allow_nan=False))


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print each warning once, as one line on stderr without its source line."""
    seen: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = str(message)
        if text not in seen:
            seen.add(text)
            say(f"fcal: warning: {text}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield
