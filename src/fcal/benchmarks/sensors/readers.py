"""Sensors with ground truth: a laser on a rail, range and bearing to landmarks, pseudoranges to satellites."""

from pathlib import Path

import numpy as np

from fcal.benchmarks.sensors.files import (
    GNSS,
    GNSS_TRUTH,
    LANDMARKS,
    LASER,
    data_file,
    matrices,
    numbered_lines,
    positive,
)
from fcal.benchmarks.sensors.readings import Array, Integers, Readings, stretches, tracks

_STRETCH = 20.0  # s; errors of a robot's laser are forgotten after about 5 s
_GNSS_STRETCH = 10.0  # s; those of a satellite after about 10 s, and the drive has only 283
_GAP = 1.0  # s
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


def read_laser(folder: str | Path) -> Readings:
    """Ranges of a laser on a robot that drives up and down a rail towards a cylinder.

    The known model is r = l - x, the place of the cylinder less that of the robot. The robot's one track is cut into
    stretches of 20 seconds: errors repeat themselves within some, since they depend on how the robot is driving.

    Args:
        folder: With ``barfoot_ser/dataset1.mat``, or with ``robot_known_noise`` that has it.

    Raises:
        ValueError: The file is missing or is not as it should be.
    """
    path = data_file(Path(folder), LASER)
    found = matrices(path, _LASER_SHAPES)
    time, reading, place, velocity = (found[name][:, 0] for name in ("t", "r", "x_true", "v"))
    known = found["l"][0, 0] - place
    stretch = stretches(_rising(time, path), _STRETCH)
    return Readings(
        sensor="laser",
        unit="m",
        time=time,
        state={"distance": known, "velocity": velocity, "speed": np.abs(velocity)},
        reading=reading,
        known=known,
        error=reading - known,
        stated=np.full(len(time), _sd(found["r_var"], "r_var", path)),
        track=stretch,
        stretch=stretch,
    )


def read_landmarks(folder: str | Path, *, valid_only: bool = True) -> tuple[Readings, Readings]:
    r"""Ranges and bearings of landmarks, from a laser on a robot that drives among them.

    The laser is ahead of the robot's centre by d, so with its true place and heading (x, y, theta), a landmark at
    (a, b) should be read as

    .. math:: r = \sqrt{u^2 + w^2}, \quad \varphi = \mathrm{atan2}(w, u) - \theta, \quad
        u = a - x - d \cos\theta, \; w = b - y - d \sin\theta

    Args:
        folder: With ``barfoot_ser/dataset2.mat``, or with ``robot_known_noise`` that has it.
        valid_only: Leave out moments for which the file says that the truth is not known well.

    Returns:
        Ranges, and bearings, of the same moments and landmarks.

    Raises:
        ValueError: The file is missing or is not as it should be.
    """
    path = data_file(Path(folder), LANDMARKS)
    found = matrices(path, _LANDMARK_SHAPES)
    _rising(found["t"][:, 0], path)
    heading, ahead = found["th_true"], found["d"][0, 0]
    east = found["l"][:, 0] - found["x_true"] - ahead * np.cos(heading)
    north = found["l"][:, 1] - found["y_true"] - ahead * np.sin(heading)
    moment, landmark = np.nonzero((found["r"] > 0) & ((found["true_valid"] > 0) | (not valid_only)))
    if not len(moment):
        raise ValueError(f"expected {path} with ranges above 0, got none")
    distance = np.hypot(east, north)[moment, landmark]
    bearing = wrapped(np.arctan2(north, east) - heading)[moment, landmark]
    time, velocity, turn = (found[name][moment, 0] for name in ("t", "v", "om"))
    stretch = stretches(time, _STRETCH)
    state = {
        "distance": positive(distance, f"distances of {path}"),
        "bearing_cos": np.cos(bearing),
        "bearing_sin": np.sin(bearing),
        "velocity": velocity,
        "turn": turn,
        "sweep": velocity * np.sin(bearing) / distance,  # how fast the landmark passes by, in rad/s
        "speed": np.abs(velocity),
        "turning": np.abs(turn),
    }
    state |= {f"landmark_{number}": (landmark == number).astype(np.float64) for number in range(len(found["l"]))}
    track = tracks(landmark, time, stretch, gap=_GAP)
    readings = {
        "range": ("m", found["r"][moment, landmark], distance, _sd(found["r_var"], "r_var", path)),
        "bearing": ("rad", found["b"][moment, landmark], bearing, _sd(found["b_var"], "b_var", path)),
    }
    one, two = (
        Readings(
            sensor=sensor,
            unit=unit,
            time=time,
            state=state,
            reading=reading,
            known=known,
            error=reading - known if sensor == "range" else wrapped(reading - known),
            stated=np.full(len(time), stated),
            track=track,
            stretch=stretch,
        )
        for sensor, (unit, reading, known, stated) in readings.items()
    )
    return one, two


