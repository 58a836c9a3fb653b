"""The figures that compare the rows of a benchmark: distributions and reliability, and how methods learned."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fcal.plots.calibrated import CDF_REGIONS, DENSITY_HOVER, INTERVAL_REGIONS, Curve, law, reliability_figure
from fcal.plots.captions import share, shortened
from fcal.plots.figure import Axis, Band, Figure, Line, Mark, Rule
from fcal.plots.styles import Columns, Rows, bottom_to_top, column_style, line_styles, ordered, row_style

Table = Mapping[str, Any]
Histories = Mapping[str, Sequence[Mapping[str, Any]]]

LAW_WIDTH = 5  # wide, pale and below: methods that follow the law are seen on it
_SMALLEST_BEYOND = 0.005
_LONGEST_NAME = 40
_FIRST_QUANTITIES = ("loss", "nll", "ece_q", "ece_z", "l1", "rmse", "crps")
_NOT_QUANTITIES = ("epoch", "step", "stage", "learning_rate")
_SUBSETS = {"train": "training: ", "val": "validation: ", "": ""}
_STAGE_CAPTION = "thin vertical line: from here on each method trains by its own loss, from its best weights so far"


class Panel(NamedTuple):
    """One of the four rows of the paper's figure: the distribution or the reliability of z or of q."""

    curve: str
    title: str
    x: str
    y: str


PANELS = (
    Panel("q_histogram", "Chi-squared distribution", "q, sum of K squared residuals", "density"),
    Panel("q", "Chi-squared reliability", "nominal probability", "share of q below"),
    Panel("z_histogram", "Normal distribution", "z, errors in units of the predicted sigma", "density"),
    Panel("z", "Normal reliability", "nominal probability", "share of z below"),
)


def calibration_figure(panel: Panel, title: str, table: Table, rows: Rows, shown: Collection[str]) -> Figure:
    """A panel of :func:`fcal.plots.calibration_sheet` for one table; lines of rows not ``shown`` start hidden."""
    curves = curves_of(table["curves"], panel.curve, rows)
    lines = _row_lines(panel, curves, rows, shown)
    caption = [title, *([] if curves else ["no method has this curve"])]
    if panel.curve in ("z", "q"):
        return reliability_figure(
            title=panel.title,
            caption=caption,
            axes=(panel.x, panel.y),
            regions=CDF_REGIONS if panel.curve == "z" else INTERVAL_REGIONS,
            band=band_of(table["curves"], panel.curve, rows),
            lines=lines,
        )
    beyond = _beyond_axis({name: curve for name, curve in curves.items() if name in shown}, rows)
    df, density = table.get("df") if panel.curve == "q_histogram" else None, []
    if curves and (isinstance(df, int) or panel.curve == "z_histogram"):
        low, high = min(x[0] for x, _ in curves.values()), max(x[-1] for x, _ in curves.values())
        density = [law(df, low, high, colour="band", width=LAW_WIDTH)]
    return Figure(
        title=panel.title,
        caption=[*caption, beyond],
        x=Axis(label=panel.x),
        y=Axis(label=panel.y, from_zero=True),
        marks=[*density, *lines],
    )


def curves_of(methods: Mapping[str, Any], name: str, rows: Rows) -> dict[str, Curve]:
    """The curves of one panel, of every row that has one, in the order of rows.

    Args:
        methods: By row a mapping of ``"z"``, ``"q"`` (``{"nominal": .., "empirical": ..}``), ``"z_histogram"`` and
            ``"q_histogram"`` (``{"edges": .., "density": ..}``); each may also be a pair of lists.
        name: Which of these.
        rows: Descriptions of rows.

    Raises:
        ValueError: Two lists do not fit each other.

    Example:
        >>> curves_of({"nll": {"z": [[0.0, 1.0], [0.0, 1.0]]}, "mmd": {}}, "z", {})
        {'nll': ([0.0, 1.0], [0.0, 1.0])}
    """
    entries = {method: (methods[method] or {}).get(name) for method in ordered(rows, methods)}
    return {method: _curve(entry, name, f"curves.{method}.{name}") for method, entry in entries.items() if entry}


def _curve(entry: Any, name: str, path: str) -> Curve:
    is_histogram = name.endswith("_histogram")
    first, second = ("edges", "density") if is_histogram else ("nominal", "empirical")
    pair = (entry.get(first), entry.get(second)) if isinstance(entry, Mapping) else tuple(entry)
    if len(pair) != 2 or any(not isinstance(values, Sequence) for values in pair):
        raise ValueError(f"expected `{path}` lists of {first} and {second}, got {str(entry)[:60]}")
    x, y = ([math.nan if value is None else float(value) for value in values] for values in pair)
    expected = len(x) - 1 if is_histogram else len(x)
    if len(y) != expected or not y:
        raise ValueError(f"expected `{path}` with {expected} values of {second} as of {first}, got {len(y)}")
    return x, y


def band_of(methods: Mapping[str, Any], name: str, rows: Rows) -> Band | None:
    """Where calibrated models lie, from the first row that has ``low`` and ``high``.

    It depends on the amount of data alone, so one band serves all rows.
    """
    for method in ordered(rows, methods):
        entry = (methods[method] or {}).get(name)
        if isinstance(entry, Mapping) and entry.get("low") and entry.get("high"):
            nominal, low, high = ([float(value) for value in entry[key]] for key in ("nominal", "low", "high"))
            if len(nominal) == len(low) == len(high):
                return Band(x=nominal, low=low, high=high)
    return None


