"""Bytes of prediction files: compressed or not, and standard input."""

import atexit
import io
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from fcal.tables.readers import TableError, file_error, message_of

STANDARD_INPUT = "-"
CODECS = {".gz": "gzip", ".zst": "zstd"}
_MAGIC = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
_PIECE = 1 << 20
# A file that grows more than this is not of predictions: these are numbers, which hardly compress.
_LARGEST_RATIO = 200
_LARGEST_SIZE = 1 << 30


def suffix_of(path: Path) -> str:
    """The ending of a name in lower case, with that of a compression: ``.csv``, ``.csv.gz``.

    Example:
        >>> suffix_of(Path("runs/v1.2/test.CSV.gz")), suffix_of(Path("a.b.npz"))
        ('.csv.gz', '.npz')
    """
    last = path.suffix.lower()
    return path.with_suffix("").suffix.lower() + last if last in CODECS else last


def listed(suffixes: Iterable[str]) -> str:
    """Endings of names for an error, those of compressed files in short.

    Example:
        >>> listed([".csv", ".csv.gz", ".csv.zst", ".npz"])
        '.csv, .npz, .csv.gz, .csv.zst'
    """
    known = list(suffixes)
    plain = [suffix for suffix in known if Path(f"a{suffix}").suffix not in CODECS]
    compressed = [suffix for suffix in known if suffix not in plain and suffix.startswith(".csv")]
    return ", ".join([*plain, *compressed])


def open_bytes(path: Path) -> IO[bytes]:
    """The bytes of a file from its beginning, decompressed piece by piece where its name ends in .gz or .zst."""
    codec = CODECS.get(path.suffix.lower())
    return io.BufferedReader(_Decompressed(path, codec), _PIECE) if codec else path.open("rb")


def open_to_write(path: Path, final: Path) -> IO[bytes]:
    """A file to write, compressed where its final name ends in .gz or .zst."""
    codec = CODECS.get(final.suffix.lower())
    stream: IO[bytes] = pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), codec) if codec else path.open("wb")
    return stream


class _Decompressed(io.RawIOBase):
    """Bytes of a compressed file.

    Raises:
        TableError: It is damaged, ends early, or is a bomb: a small file of an enormous content.
    """

    def __init__(self, path: Path, codec: str) -> None:
        super().__init__()
        self._path, self._codec, self._count = path, codec, 0
        self._most = max(_LARGEST_SIZE, _LARGEST_RATIO * path.stat().st_size)
        self._stream = pa.CompressedInputStream(pa.OSFile(str(path)), codec)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(min(len(buffer), _PIECE))
        except OSError as error:
            raise file_error(self._path, f"a whole {self._codec} file", message_of(error)) from None
        self._count += len(data)
        if self._count > self._most:
            grown = f"more than {_LARGEST_RATIO} times as many bytes as are compressed"
            raise file_error(self._path, "of predictions", f"{grown}; decompress it yourself to read it")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def kept_standard_input() -> Path:
    """A file with what is piped in, so that it can be read more than once; it is removed when the process ends.

    JSON lines begin with a brace; anything else is CSV. Either may be compressed.

    Raises:
        TableError: There is nothing to read.
    """
    stream = None if sys.stdin is None or sys.stdin.closed else getattr(sys.stdin, "buffer", None)
    first = stream.read(_PIECE) if stream is not None else b""
    if stream is None or not first.strip():
        raise TableError(
            "expected standard input with CSV or JSON lines, got nothing; pipe a file: cat FILE | fcal ..."
        )
    folder = Path(tempfile.mkdtemp(prefix="fcal-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    compression = next((suffix for magic, suffix in _MAGIC.items() if first.startswith(magic)), "")
    path = folder / f"stdin{compression}"
    with path.open("wb") as file:
        file.write(first)
        shutil.copyfileobj(stream, file, _PIECE)
    with open_bytes(path) as content:
        start = content.read(_PIECE).removeprefix(b"\xef\xbb\xbf").lstrip()
    kind = ".jsonl" if start.startswith((b"{", b"[")) else ".csv"
    return path.rename(folder / f"stdin{kind}{compression}")
