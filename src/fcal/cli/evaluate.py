"""``fcal evaluate``."""

import math
import shlex
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor

from fcal._checks import check_number
from fcal._executor import keep_freed_memory
from fcal._files import provenance, writable_folder
from fcal._progress import ProgressBar
from fcal.cli.commands import print_json, printable
from fcal.cli.consoles import report_console
from fcal.metrics import Report, sigma_groups
from fcal.metrics.accumulation import accumulate
from fcal.metrics.report_from_state import report_from_state
from fcal.metrics.report_text import GROUP_HEADINGS, NUMBER_HEADINGS, group_rows, legend, number_rows, score_line
from fcal.metrics.row_sample import RowSampler
from fcal.metrics.state import Grid, State, empty_state
from fcal.tables import SUFFIX, Chunk, Columns, Predictions, open_predictions, read_origin
from fcal.tables.streams import STANDARD_INPUT

_CHUNK_ROWS = 1 << 20
MIN_TARGETS = 2
_PAGES = (".html", ".htm")
_MAX_NAME = 200  # characters; temporary files and notes have longer names, and file systems allow 255
_MOST_GROUPS = 30
_MOST_NAMED = 3  # groups in a sentence
_LONGEST_GROUP = 100  # characters


def run(arguments: Namespace, words: list[str]) -> int:
    """Evaluate files, print the report and write the page."""
    if arguments.format is not None or arguments.truth or arguments.masks or arguments.inclusive:
        # Imported only here: detections are rarely evaluated.
        from fcal.cli.detections import run_detections

        return run_detections(arguments, words)
    if arguments.out is not None:
        check_page(Path(arguments.out))
    source = open_predictions(
        arguments.path, columns=columns_of(arguments), family=arguments.family, chunk_rows=_CHUNK_ROWS
    )
    command = f"fcal {shlex.join(words)}"
    report, missing = _evaluate(source, arguments)
    if arguments.out is not None:
        # Imported only here: most evaluations write no page.
        from fcal.reports.calibration import calibration_page
        from fcal.reports.page import write_html

        write_html(arguments.out, calibration_page(report, source=name_of(source), command=command))
    if arguments.json:
        head = {"source": source.describe(), "command": command, "versions": provenance(), "missing": missing}
        print_json({**head, **report.as_dict()})
    else:
        order = "as they are" if arguments.by_sigma or arguments.by_output else "worst first"
        _print_report(report, source.describe(), page=arguments.out, order=order)
        if missing:
            report_console().print(Text(f"{missing:,} of {missing + report.n:,} targets are missing and do not count"))
        report_console().print(plain_text(f"next: {next_step(report, arguments, source)}", style="bold"))
    return 0


def check_page(out: Path) -> None:
    """Reject a page that cannot be written, before the work."""
    if out.suffix.lower() not in _PAGES:
        raise ValueError(f"expected `--out` a name that ends in .html, got {out}")
    check_writable("--out", out)


def check_writable(option: str, path: Path) -> None:
    """Reject a file that cannot be written.

    Raises:
        ValueError: It is a folder, its name is too long, or its folder is not writable.
    """
    if path.is_dir():
        raise ValueError(f"expected `{option}` a file to write, got the folder {path}")
    if len(path.name) > _MAX_NAME:
        raise ValueError(f"expected `{option}` a name of at most {_MAX_NAME} characters, got {len(path.name)}")
    try:
        writable_folder(path.parent)
    except OSError as error:
        raise ValueError(f"expected `{option}` in a folder that can be written to, got {error}") from None


def columns_of(arguments: Namespace) -> Columns:
    """The columns requested on the command line."""
    return Columns(
        mean=arguments.mean,
        std=arguments.std,
        target=arguments.target,
        group=getattr(arguments, "group", None),
        cluster=getattr(arguments, "cluster", None),
        variance=arguments.variance,
        log_variance=arguments.log_variance,
        lower=arguments.lower,
        upper=arguments.upper,
        level=arguments.level,
        quantiles=arguments.quantiles,
        samples=arguments.samples,
    )


