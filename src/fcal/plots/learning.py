"""How methods learned."""

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fcal.plots.canvas import FAINT, axes_for, quiet
from fcal.plots.columns import column_title
from fcal.plots.histories import PARTS, Histories, logged, logged_quantities, stage_starts
from fcal.plots.line_styles import line_style
from fcal.plots.methods import bottom_to_top, method_title


def learning_curves(histories: Histories, quantity: str, *, ax: Axes | None = None) -> Axes:
    """One quantity over epochs: training thin and dotted, a colour for each method.

    Args:
        histories: By method, a list of epochs such as ``{"epoch": 0, "train/nll": 1.0, "validation/nll": 1.2}``; where
            their ``stage`` changes, the loss did, and a thin vertical line says so.
        quantity: Which to draw, such as ``"nll"``.
        ax: Axes to draw on; new ones where absent.

    Returns:
        The axes.

    Raises:
        ValueError: Nobody logged the quantity; what was logged is listed.
    """
    known = logged_quantities(histories)
    if quantity not in known:
        raise ValueError(f"expected `quantity` one of {', '.join(map(repr, known)) or 'none'}, got {quantity!r}")
    ax = axes_for(ax, height=3.4)
    for method in bottom_to_top(histories):
        for part in PARTS:
            x, y = logged(histories[method], quantity, part)
            if x:
                thin = {"linestyle": ":", "lw": 1.0} if part == "train" else {"lw": 1.6, "label": method_title(method)}
                marker = {"marker": "o", "ms": 3} if len(x) < 3 else {}
                ax.plot(x, y, **(line_style(method) | thin | marker))
    for place, start in enumerate(stage_starts(histories)):
        ax.axvline(start, color=FAINT, lw=0.8, zorder=1, label="_" if place else "from here: the method's own loss")
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    ax.set_xlabel("epoch")
    ax.set_ylabel(column_title(quantity), parse_math=False)
    _legend(ax)
    quiet(ax)
    return ax


def _legend(ax: Axes) -> None:
    for text in ax.legend(frameon=False, fontsize=8, handlelength=4).get_texts():
        text.set_parse_math(False)
