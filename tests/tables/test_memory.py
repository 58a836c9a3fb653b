"""Small files that claim, or hold, far more than they should: read in bounded memory or refused by name, quickly."""

import json
import os
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from fcal.benchmarks.sensors.files import matrices

MOST_MEGABYTES = 1300  # of the whole process, of which torch and Arrow take about 600
# Imports once, then a child for every command, whose peak of memory the kernel measures.
SERVER = """
import json, os, sys, tempfile
from fcal.cli import main
import fcal.cli.evaluate

for line in sys.stdin:
    with tempfile.TemporaryFile() as complaints:
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(complaints.fileno(), 2)
            code = main(json.loads(line))
            sys.stderr.flush()
            os._exit(code)
        _, status, usage = os.wait4(child, 0)
        complaints.seek(0)
        code = os.waitstatus_to_exitcode(status)
        print(json.dumps([code, complaints.read().decode(), usage.ru_maxrss // 1024]), flush=True)
"""


@pytest.fixture(scope="module")
def evaluated():
    """Runs ``fcal evaluate`` and returns its exit code, its complaints, and its peak of memory in MB."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )

    def run(*words: object) -> tuple[int, str, int]:
        server.stdin.write(json.dumps(["evaluate", *map(str, words), "--json"]) + "\n")
        server.stdin.flush()
        code, complaint, megabytes = json.loads(server.stdout.readline())
        return code, complaint, megabytes

    yield run
    server.stdin.close()
    server.stdout.close()
    assert server.wait(30) == 0


def compressed(path: Path, members: dict[str, tuple[str, tuple[int, ...], bytes, int]]) -> Path:
    """An NPZ file of arrays given by dtype, shape, and a block of bytes and how often it is repeated."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (dtype, shape, block, times) in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                header = {"descr": dtype, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(stream, header)
                for _ in range(times):
                    stream.write(block)
    return path


def numbers(rows: int) -> dict[str, tuple[str, tuple[int, ...], bytes, int]]:
    values = {"mean": np.zeros(rows), "std": np.ones(rows), "target": np.linspace(-2, 2, rows)}
    return {name: ("<f8", (rows,), value.tobytes(), 1) for name, value in values.items()}


@pytest.mark.timeout(120)
def test_wide_labels_are_read_in_bounded_memory(evaluated, tmp_path):
    """1000 characters in each of 2^17 rows, 0.5 GB in a file of 1 MB: 1.4 GB with chunks of rows alone."""
    rows = 1 << 17
    label = ("<U1000", (rows,), np.array(["a"], "<U1000").tobytes() * 64, rows // 64)
    path = compressed(tmp_path / "labels.npz", {**numbers(rows), "g": label})
    assert path.stat().st_size < 4_000_000
    code, complaint, megabytes = evaluated(path, "--group", "g")
    assert (code, complaint) == (0, "")
    assert megabytes < MOST_MEGABYTES


def test_labels_beyond_the_limit_are_refused_with_file_array_and_limit(evaluated, tmp_path):
    rows = 1 << 8
    path = compressed(tmp_path / "labels.npz", {**numbers(rows), "g": ("<U1025", (rows,), bytes(4100), rows)})
    code, complaint, _ = evaluated(path, "--group", "g")
    assert code == 2
    assert "labels.npz` with an array 'g' of one value per row, got text of 4100 bytes in every row" in complaint
    assert complaint.count("\n") == 1


@pytest.mark.timeout(120)
def test_many_outputs_are_read_in_bounded_memory(evaluated, tmp_path):
    """400 outputs of 50,000 rows, 480 MB in a file of 0.7 MB: 1.5 GB with chunks of rows alone."""
    rows = 50_000
    values = {"mean": np.zeros(400), "std": np.ones(400), "target": np.linspace(-2, 2, 400)}
    arrays = {name: ("<f8", (rows, 400), value.tobytes() * 100, rows // 100) for name, value in values.items()}
    code, complaint, megabytes = evaluated(compressed(tmp_path / "wide.npz", arrays))
    assert (code, complaint) == (0, "")
    assert megabytes < MOST_MEGABYTES


@pytest.mark.timeout(60)
def test_parquet_page_that_claims_gigabytes_is_refused_with_file_and_limit(evaluated, tmp_path):
    """A page of 136 MB of zeros, whose header then claims 2 GB."""
    rows, path = 17_000_000, tmp_path / "bomb.parquet"
    schema = pa.schema([pa.field(name, pa.float64(), nullable=False) for name in ("mean", "std", "target")])
    table = pa.table([np.zeros(rows), np.ones(rows), np.zeros(rows)], schema=schema)
    parquet.write_table(
        table, path, compression="zstd", use_dictionary=False, data_page_size=1 << 28, write_statistics=False,
        row_group_size=rows, max_rows_per_page=rows,
    )  # fmt: skip
    offset = parquet.read_metadata(path).row_group(0).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    at = content.index(varint(2 * 8 * rows), offset)
    assert at < offset + 10
    content[at : at + 5] = varint(2 * (2**31 - 1))
    path.write_bytes(content)
    code, complaint, megabytes = evaluated(path)
    assert code == 2
    assert "bomb.parquet` with pages of at most 268435456 bytes, got one of column 'mean' that claims" in complaint
    assert complaint.count("\n") == 1
    assert megabytes < MOST_MEGABYTES


def varint(value: int) -> bytes:
    """A number as Thrift writes it, seven bits in a byte."""
    content = []
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*content, value])


def test_pages_of_every_kind_of_parquet_file_are_understood(tmp_path):
    from fcal.tables import open_predictions

    rows, path = 30_000, tmp_path / "p.parquet"
    table = pa.table({"mean": np.zeros(rows), "std": np.ones(rows), "target": np.ones(rows), "g": ["a" * 9000] * rows})
    for options in (
        {},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": None, "use_dictionary": False, "row_group_size": 1000},
        {"write_page_checksum": True, "write_page_index": True, "data_page_size": 1000},
        {"compression": "gzip", "column_encoding": {"mean": "BYTE_STREAM_SPLIT"}, "use_dictionary": ["g"]},
    ):
        parquet.write_table(table, path, **options)
        assert sum(len(chunk) for chunk in open_predictions(path)) == rows, options


def test_matlab_file_is_refused_by_the_size_of_all_its_elements(tmp_path):
    """Nine elements of 90 MB, each below the limit, in a file of 0.8 MB."""
    path = tmp_path / "bomb.mat"
    element = zlib.compress(bytes(90_000_000), 9)
    header = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    tag = (15).to_bytes(4, "little") + len(element).to_bytes(4, "little")
    path.write_bytes(header + 9 * (tag + element))
    assert path.stat().st_size < 1_000_000
    with pytest.raises(ValueError, match=r"bomb\.mat of at most 100000000 bytes when inflated, got more"):
        matrices(path, {"r": ("n", 1)})
