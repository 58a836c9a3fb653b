"""Arguments of every command. Imports nothing heavy, so that ``--help`` is fast."""

import argparse
from typing import NoReturn, TypeAlias

import fcal

Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"  # argparse has no public name for it
_METHODS = ("temperature", "affine", "isotonic", "gp-beta", "conformal")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

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
    _add_train(commands)
    _add_benchmark(commands)
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
        "fcal.cli.recalibrate",
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


def _add_columns(command: _Parser) -> None:
    for name, what in (("mean", "predicted means"), ("std", "predicted sd"), ("target", "true values")):
        command.add_argument(f"--{name}", metavar="COL", default=name, help=f"column of {what} (default {name})")
    command.add_argument("--quantiles", metavar="PATTERN", help="columns of quantiles instead of mean and std, as 'q*'")
    command.add_argument(
        "--family", default="normal", help="law of mean and std: normal, laplace, student-t:5, ... (default normal)"
    )


def _add_benchmark(commands: Commands) -> None:
    command = commands.add_parser("benchmark", help="every method beside every other, on data whose truth is known")
    tasks = command.add_subparsers(metavar="TASK", required=True)
    task = _command(
        tasks,
        "bokeh",
        "fcal.cli.benchmarking",
        "find the red disc among others, and say how sure that is: the paper's first experiment",
        "fcal benchmark bokeh --preset quick --noise heteroscedastic",
    )
    task.add_argument(
        "--preset", default="quick", help="tiny (to see that it runs), quick (minutes) or paper (hours) (default quick)"
    )
    task.add_argument(
        "--noise", help="homoscedastic, heteroscedastic, gamma, laplace or student-t (default: the first two)"
    )
    task.add_argument("--regime", help="paper-like or noise-dominated (default: as the preset says)")
    task.add_argument("--methods", metavar="A,B", help="rows to compute (default: all)")
    task.add_argument("--seeds", metavar="N", type=int, help="repetitions with other images, labels and weights")
    task.add_argument("--ablation", help="k, gamma, lambda or divergence: that experiment instead of the table")
    task.add_argument("--workers", metavar="N", type=int, default=2, help="processes (default 2)")
    task.add_argument(
        "--out",
        metavar="DIR",
        default="runs/bokeh",
        help="where finished cells are kept and the page is written, over an older one (default runs/bokeh)",
    )
    _add_uci(tasks)
    _add_sensors(tasks)


def _add_uci(tasks: Commands) -> None:
    task = _command(
        tasks,
        "uci",
        "fcal.cli.uci_benchmark",
        "regression on eight UCI tables with the standard splits, beside published figures",
        "fcal benchmark uci --data uci_gal --preset quick",
    )
    task.add_argument(
        "--data", required=True, metavar="DIR", help="folder of the tables (concrete/data/data.txt, ...), or above it"
    )
    task.add_argument(
        "--preset", default="quick", help="tiny (to see that it runs), quick (minutes) or full (default quick)"
    )
    task.add_argument("--datasets", metavar="A,B", help="tables, as concrete,yacht (default: as the preset says)")
    task.add_argument("--networks", metavar="A,B", help="1x50 or 2x64 (default: both)")
    task.add_argument("--methods", metavar="A,B", help="rows to compute (default: all)")
    task.add_argument("--workers", metavar="N", type=int, default=2, help="processes (default 2)")
    task.add_argument(
        "--out", metavar="DIR", default="runs/uci", help="where finished cells and results are kept (default runs/uci)"
    )


def _add_sensors(tasks: Commands) -> None:
    task = _command(
        tasks,
        "sensors",
        "fcal.cli.sensors_benchmark",
        "learn the noise of real sensors as a function of the state, and compare with what is known of it",
        "fcal benchmark sensors --data robot_known_noise",
    )
    task.add_argument("--data", required=True, metavar="DIR", help="folder with barfoot_ser and smartloc_gnss")
    task.add_argument("--preset", default="full", help="tiny (to see that it runs) or full (minutes) (default full)")
    task.add_argument(
        "--sensors", metavar="A,B", help="laser, range, bearing, gnss, laser_whole, ... (default: as the preset says)"
    )
    task.add_argument("--workers", metavar="N", type=int, default=2, help="processes (default 2)")
    task.add_argument(
        "--out",
        metavar="DIR",
        default="runs/sensors",
        help="where finished cells are kept and the tables are written, over older ones (default runs/sensors)",
    )
