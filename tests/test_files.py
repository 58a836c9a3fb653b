"""Files are whole or absent."""

import json
import os
import signal
from pathlib import Path

import pytest

from fcal._files import atomic_path, is_temporary, remove_abandoned, temporary_folder, write_json


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


def child_that_is_killed(write) -> None:
    """Run a function in a process of its own that is killed with SIGKILL when it has returned."""
    child = os.fork()
    if not child:
        try:
            write()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def half_a_file(target: Path) -> None:
    with atomic_path(target) as temporary:
        temporary.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_process_left_is_removed_by_the_next_write_in_its_folder(tmp_path):
    child_that_is_killed(lambda: half_a_file(tmp_path / "other.json"))
    (left,) = tmp_path.iterdir()
    assert is_temporary(left.name)
    write_json(tmp_path / "result.json", {"value": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_folder_that_a_killed_process_left_is_removed_with_its_files(tmp_path):
    def write() -> None:
        with temporary_folder(tmp_path / "out.npz") as folder:
            (folder / "0").write_bytes(b"spooled")
            os.kill(os.getpid(), signal.SIGKILL)

    child_that_is_killed(write)
    (left,) = tmp_path.iterdir()
    assert [path.name for path in left.iterdir()] == ["0"]
    remove_abandoned(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_a_living_process_writes_is_never_removed(tmp_path):
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        with atomic_path(tmp_path / "deep" / "slow.txt") as temporary:
            temporary.write_text("slow")
            os.write(ready[1], b".")
            os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    remove_abandoned(tmp_path)
    with atomic_path(tmp_path / "deep" / "fast.txt") as temporary:
        temporary.write_text("fast")
    os.write(go[1], b".")
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "deep" / "slow.txt").read_text() == "slow"
    assert (tmp_path / "deep" / "fast.txt").read_text() == "fast"
    assert len(list((tmp_path / "deep").iterdir())) == 2


@pytest.mark.parametrize("name", [".notes.txt", ".fcal-abcdefgh", ".a-abcdefgh.json", "a.fcal-abcdefgh.json"])
def test_files_of_other_names_are_never_removed(tmp_path, name):
    (tmp_path / name).write_text("mine")
    remove_abandoned(tmp_path)
    write_json(tmp_path / "result.json", 1)
    assert (tmp_path / name).read_text() == "mine"
