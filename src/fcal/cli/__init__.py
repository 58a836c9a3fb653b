"""The command line: arguments, files, exit codes; no maths."""

import errno
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from fcal.cli.arguments import parser, plugins_of
from fcal.cli.plugins import load_plugin

_BAD_INPUT = 2
_FAILED = 1
_INTERRUPTED = 130  # exit code of a process stopped by Ctrl-C, as in shells
_WRONG_PATHS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_WRONG_NAMES = (errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
_MAX_MESSAGE = 2000  # characters
_BAD_INPUT_ERRORS = (ValueError, TypeError, ImportError, *_WRONG_PATHS)


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
        # Imported only now: `fcal --help` needs neither torch nor Arrow.
        return int(importlib.import_module(arguments.module).run(arguments, words))
    except KeyboardInterrupt as stop:
        return _print_error(str(stop) or "stopped", _INTERRUPTED)  # a command may say how to resume
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
            return _print_error(str(error), _BAD_INPUT)
        return _print_error(f"{type(error).__name__}: {error} (--debug shows where)", _FAILED)


def _print_error(message: str, code: int) -> int:
    line = " ".join("".join(c if c.isprintable() else " " for c in message).split())
    if len(line) > _MAX_MESSAGE:
        line = f"{line[:_MAX_MESSAGE]}..."
    if sys.stderr is not None:
        print(f"fcal: {line}", file=sys.stderr)
    return code
