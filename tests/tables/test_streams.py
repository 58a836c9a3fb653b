"""Compressed files and standard input: the same rows, and one line for what is damaged, empty or a bomb."""

import gzip
import io
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from fcal.tables import TableError, open_predictions, whole, write_repaired
from fcal.tables.streams import open_bytes

TEXT = "mean,std,target,side\n" + "".join(f"{k / 7},{1 + k % 3},{k / 5},left\n" for k in range(500))
LINES = "".join(f'{{"mean": {k / 7}, "std": {1 + k % 3}, "target": {k / 5}, "side": "left"}}\n' for k in range(500))


def compressed(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(text.encode())
    return path


@pytest.mark.parametrize("name", ["p.csv.gz", "p.csv.zst", "p.jsonl.gz", "p.ndjson.zst", "P.CSV.GZ"])
def test_compressed_files_have_the_rows_of_plain_ones(tmp_path: Path, name: str) -> None:
    plain = tmp_path / "plain.csv"
    plain.write_text(TEXT)
    path = compressed(tmp_path / name.lower(), LINES if "json" in name else TEXT).rename(tmp_path / name)
    for chunk_rows in (7, 1000):
        pred, target = whole(open_predictions(path, chunk_rows=chunk_rows))
        expected, expected_target = whole(open_predictions(plain))
        assert pred.mean.tolist() == expected.mean.tolist()
        assert pred.stddev.tolist() == expected.stddev.tolist()
        assert target.tolist() == expected_target.tolist()


def test_parts_of_a_gzip_file_are_read_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "p.csv.gz"
    first, second = TEXT[:300], TEXT[300:]
    path.write_bytes(gzip.compress(first.encode()) + gzip.compress(second.encode()))
    assert len(whole(open_predictions(path))[1]) == 500


@pytest.mark.parametrize("name", ["p.csv.gz", "p.csv.zst", "p.jsonl.gz"])
def test_truncated_and_damaged_files_are_one_line(tmp_path: Path, name: str) -> None:
    path = compressed(tmp_path / name, LINES if "json" in name else TEXT)
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], content[:-3], b"these are no such bytes", content[:5]):
        path.write_bytes(damaged)
        with pytest.raises(TableError, match=r"a whole (gzip|zstd) file, got an error") as caught:
            whole(open_predictions(path))
        assert "\n" not in str(caught.value)


def test_a_wrong_value_in_a_compressed_file_is_named(tmp_path: Path) -> None:
    path = compressed(tmp_path / "p.csv.gz", TEXT + "1,x,2,left\n")
    with pytest.raises(TableError, match="column 'std' of numbers, got 'x' in data row 501"):
        whole(open_predictions(path))
    path = compressed(tmp_path / "p.csv.gz", TEXT + "1,2\n")
    with pytest.raises(TableError, match="with 4 values in every row, got 2 in data row 501"):
        whole(open_predictions(path))


def test_a_bomb_is_refused_without_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcal.tables.streams._LARGEST_SIZE", 1 << 20)
    path = compressed(tmp_path / "p.csv.zst", "mean,std,target\n" + "1,1,1\n" * 2_000_000)
    assert 200 * path.stat().st_size < 12_000_000
    with pytest.raises(TableError, match="got more than 200 times as many bytes as are compressed"):
        whole(open_predictions(path))
    path = compressed(tmp_path / "p.jsonl.gz", " " * 30_000_000)
    with pytest.raises(TableError, match="of lines of at most 16 MiB|more than 200 times"):
        whole(open_predictions(path))


@pytest.mark.parametrize("name", ["r.csv.gz", "r.csv.zst", "r.tsv.gz", "r.jsonl", "r.jsonl.gz"])
def test_repaired_rows_are_written_in_every_format(tmp_path: Path, name: str) -> None:
    source = tmp_path / "p.csv"
    source.write_text(TEXT)
    assert write_repaired(open_predictions(source, chunk_rows=64), tmp_path / name, lambda pred: pred) == 500
    columns = open_predictions(tmp_path / name).tables[0].names
    assert columns == ("mean", "std", "target", "side", "mean_recalibrated", "std_recalibrated")
    assert len(whole(open_predictions(tmp_path / name))[1]) == 500
    with open_bytes(tmp_path / name) as file:
        assert file.read().count(b"left") == 500


class _Pipe:
    def __init__(self, content: bytes) -> None:
        self.buffer, self.closed = io.BytesIO(content), False


@pytest.mark.parametrize("content", [TEXT, "\ufeff" + TEXT, LINES, "\n\n" + LINES])
@pytest.mark.parametrize("compress", [bytes, gzip.compress, lambda data: pa.Codec("zstd").compress(data, asbytes=True)])
def test_standard_input_is_csv_or_json_lines(monkeypatch: pytest.MonkeyPatch, content: str, compress: object) -> None:
    if compress is not bytes and compress is not gzip.compress:
        # A frame without its size in the header, as a stream has it.
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(content.encode())
        data = sink.getvalue().to_pybytes()
    else:
        data = compress(content.encode())
    monkeypatch.setattr(sys, "stdin", _Pipe(data))
    source = open_predictions("-")
    assert len(whole(source)[1]) == 500
    assert len(whole(source)[1]) == 500  # it was kept
    assert source.files[0].name.startswith("stdin.")


@pytest.mark.parametrize("content", [b"", b"  \n \n"])
def test_empty_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", _Pipe(content))
    with pytest.raises(TableError, match="standard input with CSV or JSON lines, got nothing; pipe a file"):
        open_predictions("-")


def test_closed_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(TableError, match="got nothing"):
        open_predictions("-")


def test_logs_and_checkpoints_beside_predictions_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"epoch": 1}\n')
    (tmp_path / "model.pt").write_bytes(b"weights")
    (tmp_path / "part.csv").write_text(TEXT)
    assert [path.name for path in open_predictions(tmp_path).files] == ["part.csv"]
    (tmp_path / "part.csv").unlink()
    (tmp_path / "model.pt").unlink()
    (tmp_path / "log.jsonl").write_text(LINES)
    assert [path.name for path in open_predictions(tmp_path).files] == ["log.jsonl"]
