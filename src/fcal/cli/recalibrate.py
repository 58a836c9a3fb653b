"""``fcal recalibrate``."""

import shlex
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, replace
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
from fcal.recalibration import Choice, Recalibrator, choose
from fcal.tables import SUFFIX, Predictions, TableError, open_predictions, whole, write_origin, write_repaired
from fcal.tables.writers import check_out

_AUTO = "auto"
_METHODS_OF_SCALE = ("temperature", "affine")
_DF, _BINS = 75, 20


def run(arguments: Namespace, words: list[str]) -> int:
    """Fit on one file or load a repair, repair another file, print both reports."""
    columns, family = columns_of(arguments), arguments.family
    calibration = None if arguments.fit is None else open_predictions(arguments.fit, columns=columns, family=family)
    source = open_predictions(arguments.apply, columns=replace(columns, target_optional=True), family=family)
    _check_options(arguments)
    _check_outputs(arguments, calibration, source)
    choice = _loaded(arguments.load) if calibration is None else _fitted(arguments, calibration)
    recalibrator = choice.recalibrator
    reports = _before_and_after(source, recalibrator)
    note = {
        "method": recalibrator.method,
        "reason": choice.reason,
        "compared": {name: asdict(candidate) for name, candidate in choice.candidates.items()},
        "fitted": recalibrator.numbers(),
        "fitted_on": recalibrator.fitted_on,
        "fit": [] if calibration is None else [str(path) for path in calibration.files],
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
    _print_changes(arguments, choice, calibration, source, reports)
    say(f"{rows:,} rows written to {arguments.out}")
    return 0


def _check_options(arguments: Namespace) -> None:
    """Reject options that contradict each other."""
    if arguments.load is not None:
        for name in ("method", "save", "per_output"):
            if getattr(arguments, name):
                raise ValueError(f"expected no `--{name.replace('_', '-')}` with `--load`, got both")
    elif arguments.per_output and arguments.method not in _METHODS_OF_SCALE:
        raise ValueError(f"expected `--per-output` with temperature or affine, got {arguments.method or _AUTO}")


def _check_outputs(arguments: Namespace, calibration: Predictions | None, source: Predictions) -> None:
    """Reject outputs that cannot be written or would overwrite an input, before the work."""
    out = Path(arguments.out)
    check_out(out)
    check_writable("--out", out)
    inputs = {path.resolve() for path in (*(calibration.files if calibration else ()), *source.files)}
    if out.resolve() in inputs:
        raise ValueError(f"expected `--out` a new file, got one of the inputs, {out}")
    if arguments.save is not None and Path(arguments.save).exists() and not Path(arguments.save).is_dir():
        raise ValueError(f"expected `--save` a folder, got the file {arguments.save}")


def _loaded(folder: str) -> Choice:
    if not Path(folder).is_dir():
        raise ValueError(f"expected `--load` a folder that `--save` made, got {folder}, no folder")
    repair = recalibration.load(folder)
    return Choice(recalibrator=repair, candidates={}, reason=f"kept in {folder}")


def _fitted(arguments: Namespace, calibration: Predictions) -> Choice:
    with ProgressBar("reading", total=calibration.rows, unit="rows") as bar:
        pred, target = whole(calibration, advance=bar.advance)
    try:
        if arguments.method in (None, _AUTO):
            return choose(pred, target)
        method: Callable[..., Recalibrator] = recalibration.by_name(arguments.method)
        repair = method(**({"per_output": True} if arguments.per_output else {})).fit(pred, target)
        return Choice(recalibrator=repair, candidates={}, reason="asked for")
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
    choice: Choice,
    calibration: Predictions | None,
    source: Predictions,
    reports: tuple[Report, Report] | tuple[None, None],
) -> None:
    before, after = reports
    recalibrator = choice.recalibrator
    if choice.candidates:
        report_console().print(_compared(choice))
    say(f"{'loaded' if calibration is None else 'fitted'}: {recalibrator!r}")
    if before is None or after is None:
        say("too few targets to show the repair on")
        return
    report_console().print(_before_after(before, after))
    fitted_to = set() if calibration is None else {path.resolve() for path in calibration.files}
    shared = fitted_to & {path.resolve() for path in source.files}
    if shared or after.fitted_on:
        say("warning: fitted on rows that it repairs: expect new data to look worse than this table")
    hint = _how_to_evaluate(arguments, recalibrator, source)
    if hint is not None:
        say(f"look closer: fcal evaluate {shlex.join(hint)}")


def _compared(choice: Choice) -> Table:
    """Methods on rows that they were not fitted to, the chosen one first."""
    chosen = choice.recalibrator.method
    levels = list(choice.candidates[chosen].coverage)
    table = Table("method", "CRPS", "less the usual", *(f"in {float(level):.0%}" for level in levels))
    table.title, table.caption = f"{chosen}: {choice.reason}", "by cross-validation on the rows of --fit"
    for name in sorted(choice.candidates, key=lambda key: key != chosen):
        own = choice.candidates[name]
        gap = f"{own.difference:+.2g} ± {own.error:.1g}" if own.error else "-"
        table.add_row(name, number(own.crps), gap, *(f"{own.coverage[level]:.1%}" for level in levels))
    return table


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


def _how_to_evaluate(arguments: Namespace, recalibrator: Recalibrator, source: Predictions) -> list[str] | None:
    """Arguments of ``fcal evaluate`` for the new columns; None where they do not hold the distribution."""
    columns = source.columns
    same_family = recalibrator.keeps_family and source.layout.keeps_family
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
