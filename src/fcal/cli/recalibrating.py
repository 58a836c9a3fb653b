"""``fcal recalibrate``."""

import shlex
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from fcal import recalibration
from fcal._files import provenance
from fcal.cli.evaluating import columns_of
from fcal.cli.printing import print_before_after, print_json, progress, say
from fcal.metrics import Report, evaluate
from fcal.recalibration import Recalibrator
from fcal.tables import SUFFIX, Columns, Predictions, open_predictions, whole, write_origin, write_repaired

_CHECKED_ROWS = 100_000
_FEWEST_TARGETS = 2
_METHODS_OF_SCALE = ("temperature", "affine")


def run(arguments: Namespace, words: list[str]) -> int:
    """Fit on one file, repair another, say what changed."""
    columns, family = columns_of(arguments), arguments.family
    calibration = open_predictions(arguments.fit, columns=columns, family=family)
    bare = replace(columns, target_optional=True)
    source = open_predictions(arguments.apply, columns=bare, family=family, chunk_rows=_CHECKED_ROWS)
    recalibrator = _fitted(arguments.method, calibration)
    note = {
        "method": arguments.method,
        "fitted_on": recalibrator.fitted_on,
        "fit": [str(path) for path in calibration.files],
        "apply": [str(path) for path in source.files],
        "command": f"fcal {shlex.join(words)}",
        "versions": provenance(),
    }
    reports = _compared(source, recalibrator)
    with progress("repairing", source.rows) as advance:
        rows = write_repaired(source, arguments.out, recalibrator.transform, advance=advance)
    write_origin(arguments.out, note)
    if arguments.save is not None:
        recalibrator.save(arguments.save)
    if arguments.json:
        compared = {
            name: report and report.as_dict() for name, report in zip(("before", "after"), reports, strict=True)
        }
        print_json({**note, "out": arguments.out, "rows": rows, **compared})
        return 0
    _print_compared(*reports)
    if _same_files(calibration, source):
        say("warning: fitted on the rows it repairs: expect new data to look worse than this table")
    say(f"{rows:,} rows written to {arguments.out}")
    say(f"look closer: fcal evaluate {shlex.join([arguments.out, *_options(columns, arguments.method)])}")
    return 0


def _fitted(method: str, calibration: Predictions) -> Recalibrator:
    with progress("reading", calibration.rows) as advance:
        pred, target = whole(calibration, advance=advance)
    return recalibration.by_name(method)().fit(pred, target)


def _compared(source: Predictions, recalibrator: Recalibrator) -> tuple[Report, Report] | tuple[None, None]:
    """Reports on the first rows before and after the repair; None where they have no targets."""
    some = next(iter(source))
    if int((~some.target.isnan()).sum()) < _FEWEST_TARGETS:
        return None, None
    return evaluate(some.pred, some.target), evaluate(recalibrator.transform(some.pred), some.target)


def _print_compared(before: Report | None, after: Report | None) -> None:
    if before is None or after is None:
        say("no targets to show the repair on")
    else:
        print_before_after(before, after)


def _same_files(one: Predictions, other: Predictions) -> bool:
    return {Path(path).resolve() for path in one.files} == {Path(path).resolve() for path in other.files}


def _options(columns: Columns, method: str) -> list[str]:
    """How to evaluate the new columns: a law that is not of its old family any more, by its quantiles."""
    if method in _METHODS_OF_SCALE and columns.quantiles is None:
        return ["--mean", columns.mean + SUFFIX, "--std", columns.std + SUFFIX]
    return ["--quantiles", f"q*{SUFFIX}"]