def read_gnss(folder: str | Path) -> Readings:
    """Pseudoranges of a car in a city, beside the true distances to the satellites.

    A pseudorange is the distance, as the turning earth makes it, and the receiver's clock error, which is another for
    every moment and system of satellites. Nobody knows it, so it is taken to be the median of that moment's errors.
    A track is a satellite within a stretch of 10 seconds; stretches hold out all satellites, which share a clock error.

    Args:
        folder: With ``smartloc_gnss``, or with ``robot_known_noise`` that has it.

    Raises:
        ValueError: A file is missing or is not as it should be.
    """
    path, truth_path = (data_file(Path(folder), name) for name in (GNSS, GNSS_TRUTH))
    found = numbered_lines(path, {"pseudorange3": 10, "odom3": 13})["pseudorange3"]
    truth = numbered_lines(truth_path, {"point3": 13})["point3"]
    if not len(found):
        raise ValueError(f"expected {path} with lines of pseudorange3, got none")
    time, reading, variance, *_, satellite, system, elevation, strength = found.T
    places = _places(time, truth, truth_path)
    distance = true_ranges(found[:, 3:6], places)
    if not np.isin(system, (_GPS, _GLONASS)).all():
        strange = system[~np.isin(system, (_GPS, _GLONASS))][0]
        raise ValueError(f"expected satellites of GPS (1) or GLONASS (4) in {path}, got {strange:g}")
    known = distance + clock_terms(reading - distance, time, system)
    stretch = stretches(time, _GNSS_STRETCH)
    return Readings(
        sensor="gnss",
        unit="m",
        time=time,
        state={"strength": strength, "elevation": elevation, "glonass": (system == _GLONASS).astype(np.float64)},
        reading=reading,
        known=known,
        error=reading - known,
        stated=np.sqrt(positive(variance, f"covariances of {path}")),
        track=tracks(satellite.astype(np.int64), time, stretch, gap=_GAP),
        stretch=stretch,
    )


def wrapped(angle: Array) -> Array:
    """Angles between -pi and pi.

    Example:
        >>> wrapped(np.array([2 * np.pi + 0.5])).round(6).tolist()
        [0.5]
    """
    return (angle + np.pi) % (2 * np.pi) - np.pi


def true_ranges(satellites: Array, places: Array) -> Array:
    r"""Distances that a signal travels while the earth turns, all places in the frame that turns with it.

    .. math:: |s - p| + \frac{\omega}{c} (s_x p_y - s_y p_x)

    Args:
        satellites: Where they were when they sent. Shape ``(n, 3)``, in metres.
        places: Where it was received. Shape ``(n, 3)``.

    Example:
        >>> true_ranges(np.array([[3.0, 0.0, 4.0]]), np.zeros((1, 3))).tolist()
        [5.0]
    """
    turned = satellites[:, 0] * places[:, 1] - satellites[:, 1] * places[:, 0]
    return np.linalg.norm(satellites - places, axis=1) + _EARTH / _LIGHT * turned


def clock_terms(errors: Array, time: Array, system: Array) -> Array:
    """The clock error of each row's moment and system: the median over its satellites.

    Example:
        >>> clock_terms(np.array([7.0, 8.0, 90.0]), np.zeros(3), np.ones(3)).tolist()
        [8.0, 8.0, 8.0]
    """
    _, which = np.unique(np.stack([time, system]), axis=1, return_inverse=True)
    which = which.reshape(-1)
    terms = [np.median(part) for part in _parts(errors, which)]
    return np.array(terms)[which]


def _parts(values: Array, which: Integers) -> list[Array]:
    order = np.argsort(which, kind="stable")
    return np.split(values[order], np.bincount(which).cumsum()[:-1])


def _places(time: Array, truth: Array, path: Path) -> Array:
    """The true place at every moment."""
    known = {moment: place for moment, *place in truth[:, :4].tolist()}
    missing = [moment for moment in time.tolist() if moment not in known]
    if missing:
        raise ValueError(f"expected {path} with the place at all moments, got none at {missing[0]:g} s")
    return np.array([known[moment] for moment in time.tolist()])


def _sd(variance: Array, name: str, path: Path) -> float:
    return float(np.sqrt(positive(variance, f"`{name}` of {path}")[0, 0]))


def _rising(time: Array, path: Path) -> Array:
    if (np.diff(time) <= 0).any():
        raise ValueError(f"expected `t` of {path} rising, got {np.diff(time).min():g} s between two moments")
    return time
