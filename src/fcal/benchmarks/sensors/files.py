"""Files of sensor data, read without trust: every name, shape and value is checked."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcal._files import sha256_of
from fcal.benchmarks.sensors.matlab import matlab_matrices
from fcal.benchmarks.sensors.readings import Array

LASER = "barfoot_ser/dataset1.mat"
LANDMARKS = "barfoot_ser/dataset2.mat"
GNSS = "smartloc_gnss/Berlin_Potsdamer_Platz_Input.txt"
GNSS_TRUTH = "smartloc_gnss/Berlin_Potsdamer_Platz_GT.txt"
_FOLDER = "robot_known_noise"
_LONGEST = 40  # characters of a wrong value that are shown
_LARGEST = 200_000_000  # bytes; the files are of 3 MB at most


def data_file(folder: Path, name: str) -> Path:
    """A file of the data, in the folder or in its ``robot_known_noise``.

    Raises:
        ValueError: It is in neither.
    """
    for place in (folder, folder / _FOLDER):
        if (place / name).is_file():
            return place / name
    raise ValueError(f"expected `data` a folder with {name}, got {folder}, which has none")


def digest(paths: Sequence[Path]) -> str:
    """One checksum of several files.

    Example:
        >>> digest([])[:8]
        'e3b0c442'
    """
    total = hashlib.sha256()
    for path in paths:
        total.update(bytes.fromhex(sha256_of(path)))
    return total.hexdigest()


def matrices(path: Path, shapes: Mapping[str, tuple[int | str, ...]]) -> dict[str, Array]:
    """Matrices of a MATLAB file.

    Args:
        path: The file.
        shapes: Shape of each, where a letter stands for a number that is the same wherever the letter is.

    Raises:
        ValueError: No such file format, name or shape, or values that are not finite.
    """
    _check_size(path)
    found = matlab_matrices(path)
    known: dict[str, int] = {}
    return {name: _matrix(found, name, shape, known, path) for name, shape in shapes.items()}


def _matrix(
    found: Mapping[str, NDArray[Any]], name: str, shape: tuple[int | str, ...], known: dict[str, int], path: Path
) -> Array:
    value = found.get(name)
    if value is None:
        raise ValueError(f"expected {path} with a matrix of numbers `{name}`, got {', '.join(found) or 'none'}")
    fits = value.ndim == len(shape) and all(
        size == (known.setdefault(side, size) if isinstance(side, str) else side)
        for side, size in zip(shape, value.shape, strict=True)
    )
    if not fits or not value.size:
        sides = ", ".join(str(known.get(side, side)) if isinstance(side, str) else str(side) for side in shape)
        raise ValueError(f"expected `{name}` of {path} of shape ({sides}), got {value.shape}")
    return finite(value.astype(np.float64), f"`{name}` of {path}")


def finite(values: Array, what: str) -> Array:
    """Values that are all finite.

    Example:
        >>> finite(np.array([1.0, np.nan]), "`r`")
        Traceback (most recent call last):
        ...
        ValueError: expected `r` finite, got nan (1 of 2 values)
    """
    bad = ~np.isfinite(values)
    if bad.any():
        raise ValueError(f"expected {what} finite, got {values[bad][0]} ({bad.sum()} of {bad.size} values)")
    return values


def positive(values: Array, what: str) -> Array:
    """Values that are all above 0."""
    bad = ~(values > 0)
    if bad.any():
        raise ValueError(f"expected {what} above 0, got {values[bad][0]:g} ({bad.sum()} of {bad.size} values)")
    return values


def numbered_lines(path: Path, columns: Mapping[str, int]) -> dict[str, Array]:
    """Lines of a text file by their first word, as rows of numbers.

    Args:
        path: The file.
        columns: For every word that a line may begin with, how many numbers follow.

    Raises:
        ValueError: Another word, another number of numbers, or what is none or not finite; the line is named.
    """
    _check_size(path)
    rows: dict[str, list[list[float]]] = {word: [] for word in columns}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"expected {path} a text file, got bytes that are none") from None
    for place, line in enumerate(lines, start=1):
        if line.strip():
            word, numbers = _numbers(line, columns, f"line {place} of {path}")
            rows[word].append(numbers)
    return {word: np.array(several).reshape(-1, columns[word]) for word, several in rows.items()}


def _numbers(line: str, columns: Mapping[str, int], where: str) -> tuple[str, list[float]]:
    word, *rest = line.split()
    if word not in columns:
        raise ValueError(f"expected {where} to begin with {' or '.join(columns)}, got {word[:_LONGEST]!r}")
    if len(rest) != columns[word]:
        raise ValueError(f"expected {columns[word]} numbers after {word} in {where}, got {len(rest)}")
    try:
        numbers = [float(text) for text in rest]
    except ValueError as error:
        raise ValueError(f"expected numbers in {where}, got: {str(error)[: 2 * _LONGEST]}") from None
    if not np.isfinite(numbers).all():
        raise ValueError(f"expected finite numbers in {where}, got {line.strip()[:_LONGEST]!r}")
    return word, numbers


def _check_size(path: Path) -> None:
    size = path.stat().st_size
    if size > _LARGEST:
        raise ValueError(f"expected {path} of at most {_LARGEST} bytes, got {size}")
