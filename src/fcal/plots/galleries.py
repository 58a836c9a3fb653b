"""Images with the ellipses that were predicted and the one that is true."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.patheffects import withStroke

from fcal.plots.canvas import new_picture
from fcal.plots.methods import method_title
from fcal.plots.shots import ON_IMAGES, RADIUS, Pair, Shot, read_shots, usual_methods

_TRUE = "#ffffff"
_RIM = [withStroke(linewidth=3.2, foreground="black", alpha=0.6)]


def disc_gallery(shots: Sequence[Mapping[str, Any]], *, methods: Sequence[str] = (), columns: int = 4) -> Figure:
    """Images with the true centre, its label, and ellipses of two sigma: predicted, and of the true noise.

    Args:
        shots: As :func:`fcal.plots.shots.read_shots` takes them.
        methods: Whose ellipses to draw, at most three; NLL and f-Cal where none is named and they are there.
        columns: Images in a row.

    Returns:
        A figure outside of pyplot.

    Raises:
        ValueError: There is no shot, or one lacks something.
    """
    read = read_shots(shots)
    if not read:
        raise ValueError("expected `shots` with at least one image, got none")
    colours = dict(zip(methods or usual_methods(read), ON_IMAGES, strict=False))
    columns = max(1, min(columns, len(read)))
    rows = math.ceil(len(read) / columns)
    figure = new_picture(2.3 * columns, 2.3 * rows + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for ax, shot in zip(axes, read, strict=False):
        _draw(ax, shot, colours)
    for ax in list(figure.axes)[len(read) :]:
        ax.set_axis_off()
    _legend(figure, colours, columns)
    return figure


def _draw(ax: Axes, shot: Shot, colours: Mapping[str, str]) -> None:
    ax.imshow(shot.image, extent=(0, 1, 1, 0), interpolation="nearest")
    if shot.sigma is not None:
        _ellipse(ax, shot.centre, shot.sigma, _TRUE, "--")
    for method, colour in colours.items():
        if method in shot.predictions:
            _ellipse(ax, *shot.predictions[method], colour, "-")
    if shot.label is not None:
        ax.plot(*shot.label, "o", ms=4, mfc=_TRUE, mec="black", mew=0.8)
    ax.plot(*shot.centre, "+", ms=8, mew=1.5, color=_TRUE, path_effects=_RIM)
    ax.set(
        xlim=(-0.04, 1.04), ylim=(1.04, -0.04), xticks=[], yticks=[], aspect=shot.image.shape[0] / shot.image.shape[1]
    )
    ax.spines[:].set_visible(False)


def _ellipse(ax: Axes, centre: Pair, sigma: Pair, colour: str, dashes: str) -> None:
    width, height = (2 * RADIUS * value for value in sigma)
    shape = Ellipse(centre, width, height, fill=False, edgecolor=colour, ls=dashes, lw=1.5, path_effects=_RIM)
    ax.add_patch(shape)


def _legend(figure: Figure, colours: Mapping[str, str], columns: int) -> None:
    ax = figure.axes[0]
    rim: dict[str, Any] = {"path_effects": _RIM}
    handles = [ax.plot([], [], "+", ms=8, mew=1.5, color=_TRUE, **rim)[0]]
    handles += ax.plot([], [], "o", ms=4, mfc=_TRUE, mec="black", mew=0.8)
    handles += ax.plot([], [], "--", lw=1.5, color=_TRUE, **rim)
    handles += [ax.plot([], [], lw=1.5, color=colour, **rim)[0] for colour in colours.values()]
    names = ["true centre", "label", "2 sigma of the true noise", *(f"2 sigma by {method_title(m)}" for m in colours)]
    shown = figure.legend(
        handles, names, loc="outside lower center", ncols=min(3, (columns + 1) // 2), frameon=False, fontsize=8
    )
    for text in shown.get_texts():
        text.set_parse_math(False)
