"""Folders like that of the real data, with sensors whose noise is drawn here."""

import hashlib
import os
from pathlib import Path

import numpy as np
from scipy.io import savemat

DATA = Path(os.environ.get("FCAL_DATA", Path(__file__).parents[3].parent / "shared" / "data")) / "robot_known_noise"
ABSENT = "no robot_known_noise in $FCAL_DATA or ../shared/data"
LIGHT, EARTH = 299_792_458.0, 7.2921151467e-5


def column(values):
    return np.asarray(values, dtype=float).reshape(-1, 1)


def write_laser(folder, moments=900, sd=0.02, seed=0, **changes):
    rng = np.random.default_rng(seed)
    t = 0.4 * np.arange(moments)
    x = 1.5 + np.sin(0.2 * t)
    fields = {
        "t": column(t),
        "x_true": column(x),
        "v": column(0.2 * np.cos(0.2 * t)),
        "r": column(4.0 - x + sd * rng.standard_normal(moments)),
        "l": np.array([[4.0]]),
        "r_var": np.array([[sd**2]]),
    }
    return _save(folder, "dataset1.mat", fields | changes)


def write_landmarks(folder, moments=400, sd=0.03, seed=0, **changes):
    """A robot on a circle, its heading far beyond pi, and readings by complex numbers instead of atan2."""
    rng = np.random.default_rng(seed)
    t = 0.6 * np.arange(moments)
    theta = 0.3 * t
    place = 2 * np.exp(1j * theta)
    heading = theta + np.pi / 2
    landmarks = np.array([3.0 + 1.0j, -2.5 + 2.5j, 0.5 - 3.0j])
    laser = (place + 0.2 * np.exp(1j * heading))[:, None]
    seen = (landmarks - laser) * np.exp(-1j * heading)[:, None]
    noise = sd * rng.standard_normal((2, moments, 3))
    hidden = (np.arange(moments)[:, None] + 40 * np.arange(3)) % 150 < 40
    fields = {
        "t": column(t),
        "x_true": column(place.real),
        "y_true": column(place.imag),
        "th_true": column(np.angle(np.exp(1j * heading))),
        "true_valid": np.ones((moments, 1), dtype=np.uint8),
        "v": column(np.full(moments, 0.6)),
        "om": column(np.full(moments, 0.3)),
        "r": np.where(hidden, 0.0, np.abs(seen) + noise[0]),
        "b": np.where(hidden, 0.0, np.angle(seen * np.exp(1j * noise[1]))),
        "l": np.stack([landmarks.real, landmarks.imag], axis=1),
        "d": np.array([[0.2]]),
        "r_var": np.array([[max(sd, 1e-3) ** 2]]),
        "b_var": np.array([[max(sd, 1e-3) ** 2]]),
    }
    return _save(folder, "dataset2.mat", fields | changes)


def write_gnss(folder, moments=120, sd=5.0, seed=0):
    """Signals of satellites that stand still in a frame that does not turn; Student-t noise beside the clock's."""
    rng = np.random.default_rng(seed)
    place = np.array([3785108.1, 899901.5, 5037234.5])
    ways = rng.standard_normal((8, 3)) + place / np.linalg.norm(place)
    satellites = 2.6e7 * ways / np.linalg.norm(ways, axis=1, keepdims=True)
    lines, truth = ["odom3 0 " + " ".join(["0"] * 12)], []
    for moment in range(moments):
        truth.append(f"point3 {moment} {place[0]} {place[1]} {place[2]} " + " ".join(["0"] * 9))
        clock = 1000.0 * rng.standard_normal()
        for number, satellite in enumerate(satellites):
            distance = travelled(satellite, place)
            noise = sd * rng.standard_t(3)
            system, strength = (1, 40) if number % 2 else (4, 30)
            numbers = [moment, distance + clock + noise, 25, *satellite, number, system, 45, strength]
            lines.append("pseudorange3 " + " ".join(repr(float(value)) for value in numbers))
    target = Path(folder) / "smartloc_gnss"
    target.mkdir(parents=True, exist_ok=True)
    (target / "Berlin_Potsdamer_Platz_Input.txt").write_text("\n".join(lines) + "\n")
    (target / "Berlin_Potsdamer_Platz_GT.txt").write_text("\n".join(truth) + "\n")
    list_checksums(folder)
    return target / "Berlin_Potsdamer_Platz_Input.txt"


def travelled(satellite, place):
    """Distance that light travels while the receiver turns with the earth: the fixed point, not the first order."""
    distance = np.linalg.norm(satellite - place)
    for _ in range(20):
        angle = EARTH * distance / LIGHT
        turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
        distance = np.linalg.norm(satellite - turn @ place)
    return distance


def list_checksums(folder):
    """What ``sha256sum */* > SHA256SUMS`` writes: the files are meant to be as they are."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n"
        for path in sorted(Path(folder).glob("*/*"))
    ]
    (Path(folder) / "SHA256SUMS").write_text("".join(lines))


def write_all(folder):
    write_laser(folder)
    write_landmarks(folder)
    write_gnss(folder)
    return folder


def _save(folder, name, fields):
    target = Path(folder) / "barfoot_ser"
    target.mkdir(parents=True, exist_ok=True)
    savemat(target / name, {key: value for key, value in fields.items() if value is not None})
    list_checksums(folder)
    return target / name
