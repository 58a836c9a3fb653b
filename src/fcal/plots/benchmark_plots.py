"""Pictures that compare the rows of a benchmark; ``rows`` and ``columns`` describe them (see ``fcal.plots.styles``)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any

import matplotlib.figure
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from fcal.plots.benchmark_figures import (
    LAW_WIDTH,
    PANELS,
    Histories,
    calibration_figure,
    learning_figure,
    logged_quantities,
)
from fcal.plots.captions import shortened
from fcal.plots.figure import Axis, Figure, Line, Mark, Rule
from fcal.plots.matplotlib_renderer import PALETTE, Picture, common_legend, draw, new_picture, stroke
from fcal.plots.predicted_positions import (
    RADIUS,
    TRUTH_COLOUR,
    Pair,
    PredictedPosition,
    gallery_colours,
    read_gallery,
)
from fcal.plots.styles import (
    ColumnStyle,
    RowStyle,
    column_style,
    described,
    line_styles,
    ordered,
    row_style,
    shown_at_first,
)

_RIM = [withStroke(linewidth=3.2, foreground="black", alpha=0.6)]
_SCALES = ("", "x", "y", "xy")
_LONGEST_TITLE = 40
_CAPTION_CHARACTERS = 75


def calibration_sheet(
    tables: Mapping[str, Mapping[str, Any]], *, rows: Mapping[str, RowStyle] = {}
) -> matplotlib.figure.Figure:
    """The paper's figure: chi-squared and normal distribution and reliability, in four rows.

    Args:
        tables: By title of the column, a mapping with ``curves`` (see ``fcal.plots.benchmark_figures.curves_of``) and
            ``df``, the number of squared residuals in a sum.
        rows: Descriptions of rows. Of many, the highlighted ones are drawn.

    Returns:
        A figure outside of pyplot.

    Raises:
        ValueError: There is no table, or curves do not fit together.
    """
    if not tables:
        raise ValueError("expected `tables` with at least one, got none")
    names = dict.fromkeys(name for table in tables.values() for name in table["curves"])
    rows, shown = described(rows, names), shown_at_first(rows, names)
    picture = new_picture(0.6 + 4.4 * len(tables), 13.2)
    grid = picture.subplots(len(PANELS), len(tables), squeeze=False)
    for i, panel in enumerate(PANELS):
        for ax, (title, table) in zip(grid[i], tables.items(), strict=True):
            figure = calibration_figure(panel, title, table, rows, shown)
            heading = f"{shortened(title, _LONGEST_TITLE)}\n\n{panel.title}" if i == 0 else panel.title
            lines = [line for text in figure.caption[1:] for line in wrap(text, _CAPTION_CHARACTERS)]
            draw(replace(figure, title=heading, caption=lines), ax)
    styles = {name: style for name, style in line_styles(rows).items() if name in shown}
    handles = [picture.axes[0].plot([], [], lw=1.6, **stroke(*style))[0] for style in styles.values()]
    handles += picture.axes[0].plot([], [], lw=0.8 * LAW_WIDTH, color=PALETTE["band"])
    titles = [rows[name].full_title for name in styles]
    columns = 4 if len(tables) > 1 else 2
    common_legend(picture, handles, [*titles, "chi-squared or N(0, 1)"], ncols=columns, handlelength=4)
    return picture


def disc_gallery(
    shots: Sequence[Mapping[str, Any]],
    *,
    methods: Sequence[str] = (),
    columns: int = 4,
    rows: Mapping[str, RowStyle] = {},
) -> matplotlib.figure.Figure:
    """Images with the true centre, its label, and ellipses of two sigma: predicted, and of the true noise.

    Args:
        shots: What ``fcal.plots.predicted_positions.read_gallery`` returns.
        methods: Rows whose ellipses are drawn, at most three; the two most compared ones where none is named.
        columns: Images in a row.
        rows: Descriptions of rows.

    Returns:
        A figure outside of pyplot.

    Raises:
        ValueError: There is no image, or an entry lacks something.
    """
    images = read_gallery(shots)
    if not images:
        raise ValueError("expected `shots` with at least one image, got none")
    colours = gallery_colours(images, methods, rows)
    columns = max(1, min(columns, len(images)))
    lines = math.ceil(len(images) / columns)
    picture = new_picture(2.3 * columns, 2.3 * lines + 0.6)
    axes = list(picture.subplots(lines, columns, squeeze=False).flat)
    for ax, image in zip(axes, images, strict=False):
        _draw_image(ax, image, colours)
    for ax in axes[len(images) :]:
        ax.set_axis_off()
    _gallery_legend(picture, {row_style(rows, name).full_title: colour for name, colour in colours.items()}, columns)
    return picture


def _draw_image(ax: Axes, image: PredictedPosition, colours: Mapping[str, str]) -> None:
    ax.imshow(image.image, extent=(0, 1, 1, 0), interpolation="nearest")
    if image.sigma is not None:
        _draw_ellipse(ax, image.centre, image.sigma, TRUTH_COLOUR, "--")
    for name, colour in colours.items():
        if name in image.predictions:
            _draw_ellipse(ax, *image.predictions[name], colour, "-")
    if image.label is not None:
        ax.plot(*image.label, "o", ms=4, mfc=TRUTH_COLOUR, mec="black", mew=0.8)
    ax.plot(*image.centre, "+", ms=8, mew=1.5, color=TRUTH_COLOUR, path_effects=_RIM)
    height, width, _ = image.image.shape
    ax.set(xlim=(-0.04, 1.04), ylim=(1.04, -0.04), xticks=[], yticks=[], aspect=height / width)
    ax.spines[:].set_visible(False)


def _draw_ellipse(ax: Axes, centre: Pair, sigma: Pair, colour: str, dashes: str) -> None:
    width, height = (2 * RADIUS * value for value in sigma)
    ax.add_patch(Ellipse(centre, width, height, fill=False, edgecolor=colour, ls=dashes, lw=1.5, path_effects=_RIM))


def _gallery_legend(picture: Picture, colours: Mapping[str, str], columns: int) -> None:
    ax = picture.axes[0]
    rim: dict[str, Any] = {"path_effects": _RIM}
    handles = [ax.plot([], [], "+", ms=8, mew=1.5, color=TRUTH_COLOUR, **rim)[0]]
    handles += ax.plot([], [], "o", ms=4, mfc=TRUTH_COLOUR, mec="black", mew=0.8)
    handles += ax.plot([], [], "--", lw=1.5, color=TRUTH_COLOUR, **rim)
    handles += [ax.plot([], [], lw=1.5, color=colour, **rim)[0] for colour in colours.values()]
    names = ["true centre", "label", "2 sigma of the true noise", *(f"2 sigma by {title}" for title in colours)]
    common_legend(picture, handles, names, ncols=min(3, (columns + 1) // 2))


def learning_curves(
    histories: Histories,
    quantity: str,
    *,
    ax: Axes | None = None,
    rows: Mapping[str, RowStyle] = {},
    columns: Mapping[str, ColumnStyle] = {},
) -> Axes:
    """One quantity over epochs: on training data thin and dotted, a colour for each row.

    Args:
        histories: By row, a list of epochs such as ``{"epoch": 0, "train/nll": 1.0, "validation/nll": 1.2}``; a
            vertical line stands where their ``stage`` changes, and with it the loss.
        quantity: Which to draw, such as ``"nll"``.
        ax: Axes to draw on; new ones by default.
        rows: Descriptions of rows.
        columns: Descriptions of quantities.

    Returns:
        The axes.

    Raises:
        ValueError: No row logged the quantity; the message lists those that were logged.
    """
    known = logged_quantities(histories)
    if quantity not in known:
        raise ValueError(f"expected `quantity` one of {', '.join(map(repr, known)) or 'none'}, got {quantity!r}")
    return draw(replace(learning_figure(histories, quantity, rows, columns, histories), title=""), ax)


def tradeoff(
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    x: str,
    y: str,
    label: str | None = None,
    log: str = "",
    floor: float | None = None,
    ax: Axes | None = None,
    rows: Mapping[str, RowStyle] = {},
    columns: Mapping[str, ColumnStyle] = {},
) -> Axes:
    """A line for each row through its points in the order given, such as L1 against ECE while lam grows.

    It serves ablations too: ``x`` may be the setting itself.

    Args:
        curves: By row, points such as ``{"lam": 0.1, "l1": 0.002, "ece_q": 0.05}``; those that lack a value are
            left out.
        x: Name of the horizontal quantity.
        y: Name of the vertical quantity.
        label: Name of the quantity written beside the points; none by default.
        log: Axes with a logarithmic scale: ``""``, ``"x"``, ``"y"`` or ``"xy"``.
        floor: Value of ``y`` for a calibrated model, dashed; none by default.
        ax: Axes to draw on; new ones by default.
        rows: Descriptions of rows.
        columns: Descriptions of quantities.

    Returns:
        The axes.
    """
    if log not in _SCALES:
        raise ValueError(f"expected `log` one of {', '.join(map(repr, _SCALES))}, got {log!r}")
    styles = line_styles(rows, curves)
    marks: list[Mark] = []
    labels: list[tuple[str, tuple[float, float], str]] = []
    for name in ordered(rows, curves):
        points = [point for point in curves[name] if _is_number(point.get(x)) and _is_number(point.get(y))]
        pairs = [(float(point[x]), float(point[y])) for point in points]
        title, (colour, dash) = row_style(rows, name).full_title, styles[name]
        xs, ys = [a for a, _ in pairs], [b for _, b in pairs]
        marks.append(Line(x=xs, y=ys, colour=colour, dash=dash, width=1.75, marker=5.5, name=title))
        if label is not None:
            labels += [(_text(p.get(label, "")), pair, colour) for p, pair in zip(points, pairs, strict=True)]
    if floor is not None:
        marks.append(Rule(at=floor, axis="y", dash="dashed", name="floor: a calibrated model"))
    axes = (Axis(label=column_style(columns, name).title, log=key in log) for key, name in (("x", x), ("y", y)))
    horizontal, vertical = axes
    ax = draw(Figure(title="", x=horizontal, y=vertical, marks=marks, legend="free"), ax)
    for axis, ticks in ((horizontal, ax.xaxis), (vertical, ax.yaxis)):
        if not axis.log:
            ticks.set_major_locator(MaxNLocator(5))
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 6.5, "parse_math": False}
    for text, pair, colour in labels:
        ax.annotate(text, pair, (3, 3), color=PALETTE[colour], **style)
    return ax


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)
