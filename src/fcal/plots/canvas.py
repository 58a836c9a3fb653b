"""What every picture shares: axes to draw on, colours that the colour-blind can tell apart, captions."""

import io
from typing import Any

from fcal.metrics.report import Report

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patheffects import withStroke
except ImportError as error:
    raise ImportError("expected matplotlib for fcal.plots; pip install 'fcal[cli]'") from error

# Okabe and Ito's palette; the last two darkened, so that words in them can be read on white.
DATA, OVER, UNDER, LAW = "#0072B2", "#D55E00", "#56B4E9", "#333333"
SECOND, THIRD = "#008562", "#AA4A84"
BAND, FAINT = "#9a9a9a", "#666666"

VERDICT_COLOURS = {
    "calibrated": "#00735A",
    "over-confident": "#B34700",
    "under-confident": "#005A94",
    "biased": "#8E3B6B",
    "wrong shape": "#7A5200",
}


class Picture(Figure):
    """A figure outside of pyplot: it is gone when nobody holds it, and notebooks still show it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def new_picture(width: float, height: float) -> Picture:
    """An empty figure that keeps its labels apart."""
    return Picture(figsize=(width, height), layout="constrained")


def axes_for(ax: Any, *, width: float = 4.2, height: float = 4.2) -> Axes:
    """The axes passed in, or those of a new figure."""
    if ax is None:
        return new_picture(width, height).subplots()
    if not isinstance(ax, Axes):
        raise TypeError(f"expected `ax` matplotlib axes or None, got {type(ax).__name__}")
    return ax


def checked(report: Any, name: str = "report") -> Report:
    """A report, as ``fcal.evaluate`` returns it."""
    if not isinstance(report, Report):
        raise TypeError(f"expected `{name}` a Report of fcal.evaluate, got {type(report).__name__}")
    return report


def caption(ax: Axes, title: str, *lines: str) -> None:
    """A title with small lines under it, above the axes, where no curve goes."""
    lines = tuple(line for line in lines if line)
    small = 7.5
    ax.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=6 + (small + 2.5) * len(lines))
    below: dict[str, Any] = {"xy": (0, 1), "xycoords": "axes fraction", "xytext": (0, 4), "textcoords": "offset points"}
    ax.annotate("\n".join(lines), **below, ha="left", va="bottom", fontsize=small, color=FAINT)


def write(ax: Axes, x: float, y: float, words: str, **style: Any) -> None:
    """Words in a panel, at a share of its width and height, readable also across a curve."""
    halo = [withStroke(linewidth=2.5, foreground="white", alpha=0.85)]
    defaults: dict[str, Any] = {"fontsize": 8, "color": FAINT, "path_effects": halo, "transform": ax.transAxes}
    ax.text(x, y, words, **(defaults | style))


def quiet(ax: Axes) -> None:
    """Remove what carries no information."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    ax.xaxis.label.set_fontsize(9)
    ax.yaxis.label.set_fontsize(9)