def _evaluate(source: Predictions, arguments: Namespace) -> tuple[Report, int]:
    """The report, and the number of missing targets."""
    grid = Grid(arguments.df, arguments.bins)
    tolerance = check_number("tolerance", arguments.tolerance, low=0.0, high=1.0)
    keep_freed_memory()
    fingerprints = _fitted_on(source)
    state = empty_state(grid, clustered=arguments.cluster is not None)
    names: list[str] | None = None
    missing = 0
    rows = RowSampler() if arguments.out is not None else None
    with ProgressBar("evaluating", total=source.rows, unit="rows") as bar:
        for chunk in source:
            group, names = _groups(chunk, source, arguments)
            count = 1 if names is None else len(names)
            batch = accumulate(
                chunk.pred,
                chunk.target,
                grid,
                group=group,
                groups=count,
                cluster=chunk.cluster,
                fingerprinted=bool(fingerprints),
                rows=rows,
            )
            state = added_states(state, batch)
            missing += int(chunk.target.isnan().sum())
            bar.advance(len(chunk))
    counted = int(state.n.sum())
    if counted < MIN_TARGETS:
        raise ValueError(
            f"expected `{name_of(source)}` with at least {MIN_TARGETS} rows that have a target, got {counted}"
        )
    report = report_from_state(state, grid, tolerance=tolerance, fitted_on=fingerprints, group_names=names, rows=rows)
    return report, missing


def _groups(chunk: Chunk, source: Predictions, arguments: Namespace) -> tuple[Tensor | None, list[str] | None]:
    if arguments.by_sigma:
        return sigma_groups(chunk.pred)
    if arguments.by_output:
        outputs = source.layout.outputs
        if not outputs:
            raise ValueError(
                "expected `--by-output` with columns of several outputs (mean_0, mean_1, ...), got one output"
            )
        return torch.arange(len(outputs)).expand(chunk.target.shape), list(outputs)
    return (None, None) if chunk.group is None else (chunk.group.codes, list(chunk.group.names))


def name_of(source: Predictions) -> str:
    """Name of the file, or of the first of several."""
    first = source.files[0].name
    return first if len(source.files) == 1 else f"{first} and {len(source.files) - 1} more"


def added_states(state: State, more: State) -> State:
    """Sum of two states; later chunks may have more groups."""
    wider = state if state.groups() >= more.groups() else state.with_groups(more.groups())
    wider.add_(more if more.groups() == wider.groups() else more.with_groups(wider.groups()))
    return wider


def _fitted_on(source: Predictions) -> frozenset[str]:
    """Fingerprints of targets that the columns in use were fitted on, from the notes beside the files."""
    names = (source.columns.mean, source.columns.quantiles or "")
    if not any(name.endswith(SUFFIX) for name in names):
        return frozenset()
    notes = (read_origin(path) for path in source.files)
    return frozenset(str(note["fitted_on"]) for note in notes if note is not None and "fitted_on" in note)


def _print_report(report: Report, source: str, *, page: str | None, order: str) -> None:
    """Print verdict, numbers and groups of a report."""
    console = report_console()
    console.print(plain_text(source, style="dim"))
    console.print(Text.assemble((report.word, _colour(report)), ": ", report.reason))
    for warning in report.warnings:
        console.print(plain_text(f"warning: {warning}", style="yellow"))
    console.print(_numbers(report))
    for line in legend(report):
        console.print(Text(line, style="dim"))
    console.print(Text(score_line(report)))
    if report.groups:
        console.print(_group_table(report.groups, order))
    console.print(Text(f"{report.n:,} scalars; {report.assumption}; smooth test of N(0, 1): p = {report.p_value:.3g}"))
    if page is not None:
        console.print(plain_text(f"page: {page}"))


def repaired_options(source: Predictions) -> list[str] | None:
    """Options that read the repaired columns of a file that has some; None if it has none, or they are in use."""
    columns, names = source.columns, source.tables[0].names
    if columns.mean.endswith(SUFFIX) or (columns.quantiles or "").endswith(SUFFIX):
        return None
    target = ["--target", columns.target] if columns.target != Columns.target else []
    if f"q50{SUFFIX}" in names:
        return ["--quantiles", f"q*{SUFFIX}", *target]
    mean, std = columns.mean + SUFFIX, columns.std + SUFFIX
    if any(mean + ending in names and std + ending in names for ending in ("", "_0")):
        return ["--mean", mean, "--std", std, *target]
    return None


def next_step(report: Report, arguments: Namespace, source: Predictions) -> str:
    """What to do about a verdict, as a sentence with the command to type."""
    repaired = repaired_options(source)
    if repaired is not None:
        group = [] if arguments.group is None else ["--group", arguments.group]
        check = shlex.join(["fcal", "evaluate", *arguments.path, *repaired, *group])
        return f"{check} checks the repaired columns of this file; these are the predictions before the repair"
    step = _step_of_verdict(report, arguments)
    if report.wild is None:
        return step
    which = "look at the wild row" if report.wild.count == 1 else f"look at the {report.wild.count:,} wild rows"
    first = f"{which} first (largest |target - mean| / std: a wrong unit, a broken label?), which no repair helps"
    return first if report.verdict == "calibrated" and report.conclusive else f"{first}; then {step}"


