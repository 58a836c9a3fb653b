"""Colours and dashes of methods, as matplotlib takes them."""

from typing import Any

from fcal.plots.canvas import LAW
from fcal.plots.methods import DASHES, method_style

# Okabe and Ito's palette, darkened where words or thin lines in it would be hard to see on white.
_COLOURS = ("#0072B2", "#C75500", "#00805F", "#A8487F", "#8A6D00", "#2A8FC4", "#B3263A", "#6A5ACD")
_PIXELS = 2  # width of the line that lengths of dashes are given for; matplotlib takes them as shares of its width


def line_style(method: str) -> dict[str, Any]:
    """Colour and dashes of a method.

    Example:
        >>> line_style("nll")
        {'color': '#C75500', 'linestyle': '-'}
    """
    colour, dash = method_style(method)
    lengths = tuple(length / _PIXELS for length in DASHES[dash])
    return {"color": LAW if colour < 0 else _COLOURS[colour], "linestyle": (0, lengths) if lengths else "-"}
