"""Coverage of every group at a few levels."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from fcal.metrics.report import Report
from fcal.plots.canvas import BAND, DATA, SECOND, THIRD, axes_for, caption, checked, quiet
from fcal.plots.captions import count, shortened
from fcal.plots.geometry import band_at

_COLOURS = (SECOND, DATA, THIRD, "#E69F00", "#555555")
_LONGEST_NAME = 32
_MARKERS: dict[str, Callable[[float, float, float], bool]] = {
    "<": lambda value, low, _: value < low,
    ">": lambda value, _, high: value > high,
    "o": lambda value, low, high: low <= value <= high,
}


def coverage_by_group(report: Report, *, levels: Sequence[float] = (0.5, 0.9), ax: Axes | None = None) -> Axes:
    """Share of targets in the central intervals of each group: dots, beside where calibrated groups would lie.

    Args:
        report: What ``fcal.evaluate`` returned for data in groups.
        levels: Levels to show, of those that the report has.
        ax: Axes to draw on; new ones, as high as the groups need, where absent.

    Returns:
        The axes; groups in the order of the report, from the top.

    Raises:
        ValueError: The report has no groups, or not one of the levels.
    """
    groups = checked(report).groups
    if not groups:
        raise ValueError("expected `report` with groups, got none")
    keys = [_key(report, level) for level in levels]
    room = min(max(0.17, 1.6 / len(groups)), 0.34)
    ax = axes_for(ax, width=6.4, height=1.3 + room * len(groups))
    for place, (level, key) in enumerate(zip(levels, keys, strict=True)):
        _draw(ax, list(groups.values()), level, key, _COLOURS[place % len(_COLOURS)])
    small = 8 if len(groups) <= 30 else 6.5
    # A dollar sign in a name is not mathematics.
    names = [shortened(name, _LONGEST_NAME) or "(empty)" for name in groups]
    ax.set_yticks(range(len(groups)), names, fontsize=small, parse_math=False)
    ax.set(ylim=(len(groups) - 0.4, -1.2), xlabel="share of targets in the central interval")
    grey = f"grey: where 95 % of calibrated groups lie; {len(groups)} groups, n = {count(report.n)}"
    caption(ax, "Coverage by group", grey, "triangles lie outside: left over-confident, right under-confident")
    quiet(ax)
    ax.tick_params(axis="y", labelsize=small, length=0)
    return ax


def _key(report: Report, level: float) -> str:
    known = {float(key): key for key in report.coverage}
    if level not in known:
        raise ValueError(f"expected `levels` of {', '.join(report.coverage)}, got {level!r}")
    return known[level]


def _draw(ax: Axes, groups: list[Report], level: float, key: str, colour: str) -> None:
    rows = range(len(groups))
    held = [group.coverage[key] for group in groups]
    bands = [band_at(group.curves.central, level) for group in groups]
    ax.axvline(level, color=colour, lw=0.9, ls="--", zorder=1)
    ax.hlines(rows, [low for low, _ in bands], [high for _, high in bands], color=BAND, alpha=0.45, lw=5, zorder=0)
    ax.hlines(rows, [level] * len(held), held, color=colour, lw=0.8, zorder=2)
    for marker, belongs in _MARKERS.items():
        here = [(v, row) for v, row, (low, high) in zip(held, rows, bands, strict=True) if belongs(v, low, high)]
        ax.scatter([v for v, _ in here], [row for _, row in here], s=22, color=colour, marker=marker, lw=0, zorder=3)
    ax.text(level, -0.75, f"{level:.0%}", ha="center", va="center", fontsize=8, color=colour, fontweight="bold")
