"""``fcal recalibrate``."""

import shlex
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from fcal import recalibration
from fcal._files import provenance
from fcal._progress import ProgressBar
from fcal.cli.commands import print_json, say
from fcal.cli.consoles import report_console
from fcal.cli.evaluate import MIN_TARGETS, check_writable, columns_of
from fcal.metrics import Report
from fcal.metrics.accumulation import accumulate
from fcal.metrics.report_from_state import report_from_state
from fcal.metrics.report_text import number
from fcal.metrics.state import Grid, empty_state
from fcal.recalibration import Recalibrator
from fcal.tables import SUFFIX, Predictions, TableError, open_predictions, whole, write_origin, write_repaired
from fcal.tables.writers import check_out

_METHODS_OF_SCALE = ("temperature", "affine")
_DF, _BINS = 75, 20


def run(arguments: Namespace, words: list[str]) -> int:
    """Fit on one file, repair another, print both reports."""
    columns, family = columns_of(arguments), arguments.family
    calibration = open_predictions(arguments.fit, columns=columns, family=family)
    source = open_predictions(arguments.apply, columns=replace(columns, target_optional=True), family=family)
    _check_outputs(arguments, calibration, source)
    recalibrator = _fitted(arguments, calibration)
    reports = _before_and_after(source, recalibrator)
    note = {
        "method": arguments.method,
        "fitted": recalibrator.numbers(),
        "fitted_on": recalibrator.fitted_on,
        "fit": [str(path) for path in calibration.files],
        "apply": [str(path) for path in source.files],
        "command": f"fcal {shlex.join(words)}",
        "versions": provenance(),
    }
    if arguments.save is not None:
        recalibrator.save(arguments.save)
    with ProgressBar("repairing", total=source.rows, unit="rows") as bar:
        rows = write_repaired(source, arguments.out, recalibrator.transform, advance=bar.advance)
    write_origin(arguments.out, note)
    if arguments.json:
        documents = {k: report and report.as_dict() for k, report in zip(("before", "after"), reports, strict=True)}
        print_json({**note, "out": arguments.out, "rows": rows, **documents})
        return 0
    _print_changes(arguments, recalibrator, calibration, source, reports)
    say(f"{rows:,} rows written to {arguments.out}")
    return 0


def _check_outputs(arguments: Namespace, calibration: Predictions, source: Predictions) -> None:
    """Reject outputs that cannot be written or would overwrite an input, before the work."""
    out = Path(arguments.out)
    check_out(out)
    check_writable("--out", out)
    inputs = {path.resolve() for path in (*calibration.files, *source.files)}
    if out.resolve() in inputs:
        raise ValueError(f"expected `--out` a new file, got one of the inputs, {out}")
    if arguments.save is not None and Path(arguments.save).exists() and not Path(arguments.save).is_dir():
        raise ValueError(f"expected `--save` a folder, got the file {arguments.save}")
    if arguments.per_output and arguments.method not in _METHODS_OF_SCALE:
        raise ValueError(f"expected `--per-output` with temperature or affine, got {arguments.method}")


def _fitted(arguments: Namespace, calibration: Predictions) -> Recalibrator:
    with ProgressBar("reading", total=calibration.rows, unit="rows") as bar:
        pred, target = whole(calibration, advance=bar.advance)
    method: Callable[..., Recalibrator] = recalibration.by_name(arguments.method)
    try:
        return method(**({"per_output": True} if arguments.per_output else {})).fit(pred, target)
    except ValueError as error:
        raise TableError(f"{calibration.files[0].name}: {error}") from error


def _before_and_after(source: Predictions, recalibrator: Recalibrator) -> tuple[Report, Report] | tuple[None, None]:
    """Reports of all rows with targets, before and after the repair; None where there are too few."""
    grid = Grid(_DF, _BINS)
    clustered = source.columns.cluster is not None
    before, after = (empty_state(grid, clustered=clustered) for _ in range(2))
    with ProgressBar("checking", total=source.rows, unit="rows") as bar:
        for chunk in source:
            if not bool(chunk.target.isnan().all()):
                repaired = recalibrator.transform(chunk.pred)
                for state, pred in ((before, chunk.pred), (after, repaired)):
                    state.add_(accumulate(pred, chunk.target, grid, cluster=chunk.cluster, fingerprinted=True))
            bar.advance(len(chunk))
    if int(before.n.sum()) < MIN_TARGETS:
        return None, None
    fingerprints = frozenset([recalibrator.fitted_on or ""])
    after_report = report_from_state(after, grid, fitted_on=fingerprints)
    return report_from_state(before, grid), after_report


def _print_changes(
    arguments: Namespace,
    recalibrator: Recalibrator,
    calibration: Predictions,
    source: Predictions,
    reports: tuple[Report, Report] | tuple[None, None],
) -> None:
    before, after = reports
    say(f"fitted: {recalibrator!r}")
    if before is None or after is None:
        say("too few targets to show the repair on")
        return
    report_console().print(_before_after(before, after))
    shared = {path.resolve() for path in calibration.files} & {path.resolve() for path in source.files}
    if shared or after.fitted_on:
        say("warning: fitted on rows that it repairs: expect new data to look worse than this table")
    hint = _how_to_evaluate(arguments, source)
    if hint is not None:
        say(f"look closer: fcal evaluate {shlex.join(hint)}")


def _before_after(before: Report, after: Report) -> Table:
    """The main numbers of two reports side by side."""
    table = Table("", "before", "after", caption=f"{before.n:,} scalars; {before.assumption}")
    for row in (
        ("verdict", before.word, after.word),
        ("scale of z (1)", f"{before.scale.value:.3f}", f"{after.scale.value:.3f}"),
        *(
            (f"coverage of {float(k):.0%}", f"{before.coverage[k]:.1%}", f"{after.coverage[k]:.1%}")
            for k in before.coverage
        ),
        ("ECE(z)", number(before.ece_z), number(after.ece_z)),
        ("ECE(q)", number(before.ece_q), number(after.ece_q)),
        ("NLL", number(before.nll), number(after.nll)),
        ("CRPS", number(before.crps), number(after.crps)),
    ):
        table.add_row(*row)
    return table


def _how_to_evaluate(arguments: Namespace, source: Predictions) -> list[str] | None:
    """Arguments of ``fcal evaluate`` for the new columns; None where they do not hold the distribution."""
    columns = source.columns
    same_family = arguments.method in _METHODS_OF_SCALE and source.layout.keeps_family
    if not same_family and source.layout.outputs:
        return None
    pred = (
        ["--mean", columns.mean + SUFFIX, "--std", columns.std + SUFFIX]
        if same_family
        else ["--quantiles", f"q*{SUFFIX}"]
    )
    family = ["--family", arguments.family] if same_family and arguments.family != "normal" else []
    target = ["--target", columns.target] if columns.target != "target" else []
    out = arguments.out if not arguments.out.startswith("-") else f"./{arguments.out}"
    return [out, *pred, *family, *target]
