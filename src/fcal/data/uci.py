"""Reader of UCI tables with the standard splits of Hernandez-Lobato and Gal, from their text files."""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

NAMES = {
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red",
    "yacht": "yacht",
}
_MOST_SPLITS = 1000
_FEWEST_ROWS = 20


@dataclass(frozen=True, kw_only=True)
class UCITable:
    """A table and its splits, in original units.

    Attributes:
        name: Name in :data:`NAMES`.
        x: Features. Shape ``(n, features)``, float64.
        y: Targets. Shape ``(n,)``, float64.
        train: For each split, the rows to train on.
        test: For each split, the rows to test on.
    """

    name: str
    x: Tensor
    y: Tensor
    train: tuple[Tensor, ...]
    test: tuple[Tensor, ...]


def uci_folder(data: str | os.PathLike[str]) -> Path:
    """The folder of the tables: ``data``, or ``uci_gal`` in it.

    Raises:
        ValueError: There is no such folder, or none of the tables is in it.

    Example:
        >>> uci_folder("nowhere")
        Traceback (most recent call last):
        ...
        ValueError: expected `data` a folder of UCI tables (concrete/data/data.txt, ...), got nowhere, no folder
    """
    folder = Path(data)
    wanted = "expected `data` a folder of UCI tables (concrete/data/data.txt, ...)"
    if not folder.is_dir():
        raise ValueError(f"{wanted}, got {folder}, no folder")
    for root in (folder, folder / "uci_gal"):
        if any((root / name / "data" / "data.txt").is_file() for name in NAMES.values()):
            return root
    raise ValueError(f"{wanted}, got {folder}, which has none of them")


def read_uci(data: str | os.PathLike[str], name: str, *, splits: int | None = None) -> UCITable:
    """Read one table.

    Args:
        data: See :func:`uci_folder`.
        name: One of :data:`NAMES`.
        splits: How many of its splits, from the first; all if None.

    Raises:
        ValueError: The name is unknown, files are missing or malformed, values are not finite, or rows of a split are
            out of range or not disjoint.
    """
    if name not in NAMES:
        raise ValueError(f"expected `datasets` of {', '.join(NAMES)}, got {name!r}")
    folder = uci_folder(data) / NAMES[name] / "data"
    values = _numbers(folder / "data.txt", columns=True)
    if len(values) < _FEWEST_ROWS or values.shape[1] < 2:
        raise ValueError(f"expected {folder / 'data.txt'} of at least {_FEWEST_ROWS} rows, got shape {values.shape}")
    if not np.isfinite(values).all():
        row = int((~np.isfinite(values)).any(1).argmax())
        raise ValueError(f"expected {folder / 'data.txt'} of finite numbers, got others in line {row + 1}")
    features = _indices(folder / "index_features.txt", values.shape[1])
    target = _indices(folder / "index_target.txt", values.shape[1])
    if len(target) != 1 or target[0] in features:
        raise ValueError(f"expected {folder / 'index_target.txt'} one column that is no feature, got {target.tolist()}")
    known = _count(folder / "n_splits.txt")
    count = known if splits is None else min(splits, known)
    pairs = [_split(folder, number, len(values)) for number in range(count)]
    return UCITable(
        name=name,
        x=torch.from_numpy(values[:, features.numpy()]),
        y=torch.from_numpy(values[:, int(target[0])].copy()),
        train=tuple(train for train, _ in pairs),
        test=tuple(test for _, test in pairs),
    )


def _split(folder: Path, number: int, rows: int) -> tuple[Tensor, Tensor]:
    train, test = (_indices(folder / f"index_{purpose}_{number}.txt", rows) for purpose in ("train", "test"))
    if min(len(train), len(test)) < 2 or len(torch.cat([train, test]).unique()) != len(train) + len(test):
        raise ValueError(
            f"expected {folder / f'index_test_{number}.txt'} of rows that are not trained on, got some twice or too few"
        )
    return train, test


def _count(path: Path) -> int:
    number = _numbers(path)
    if number.size != 1 or not 1 <= number[0] <= _MOST_SPLITS or number[0] != int(number[0]):
        raise ValueError(f"expected {path} one whole number from 1 to {_MOST_SPLITS}, got {number.tolist()[:5]}")
    return int(number[0])


def _indices(path: Path, below: int) -> Tensor:
    numbers = _numbers(path)
    whole = np.isfinite(numbers) & (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < below)
    if not whole.all():
        raise ValueError(f"expected {path} of whole numbers from 0 to {below - 1}, got {numbers[~whole][0]:g}")
    values, counts = np.unique(numbers, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"expected {path} of different numbers, got {values[counts > 1][0]:g} twice: is it damaged?")
    return torch.from_numpy(numbers.astype(np.int64))


def _numbers(path: Path, *, columns: bool = False) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an empty file is rejected below
            numbers = np.loadtxt(path, dtype=np.float64, ndmin=2 if columns else 1)
    except FileNotFoundError:
        raise ValueError(f"expected {path}, got no such file") from None
    except (ValueError, OSError) as error:
        raise ValueError(f"expected {path} of numbers, got {error}") from None
    if not numbers.size:
        raise ValueError(f"expected {path} of numbers, got an empty file")
    return numbers if columns else numbers.reshape(-1)
