"""Images with predicted and true ellipses, drawn as vectors over their pixels."""

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcal.plots.captions import number, shortened
from fcal.plots.predicted_positions import (
    RADIUS,
    TRUTH_COLOUR,
    Pair,
    PredictedPosition,
    gallery_colours,
    read_gallery,
)
from fcal.plots.styles import Rows, row_style
from fcal.reports.page import escaped

_MARGIN = 0.06
_MOST_IMAGES = 48
_LONGEST_TITLE = 40


def gallery_html(entries: Sequence[Mapping[str, Any]], *, rows: Rows) -> str:
    """Images side by side, of more than 48 the first, with a legend and the ellipses of the two most compared rows.

    Entries are those of :func:`fcal.plots.predicted_positions.read_gallery`.
    """
    images = read_gallery(list(entries)[:_MOST_IMAGES])
    colours = gallery_colours(images, (), rows)
    titles = {name: shortened(row_style(rows, name).full_title, _LONGEST_TITLE) for name in colours}
    figures = "\n".join(_figure(image, colours, titles) for image in images)
    legend = _legend({titles[name]: colour for name, colour in colours.items()})
    return f'{legend}<div class="gallery">\n{figures}\n</div>'


def _legend(colours: Mapping[str, str]) -> str:
    ellipse = (0.5, 0.5), (0.18, 0.13)
    entries = {
        "true centre": _cross(0.5, 0.5, 0.3),
        "label": _dot(0.5, 0.5, 0.12),
        "2 sigma of the true noise": _ellipse(*ellipse, TRUTH_COLOUR, dashed=True),
        **{f"2 sigma by {title}": _ellipse(*ellipse, colour) for title, colour in colours.items()},
    }
    start = '<li><svg viewBox="0 0 1 1" aria-hidden="true"><rect width="1" height="1" fill="#444"/>'
    items = "".join(f"{start}{shape}</svg>{escaped(name)}</li>" for name, shape in entries.items())
    return f'<ul class="legend">{items}</ul>'


def _figure(image: PredictedPosition, colours: Mapping[str, str], titles: Mapping[str, str]) -> str:
    shapes, lines = [], []
    if image.sigma is not None:
        shapes.append(_ellipse(image.centre, image.sigma, TRUTH_COLOUR, dashed=True))
        lines.append(f"true sigma {_numbers(image.sigma)}")
    for name, colour in colours.items():
        if name in image.predictions:
            mean, sigma = image.predictions[name]
            shapes.append(_ellipse(mean, sigma, colour))
            lines.append(f"{titles[name]} {_numbers(sigma)}")
    if image.label is not None:
        shapes.append(_dot(*image.label))
    shapes.append(_cross(*image.centre))
    height, width, _ = image.image.shape
    box = f"{-_MARGIN:g} {-_MARGIN:g} {1 + 2 * _MARGIN:g} {1 + 2 * _MARGIN:g}"
    label = escaped("image with its true centre; " + "; ".join(lines))
    picture = f'<image href="{data_uri(image.image)}" width="1" height="1" preserveAspectRatio="none"/>'
    return (
        f'<figure><svg viewBox="{box}" preserveAspectRatio="none" style="aspect-ratio:{width / height:.4g}" role="img" '
        f'aria-label="{label}">{picture}{"".join(shapes)}</svg>'
        f"<figcaption>{'<br>'.join(map(escaped, lines))}</figcaption></figure>"
    )


def _numbers(pair: Pair) -> str:
    return ", ".join(number(value, 2) for value in pair)


def _ellipse(centre: Pair, sigma: Pair, colour: str, *, dashed: bool = False) -> str:
    """An ellipse of 2 sigma that can be seen on any background: a dark line under a bright one."""
    x, y = (RADIUS * value for value in sigma)
    shape = f'cx="{centre[0]:.5g}" cy="{centre[1]:.5g}" rx="{x:.5g}" ry="{y:.5g}"'
    classes = "line dashed" if dashed else "line"
    return f'<ellipse class="under" {shape}/><ellipse class="{classes}" {shape} stroke="{colour}"/>'


def _cross(x: float, y: float, arm: float = 0.03) -> str:
    path = f"M{x - arm:.5g} {y:.5g}H{x + arm:.5g}M{x:.5g} {y - arm:.5g}V{y + arm:.5g}"
    return f'<path class="under" d="{path}"/><path class="line" d="{path}" stroke="{TRUTH_COLOUR}"/>'


def _dot(x: float, y: float, radius: float = 0.014) -> str:
    return f'<circle class="dot" cx="{x:.5g}" cy="{y:.5g}" r="{radius:g}"/>'


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """Pixels as a PNG in a data URI, so that a page needs no other file.

    Example:
        >>> data_uri(np.zeros((1, 1, 3), dtype=np.uint8))[:30]
        'data:image/png;base64,iVBORw0K'
    """
    height, width, _ = pixels.shape
    rows = np.ascontiguousarray(pixels).reshape(height, 3 * width)
    raw = np.pad(rows, ((0, 0), (1, 0))).tobytes()  # each row begins with its filter, 0 for none
    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in chunks)
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
