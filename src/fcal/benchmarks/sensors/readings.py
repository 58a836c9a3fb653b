"""Readings of sensors beside their true values: a laser on a rail, range and bearing to landmarks, pseudoranges.

Readers take the folder that has ``barfoot_ser`` and ``smartloc_gnss``, or one with a folder ``robot_known_noise`` that
has them, and raise a ``ValueError`` if a file is missing, damaged or malformed.
"""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fcal._files import sha256_of
from fcal.benchmarks.sensors.files import (
    GNSS,
    GNSS_TRUTH,
    LANDMARKS,
    LASER,
    Array,
    checked,
    data_file,
    matrices,
    numbered_lines,
    published_sums,
)

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_STRETCH = 20.0  # s; errors of a robot's laser are correlated over about 5 s
_GNSS_STRETCH = 10.0  # s; those of a satellite over about 10 s, and the drive takes only 283 s
_GAP = 1.0  # s without a reading that end a track
_LIGHT = 299_792_458.0  # m/s
_EARTH = 7.292_115_146_7e-5  # rad/s, of WGS 84
_LASER_SHAPES: dict[str, tuple[int | str, ...]] = {
    "t": ("n", 1), "r": ("n", 1), "x_true": ("n", 1), "v": ("n", 1), "l": (1, 1), "r_var": (1, 1),
}  # fmt: skip
_LANDMARK_SHAPES: dict[str, tuple[int | str, ...]] = {
    "t": ("n", 1), "r": ("n", "m"), "b": ("n", "m"), "v": ("n", 1), "om": ("n", 1), "l": ("m", 2), "x_true": ("n", 1),
    "y_true": ("n", 1), "th_true": ("n", 1), "true_valid": ("n", 1), "d": (1, 1), "r_var": (1, 1), "b_var": (1, 1),
}  # fmt: skip
_GPS, _GLONASS = 1, 4
_FEWEST_STRETCHES = 12


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Readings of one sensor, with its known model.

    Attributes:
        unit: Unit of the readings.
        time: Time of each reading, in seconds. Shape ``(n,)``, as all below.
        state: True state of robot and target at that time, by name.
        reading: Measured value.
        known: Value that the known model computes from the true state.
        error: Reading minus known model; angles are wrapped to [-pi, pi].
        stated: Standard deviation of the error that the makers of the data state.
        track: Number of the track: correlated readings of one target, without a gap, within one stretch of time.
        stretch: Number of the stretch of time, of all targets; no track is in two. Stretches are held out whole.
    """

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

    def thinned(self, most: int) -> "Readings":
        """Every second, third, ... moment of time, so that at most ``most`` readings remain, of all stretches.

        Neighbouring readings are nearly copies of each other, so little is lost.
        """
        moments, which = np.unique(self.time, return_inverse=True)
        step = -(-len(self) // most)
        if len(moments) <= step:
            return self
        rows = which % step == 0
        arrays = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name not in ("unit", "state")}
        return replace(self, state={name: values[rows] for name, values in self.state.items()}, **arrays)


def stretches(time: Array, seconds: float) -> Integers:
    """Number of the stretch of time that each reading belongs to; a stretch is ``seconds`` long.

    Example:
        >>> stretches(np.array([0.0, 1.0, 20.5]), 20.0).tolist()
        [0, 0, 1]
    """
    return np.floor((time - time.min()) / seconds).astype(np.int64)


def tracks(target: Integers, time: Array, stretch: Integers) -> Integers:
    """Number of the track of each reading: the same landmark or satellite, without a gap, in the same stretch of time.

    Example:
        >>> seen = np.array([0.0, 0.1, 5.0, 0.0])
        >>> tracks(np.array([7, 7, 7, 9]), seen, stretches(seen, 20.0)).tolist()
        [0, 0, 1, 2]
    """
    order = np.lexsort((time, target))
    begins = np.ones(len(time), dtype=bool)
    later, earlier = order[1:], order[:-1]
    begins[1:] = (
        (target[later] != target[earlier]) | (stretch[later] != stretch[earlier]) | (time[later] - time[earlier] > _GAP)
    )
    numbers = np.empty(len(time), dtype=np.int64)
    numbers[order] = begins.cumsum() - 1
    return numbers


def read_laser(folder: str | Path) -> Readings:
    """Ranges of a laser on a robot that drives up and down a rail towards a cylinder.

    The known model is r = l - x, the position of the cylinder minus that of the robot. The one track is cut into
    stretches of 20 seconds: errors depend on how the robot drives, so they are correlated within a few seconds.
    """
    path = data_file(Path(folder), LASER)
    columns = matrices(path, _LASER_SHAPES)
    time, reading, position, velocity = (columns[name][:, 0] for name in ("t", "r", "x_true", "v"))
    known = columns["l"][0, 0] - position
    stretch = stretches(_rising(time, path), _STRETCH)
    return Readings(
        unit="m",
        time=time,
        state={"distance": known, "velocity": velocity, "speed": np.abs(velocity)},
        reading=reading,
        known=known,
        error=reading - known,
        stated=np.full(len(time), _sd(columns["r_var"], "r_var", path)),
        track=stretch,
        stretch=stretch,
    )


def read_landmarks(folder: str | Path, *, valid_only: bool = True) -> tuple[Readings, Readings]:
    r"""Ranges and bearings of landmarks, from a laser on a robot that drives among them.

    The laser is ahead of the robot's centre by d. From the true position and heading (x, y, theta), the known model of
    a landmark at (a, b) is

    .. math:: r = \sqrt{u^2 + w^2}, \quad \varphi = \mathrm{atan2}(w, u) - \theta, \quad
        u = a - x - d \cos\theta, \; w = b - y - d \sin\theta

    Args:
        folder: Folder of the data.
        valid_only: Leave out moments at which the file marks the true state as invalid.

    Returns:
        Ranges and bearings, of the same moments and landmarks.
    """
    path = data_file(Path(folder), LANDMARKS)
    columns = matrices(path, _LANDMARK_SHAPES)
    _rising(columns["t"][:, 0], path)
    heading, ahead = columns["th_true"], columns["d"][0, 0]
    east = columns["l"][:, 0] - columns["x_true"] - ahead * np.cos(heading)
    north = columns["l"][:, 1] - columns["y_true"] - ahead * np.sin(heading)
    moment, landmark = np.nonzero((columns["r"] > 0) & ((columns["true_valid"] > 0) | (not valid_only)))
    if not len(moment):
        raise ValueError(f"expected {path} with ranges above 0, got none")
    distance = np.hypot(east, north)[moment, landmark]
    bearing = wrapped(np.arctan2(north, east) - heading)[moment, landmark]
    time, velocity, turn = (columns[name][moment, 0] for name in ("t", "v", "om"))
    stretch = stretches(time, _STRETCH)
    state = {
        "distance": checked(distance, distance > 0, f"distances of {path} above 0"),
        "bearing_cos": np.cos(bearing),
        "bearing_sin": np.sin(bearing),
        "velocity": velocity,
        "turn": turn,
        "sweep": velocity * np.sin(bearing) / distance,  # how fast the landmark passes by, in rad/s
        "speed": np.abs(velocity),
        "turning": np.abs(turn),
    }
    state |= {f"landmark_{number}": (landmark == number).astype(np.float64) for number in range(len(columns["l"]))}
    reading = columns["r"][moment, landmark]
    ranges = Readings(
        unit="m",
        time=time,
        state=state,
        reading=reading,
        known=distance,
        error=reading - distance,
        stated=np.full(len(time), _sd(columns["r_var"], "r_var", path)),
        track=tracks(landmark, time, stretch),
        stretch=stretch,
    )
    reading = columns["b"][moment, landmark]
    bearings = replace(
        ranges,
        unit="rad",
        reading=reading,
        known=bearing,
        error=wrapped(reading - bearing),
        stated=np.full(len(time), _sd(columns["b_var"], "b_var", path)),
    )
    return ranges, bearings


def read_gnss(folder: str | Path) -> Readings:
    """Pseudoranges of a car in a city, beside the true distances to the satellites.

    A pseudorange is the distance on the rotating earth plus the receiver's clock error, which differs between moments
    and between systems of satellites. It is unknown, so the median error of each moment and system stands for it.
    A track is a satellite within a stretch of 10 seconds. Stretches hold out all satellites, which share a clock error.
    """
    path, truth_path = (data_file(Path(folder), name) for name in (GNSS, GNSS_TRUTH))
    lines = numbered_lines(path, {"pseudorange3": 10, "odom3": 13})["pseudorange3"]
    truth = numbered_lines(truth_path, {"point3": 13})["point3"]
    if not len(lines):
        raise ValueError(f"expected {path} with lines of pseudorange3, got none")
    time, reading, variance, *_, satellite, system, elevation, strength = lines.T
    positions = _positions(time, truth, truth_path)
    distance = true_ranges(lines[:, 3:6], positions)
    if not np.isin(system, (_GPS, _GLONASS)).all():
        strange = system[~np.isin(system, (_GPS, _GLONASS))][0]
        raise ValueError(f"expected satellites of GPS (1) or GLONASS (4) in {path}, got {strange:g}")
    known = distance + clock_terms(reading - distance, time, system)
    stretch = stretches(time, _GNSS_STRETCH)
    return Readings(
        unit="m",
        time=time,
        state={"strength": strength, "elevation": elevation, "glonass": (system == _GLONASS).astype(np.float64)},
        reading=reading,
        known=known,
        error=reading - known,
        stated=np.sqrt(checked(variance, variance > 0, f"covariances of {path} above 0")),
        track=tracks(satellite.astype(np.int64), time, stretch),
        stretch=stretch,
    )


def wrapped(angle: Array) -> Array:
    """Angles between -pi and pi.

    Example:
        >>> wrapped(np.array([2 * np.pi + 0.5])).round(6).tolist()
        [0.5]
    """
    return (angle + np.pi) % (2 * np.pi) - np.pi


def true_ranges(satellites: Array, positions: Array) -> Array:
    r"""Distances that signals travel while the earth rotates, with all positions in the frame that rotates with it.

    .. math:: |s - p| + \frac{\omega}{c} (s_x p_y - s_y p_x)

    Args:
        satellites: Positions at transmission. Shape ``(n, 3)``, in metres.
        positions: Positions at reception. Shape ``(n, 3)``.

    Example:
        >>> true_ranges(np.array([[3.0, 0.0, 4.0]]), np.zeros((1, 3))).tolist()
        [5.0]
    """
    rotation = satellites[:, 0] * positions[:, 1] - satellites[:, 1] * positions[:, 0]
    return np.linalg.norm(satellites - positions, axis=1) + _EARTH / _LIGHT * rotation


def clock_terms(errors: Array, time: Array, system: Array) -> Array:
    """The clock error of each reading's moment and system: the median error of its satellites.

    Example:
        >>> clock_terms(np.array([7.0, 8.0, 90.0]), np.zeros(3), np.ones(3)).tolist()
        [8.0, 8.0, 8.0]
    """
    _, groups = np.unique(np.stack([time, system]), axis=1, return_inverse=True)
    groups = groups.reshape(-1)
    medians = [np.median(errors[groups == number]) for number in range(groups.max() + 1)]
    return np.array(medians)[groups]


def _positions(time: Array, truth: Array, path: Path) -> Array:
    """The true position at every moment."""
    known = {moment: position for moment, *position in truth[:, :4].tolist()}
    missing = [moment for moment in time.tolist() if moment not in known]
    if missing:
        raise ValueError(f"expected {path} with the position at all moments, got none at {missing[0]:g} s")
    return np.array([known[moment] for moment in time.tolist()])


def _sd(variance: Array, name: str, path: Path) -> float:
    return float(np.sqrt(checked(variance, variance > 0, f"`{name}` of {path} above 0")[0, 0]))


def _rising(time: Array, path: Path) -> Array:
    if (np.diff(time) <= 0).any():
        raise ValueError(f"expected `t` of {path} rising, got {np.diff(time).min():g} s between two moments")
    return time


_FILES = {"laser": (LASER,), "range": (LANDMARKS,), "bearing": (LANDMARKS,), "gnss": (GNSS, GNSS_TRUTH)}
_READERS = {
    "laser": read_laser,
    "range": lambda folder: read_landmarks(folder)[0],
    "bearing": lambda folder: read_landmarks(folder)[1],
    "gnss": read_gnss,
}


def checksum(sensor: str, data: str | None = None) -> str:
    """One checksum of the files of a sensor: those in a folder, or the published ones where it is None."""
    published = published_sums()
    sums = [published[name] if data is None else sha256_of(data_file(Path(data), name)) for name in _FILES[sensor]]
    return hashlib.sha256(bytes.fromhex("".join(sums))).hexdigest()


@functools.lru_cache(maxsize=4)
def readings_of(data: str, sensor: str, most: int, checksum: str) -> Readings:
    """Readings of a sensor, at most ``most``; cached as long as the files have this checksum.

    Raises:
        ValueError: Files are missing or malformed, or cover too little time to hold out parts of it.
    """
    del checksum  # part of the key
    readings = _READERS[sensor](Path(data)).thinned(most)
    stretches = len(np.unique(readings.stretch))
    if stretches < _FEWEST_STRETCHES:
        raise ValueError(
            f"expected {sensor} readings in at least {_FEWEST_STRETCHES} stretches of time, got {stretches}"
        )
    return readings
