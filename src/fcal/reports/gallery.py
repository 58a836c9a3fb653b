"""Images with the ellipses that were predicted and the one that is true, drawn as vectors over their pixels."""

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcal.plots.captions import number, shortened
from fcal.plots.methods import method_title
from fcal.plots.shots import ON_IMAGES, RADIUS, Pair, Shot, read_shots, usual_methods
from fcal.reports.markup import escaped

_TRUE = "#ffffff"
_MARGIN = 0.06
_MOST = 48


def gallery_html(shots: Sequence[Mapping[str, Any]], methods: Sequence[str] = ()) -> str:
    """Images side by side, with a legend.

    Args:
        shots: As :func:`fcal.plots.shots.read_shots` takes them; of more than 48 the first.
        methods: Whose ellipses to draw, at most three; NLL and f-Cal where none is named and they are there.

    Raises:
        ValueError: A shot lacks something, or has the wrong shape.
    """
    read = read_shots(list(shots)[:_MOST])
    colours = dict(zip(methods or usual_methods(read), ON_IMAGES, strict=False))
    figures = "\n".join(_figure(shot, colours) for shot in read)
    return f'{_legend(colours)}<div class="gallery">\n{figures}\n</div>'


def _legend(colours: Mapping[str, str]) -> str:
    entries = [(_swatch(_cross(0.5, 0.5, 0.3)), "true centre"), (_swatch(_dot(0.5, 0.5, 0.12)), "label")]
    entries.append((_swatch(_ellipse((0.5, 0.5), (0.18, 0.13), _TRUE, dashed=True)), "2 sigma of the true noise"))
    for method, colour in colours.items():
        words = f"2 sigma by {shortened(method_title(method), 40)}"
        entries.append((_swatch(_ellipse((0.5, 0.5), (0.18, 0.13), colour)), words))
    return '<ul class="legend">' + "".join(f"<li>{drawn}{escaped(words)}</li>" for drawn, words in entries) + "</ul>"


def _swatch(drawn: str) -> str:
    return f'<svg viewBox="0 0 1 1" aria-hidden="true"><rect width="1" height="1" fill="#444"/>{drawn}</svg>'


def _figure(shot: Shot, colours: Mapping[str, str]) -> str:
    parts, words = [], []
    if shot.sigma is not None:
        parts.append(_ellipse(shot.centre, shot.sigma, _TRUE, dashed=True))
        words.append(f"true sigma {_numbers(shot.sigma)}")
    for method, colour in colours.items():
        if method in shot.predictions:
            mean, sigma = shot.predictions[method]
            parts.append(_ellipse(mean, sigma, colour))
            words.append(f"{shortened(method_title(method), 40)} {_numbers(sigma)}")
    if shot.label is not None:
        parts.append(_dot(*shot.label))
    return _framed(shot.image, [*parts, _cross(*shot.centre)], words)


def _framed(pixels: NDArray[np.uint8], parts: Sequence[str], words: Sequence[str]) -> str:
    height, width, _ = pixels.shape
    box = f"{-_MARGIN:g} {-_MARGIN:g} {1 + 2 * _MARGIN:g} {1 + 2 * _MARGIN:g}"
    lines = "<br>".join(escaped(word) for word in words)
    label = escaped("image with its true centre; " + "; ".join(words))
    picture = f'<image href="{data_uri(pixels)}" width="1" height="1" preserveAspectRatio="none"/>'
    return (
        f'<figure><svg viewBox="{box}" preserveAspectRatio="none" style="aspect-ratio:{width / height:.4g}" role="img" '
        f'aria-label="{label}">{picture}{"".join(parts)}</svg><figcaption>{lines}</figcaption></figure>'
    )


def _numbers(pair: Pair) -> str:
    return ", ".join(number(value, 2) for value in pair)


def _ellipse(centre: Pair, sigma: Pair, colour: str, *, dashed: bool = False) -> str:
    """An ellipse of 2 sigma that can be seen on any ground: a dark line under a bright one."""
    x, y = (RADIUS * value for value in sigma)
    shape = f'cx="{centre[0]:.5g}" cy="{centre[1]:.5g}" rx="{x:.5g}" ry="{y:.5g}"'
    kind = "line dashed" if dashed else "line"
    return f'<ellipse class="under" {shape}/><ellipse class="{kind}" {shape} stroke="{colour}"/>'


def _cross(x: float, y: float, arm: float = 0.03) -> str:
    path = f"M{x - arm:.5g} {y:.5g}H{x + arm:.5g}M{x:.5g} {y - arm:.5g}V{y + arm:.5g}"
    return f'<path class="under" d="{path}"/><path class="line" d="{path}" stroke="{_TRUE}"/>'


def _dot(x: float, y: float, radius: float = 0.014) -> str:
    return f'<circle class="dot" cx="{x:.5g}" cy="{y:.5g}" r="{radius:g}"/>'


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """Pixels as a PNG within an address, so that a page needs no other file.

    Example:
        >>> data_uri(np.zeros((1, 1, 3), dtype=np.uint8))[:30]
        'data:image/png;base64,iVBORw0K'
    """
    height, width, _ = pixels.shape
    rows = np.ascontiguousarray(pixels).reshape(height, 3 * width)
    raw = np.pad(rows, ((0, 0), (1, 0))).tobytes()  # each row begins with its filter, 0 for none
    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