def _row_lines(panel: Panel, curves: Mapping[str, Curve], rows: Rows, shown: Collection[str]) -> list[Line]:
    styles, steps = line_styles(rows, curves), panel.curve.endswith("_histogram")
    return [
        Line(
            x=curves[name][0],
            y=curves[name][1],
            colour=styles[name].colour,
            dash=styles[name].dash,
            width=1.5 if steps else 2,
            name=row_style(rows, name).full_title,
            hover=DENSITY_HOVER if steps else f"nominal {{x:.1%}}\n{panel.y} {{y:.2%}}",
            steps=steps,
            clipped=steps,
            row=name,
            visible=name in shown,
        )
        for name in bottom_to_top(rows, curves)
    ]


def _beyond_axis(curves: Mapping[str, Curve], rows: Rows) -> str:
    """Share of each row's data that its histogram does not show, where that is more than half a percent."""
    shares = []
    for name, (edges, density) in curves.items():
        inside = sum(d * (high - low) for d, (low, high) in zip(density, pairwise(edges), strict=True))
        if inside < 1 - _SMALLEST_BEYOND:
            shares.append(f"{shortened(row_style(rows, name).full_title, _LONGEST_NAME)} {share(1 - inside, 0)}")
    return f"beyond the axis: {', '.join(shares)}" if shares else ""


def learning_figure(
    histories: Histories, quantity: str, rows: Rows, columns: Columns, shown: Collection[str]
) -> Figure:
    """The figure of :func:`fcal.plots.learning_curves`; lines of rows not ``shown`` start hidden."""
    styles, title = line_styles(rows, histories), column_style(columns, quantity).title
    lines: list[Mark] = []
    for name in bottom_to_top(rows, histories):
        for subset, word in _SUBSETS.items():
            x, y = logged(histories[name], quantity, subset)
            if x:
                is_training = subset == "train"
                line = Line(
                    x=x,
                    y=y,
                    colour=styles[name].colour,
                    width=1 if is_training else 2,
                    dash="dotted" if is_training else styles[name].dash,
                    marker=4 if len(x) < 3 else 0,
                    name=row_style(rows, name).full_title,
                    labelled=not is_training,
                    hover=f"{word}{{y:.4g}} after epoch {{x:.6g}}",
                    row=name,
                    visible=name in shown,
                )
                lines.append(line)
    starts = stage_starts(histories)
    rules = [Rule(at=x, name="" if i else "from here: the method's own loss") for i, x in enumerate(starts)]
    return Figure(
        title=title,
        caption=(_STAGE_CAPTION,) if starts else (),
        x=Axis(label="epoch", whole=True),
        y=Axis(label=title),
        marks=[*lines, *rules],
        legend="free",
    )


def logged_quantities(histories: Histories) -> list[str]:
    """Every quantity that any row logged: the usual ones first, then in order of appearance.

    Example:
        >>> logged_quantities({"mmd": [{"epoch": 0, "train/mmd": 1.0, "validation/nll": 1.2, "train_nll": 0.1}]})
        ['nll', 'mmd']
    """
    keys = (key for history in histories.values() for epoch in history for key in epoch if key not in _NOT_QUANTITIES)
    names = dict.fromkeys(_subset_and_quantity(key)[1] for key in keys)
    return [name for name in _FIRST_QUANTITIES if name in names] + [n for n in names if n not in _FIRST_QUANTITIES]


def _subset_and_quantity(key: str) -> tuple[str, str]:
    """Data set and quantity: ``validation/nll`` and ``val_nll`` are both the ``nll`` of ``val``."""
    match = re.fullmatch(r"(train|val)(?:idation)?[_/](.+)", key)
    return (match[1], match[2]) if match else ("", key)


def logged(history: Sequence[Mapping[str, Any]], quantity: str, subset: str) -> tuple[list[float], list[float]]:
    """Epochs and values of a quantity on a data set (``"train"``, ``"val"``, or ``""`` where names do not say).

    Example:
        >>> logged([{"epoch": 1, "val_nll": 0.5}, {"epoch": 2, "val_nll": None}], "nll", "val")
        ([1.0], [0.5])
    """
    points = [
        (float(epoch.get("epoch", i)), float(value))
        for i, epoch in enumerate(history)
        for key, value in epoch.items()
        if _subset_and_quantity(key) == (subset, quantity)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    ]
    return [x for x, _ in points], [y for _, y in points]


def stage_starts(histories: Histories) -> list[float]:
    """Where training changed its loss: between the last epoch of a ``stage`` and the first of the next.

    Example:
        >>> stage_starts({"mmd": [{"epoch": 1, "stage": 1}, {"epoch": 2, "stage": 1}, {"epoch": 3, "stage": 2}]})
        [2.5]
    """
    starts = set()
    for history in histories.values():
        epochs = [(float(epoch.get("epoch", i)), epoch.get("stage")) for i, epoch in enumerate(history)]
        starts |= {(x + after) / 2 for (x, stage), (after, next_stage) in pairwise(epochs) if stage != next_stage}
    return sorted(starts)
