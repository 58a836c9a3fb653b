"""Readings of a sensor beside what a known model says they should be."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Readings of one sensor, in the order of time.

    Attributes:
        sensor: Its name.
        unit: Of readings.
        time: When they were taken, in seconds. Shape ``(n,)``, as are all below.
        state: What is known of robot and target when a reading is taken, by name.
        reading: What the sensor said.
        known: What the known model says it should have said, from the true state.
        error: Reading minus known model; of angles, the short way round.
        stated: Standard deviation of the error as whoever made the data states it.
        track: Readings that know of each other: one target, seen without a break, within one stretch of time.
        stretch: Stretches of time, all targets together; a track is never in two. These are held out whole.
    """

    sensor: str
    unit: str
    time: Array
    state: Mapping[str, Array]
    reading: Array
    known: Array
    error: Array
    stated: Array
    track: Integers
    stretch: Integers

    def __len__(self) -> int:
        return len(self.time)

    def taken(self, rows: Integers | Flags) -> "Readings":
        """Some of the readings."""
        arrays = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name not in _WHOLE}
        return replace(self, state={name: values[rows] for name, values in self.state.items()}, **arrays)

    def thinned(self, most: int) -> "Readings":
        """Every second, third, ... moment of time, such that at most so many readings remain; all stretches stay.

        Neighbouring readings are nearly copies of each other, so that less is lost than it seems.
        """
        moments, which = np.unique(self.time, return_inverse=True)
        step = -(-len(self) // most)
        return self.taken(which % step == 0) if len(moments) > step else self


_WHOLE = ("sensor", "unit", "state")


def stretches(time: Array, seconds: float) -> Integers:
    """Number of the stretch of time, each so many seconds long, that every reading is in.

    Example:
        >>> stretches(np.array([0.0, 1.0, 20.5]), 20.0).tolist()
        [0, 0, 1]
    """
    return np.floor((time - time.min()) / seconds).astype(np.int64)


def tracks(target: Integers, time: Array, stretch: Integers, *, gap: float) -> Integers:
    """Number of each reading's track: the same target, with no gap of more seconds, in the same stretch of time.

    Args:
        target: Landmark or satellite of each reading.
        time: When it was taken.
        stretch: What :func:`stretches` says.
        gap: Seconds without a reading that end a track.

    Example:
        >>> seen = np.array([0.0, 0.1, 5.0, 0.0])
        >>> tracks(np.array([7, 7, 7, 9]), seen, stretches(seen, 20.0), gap=1.0).tolist()
        [0, 0, 1, 2]
    """
    order = np.lexsort((time, target))
    begins = np.ones(len(time), dtype=bool)
    later, earlier = order[1:], order[:-1]
    begins[1:] = (
        (target[later] != target[earlier]) | (stretch[later] != stretch[earlier]) | (time[later] - time[earlier] > gap)
    )
    found = np.empty(len(time), dtype=np.int64)
    found[order] = begins.cumsum() - 1
    return found
