"""Predicted covariance ellipses of a position: too small, too large, and right."""

import math
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from torch import Tensor

from fcal._checks import check_integer
from fcal.plots.captions import share
from fcal.plots.matplotlib_renderer import PALETTE, new_picture

_TRUE_FACTOR = ((1.0, 0.0), (0.55, 0.6))  # of the true covariance, lower triangular
_RADII = (1.0, 2.0)


def didactic(*, points: int = 300, generator: torch.Generator | None = None) -> Figure:
    r"""Errors of a two-dimensional Gaussian and four covariances: the truth, too small, too large, and right.

    An ellipse of r sigma holds :math:`1 - e^{-r^2 / 2}` of the points if the covariance is true: 39.3 % for one sigma,
    86.5 % for two.

    Args:
        points: Number of points drawn.
        generator: Source of the points; one with a fixed seed by default.

    Returns:
        A figure of four panels, outside of pyplot.

    Example:
        >>> figure = didactic(points=100)
        >>> [ax.get_title(loc="left") for ax in figure.axes]
        ['truth', 'over-confident', 'inflated', 'calibrated']
    """
    points = check_integer("points", points, at_least=2, at_most=1_000_000)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    factor = torch.tensor(_TRUE_FACTOR, dtype=torch.float64)
    truth = factor @ factor.T
    drawn, others = (torch.randn(n, 2, generator=generator, dtype=torch.float64) @ factor.T for n in (points, 2000))
    panels = (
        ("truth", truth, "ink"),
        ("over-confident", 0.15 * truth, "second"),
        ("inflated", 4.0 * truth.diagonal().diag(), "fourth"),
        ("calibrated", others.T @ others / len(others), "third"),  # learned from other draws, so not the truth itself
    )
    figure = new_picture(12.4, 3.4)
    for ax, (title, covariance, colour) in zip(figure.subplots(1, 4, sharex=True, sharey=True), panels, strict=True):
        _panel(ax, title, drawn, covariance, colour)
        if title != "truth":
            _ellipses(ax, truth, "ink", ls=":", lw=1.0, fill=False)
    return figure


def _panel(ax: Axes, title: str, drawn: Tensor, covariance: Tensor, colour: str) -> None:
    ax.plot(drawn[:, 0].tolist(), drawn[:, 1].tolist(), ".", ms=2.5, color="#9a9a9a", zorder=1)
    _ellipses(ax, covariance, colour, ls="-", lw=1.8, fill=True)
    squared = (drawn * torch.linalg.solve(covariance, drawn.T).T).sum(1)
    lines = []
    for radius in _RADII:
        held = (squared <= radius**2).double().mean().item()
        lines.append(f"{radius:g} sigma holds {share(held, 0)} (should: {share(1 - math.exp(-(radius**2) / 2), 0)})")
    ax.set_title(title, loc="left", fontsize=11, fontweight="bold", color=PALETTE[colour], pad=30)
    ax.text(0, 1.02, "\n".join(lines), transform=ax.transAxes, fontsize=8.5, color="#444444", va="bottom")
    ax.set(xlim=(-4.4, 4.4), ylim=(-3.7, 3.7), aspect="equal", xlabel="error in x")
    if title == "truth":
        ax.set_ylabel("error in y")
    ax.spines[["top", "right"]].set_visible(False)


def _ellipses(ax: Axes, covariance: Tensor, colour: str, *, ls: str, lw: float, fill: bool) -> None:
    lengths, directions = torch.linalg.eigh(covariance)
    angle = math.degrees(math.atan2(directions[1, 1].item(), directions[0, 1].item()))
    edge: dict[str, Any] = {"fill": False, "edgecolor": PALETTE[colour], "ls": ls, "lw": lw, "zorder": 2}
    for radius in _RADII:
        height, width = (2 * radius * lengths.sqrt()).tolist()
        ax.add_patch(Ellipse((0, 0), width, height, angle=angle, **edge))
        if fill:
            ax.add_patch(Ellipse((0, 0), width, height, angle=angle, color=PALETTE[colour], alpha=0.10, lw=0, zorder=0))
