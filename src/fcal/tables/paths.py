"""From what a user types to a list of files."""

import glob
import os
from pathlib import Path

from fcal._registry import Registry
from fcal.tables.array_file import ArrayFile
from fcal.tables.csv_file import CsvFile
from fcal.tables.errors import file_error
from fcal.tables.files import TableFile
from fcal.tables.parquet_file import ParquetFile

FORMATS: Registry[type[CsvFile] | type[ParquetFile] | type[ArrayFile]] = Registry("suffix")
for _suffix in (".csv", ".tsv"):
    FORMATS.add(_suffix, CsvFile)
for _suffix in (".parquet", ".pq"):
    FORMATS.add(_suffix, ParquetFile)
for _suffix in (".npz", ".npy"):
    FORMATS.add(_suffix, ArrayFile)


def known_suffix(path: Path) -> str:
    """The suffix of a file of a known format.

    Raises:
        TableError: It is of none.
    """
    suffix = path.suffix.lower()
    if suffix not in FORMATS.names():
        raise file_error(path, f"with one of the suffixes {', '.join(FORMATS.names())}", repr(path.suffix))
    return suffix


def find_files(path: str | os.PathLike[str]) -> list[Path]:
    """The file, all files of known suffixes in a folder, or those that match a pattern; sorted by name.

    Files whose names begin with a dot or an underscore are left out, as are sub-folders (``**`` in a pattern finds
    them).

    Raises:
        TableError: There are none.
    """
    given = Path(path)
    if given.is_dir():
        return _known_among(given, list(given.iterdir()), "a folder of prediction files")
    if given.exists():
        known_suffix(given)
        return [given]
    if glob.has_magic(str(given)):
        found = glob.glob(str(given), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute patterns
        return _known_among(given, list(map(Path, found)), "to match files")
    raise file_error(given, "a file, a folder or a pattern of files", "nothing of that name")


def open_file(path: Path) -> TableFile:
    """Open a file in its format."""
    return FORMATS[known_suffix(path)](path)


def _known_among(given: Path, candidates: list[Path], requirement: str) -> list[Path]:
    files = [p for p in candidates if p.is_file() and not p.name.startswith((".", "_"))]
    known = sorted(p for p in files if p.suffix.lower() in FORMATS.names())
    if not known:
        raise file_error(given, f"{requirement} ({', '.join(FORMATS.names())})", "none")
    return known
