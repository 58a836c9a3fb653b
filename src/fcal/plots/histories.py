"""What was logged while methods learned, as plain data."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

Histories = Mapping[str, Sequence[Mapping[str, Any]]]

PARTS = ("train", "val", "")  # of the data; "" where a name does not say
_FIRST = ("loss", "nll", "ece_q", "ece_z", "l1", "rmse", "crps")
_NOT_LEARNED = ("epoch", "step", "stage", "learning_rate")


def logged_quantities(histories: Histories) -> list[str]:
    """Every quantity that any method logged: those people look at first, then in order of appearance.

    Example:
        >>> logged_quantities({"mmd": [{"epoch": 0, "train/mmd": 1.0, "validation/nll": 1.2, "train_nll": 0.1}]})
        ['nll', 'mmd']
    """
    names: dict[str, None] = {}
    for history in histories.values():
        for epoch in history:
            names |= dict.fromkeys(_taken_apart(key)[1] for key in epoch if key not in _NOT_LEARNED)
    return [name for name in _FIRST if name in names] + [name for name in names if name not in _FIRST]


def _taken_apart(key: str) -> tuple[str, str]:
    """Part of the data and quantity: ``validation/nll`` and ``val_nll`` are both the ``nll`` of ``val``."""
    found = re.fullmatch(r"(train|val)(?:idation)?[_/](.+)", key)
    return (found[1], found[2]) if found else ("", key)


def logged(history: Sequence[Mapping[str, Any]], quantity: str, part: str) -> tuple[list[float], list[float]]:
    """Epochs and values of a quantity on a part of the data, where there are any.

    Example:
        >>> logged([{"epoch": 1, "val_nll": 0.5}, {"epoch": 2, "val_nll": None}], "nll", "val")
        ([1.0], [0.5])
    """
    points = [
        (epoch.get("epoch", i), value)
        for i, epoch in enumerate(history)
        for key, value in epoch.items()
        if _taken_apart(key) == (part, quantity)
    ]
    known = [(x, y) for x, y in points if isinstance(y, int | float) and not isinstance(y, bool)]
    return [float(x) for x, _ in known], [float(y) for _, y in known]


def stage_starts(histories: Histories) -> list[float]:
    """Where methods went on with another loss: between the last epoch of a ``stage`` and the first of the next.

    Example:
        >>> stage_starts({"mmd": [{"epoch": 1, "stage": 1}, {"epoch": 2, "stage": 1}, {"epoch": 3, "stage": 2}]})
        [2.5]
    """
    starts = set()
    for history in histories.values():
        places = [(float(epoch.get("epoch", i)), epoch.get("stage")) for i, epoch in enumerate(history)]
        starts |= {(x + after) / 2 for (x, stage), (after, next_stage) in pairwise(places) if stage != next_stage}
    return sorted(starts)
