"""``fcal evaluate``."""

import shlex
from argparse import Namespace
from pathlib import Path

import torch
from torch import Tensor

from fcal._checks import check_number
from fcal._executor import keep_freed_memory
from fcal._files import provenance, writable_folder
from fcal._progress import ProgressBar
from fcal.cli.printing import print_json, print_report
from fcal.metrics import Report, sigma_groups
from fcal.metrics.accumulation import accumulate
from fcal.metrics.report_from_state import report_from_state
from fcal.metrics.state import Grid, State, empty_state
from fcal.tables import SUFFIX, Chunk, Columns, Predictions, open_predictions, read_origin

_CHUNK_ROWS = 1 << 20
MIN_TARGETS = 2
_PAGES = (".html", ".htm")
_MAX_NAME = 200  # characters; temporary files and notes have longer names, and file systems allow 255


def run(arguments: Namespace, words: list[str]) -> int:
    """Evaluate files, print the report and write the page."""
    if arguments.out is not None:
        _check_page(Path(arguments.out))
    source = open_predictions(
        arguments.path, columns=columns_of(arguments), family=arguments.family, chunk_rows=_CHUNK_ROWS
    )
    command = f"fcal {shlex.join(words)}"
    report = _evaluate(source, arguments)
    if arguments.out is not None:
        # Imported only here: plotly takes a second.
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
        quantiles=arguments.quantiles,
    )


def _evaluate(source: Predictions, arguments: Namespace) -> Report:
    grid = Grid(arguments.df, arguments.bins)
    tolerance = check_number("tolerance", arguments.tolerance, low=0.0, high=1.0)
    keep_freed_memory()
    fingerprints = _fitted_on(source)
    state = empty_state(grid, clustered=arguments.cluster is not None)
    names: list[str] | None = None
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
            )
            state = _added(state, batch)
            bar.advance(len(chunk))
    counted = int(state.n.sum())
    if counted < MIN_TARGETS:
        raise ValueError(
            f"expected `{_names(source)}` with at least {MIN_TARGETS} rows that have a target, got {counted}"
        )
    return report_from_state(state, grid, tolerance=tolerance, fitted_on=fingerprints, group_names=names)


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
