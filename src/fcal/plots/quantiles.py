"""Quantiles of the residuals against those of the standard normal law."""

from matplotlib.axes import Axes

from fcal.metrics.report import Report
from fcal.plots.canvas import DATA, FAINT, axes_for, caption, checked, quiet, write
from fcal.plots.captions import count, interval


def qq(report: Report, *, ax: Axes | None = None) -> Axes:
    """Quantiles of z against N(0, 1): a steeper line means error bars that are too short, a shifted one a bias.

    Args:
        report: What ``fcal.evaluate`` returned.
        ax: Axes to draw on; new ones where absent.

    Returns:
        The axes.
    """
    report = checked(report)
    ax = axes_for(ax)
    x, y = report.curves.qq
    reach = max((abs(v) for v in x), default=1.0)
    ax.plot([-reach, reach], [-reach, reach], color=FAINT, lw=0.8, ls="--")
    ax.plot(x, y, color=DATA, lw=1, marker="o", ms=2.5, zorder=3)
    caption(
        ax, "Quantiles of z", f"sd {interval(report.scale)}", f"mean {interval(report.shift)}; n = {count(report.n)}"
    )
    write(ax, 0.97, 0.04, "steeper than dashed:\nover-confident", ha="right")
    ax.set(xlabel="quantile of N(0, 1)", ylabel="quantile of z")
    quiet(ax)
    return ax
