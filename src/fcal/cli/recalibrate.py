"""``fcal recalibrate``."""

import shlex
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from torch.distributions import Distribution

from fcal import recalibration
from fcal._files import provenance
from fcal._progress import ProgressBar
from fcal.cli.commands import print_json, say
from fcal.cli.consoles import report_console
from fcal.cli.evaluate import MIN_TARGETS, added_states, check_writable, columns_of, plain_text
from fcal.metrics import Report
from fcal.metrics.accumulation import accumulate
from fcal.metrics.report_from_state import report_from_state
from fcal.metrics.report_text import number
from fcal.metrics.state import Grid, empty_state
from fcal.recalibration import ByGroup, Choice, Recalibrator, choose
from fcal.tables import (
    SUFFIX,
    Labels,
    Predictions,
    TableError,
    open_predictions,
    whole_with_groups,
    write_origin,
    write_repaired,
)
from fcal.tables.writers import check_out

_AUTO = "auto"
_METHODS_OF_SCALE = ("temperature", "affine")
_DF, _BINS = 75, 20
_MOST_GROUPS = 30
_MOST_NAMED = 3
_LONGEST_GROUP = 100  # characters


def run(arguments: Namespace, words: list[str]) -> int:
    """Fit on one file or load a repair, repair another file, print both reports."""
    columns, family = columns_of(arguments), arguments.family
    calibration = None if arguments.fit is None else open_predictions(arguments.fit, columns=columns, family=family)
    source = open_predictions(arguments.apply, columns=replace(columns, target_optional=True), family=family)
    _check_options(arguments)
    _check_outputs(arguments, calibration, source)
    choice = _loaded(arguments.load) if calibration is None else _fitted(arguments, calibration)
    recalibrator = choice.recalibrator
    _check_groups(arguments, recalibrator)
    repair = _Repair(recalibrator)
    reports = _before_and_after(source, repair)
    note = {
        "method": _method_of(recalibrator),
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
        repair.unseen.clear()  # rows are counted as they are written
        rows = write_repaired(source, arguments.out, repair, advance=bar.advance)
    note |= repair.note()
    write_origin(arguments.out, note)
    if arguments.json:
        documents = {k: report and report.as_dict() for k, report in zip(("before", "after"), reports, strict=True)}
        print_json({**note, "out": arguments.out, "rows": rows, **documents})
        return 0
    _print_changes(arguments, choice, calibration, source, reports)
    repair.say_unseen()
    say(f"{rows:,} rows written to {arguments.out}")
    return 0


class _Repair:
    """A recalibrator for the rows of a file, with their groups where it has some; rows of unknown groups are counted.

    Attributes:
        unseen: Number of rows of each group that was not there at fit, by name.
    """

    def __init__(self, recalibrator: Recalibrator) -> None:
        self.recalibrator = recalibrator
        self.unseen: dict[str, int] = {}

    def __call__(self, pred: Distribution, labels: Labels | None = None) -> Distribution:
        if not isinstance(self.recalibrator, ByGroup) or labels is None:
            return self.recalibrator.transform(pred)
        codes = self.recalibrator.codes(labels.codes, labels.names)
        unknown = labels.codes[codes == len(self.recalibrator.groups)]
        for code, count in zip(*(x.tolist() for x in unknown.unique(return_counts=True)), strict=True):
            self.unseen[labels.names[code]] = self.unseen.get(labels.names[code], 0) + count
        return self.recalibrator.transform_coded(pred, codes)

    def note(self) -> dict[str, Any]:
        """What the note of a repaired file says about groups."""
        if not isinstance(self.recalibrator, ByGroup):
            return {}
        return {"groups": self.recalibrator.by_name(), "unseen_groups": self.unseen}

    def say_unseen(self) -> None:
        """Tell how many rows are of unknown groups."""
        if self.unseen:
            names = ", ".join(list(self.unseen)[:_MOST_NAMED]) + (", ..." if len(self.unseen) > _MOST_NAMED else "")
            groups = "a group" if len(self.unseen) == 1 else f"{len(self.unseen)} groups"
            rows = f"{sum(self.unseen.values()):,} rows are of {groups} not there at fit"
            say(f"warning: {rows} ({names}): they get the repair of all rows together")


def _method_of(recalibrator: Recalibrator) -> str:
    """Name of the method, also of one that is fitted by groups."""
    return recalibrator.recalibrator.method if isinstance(recalibrator, ByGroup) else recalibrator.method


def _check_groups(arguments: Namespace, recalibrator: Recalibrator) -> None:
    """Reject groups without a repair of groups, and the other way round."""
    if isinstance(recalibrator, ByGroup) and arguments.group is None:
        raise ValueError(f"expected `--group COL` for the repair of groups in {arguments.load}, got none")
    if arguments.group is not None and not isinstance(recalibrator, ByGroup):
        raise ValueError(f"expected `--load` a repair of groups with `--group`, got {recalibrator.method}")


def _check_options(arguments: Namespace) -> None:
    """Reject options that contradict each other."""
    if arguments.load is not None:
        for name in ("method", "save", "per_output"):
            if getattr(arguments, name):
                raise ValueError(f"expected no `--{name.replace('_', '-')}` with `--load`, got both")
    elif arguments.per_output and arguments.method not in _METHODS_OF_SCALE:
        raise ValueError(f"expected `--per-output` with temperature or affine, got {arguments.method or _AUTO}")
    if arguments.per_output and arguments.group is not None:
        raise ValueError("expected `--per-output` or `--group`, got both")


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
        pred, target, labels = whole_with_groups(calibration, advance=bar.advance)
    names = None if labels is None else np.array(labels.names, dtype=object)[labels.codes.numpy()]
    try:
        if arguments.method in (None, _AUTO):
            return choose(pred, target, group=names)
        method: Callable[..., Recalibrator] = recalibration.by_name(arguments.method)
        repair = method(**({"per_output": True} if arguments.per_output else {}))
        fitted = repair.fit(pred, target) if names is None else ByGroup(repair).fit(pred, target, group=names)
        return Choice(recalibrator=fitted, candidates={}, reason="asked for")
    except ValueError as error:
        raise TableError(f"{calibration.files[0].name}: {error}") from error


def _before_and_after(source: Predictions, repair: _Repair) -> tuple[Report, Report] | tuple[None, None]:
    """Reports of all rows with targets, before and after the repair; None where there are too few."""
    grid = Grid(_DF, _BINS)
    clustered = source.columns.cluster is not None
    before, after = (empty_state(grid, clustered=clustered) for _ in range(2))
    names: list[str] | None = None
    with ProgressBar("checking", total=source.rows, unit="rows") as bar:
        for chunk in source:
            if not bool(chunk.target.isnan().all()):
                options: dict[str, Any] = {"cluster": chunk.cluster, "fingerprinted": True}
                if chunk.group is not None:
                    names = list(chunk.group.names)
                    options |= {"group": chunk.group.codes, "groups": len(names)}
                repaired = repair(chunk.pred, chunk.group)
                before = added_states(before, accumulate(chunk.pred, chunk.target, grid, **options))
                after = added_states(after, accumulate(repaired, chunk.target, grid, **options))
            bar.advance(len(chunk))
    if int(before.n.sum()) < MIN_TARGETS:
        return None, None
    fingerprints = frozenset([repair.recalibrator.fitted_on or ""])
    after_report = report_from_state(after, grid, fitted_on=fingerprints, group_names=names)
    return report_from_state(before, grid, group_names=names), after_report


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
    elif arguments.method == _AUTO and calibration is not None:
        say(f"warning: {choice.reason}; the repair may be off by as much as it repairs")
    say(f"{'loaded' if calibration is None else 'fitted'}: {recalibrator!r}")
    if before is None or after is None:
        say("too few targets to show the repair on")
        return
    report_console().print(_before_after(before, after))
    if isinstance(recalibrator, ByGroup):
        report_console().print(_groups_before_after(recalibrator, before, after))
    fitted_to = set() if calibration is None else {path.resolve() for path in calibration.files}
    shared = fitted_to & {path.resolve() for path in source.files}
    if shared or after.fitted_on:
        say("warning: fitted on rows that it repairs: expect new data to look worse than this table")
    hint = _how_to_evaluate(arguments, recalibrator, source)
    if hint is not None:
        say(f"look closer: fcal evaluate {shlex.join(hint)}")


def _compared(choice: Choice) -> Table:
    """Methods on rows that they were not fitted to, the chosen one first."""
    chosen = _method_of(choice.recalibrator)
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


def _groups_before_after(repair: ByGroup, before: Report, after: Report) -> Table:
    """Factors of groups and their coverage, those that were farthest from right first."""
    fitted = repair.by_name()
    worst = sorted(before.groups, key=lambda name: -abs(before.groups[name].coverage["0.9"] - 0.9))
    more = f"; {len(worst) - _MOST_GROUPS} more groups: --json has all" if len(worst) > _MOST_GROUPS else ""
    caption = f"own factor: of its rows alone; factor: drawn to the other groups by its noise{more}"
    table = Table("group", "fitted on", "own factor", "factor", "in 90%, before", "after", "n", caption=caption)
    for name in worst[:_MOST_GROUPS]:
        own = fitted.get(name)
        numbers = (
            ("not fitted", "-", "-") if own is None else (f"{own['rows']:,}", number(own["own"]), number(own["factor"]))
        )
        shares = (f"{report.groups[name].coverage['0.9']:.1%}" for report in (before, after))
        table.add_row(plain_text(name[:_LONGEST_GROUP] or "(empty)"), *numbers, *shares, f"{before.groups[name].n:,}")
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
    group = ["--group", arguments.group] if arguments.group is not None else []
    out = arguments.out if not arguments.out.startswith("-") else f"./{arguments.out}"
    return [out, *pred, *family, *target, *group]
