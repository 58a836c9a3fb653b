"""Running a command: what it prints, errors as one line, exit codes.

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
from typing import Any, NoReturn

from fcal._files import is_link_loop, is_utf8
from fcal.cli.arguments import parser
from fcal.cli.plugins import load_plugin

_BAD_INPUT = 2
_FAILED = 1
_INTERRUPTED = 130  # exit code of a process stopped by Ctrl-C, as in shells
_WRONG_PATHS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_WRONG_NAMES = (errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
_MAX_MESSAGE = 2000  # characters
_MOST_FOLDERS = 200  # in a path: Python's functions of folders call themselves for each
_SHOWN_NAME = 60  # characters
_BAD_INPUT_ERRORS = (ValueError, TypeError, ImportError, *_WRONG_PATHS)


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
