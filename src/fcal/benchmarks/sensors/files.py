"""Files of sensor data: every checksum, name, shape and value is verified."""

import os
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcal._files import sha256_of

Array = NDArray[np.float64]

LASER = "barfoot_ser/dataset1.mat"
LANDMARKS = "barfoot_ser/dataset2.mat"
GNSS = "smartloc_gnss/Berlin_Potsdamer_Platz_Input.txt"
GNSS_TRUTH = "smartloc_gnss/Berlin_Potsdamer_Platz_GT.txt"
_FOLDER = "robot_known_noise"
_SUMS = "SHA256SUMS"
_SHOWN = 40  # characters of an invalid value
_LARGEST = 200_000_000  # bytes; the files have 3 MB at most
_MOST_INFLATED = 100_000_000  # bytes of all matrices of a compressed MATLAB file; SciPy needs about three times as much
_MAT_HEADER, _MAT_COMPRESSED = 128, 15  # bytes before the first element; type of a compressed one


def data_file(folder: Path, name: str) -> Path:
    """A file of the data, in the folder or in its ``robot_known_noise``, after its checksum has been verified.

    SciPy may crash on a damaged MATLAB file, so no reader sees a file before this check. The expected SHA-256 is the
    one that a file ``SHA256SUMS`` in the same folder lists (as ``sha256sum`` writes it), for your own data, and
    otherwise that of the published data.

    Raises:
        ValueError: There is no such file, or it has another checksum.
    """
    roots = [root for root in (folder, folder / _FOLDER) if (root / name).is_file()]
    if not roots:
        raise ValueError(f"expected `data` a folder with {name}, got {folder}, which has none")
    path, own = roots[0] / name, roots[0] / _SUMS
    size = path.stat().st_size
    if size > _LARGEST:
        raise ValueError(f"expected {path} of at most {_LARGEST} bytes, got {size}")
    expected = published_sums() | (_sums(own.read_text(encoding="utf-8")) if own.is_file() else {})
    actual = sha256_of(path)
    if actual != expected[name]:
        raise ValueError(
            f"expected {path} with the SHA-256 {expected[name][:12]}..., got {actual[:12]}...: the file is damaged or "
            f"not the published one; list data of your own in {own}, as sha256sum does"
        )
    return path


def published_sums() -> dict[str, str]:
    """SHA-256 of the files of the published data, by path."""
    return _sums(resources.files("fcal.benchmarks.sensors").joinpath(_SUMS).read_text(encoding="utf-8"))


def _sums(text: str) -> dict[str, str]:
    """Checksums by path, from lines as ``sha256sum`` writes them.

    Example:
        >>> _sums("0a1b  some/file.txt")
        {'some/file.txt': '0a1b'}
    """
    pairs = (line.split(maxsplit=1) for line in text.splitlines() if len(line.split(maxsplit=1)) == 2)
    return {name.strip().removeprefix("*"): digest.lower() for digest, name in pairs}


def matrices(path: Path, shapes: Mapping[str, tuple[int | str, ...]]) -> dict[str, Array]:
    """Matrices of a MATLAB file.

    Args:
        path: The file.
        shapes: Shape of each; equal letters stand for equal sizes.

    Raises:
        ImportError: SciPy is not installed.
        ValueError: Another file format, name or shape, or values that are not finite.
    """
    variables, columns = _numeric(path), {}
    sizes: dict[int | str, int] = {}
    for name, shape in shapes.items():
        if name not in variables:
            raise ValueError(f"expected {path} with a matrix of numbers `{name}`, got {', '.join(variables) or 'none'}")
        value = variables[name]
        for side, size in zip(shape, value.shape, strict=False):
            sizes.setdefault(side, size if isinstance(side, str) else side)
        expected = [sizes.get(side, side) for side in shape]
        if list(value.shape) != expected or not value.size:
            sides = ", ".join(map(str, expected))
            raise ValueError(f"expected `{name}` of {path} of shape ({sides}), got {value.shape}")
        columns[name] = checked(value.astype(np.float64), np.isfinite(value), f"`{name}` of {path} finite")
    return columns


def _numeric(path: Path) -> dict[str, NDArray[Any]]:
    """Real numeric matrices of a MATLAB file, by name; other variables are ignored."""
    try:
        from scipy.io import loadmat  # only this format needs it
    except ImportError as error:
        raise ImportError("expected scipy for MATLAB files; pip install 'fcal[sensors]'") from error
    _check_inflated_size(path)
    try:
        variables = loadmat(path)
    except Exception as error:  # SciPy raises many types of errors: ValueError, TypeError, zlib.error, ...
        reason = " ".join(str(error).split())[: 2 * _SHOWN]
        raise ValueError(f"expected {path} a MATLAB file of version 4 to 7, got: {reason}") from None
    return {
        name: value for name, value in variables.items() if isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    }


def _check_inflated_size(path: Path) -> None:
    """Refuse a MATLAB file whose compressed elements together are too large; what else is wrong, SciPy says.

    Raises:
        ValueError: There are more than 100 MB of them.
    """
    total = 0
    with path.open("rb") as file, suppress(zlib.error, struct.error):
        order = "<" if file.read(_MAT_HEADER).endswith(b"IM") else ">"
        while tag := file.read(8):
            kind, size = struct.unpack(f"{order}II", tag)
            if kind != _MAT_COMPRESSED:
                file.seek(size, os.SEEK_CUR)
                continue
            inflate, element = zlib.decompressobj(), file.read(size)
            while element and total <= _MOST_INFLATED:
                total += len(inflate.decompress(element, 1 << 20))
                element = inflate.unconsumed_tail
            if total > _MOST_INFLATED:
                raise ValueError(f"expected {path} of at most {_MOST_INFLATED} bytes when inflated, got more")


def checked(values: Array, valid: NDArray[np.bool_], requirement: str) -> Array:
    """Values that are all valid.

    Example:
        >>> values = np.array([1.0, np.nan])
        >>> checked(values, np.isfinite(values), "`r` finite")
        Traceback (most recent call last):
        ...
        ValueError: expected `r` finite, got nan (1 of 2 values)
    """
    if not valid.all():
        raise ValueError(f"expected {requirement}, got {values[~valid][0]:g} ({(~valid).sum()} of {valid.size} values)")
    return values


def numbered_lines(path: Path, columns: Mapping[str, int]) -> dict[str, Array]:
    """Lines of a text file by their first word, as rows of numbers.

    Args:
        path: The file.
        columns: For every word that a line may begin with, how many numbers follow.

    Raises:
        ValueError: Another word, another count of numbers, or a value that is not a finite number; the line is named.
    """
    rows: dict[str, list[list[float]]] = {word: [] for word in columns}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"expected {path} a text file in UTF-8, got other bytes") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        word, *texts = line.split()
        where = f"line {number} of {path}"
        if word not in columns:
            raise ValueError(f"expected {where} to begin with {' or '.join(columns)}, got {word[:_SHOWN]!r}")
        if len(texts) != columns[word]:
            raise ValueError(f"expected {columns[word]} numbers after {word} in {where}, got {len(texts)}")
        try:
            rows[word].append([float(text) for text in texts])
        except ValueError as error:
            raise ValueError(f"expected numbers in {where}, got: {str(error)[: 2 * _SHOWN]}") from None
        if not np.isfinite(rows[word][-1]).all():
            raise ValueError(f"expected finite numbers in {where}, got {line.strip()[:_SHOWN]!r}")
    return {word: np.array(of_word).reshape(-1, columns[word]) for word, of_word in rows.items()}
