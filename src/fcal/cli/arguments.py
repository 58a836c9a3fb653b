"""The commands and their options: what users may type.

Imports nothing heavy, so that ``--help`` is fast.
"""

import argparse
from typing import NoReturn, TypeAlias

import fcal
from fcal.benchmarks.catalogue import TASKS, Entry

Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"  # argparse has no public name for it
METHODS = ("auto", "temperature", "scale-and-shape", "affine", "power", "isotonic", "gp-beta", "conformal")


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
        "--method", choices=METHODS, help="how (default auto: chosen on the rows of --fit); see docs/recalibration.md"
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
