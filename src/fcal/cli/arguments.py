"""What can be typed. Imports nothing heavy, so that ``--help`` is quick."""

import argparse
from typing import NoReturn, TypeAlias

import fcal

Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"  # argparse has no public name for it
_METHODS = ("temperature", "affine", "isotonic", "gp-beta", "conformal")


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


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
    _add_recalibrate(commands)
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
        "fcal.cli.evaluating",
        "tell whether the error bars of predictions in files are true",
        "fcal evaluate predictions.csv --group city --out report.html",
    )
    command.add_argument(
        "path", nargs="+", metavar="FILE|GLOB|DIR", help="CSV, Parquet, NPZ or NPY (N, 3): mean, std, target"
    )
    _add_columns(command)
    groups = command.add_mutually_exclusive_group()
    groups.add_argument("--group", metavar="COL", help="report on each value of this column too")
    groups.add_argument("--by-output", action="store_true", help="report on each of several outputs too")
    groups.add_argument("--by-sigma", action="store_true", help="report on each factor of two of the predicted sd too")
    command.add_argument("--cluster", metavar="COL", help="rows of one value belong together (an image, a drive)")
    command.add_argument("--df", metavar="K", type=int, default=75, help="squared residuals in a sum q (default 75)")
    command.add_argument("--bins", metavar="S", type=int, default=20, help="bins of ECE and MCE (default 20)")
    command.add_argument(
        "--tolerance",
        metavar="X",
        type=float,
        default=0.05,
        help="relative error that still counts as calibrated (default 0.05)",
    )
    command.add_argument("--out", metavar="PAGE.html", help="write a page with pictures")


def _add_recalibrate(commands: Commands) -> None:
    command = _command(
        commands,
        "recalibrate",
        "fcal.cli.recalibrating",
        "repair the error bars of predictions in files without retraining",
        "fcal recalibrate --method isotonic --fit val.csv --apply test.csv --out repaired.csv",
    )
    command.add_argument("--method", required=True, choices=_METHODS, help="how; see docs/recalibration.md")
    command.add_argument("--fit", required=True, metavar="VAL_FILE", help="predictions with targets to learn from")
    command.add_argument("--apply", required=True, metavar="TEST_FILE", help="predictions to repair")
    command.add_argument(
        "--out", required=True, metavar="OUT_FILE", help="CSV, Parquet or NPZ: all columns and new ones"
    )
    command.add_argument(
        "--per-output", action="store_true", help="temperature, affine: a repair of its own for each output"
    )
    command.add_argument(
        "--cluster", metavar="COL", help="rows of one value belong together, in the table that is printed"
    )
    command.add_argument("--save", metavar="DIR", help="keep the fitted recalibrator for fcal.recalibration.load")
    _add_columns(command)


def _add_columns(command: _Parser) -> None:
    for name, what in (("mean", "predicted means"), ("std", "predicted sd"), ("target", "true values")):
        command.add_argument(f"--{name}", metavar="COL", default=name, help=f"column of {what} (default {name})")
    command.add_argument("--quantiles", metavar="PATTERN", help="columns of quantiles instead of mean and std, as 'q*'")
    command.add_argument(
        "--family", default="normal", help="law of mean and std: normal, laplace, student-t:5, ... (default normal)"
    )
