"""Cityscapes' layout: images by city, with maps and polygons of classes and instances; a drive is a city."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcal.data.street.frames import LABELS, StreetConfig, StreetFrame
from fcal.data.street.layouts import Layout, png, split_of

_FOLDERS = {"train": "train", "validation": "val", "test": "test"}
_INSTANCES_PER_CLASS = 1000
_NAMES = {number: name for name, number in LABELS.items()}
_README = """A world of rendered streets, made by `fcal data street`. No frame of it was taken with a camera.

leftImg8bit/{train,val,test}/DRIVE/   images
gtFine/{train,val,test}/DRIVE/        labelIds: class of every pixel; instanceIds: class * 1000 + instance for objects;
                                      polygons: outlines of the visible parts of objects and of everything else
street.toml                           what was rendered
"""


def _names(config: StreetConfig, index: int) -> list[str]:
    drive, within = divmod(index, config.frames_per_drive)
    city = f"street{drive + 1:04d}"
    stem = f"{_FOLDERS[split_of(config, index)]}/{city}/{city}_000000_{within:06d}"
    kinds = ("labelIds.png", "instanceIds.png", "polygons.json")
    return [f"leftImg8bit/{stem}_leftImg8bit.png", *(f"gtFine/{stem}_gtFine_{kind}" for kind in kinds)]


def _contents(config: StreetConfig, index: int, frame: StreetFrame) -> list[bytes]:  # noqa: ARG001
    instances = instance_ids(frame)
    outlines = json.dumps(polygons(instances)) + "\n"
    return [png(frame.image), png(frame.labels), png(instances), outlines.encode()]


def instance_ids(frame: StreetFrame) -> NDArray[np.uint16]:
    """Map of classes, and for objects of class * 1000 + number of the instance. Shape ``(H, W)``."""
    ids = frame.labels.astype(np.uint16)
    pairs = frame.instances.astype(np.int64) * 256 + frame.labels
    counts: dict[int, int] = {}
    for pair in np.unique(pairs[frame.instances > 0]).tolist():
        label = pair % 256
        ids[pairs == pair] = label * _INSTANCES_PER_CLASS + counts.get(label, 0)
        counts[label] = counts.get(label, 0) + 1
    return ids


def polygons(ids: NDArray[np.uint16]) -> dict[str, Any]:
    """Outlines as Cityscapes stores them: painting the polygons one after another gives the map again.

    A polygon consists of a chain of runs of equal pixels, one per row, each of which touches one run above and one
    below; its vertices are middles of pixels.

    Args:
        ids: Map of instances. Shape ``(H, W)``.

    Example:
        >>> polygons(np.array([[7, 7], [7, 23]], np.uint16))["objects"]
        [{'label': 'road', 'polygon': [[0, 0], [0, 1], [0, 1], [1, 0]]}, {'label': 'sky', 'polygon': [[1, 1], [1, 1]]}]
    """
    height, width = ids.shape
    objects = [
        {"label": _NAMES[number // _INSTANCES_PER_CLASS or number], "polygon": _outline(chain)}
        for number, chain in _chains(ids)
    ]
    return {"imgHeight": height, "imgWidth": width, "objects": objects}


_Run = tuple[int, int, int]  # row, first and last column


def _chains(ids: NDArray[np.uint16]) -> list[tuple[int, list[_Run]]]:
    """Chains of runs: a run continues the one above if both touch only each other among runs of the same number."""
    starts = np.ones(ids.shape, np.bool_)
    starts[:, 1:] = ids[:, 1:] != ids[:, :-1]
    rows, firsts = np.nonzero(starts)
    lasts = np.append(firsts[1:], ids.shape[1]) - 1
    lasts[np.append(rows[1:] != rows[:-1], True)] = ids.shape[1] - 1
    chains: list[tuple[int, list[_Run]]] = []
    above: dict[int, list[tuple[_Run, int]]] = {}  # runs of the row above and their chains, by number
    row, current = -1, {}  # type: int, dict[int, list[_Run]]
    runs = zip(rows.tolist(), firsts.tolist(), lasts.tolist(), ids[rows, firsts].tolist(), strict=True)
    for at, first, last, number in [*runs, (ids.shape[0], 0, 0, -1)]:
        if at != row:
            above = _joined(chains, above, current)
            row, current = at, {}
        current.setdefault(number, []).append((at, first, last))
    return chains


def _joined(
    chains: list[tuple[int, list[_Run]]], above: dict[int, list[tuple[_Run, int]]], current: dict[int, list[_Run]]
) -> dict[int, list[tuple[_Run, int]]]:
    """Add the runs of a row to chains, or begin new ones."""
    joined: dict[int, list[tuple[_Run, int]]] = {}
    for number, runs in current.items():
        earlier = above.get(number, [])
        for run in runs:
            touching = [(other, chain) for other, chain in earlier if _overlap(run, other)]
            alone = len(touching) == 1 and sum(_overlap(touching[0][0], other) for other in runs) == 1
            if alone:
                chain = touching[0][1]
                chains[chain][1].append(run)
            else:
                chain = len(chains)
                chains.append((number, [run]))
            joined.setdefault(number, []).append((run, chain))
    return joined


def _overlap(one: _Run, other: _Run) -> bool:
    return one[1] <= other[2] and other[1] <= one[2]


def _outline(chain: list[_Run]) -> list[list[int]]:
    """Down the left ends of runs, and up the right ones; straight stretches have no vertices in between."""
    sides = [
        _corners([(column, row) for row, column, _ in chain]),
        _corners([(column, row) for row, _, column in chain]),
    ]
    return [[x, y] for x, y in sides[0] + sides[1][::-1]]


def _corners(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Points of a path, one per row, without those on a straight line between their neighbours."""
    middle = [
        point
        for before, point, behind in zip(points, points[1:], points[2:], strict=False)
        if point[0] - before[0] != behind[0] - point[0]
    ]
    return [points[0], *middle, *points[-1:]] if len(points) > 1 else points


def _before(config: StreetConfig) -> dict[str, str]:  # noqa: ARG001
    return {"README.txt": _README}


def _lists(config: StreetConfig) -> dict[str, str]:
    """Cityscapes has no lists; this one says that all frames are written."""
    return {"frames.txt": "".join(f"{_names(config, index)[0]}\n" for index in range(config.frames))}


CITYSCAPES = Layout(names=_names, contents=_contents, before=_before, lists=_lists)
