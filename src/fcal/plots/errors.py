"""How large errors are where the model says how large they should be."""

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from fcal.metrics.report import Report, SigmaBins
from fcal.plots.canvas import BAND, DATA, FAINT, LAW, OVER, UNDER, axes_for, caption, checked, quiet, write
from fcal.plots.captions import count, number, sigma_bins, with_floor
from fcal.plots.geometry import sigma_limits

_ROOM = 1e4  # regions go on beyond the axes, which a caller may widen


def error_by_sigma(report: Report, *, ax: Axes | None = None) -> Axes:
    """Actual root mean square error against predicted sigma, with the ideal line and the band of calibrated models.

    Args:
        report: What ``fcal.evaluate`` returned, of a prediction that has an sd.
        ax: Axes to draw on; new ones where absent.

    Returns:
        The axes, both logarithmic.

    Raises:
        ValueError: The prediction had no sd.
    """
    curve = checked(report).curves.sigma
    if curve is None:
        raise ValueError("expected `report` of predictions that have an sd, got one without")
    ax = axes_for(ax)
    low, high = sigma_limits([curve])
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    ends = low / _ROOM, high * _ROOM
    ax.fill_between(ends, ends, ends[1], color=OVER, alpha=0.07, lw=0)
    ax.fill_between(ends, ends[0], ends, color=UNDER, alpha=0.11, lw=0)
    ax.plot(ends, ends, color=FAINT, lw=0.8, ls="--")
    _draw(ax, curve)
    caption(
        ax,
        "Error by predicted sigma",
        with_floor("ENCE", report.ence, report.ence_floor),
        sigma_bins(report, len(curve.sigma)),
    )
    write(ax, 0.03, 0.96, "over-confident", va="top")
    write(ax, 0.97, 0.04, "under-confident", ha="right")
    ax.set(xlabel="predicted sigma", ylabel="root mean square error", aspect="equal")
    _log_ticks(ax, low, high)
    quiet(ax)
    return ax


def _draw(ax: Axes, curve: SigmaBins) -> None:
    positive = [value if value > 0 else math.nan for value in curve.error]
    low, high = ([max(v, 1e-300) for v in end] for end in (curve.low, curve.high))
    if len(curve.sigma) == 1:
        ax.vlines(curve.sigma, low, high, color=BAND, alpha=0.5, lw=7)
    else:
        ax.fill_between(curve.sigma, low, high, color=BAND, alpha=0.45, lw=0)
    ax.plot(curve.sigma, positive, color=DATA, lw=1.2, marker="o", ms=4, zorder=3)


def _log_ticks(ax: Axes, low: float, high: float) -> None:
    """Plain numbers, at 1, 2 and 5 where the axes span less than two decades."""
    steps = (1.0, 2.0, 5.0) if math.log10(high / low) < 2 else (1.0,)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=steps, numticks=8))
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def sparsification(report: Report, *, ax: Axes | None = None) -> Axes:
    """RMSE of what remains when the least certain predictions are dropped, beside the best order possible.

    Args:
        report: What ``fcal.evaluate`` returned, of a prediction that has an sd.
        ax: Axes to draw on; new ones where absent.

    Returns:
        The axes.

    Raises:
        ValueError: The prediction had no sd.
    """
    curve = checked(report).curves.sparsification
    if curve is None:
        raise ValueError("expected `report` of predictions that have an sd, got one without")
    ax = axes_for(ax, height=3.4)
    ax.fill_between(curve.dropped, curve.by_error, curve.by_sigma, color=DATA, alpha=0.12, lw=0)
    ax.plot(curve.dropped, curve.by_sigma, color=DATA, lw=1.6)
    ax.plot(curve.dropped, curve.by_error, color=LAW, lw=1.2, ls="--")
    ax.set(xlim=(0, 1), ylim=(0, 1.08 * max(1.0, *curve.by_sigma)))
    _label(ax, curve.dropped, curve.by_sigma, "largest sigma first", DATA, above=True)
    _label(ax, curve.dropped, curve.by_error, "largest error first", LAW, above=False)
    caption(ax, "How well sigma ranks errors", f"AUSE {number(report.ause)}, n = {count(report.n)}")
    ax.set(xlabel="share dropped", ylabel="RMSE of the rest / of all")
    quiet(ax)
    return ax


def _label(ax: Axes, x: tuple[float, ...], y: tuple[float, ...], words: str, colour: str, *, above: bool) -> None:
    """Words beside a curve: over the middle of the upper one, under the first third of the lower one."""
    at = (len(x) // 2) if above else (len(x) // 3)
    offset, side = ((4, 5), "bottom") if above else ((-4, -5), "top")
    place: dict[str, Any] = {
        "xytext": offset,
        "textcoords": "offset points",
        "va": side,
        "ha": "left" if above else "right",
    }
    ax.annotate(words, (x[at], y[at]), **place, fontsize=8, color=colour)
