"""The command line: arguments, files, exit codes; no maths."""

from fcal.cli.commands import main

__all__ = ["main"]
