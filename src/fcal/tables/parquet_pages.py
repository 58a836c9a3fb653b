"""Sizes of the pages of a Parquet file: Arrow allocates what the header of a page claims before it reads the page.

Headers are structs of Thrift's compact protocol. Only two of their numbers matter here; everything else is skipped.
"""

import struct
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

from fcal.tables.readers import TableError, file_error

LARGEST_PAGE = 1 << 28  # bytes; writers make pages of 1 MB
_AHEAD = 1 << 12  # bytes that nearly every header fits into
_LONGEST_HEADER = 1 << 20
_INFLATED_SIZE, _STORED_SIZE = 2, 3  # fields of a page header
_INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (4, 5, 6), 7, 8, (9, 10), 12
_DEEPEST = 16


def check_pages(path: Path, metadata: Any, names: Collection[str]) -> None:
    """Refuse a file in which a page of some columns claims to be larger than 256 MB.

    Args:
        path: The file.
        metadata: Its footer, as Arrow reads it.
        names: The columns that will be read.

    Raises:
        TableError: A page is too large, or its header is damaged.
    """
    with path.open("rb") as file:
        for group in range(metadata.num_row_groups):
            chunks = (metadata.row_group(group).column(index) for index in range(metadata.num_columns))
            for chunk in chunks:
                # A nested column is named after its first part.
                if chunk.path_in_schema.split(".")[0] in names or chunk.path_in_schema in names:
                    _check_chunk(path, file, chunk)


def _check_chunk(path: Path, file: IO[bytes], chunk: Any) -> None:
    """Go from header to header through the pages of one column in one row group."""
    offset = chunk.data_page_offset
    if chunk.dictionary_page_offset:
        offset = min(offset, chunk.dictionary_page_offset)
    end = offset + chunk.total_compressed_size
    while offset < end:
        inflated, stored, length = _header_at(path, file, offset)
        if inflated > LARGEST_PAGE:
            claim = f"one of column {chunk.path_in_schema!r} that claims {inflated} bytes"
            raise file_error(path, f"with pages of at most {LARGEST_PAGE} bytes", claim)
        if inflated < 0 or stored < 0:
            raise _damaged(path)
        offset += length + stored


def _header_at(path: Path, file: IO[bytes], offset: int) -> tuple[int, int, int]:
    """Size of the page in memory and in the file, and of its header."""
    for ahead in (_AHEAD, _LONGEST_HEADER):
        file.seek(offset)
        reader = _Reader(file.read(ahead))
        try:
            sizes = reader.integers(wanted=(_INFLATED_SIZE, _STORED_SIZE))
            return sizes[_INFLATED_SIZE], sizes[_STORED_SIZE], reader.at
        except IndexError:  # the header is longer; its statistics may hold text
            continue
        except (KeyError, ValueError, struct.error):
            break
    raise _damaged(path)


def _damaged(path: Path) -> TableError:
    return file_error(path, "a whole Parquet file", "a page with a damaged header")


class _Reader:
    """Thrift's compact protocol, from the start of a struct."""

    def __init__(self, content: bytes) -> None:
        self._content, self.at = content, 0

    def integers(self, wanted: Collection[int] = (), depth: int = 0) -> dict[int, int]:
        """Read a struct to its end; integers of the wanted fields are returned, by their number."""
        if depth > _DEEPEST:
            raise ValueError("structs in structs in structs")
        values, field = {}, 0
        while head := self._byte():
            delta, kind = head >> 4, head & 0x0F
            field = field + delta if delta else self._signed()
            if kind in _INTEGERS:
                value = self._signed()
                if field in wanted:
                    values[field] = value
            else:
                self._skip(kind, depth)
        return values

    def _skip(self, kind: int, depth: int) -> None:
        if kind in (1, 2):  # a truth value, which is its own type
            return
        if kind == 3:
            self._byte()
        elif kind in _INTEGERS:
            self._signed()
        elif kind == _DOUBLE:
            self._move(8)
        elif kind == _BINARY:
            self._move(self._unsigned())
        elif kind in _LISTS:
            head = self._byte()
            for _ in range(self._unsigned() if head >> 4 == 0x0F else head >> 4):
                if head & 0x0F in (1, 2):
                    self._byte()
                else:
                    self._skip(head & 0x0F, depth + 1)
        elif kind == _STRUCT:
            self.integers(depth=depth + 1)
        else:
            raise ValueError(f"type {kind}")

    def _byte(self) -> int:
        self.at += 1
        return self._content[self.at - 1]

    def _move(self, count: int) -> None:
        self.at += count
        if self.at > len(self._content):
            raise IndexError

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
