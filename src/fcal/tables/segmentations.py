"""Pixels of objects from COCO's segmentations: polygons, and runs of pixels.

Everything is checked before a pixel is drawn: pycocotools, which draws the polygons, is compiled code that trusts its
input.
"""

import warnings
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fcal.tables.json_records import Array
from fcal.tables.readers import file_error, shown

Segmentation: TypeAlias = list[list[float]] | Array | None  # polygons, lengths of runs, or nothing
_FEWEST_COORDINATES = 6  # of a polygon: three points
_MOST_CHARACTERS = 6  # of the length of a run, 5 bits each
_LONGEST_RUN = 1 << 30  # what as many characters hold
_SHOWN = 200  # characters of a wrong value


def read_segmentation(path: Path, value: Any, *, height: int, width: int, place: str) -> Segmentation:
    """A segmentation that is safe to draw.

    Args:
        path: The file, for error messages.
        value: Polygons, a list of lists ``x, y, x, y, ...``, which may end up to one image size outside of the image;
            or runs, an object with ``size``, height and width of the image, and ``counts``, a list of their lengths or
            COCO's text of it; or nothing, None or an empty list.
        height: Height of the image.
        width: Its width.
        place: Which annotation it is of, for error messages.

    Returns:
        Polygons, lengths of runs, or None.

    Raises:
        TableError: It is something else; the message has the file and the annotation.

    Example:
        >>> read_segmentation(Path("a.json"), {"size": [2, 3], "counts": "231"}, height=2, width=3, place="it").tolist()
        [2, 3, 1]
    """
    if value is None or value == []:
        return None
    problem = _problem_of_runs(value, height, width) if isinstance(value, dict) else _problem(value, height, width)
    if problem:
        raise file_error(path, f"`segmentation` {problem}", f"{shown(value)[:_SHOWN]} in {place}")
    return _lengths(value["counts"]) if isinstance(value, dict) else value


def _problem(polygons: Any, height: int, width: int) -> str:
    """What polygons should be and are not."""
    if not isinstance(polygons, list) or not all(map(_is_polygon, polygons)):
        return f"of polygons, each a list of at least {_FEWEST_COORDINATES} numbers x, y, x, y, ..., or of runs"
    x, y = ([value for polygon in polygons for value in polygon[k::2]] for k in (0, 1))
    near = all(-width <= value <= 2 * width for value in x) and all(-height <= value <= 2 * height for value in y)
    return "" if near else f"with points in or near the image of {height} x {width} pixels"  # NaN is nowhere


def _is_polygon(value: Any) -> bool:
    if not isinstance(value, list) or len(value) < _FEWEST_COORDINATES or len(value) % 2:
        return False
    return all(type(number) in (int, float) for number in value)


def _problem_of_runs(runs: dict[str, Any], height: int, width: int) -> str:
    """What runs should be and are not."""
    if runs.get("size") != [height, width]:
        return f"of runs with `size` [{height}, {width}], that of the image"
    lengths = _lengths(runs.get("counts"))
    if lengths is None or int(lengths.sum()) != height * width:
        return f"of runs with `counts` of {height * width} pixels"
    return ""


def _lengths(counts: Any) -> Array | None:
    """Lengths of runs; None for anything else."""
    if isinstance(counts, str):
        return _of_text(counts)
    if not isinstance(counts, list) or not all(type(count) is int and 0 <= count < _LONGEST_RUN for count in counts):
        return None
    return np.array(counts, dtype=np.int64)


def _of_text(text: str) -> Array | None:
    """Lengths of runs from COCO's text: 5 bits a character, the sixth tells that more follow.

    From the fourth number on it is the difference to the number two before it, and may be negative.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32).astype(np.int64) - ord("0")
    if not len(codes) or ((codes < 0) | (codes > 63)).any() or codes[-1] & 32:
        return None
    ends = np.flatnonzero(codes & 32 == 0)
    starts = np.append(0, ends[:-1] + 1)
    characters = ends - starts + 1
    if characters.max() > _MOST_CHARACTERS:
        return None
    shifts = 5 * (np.arange(len(codes)) - starts.repeat(characters))
    numbers = np.add.reduceat((codes & 31) << shifts, starts)
    numbers -= np.where(codes[ends] & 16, 1 << 5 * characters, 0)
    numbers[1::2], numbers[2::2] = numbers[1::2].cumsum(), numbers[2::2].cumsum()
    return None if (numbers < 0).any() else numbers


def draw(segmentation: Segmentation, height: int, width: int) -> Array:
    """Pixels of a segmentation that :func:`read_segmentation` has returned. Shape ``(height, width)``, bool."""
    if isinstance(segmentation, list):
        library = mask_library()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of pycocotools 2.0.11 with NumPy 2.4
            pixels = library.decode(library.merge(library.frPyObjects(segmentation, height, width)))
        return np.asarray(pixels, dtype=bool)
    if segmentation is None:
        return np.zeros((height, width), dtype=bool)
    inside = np.arange(len(segmentation)) % 2 == 1  # the first run is background
    return inside.repeat(segmentation).reshape(width, height).T  # columns first


def mask_library() -> Any:
    """The masks of pycocotools.

    Raises:
        ImportError: It is not installed.
    """
    try:
        from pycocotools import mask
    except ModuleNotFoundError as error:
        raise ImportError("expected pycocotools for masks; pip install 'fcal[vision]'") from error
    return mask
