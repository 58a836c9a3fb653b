"""The command line: arguments, files, exit codes; no maths."""

import errno
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from fcal.cli.arguments import parser

_BAD_INPUT = 2
_FAILED = 1
_INTERRUPTED = 130  # as shells count a process that was stopped by Ctrl-C
_WRONG_PATHS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_WRONG_NAMES = (errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
_LONGEST = 2000  # characters of a complaint
_MISTAKES = (ValueError, TypeError, ImportError, *_WRONG_PATHS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments after the program's name; those of the process where absent.

    Returns:
        0 when done, 2 for bad input, 1 for anything else; one line on stderr says what happened.

    Example:
        >>> main(["evaluate", "nowhere.csv"])
        2
    """
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(words)
    if argv is None:
        for name in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.default_int_handler)  # as Ctrl-C: what is half written is removed
    try:
        # Loaded only now: `fcal --help` needs neither torch nor Arrow.
        return int(importlib.import_module(arguments.module).run(arguments, words))
    except KeyboardInterrupt as stop:
        return _complain(str(stop) or "stopped", _INTERRUPTED)  # a command may know how to go on
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        if isinstance(error, ModuleNotFoundError) and not (error.name or "fcal").startswith("fcal"):
            return _complain(f"expected {error.name} for this command; pip install 'fcal[cli]'", _BAD_INPUT)
        if isinstance(error, _MISTAKES) or (isinstance(error, OSError) and error.errno in _WRONG_NAMES):
            return _complain(str(error), _BAD_INPUT)
        return _complain(f"{type(error).__name__}: {error} (--debug shows where)", _FAILED)


def _complain(message: str, code: int) -> int:
    line = " ".join("".join(c if c.isprintable() else " " for c in message).split())
    if len(line) > _LONGEST:
        line = f"{line[:_LONGEST]}..."
    if sys.stderr is not None:
        print(f"fcal: {line}", file=sys.stderr)
    return code
