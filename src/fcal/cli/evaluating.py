"""``fcal evaluate``."""

import shlex
from argparse import Namespace
from pathlib import Path

import torch
from torch import Tensor

from fcal._checks import check_number
from fcal._files import provenance
from fcal._memory import keep_freed_memory
from fcal._progress import ProgressBar
from fcal.cli.paths import check_writable
from fcal.cli.printing import print_json, print_report
from fcal.metrics import Report, sigma_groups
from fcal.metrics.accumulation import accumulate
from fcal.metrics.report_from_state import Options, report_from_state
from fcal.metrics.state import Grid, State, empty_state
from fcal.tables import SUFFIX, Chunk, Columns, Predictions, open_predictions, read_origin

_CHUNK_ROWS = 1 << 20
FEWEST_TARGETS = 2
_PAGES = (".html", ".htm")


def run(arguments: Namespace, words: list[str]) -> int:
    """Evaluate files, print what was found, write the page."""
    if arguments.out is not None:
        _check_page(Path(arguments.out))
    source = open_predictions(
        arguments.path, columns=columns_of(arguments), family=arguments.family, chunk_rows=_CHUNK_ROWS
    )
    command = f"fcal {shlex.join(words)}"
    report = _evaluated(source, arguments)
    if arguments.out is not None:
        # Loaded only when wanted: plotly takes a second.
        from fcal.reports.calibration import calibration_page
        from fcal.reports.page import write_html

        write_html(arguments.out, calibration_page(report, source=_names(source), command=command))
    if arguments.json:
        print_json({"source": source.describe(), "command": command, "versions": provenance(), **report.as_dict()})
    else:
        order = "as they are" if arguments.by_sigma or arguments.by_output else "worst first"
        print_report(report, source.describe(), page=arguments.out, order=order)
    return 0


def _check_page(out: Path) -> None:
    """Refuse a page that could not be written, before the work."""
    if out.suffix.lower() not in _PAGES:
        raise ValueError(f"expected `--out` a name that ends in .html, got {out}")
    check_writable("--out", out)


def columns_of(arguments: Namespace) -> Columns:
    """Names of the columns that were asked for."""
    return Columns(
        mean=arguments.mean,
        std=arguments.std,
        target=arguments.target,
        group=getattr(arguments, "group", None),
        cluster=getattr(arguments, "cluster", None),
        quantiles=arguments.quantiles,
    )


def _evaluated(source: Predictions, arguments: Namespace) -> Report:
    grid = Grid(arguments.df, arguments.bins)
    tolerance = check_number("tolerance", arguments.tolerance, low=0.0, high=1.0)
    keep_freed_memory()
    seen = _fitted_on(source)
    state = empty_state(grid, clustered=arguments.cluster is not None)
    names: list[str] | None = None
    with ProgressBar("evaluating", total=source.rows, unit="rows") as bar:
        for chunk in source:
            group, names = _groups(chunk, source, arguments)
            count = 1 if names is None else len(names)
            state = _added(
                state,
                accumulate(
                    chunk.pred,
                    chunk.target,
                    grid,
                    group=group,
                    groups=count,
                    cluster=chunk.cluster,
                    fingerprinted=bool(seen),
                ),
            )
            bar.advance(len(chunk))
    counted = int(state.n.sum())
    if counted < FEWEST_TARGETS:
        raise ValueError(
            f"expected `{_names(source)}` with at least {FEWEST_TARGETS} rows that have a target, got {counted}"
        )
    options = Options(grid=grid, tolerance=tolerance, fitted_on=seen, groups=names)
    return report_from_state(state, options)


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


def _names(source: Predictions) -> str:
    first = Path(source.files[0]).name
    return first if len(source.files) == 1 else f"{first} and {len(source.files) - 1} more"


def _added(state: State, more: State) -> State:
    """States of a growing number of groups together."""
    wider = state if state.groups() >= more.groups() else state.with_groups(more.groups())
    wider.add_(more if more.groups() == wider.groups() else more.with_groups(wider.groups()))
    return wider


def _fitted_on(source: Predictions) -> frozenset[str]:
    """Fingerprints of targets that the columns in use were fitted on, as the notes beside the files say."""
    used = (source.columns.mean, source.columns.quantiles or "")
    if not any(name.endswith(SUFFIX) for name in used):
        return frozenset()
    notes = (read_origin(path) for path in source.files)
    return frozenset(str(note["fitted_on"]) for note in notes if note is not None and "fitted_on" in note)
