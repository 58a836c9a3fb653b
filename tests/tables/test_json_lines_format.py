"""JSON lines: what is read, and one line for every other content."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fcal.tables import Columns, TableError, open_predictions, whole

ROWS = [{"mean": 0.5 * k, "std": 1 + k, "target": k} for k in range(5)]


def lines(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_numbers_missing_values_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"mean": 1, "std": 2.5, "target": NaN, "note": "a"}\n\n'
        '{"target": null, "std": 1, "mean": 10000000000000000000}\n'
        '{"mean": -1.5, "std": 1e-3}\n'
    )
    pred, target = whole(open_predictions(path))
    assert pred.mean.tolist() == [1.0, 1e19, -1.5]
    assert pred.stddev.tolist() == [2.5, 1.0, 0.001]
    assert target.isnan().all()


def test_lists_are_several_outputs(tmp_path: Path) -> None:
    rows = [{"mean": [k, k + 1], "std": [1, 2], "target": [0, None]} for k in range(4)]
    pred, target = whole(open_predictions(lines(tmp_path / "p.jsonl", rows)))
    assert pred.mean.tolist() == [[k, k + 1] for k in range(4)]
    assert target[:, 1].isnan().all()


def test_groups_and_clusters_are_texts_and_numbers(tmp_path: Path) -> None:
    rows = [{**row, "side": "left", "image": 7, "night": k % 2 == 0} for k, row in enumerate(ROWS)]
    path = lines(tmp_path / "p.jsonl", rows)
    (chunk,) = open_predictions(path, columns=Columns(group="night", cluster="image"))
    assert chunk.group is not None
    assert chunk.group.names == ("true", "false")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"mean": 1', "JSON in data row 1, got an error"),
        (json.dumps(ROWS), "with a JSON object on every line, got a list; `jq -c '.\\[\\]'` makes lines of it"),
        ("[\n{}\n]", "with a JSON object on every line, got a list"),
        ("3\n", "with a JSON object on every line, got 3 in data row 1"),
        ("{}\n", "with at least one row, got none"),
        ("\n\n", "with at least one row, got none"),
        ("\xff\xfe{}", "JSON in data row 1"),
        (json.dumps(ROWS[0]) + "\n{broken", "JSON in data row 2"),
        (
            json.dumps(ROWS[0]) + "\n" + json.dumps({**ROWS[1], "std": "two"}),
            "'std' of numbers, got 'two' in data row 2",
        ),
        (json.dumps(ROWS[0]) + "\n" + json.dumps({**ROWS[1], "std": True}), "'std' of numbers, got True in data row 2"),
        (json.dumps(ROWS[0]) + "\n" + json.dumps({"mean": 1, "target": 2}), "'std' finite, got nan in data row 2"),
        (json.dumps(ROWS[0]) + "\n" + json.dumps({**ROWS[1], "std": [1, 2]}), "'std' of one value in every row, got 2"),
        (json.dumps({"mean": {"a": 1}, "std": 1, "target": 1}), "'mean' of numbers"),
        (json.dumps({"a": 1, "b": 2}), "with a column 'mean', got 'a', 'b'"),
        ("[" * 100_000, "got a list"),
        ('{"mean": ' + "[" * 100_000, "JSON in data row 1"),
    ],
)
def test_other_content_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(TableError) as caught:
        whole(open_predictions(path))
    assert re.search(message, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)


def test_samples_of_several_lengths_are_refused(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [{"samples": draw.normal(size=8 if k < 6 else 9).tolist(), "target": 0.0} for k in range(8)]
    with pytest.raises(TableError, match="'samples' of 8 values in every row, got 9 values in data row 7"):
        whole(open_predictions(lines(tmp_path / "p.jsonl", rows)))


def test_ragged_lists_are_missing_values(tmp_path: Path) -> None:
    rows = [{"mean": [[1, 2], [3]], "std": [[1, 1], [1, 1]], "target": 0.0}] * 2
    with pytest.raises(TableError):
        whole(open_predictions(lines(tmp_path / "p.jsonl", rows)))


def test_keys_that_first_rows_lack_are_not_lost_when_rows_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcal.tables.json_lines_format._FIRST_ROWS", 2)
    source = open_predictions(lines(tmp_path / "p.jsonl", [*ROWS, {**ROWS[0], "late": 1}]))
    assert len(whole(source)[1]) == 6
    with pytest.raises(TableError, match="with the keys of its first rows, got 'late' in data row 6"):
        list(source.blocks(every_column=True))
