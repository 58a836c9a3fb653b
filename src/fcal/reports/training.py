"""The page of a training: what it learned, whether its error bars are true on the test set, and its config."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fcal._files import provenance
from fcal.metrics.report import Report
from fcal.plots.benchmark_figures import learning_figure, logged_quantities
from fcal.plots.captions import number
from fcal.plots.figure import Figure, Line, Rule
from fcal.plots.styles import ColumnStyle, RowStyle
from fcal.reports.calibration import calibration_sections, comparison_section
from fcal.reports.page import Column, Section, escaped, page, table
from fcal.reports.svg_renderer import grid, line_sample

History = Sequence[Mapping[str, float]]

_RUN = "run"
_ROWS = {_RUN: RowStyle("this run", highlight=0)}
_TITLES = {
    "nll": "NLL",
    "crps": "CRPS",
    "rmse": "RMSE",
    "l1": "L1",
    "ece_z": "ECE(z)",
    "ece_q": "ECE(q)",
    "ence": "ENCE",
}
_COLUMNS = {name: ColumnStyle(title) for name, title in _TITLES.items()}
_MOST_QUANTITIES = 6
_COLOUR = "series-a"


def training_page(
    history: History,
    *,
    best_epoch: int,
    config: str,
    report: Report | None = None,
    before: Report | None = None,
    name: str = "training",
    command: str = "fcal.training.train(...)",
) -> str:
    """The whole page of ``fcal train``: the verdict on the test set, learning curves, figures, numbers and the config.

    Args:
        history: As in :attr:`fcal.training.Fit.history`.
        best_epoch: Index of the epoch whose weights were kept.
        config: Text of the resolved config.
        report: Evaluation of the test set, after recalibration if there is one; None for a network without error bars.
        before: The same without recalibration; None without one.
        name: Of the run.
        command: The command that was run.

    Returns:
        One self-contained HTML document; it makes no request and opens from disk.

    Example:
        >>> history = [{"epoch": 0, "train/loss": 1.0, "validation/loss": 1.2}, {"epoch": 1, "train/loss": 0.5}]
        >>> text = training_page(history, best_epoch=0, config="seed = 0")
        >>> "<h2>Learning</h2>" in text, "seed = 0" in text
        (True, True)
    """
    verdict, *rest = calibration_sections(report) if report is not None else [Section("", "")]
    repaired = [comparison_section(before, report)] if report is not None and before is not None else []
    settings = Section("Config", f"<pre><code>{escaped(config)}</code></pre>")
    sections = [verdict, learning_section(history, best_epoch), *repaired, *rest, settings]
    if report is None:
        sections[0] = Section("", '<div class="verdict"><p class="reason">A network without error bars.</p></div>')
    return page(f"Training of {name}", sections, command=command, versions=provenance())


def learning_section(history: History, best_epoch: int) -> Section:
    """Curves of everything that was logged for training and validation data, and the numbers of the best epoch."""
    counted = [{**line, "epoch": line.get("epoch", i) + 1} for i, line in enumerate(history)]
    histories = {_RUN: counted}
    figures = [
        _with_best(learning_figure(histories, quantity, _ROWS, _COLUMNS, {_RUN}), counted, best_epoch)
        for quantity in logged_quantities(histories)[:_MOST_QUANTITIES]
    ]
    samples = {
        "validation data": line_sample(_COLOUR),
        "training data": line_sample(_COLOUR, "dotted", 1),
        "the epoch whose weights were kept": line_sample("faint"),
    }
    legend = "".join(f"<li>{sample}{escaped(text)}</li>" for text, sample in samples.items())
    return Section("Learning", f'<ul class="legend">{legend}</ul>{grid(figures)}{_best_table(counted, best_epoch)}')


def _with_best(figure: Figure, history: History, best_epoch: int) -> Figure:
    """A figure with a line at the best epoch, solid for validation data."""
    if not 0 <= best_epoch < len(history):
        return figure
    lines = [mark for mark in figure.marks if isinstance(mark, Line)]
    marks = [replace(line, colour=_COLOUR, dash="dotted" if line.dash == "dotted" else "solid") for line in lines]
    return replace(figure, marks=[Rule(at=history[best_epoch]["epoch"]), *marks])


def _best_table(history: History, best_epoch: int) -> str:
    if not 0 <= best_epoch < len(history):
        return ""
    columns = [Column("quantity", number=False), Column("value")]
    values = {name: value for name, value in history[best_epoch].items() if name not in ("epoch", "stage")}
    rows = [(name, number(float(value), 4)) for name, value in values.items() if isinstance(value, int | float)]
    epoch = history[best_epoch]["epoch"]
    return table(columns, rows, caption=f"All that was logged in epoch {epoch:g}, whose weights were kept")
