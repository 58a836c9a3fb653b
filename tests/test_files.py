"""Files are whole or absent."""

import json

import pytest

from fcal._files import atomic_path, write_json


def test_failed_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path):
    target = tmp_path / "result.json"
    target.write_text("old")

    def write_half():
        with atomic_path(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        write_half()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_json_is_written_into_a_new_folder_and_replaced(tmp_path):
    target = tmp_path / "new" / "result.json"
    for value in (1, 2):
        write_json(target, {"value": value})
    assert json.loads(target.read_text()) == {"value": 2}


def test_nan_has_no_word_in_json(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "result.json", {"value": float("nan")})
    assert not list(tmp_path.iterdir())