def _step_of_verdict(report: Report, arguments: Namespace) -> str:
    guide = "docs/recalibration.md"
    by_group = arguments.group if groups_differ(report) else None
    method = ["--method", "isotonic"] if report.verdict == "biased" else []
    group = [] if by_group is None else ["--group", by_group]
    # A repair starts from the model's own predictions: the rows to learn from have no repaired ones.
    again = any((getattr(arguments, name) or "").endswith(SUFFIX) for name in ("mean", "quantiles"))
    applied = "PREDICTIONS.csv" if again or arguments.path[0] == STANDARD_INPUT else arguments.path[0]
    files = ["--fit", "HELD_OUT.csv", "--apply", applied, "--out", "repaired.csv"]
    options = [] if again else _column_options(arguments)
    command = f"fcal {shlex.join(['recalibrate', *method, *files, *group, *options])}"
    learnt = f"by rows that the model was not trained on ({guide})"
    if report.verdict != "calibrated":
        return f"{command} repairs {'it' if by_group is None else 'each group, as they differ,'} {learnt}"
    if not report.conclusive:
        return f"more rows: {report.n:,} cannot tell error bars that are right from those that are a little wrong"
    off = [name for name, own in report.groups.items() if own.verdict != "calibrated"]
    if off:
        names = ", ".join(name[:_LONGEST_GROUP] or "(empty)" for name in off[:_MOST_NAMED])
        more = f" and {len(off) - _MOST_NAMED} more" if len(off) > _MOST_NAMED else ""
        repair = (
            f"repair these groups by themselves ({guide})" if by_group is None else f"{command} repairs groups {learnt}"
        )
        return f"all rows together are right, but not {names}{more}: {repair}"
    if report.sizes_are_off(arguments.tolerance) and not arguments.by_sigma:
        look = shlex.join(["fcal", "evaluate", *arguments.path, *_column_options(arguments), "--by-sigma"])
        return (
            f"{look} shows which error bars; recalibrate --method power repairs sizes that are spread wrongly ({guide})"
        )
    return "nothing to repair; use the error bars"


def groups_differ(report: Report) -> bool:
    """Whether the scales, or the shifts, of some groups are apart by more than their intervals, which are corrected."""
    known = [group for group in report.groups.values() if math.isfinite(group.scale.high)]
    for name in ("scale", "shift"):
        ends = [getattr(group, name) for group in known]
        if ends and max(end.low for end in ends) > min(end.high for end in ends):
            return True
    return False


def _column_options(arguments: Namespace) -> list[str]:
    """Options of columns that were given, for another command on the same files."""
    defaults = {"mean": "mean", "std": "std", "target": "target", "family": "normal", "level": 0.9}
    names = (
        "mean",
        "std",
        "target",
        "variance",
        "log_variance",
        "lower",
        "upper",
        "level",
        "quantiles",
        "samples",
        "family",
    )
    given = ((name, getattr(arguments, name)) for name in names)
    chosen = [(name, value) for name, value in given if value is not None and value != defaults.get(name)]
    return [word for name, value in chosen for word in (f"--{name.replace('_', '-')}", str(value))]


def _numbers(report: Report) -> Table:
    table = Table(*NUMBER_HEADINGS, caption=f"S = {report.bins}, K = {report.df}, n = {report.n:,}")
    for row in number_rows(report):
        table.add_row(*row)
    return table


def _group_table(groups: Mapping[str, Report], order: str) -> Table:
    shown = list(groups.items()) if order == "as they are" else sorted(groups.items(), key=_badness, reverse=True)
    left_out = len(shown) - _MOST_GROUPS
    more = f"; {left_out} more: --json or --out shows all" if left_out > 0 else ""
    table = Table(*GROUP_HEADINGS, caption=f"{order}{more}")
    table.columns[0].min_width = 8
    for column in table.columns[1:]:
        column.no_wrap = True
    listed = dict(shown[:_MOST_GROUPS])
    for (name, count, word, *rest), report in zip(group_rows(listed), listed.values(), strict=True):
        table.add_row(plain_text(name[:_LONGEST_GROUP]), count, Text(word, style=_colour(report)), *rest)
    return table


def _badness(item: tuple[str, Report]) -> tuple[bool, float]:
    """Sort key of groups: those that are not calibrated first, then by the largest deviation."""
    report = item[1]
    scale = abs(math.log(min(max(report.scale.value, 1e-9), 1e9)))
    return report.verdict != "calibrated", max(scale, abs(report.shift.value), report.shape)


def _colour(report: Report) -> str:
    if report.verdict != "calibrated":
        return "bold red"
    return "bold green" if report.conclusive and report.wild is None else "yellow"


def plain_text(text: str, style: str = "") -> Text:
    """Text from a file, in which nothing is markup."""
    return Text(printable(text), style=style)
