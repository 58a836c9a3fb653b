"""Interactive figures that compare methods: distributions, reliability, and how they learned."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from fcal.plots.captions import share, shortened
from fcal.plots.columns import column_title
from fcal.plots.geometry import CDF_REGIONS, INTERVAL_REGIONS
from fcal.plots.histories import PARTS, Histories, logged, logged_quantities, stage_starts
from fcal.plots.laws import chi2_curve, normal_curve
from fcal.plots.method_curves import PANELS, Curve, Panel, band_of, beyond_axis, curves_of, spanned, together
from fcal.plots.methods import DASHES, bottom_to_top, method_order, method_style, method_title
from fcal.reports.drawing import BAND, END, FAINT, INK, Drawing, Traces, band, diagonal, line, square
from fcal.reports.markup import escaped, plot_text

_SERIES = tuple(f"var(--series-{letter})" for letter in "abcdefgh")
_MOST_QUANTITIES = 6
_STAGE_WORDS = "thin vertical line: from here on each method trains by its own loss, from its best weights so far"
_FEW_EPOCHS = 8
_LAW_WIDTH = 5  # wide, pale and below: methods that follow the law are seen on it


def calibration_drawings(columns: Mapping[str, Mapping[str, Any]], shown: Collection[str]) -> list[Drawing]:
    """The four rows of the paper's figure, row by row, one column for each table.

    Args:
        columns: By title of the column, a table with ``curves`` and ``df``.
        shown: Methods whose lines are shown until somebody clicks.
    """
    rows = ((panel, title, entry) for panel in PANELS for title, entry in columns.items())
    return [_panel(panel, title, entry, shown) for panel, title, entry in rows]


def _panel(panel: Panel, title: str, entry: Mapping[str, Any], shown: Collection[str]) -> Drawing:
    curves = curves_of(entry["curves"], panel.name)
    words = [title] if curves else [title, "no method has this curve"]
    if panel.is_histogram:
        words.append(_beyond(curves, shown))
        traces, layout = _distributions(panel, curves, entry.get("df"), shown)
    else:
        traces, layout = _reliabilities(panel, curves, shown)
        band_ends = band_of(entry["curves"], panel.name)
        traces = [*(band(*band_ends) if band_ends else []), *traces]
    return Drawing(panel.title, words, traces, layout)


def _distributions(
    panel: Panel, curves: Mapping[str, Curve], df: Any, shown: Collection[str]
) -> tuple[Traces, dict[str, Any]]:
    traces = [
        _named(method, line(x, [*y, y[-1]], _colour(method)), shown)
        | {"hovertemplate": f"<b>{_title(method)}</b><br>density %{{y:.3~g}} at %{{x:.3~g}}{END}"}
        for method, (x, y) in _stacked(curves)
    ]
    for trace in traces:
        trace["line"] = trace["line"] | {"shape": "hv"}
    law = _law(panel, curves, df)
    axes = {"xaxis": {"title": {"text": panel.x}}, "yaxis": {"title": {"text": panel.y}, "rangemode": "tozero"}}
    return [*law, *traces], axes


def _beyond(curves: Mapping[str, Curve], shown: Collection[str]) -> str:
    """What the axis cannot show of the methods that are shown at first, in words."""
    shares = beyond_axis({method: curve for method, curve in curves.items() if method in shown})
    listed = ", ".join(f"{shortened(method_title(method), 40)} {share(part, 0)}" for method, part in shares.items())
    return f"beyond the axis: {listed}" if listed else ""


def _law(panel: Panel, curves: Mapping[str, Curve], df: Any) -> Traces:
    if not curves or (panel.is_of_q and not isinstance(df, int)):
        return []
    curve = chi2_curve(spanned(curves), df) if panel.is_of_q else normal_curve(spanned(curves))
    name = f"χ²({df})" if panel.is_of_q else "N(0, 1)"
    hover = f"{name}<br>density %{{y:.3~g}} at %{{x:.3~g}}{END}"
    return [line(*curve, BAND, width=_LAW_WIDTH, name=name, hovertemplate=hover)]


def _reliabilities(panel: Panel, curves: Mapping[str, Curve], shown: Collection[str]) -> tuple[Traces, dict[str, Any]]:
    traces = [
        _named(method, line(x, y, _colour(method), width=2), shown)
        | {
            "cliponaxis": False,
            "hovertemplate": f"<b>{_title(method)}</b><br>nominal %{{x:.1%}}<br>{panel.y} %{{y:.2%}}{END}",
        }
        for method, (x, y) in _stacked(curves)
    ]
    seen = {method: curve for method, curve in curves.items() if method in shown}
    regions = INTERVAL_REGIONS if panel.is_of_q else CDF_REGIONS
    return [diagonal((0, 1)), *traces], square(panel.x, panel.y, together(seen), regions)


def _stacked(curves: Mapping[str, Curve]) -> Iterator[tuple[str, Curve]]:
    return ((method, curves[method]) for method in bottom_to_top(curves))


def _colour(method: str) -> str:
    style = method_style(method)
    return INK if style.colour < 0 else _SERIES[style.colour]


def _title(method: str) -> str:
    return plot_text(method_title(method)).replace("%", "&#37;")


def _named(method: str, trace: dict[str, Any], shown: Collection[str]) -> dict[str, Any]:
    """A trace with the dashes of its method, found by the legend by its name."""
    lengths = DASHES[method_style(method).dash]
    stroke = trace["line"] | {"dash": ",".join(f"{length}px" for length in lengths) or "solid"}
    return trace | {"line": stroke, "meta": method, "visible": method in shown}


def line_legend(methods: Iterable[str], shown: Collection[str], *, law: bool = False) -> str:
    """Buttons that show and hide the lines of a method in all figures of a section.

    Args:
        methods: Those that have lines.
        shown: Those of them whose lines are shown until somebody clicks.
        law: Whether the law beside distributions is named too.
    """
    entries = [_entry(method, shown=method in shown) for method in sorted(methods, key=method_order)]
    if law:
        entries.append(f"<li>{_sample(BAND, 'solid', _LAW_WIDTH)}χ² or N(0, 1)</li>")
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _entry(method: str, *, shown: bool) -> str:
    sample, words = _sample(_colour(method), method_style(method).dash), shortened(method_title(method), 40)
    attributes = f'type="button" data-method="{escaped(method)}" aria-pressed="{str(shown).lower()}"'
    return f"<li><button {attributes}>{sample}{escaped(words)}</button></li>"


def _sample(colour: str, dash: str, width: float = 2) -> str:
    dashes = " ".join(map(str, DASHES[dash])) or "none"
    style = f"stroke:{colour};stroke-width:{width:g};stroke-dasharray:{dashes}"
    return f'<svg class="sample" viewBox="0 0 36 10" aria-hidden="true"><path d="M1 5H35" style="{style}"/></svg>'


def learning_drawings(histories: Histories, shown: Collection[str]) -> list[Drawing]:
    """One figure for each quantity that was logged: training thin and dotted, a colour for each method.

    Args:
        histories: By method, a list of epochs such as ``{"epoch": 0, "train_nll": 1.0, "val_nll": 1.2}``; where their
            ``stage`` changes, the loss did, and a thin vertical line says so.
        shown: Methods whose lines are shown until somebody clicks.
    """
    drawings = [_learning(quantity, histories, shown) for quantity in logged_quantities(histories)[:_MOST_QUANTITIES]]
    return [drawing for drawing in drawings if drawing.traces]


def _learning(quantity: str, histories: Histories, shown: Collection[str]) -> Drawing:
    traces: Traces = []
    for method in bottom_to_top(histories):
        for part in PARTS:
            x, y = logged(histories[method], quantity, part)
            if x:
                traces.append(_learned(method, part, line(x, y, _colour(method)), shown))
    title = column_title(quantity)
    longest = max((epoch for trace in traces for epoch in trace["x"]), default=0)
    few = {"dtick": 1} if longest <= _FEW_EPOCHS else {}
    starts = stage_starts(histories)
    layout = {
        "xaxis": {"title": {"text": "epoch"}} | few,
        "yaxis": {"title": {"text": plot_text(title)}},
        "shapes": [_upright(start) for start in starts],
    }
    return Drawing(title, (_STAGE_WORDS,) if starts else (), traces, layout)


def _upright(x: float) -> dict[str, Any]:
    place = {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    return place | {"line": {"color": FAINT, "width": 1}}


def _learned(method: str, part: str, trace: dict[str, Any], shown: Collection[str]) -> dict[str, Any]:
    words = {"train": "training", "val": "validation"}.get(part, "")
    named = _named(method, trace, shown)
    named["line"] = named["line"] | ({"dash": "dot", "width": 1} if part == "train" else {"width": 2})
    single = {"mode": "lines+markers", "marker": {"size": 4, "color": named["line"]["color"]}}
    hover = f"<b>{_title(method)}</b> {words}<br>%{{y:.4~g}} after epoch %{{x}}{END}"
    return named | {"hovertemplate": hover} | (single if len(trace["x"]) < 3 else {})
