"""How methods learned."""

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fcal.plots.canvas import axes_for, quiet
from fcal.plots.columns import column_title
from fcal.plots.histories import PARTS, Histories, logged, logged_quantities
from fcal.plots.line_styles import line_style
from fcal.plots.methods import method_order, method_title


def learning_curves(histories: Histories, quantity: str, *, ax: Axes | None = None) -> Axes:
    """One quantity over epochs: training thin and dotted, a colour for each method.

    Args:
        histories: By method, a list of epochs such as ``{"epoch": 0, "train/nll": 1.0, "validation/nll": 1.2}``.
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
    for method in sorted(histories, key=method_order):
        for part in PARTS:
            x, y = logged(histories[method], quantity, part)
            if x:
                thin = {"linestyle": ":", "lw": 1.0} if part == "train" else {"lw": 1.6, "label": method_title(method)}
                marker = {"marker": "o", "ms": 3} if len(x) < 3 else {}
                ax.plot(x, y, **(line_style(method) | thin | marker))
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    ax.set_xlabel("epoch")
    ax.set_ylabel(column_title(quantity), parse_math=False)
    _legend(ax)
    quiet(ax)
    return ax


def _legend(ax: Axes) -> None:
    for text in ax.legend(frameon=False, fontsize=8).get_texts():
        text.set_parse_math(False)
