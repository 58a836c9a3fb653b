"""The store of finished cells: what is put is got, and what is damaged is not used."""

import json
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch.testing import assert_close

from fcal._files import held
from fcal.sweeps import (
    Cell,
    Store,
    is_whole,
    key,
    load_tensors,
    read_artifact,
    read_cells,
    save_tensors,
    seal,
    write_artifact,
    write_cells,
)

CONFIG = {"seed": 0, "lam": 0.5, "noise": "gamma"}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cells")


def test_store_gives_back_what_was_put(store):
    result = {"ece": 0.1, "rows": [1, 2.5, None, {"deep": [True, "ü"]}], "tiny": 5e-324}
    path = store.put("Train: NLL", CONFIG, result, seconds=1.25)
    assert path.name == f"train-nll-{key('Train: NLL', CONFIG)}.json"
    assert store.get("Train: NLL", dict(reversed(CONFIG.items()))) == result
    record = store.record("Train: NLL", CONFIG)
    assert (record.seconds, record.config, record.path) == (1.25, CONFIG, path)
    assert {"fcal", "torch", "python", "commit", "cpu", "cores"} <= set(record.provenance)


def test_absent_cell_is_none_and_leaves_no_folder(store):
    assert store.get("train", CONFIG) is None
    assert not store.folder.exists()


def test_cell_is_a_json_document_that_anybody_can_read(store):
    path = store.put("train", CONFIG, {"ece": 0.1, "curve": [0.1] * 50})
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["config"] == CONFIG
    assert document["result"]["curve"] == [0.1] * 50
    assert len(path.read_text().splitlines()) < 30  # a list of numbers takes one line


def published(path, values):
    """A published file with a cell for each value."""
    store = Store(path.parent / "written" / "cells")
    for seed, value in enumerate(values):
        store.put("train", {"seed": seed}, {"ece": value}, seconds=1.5)
    write_cells(path, store.records())
    return path


def test_published_cells_are_found_and_never_written(tmp_path):
    path = published(tmp_path / "cells.jsonl", [0.1, 0.2])
    before = path.read_bytes()
    store = Store(tmp_path / "runs" / "cells", published=[path])
    assert store.get("train", {"seed": 1.0}) == {"ece": 0.2}
    assert store.get("train", {"seed": 2}) is None
    record = store.record("train", {"seed": 0})
    assert (record.seconds, record.path) == (1.5, path)
    assert {"fcal", "torch", "python", "commit", "cpu", "cores"} <= set(record.provenance)
    store.put("train", {"seed": 0}, {"ece": 0.5})
    assert store.get("train", {"seed": 0}) == {"ece": 0.5}
    assert sorted(record.result["ece"] for record in store.records("train")) == [0.2, 0.5]
    assert path.read_bytes() == before


@pytest.mark.parametrize(("replace", "kept"), [(False, 1.0), (True, 2.0)])
def test_published_cell_is_replaced_only_on_request(tmp_path, replace, kept):
    path = tmp_path / "cells.jsonl"
    for value in (1.0, 2.0):
        store = Store(tmp_path / f"{value}")
        store.put("row", {"seed": 0}, {"value": value})
        store.publish(path, replace=replace)
    assert [record.result["value"] for record in read_cells(path)] == [kept]


def test_published_file_is_sorted_with_a_document_and_checksum_per_line(tmp_path):
    path = published(tmp_path / "cells.jsonl", range(20))
    documents = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
    assert all(list(d) == ["kind", "config", "result", "seconds", "provenance", "sha256"] for d in documents)
    addresses = [key(document["kind"], document["config"]) for document in documents]
    assert addresses == sorted(addresses)
    assert len(addresses) == 20
    write_cells(tmp_path / "again.jsonl", reversed(read_cells(path)))
    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "damage", [("0.125", "0.0625"), ('"seed":0', '"seed":9'), ('{"kind"', '{"kin'), ("}", ""), ("train", "\xff")]
)
def test_damaged_line_is_reported_and_the_others_are_used(tmp_path, damage):
    path = published(tmp_path / "cells.jsonl", [0.125, 0.25])
    lines = path.read_text().splitlines()
    number = next(i for i, line in enumerate(lines) if "0.125" in line)
    lines[number] = lines[number].replace(*damage)
    path.write_text("\n".join(lines), encoding="latin-1")
    store = Store(tmp_path / "cells", published=[path])
    with pytest.warns(UserWarning, match=f"the cell in line {number + 1} of .*cells.jsonl is not used: ") as caught:
        assert store.get("train", {"seed": 0}) is None
    assert len(caught) == 1
    assert store.get("train", {"seed": 1}) == {"ece": 0.25}  # and the file is not read again


def test_published_file_that_changed_is_read_again(tmp_path):
    store = Store(tmp_path / "cells", published=[tmp_path / "cells.jsonl"])
    assert store.get("train", {"seed": 0}) is None
    published(tmp_path / "cells.jsonl", [0.5])
    assert store.get("train", {"seed": 0}) == {"ece": 0.5}


def test_folder_is_no_published_file(tmp_path):
    with pytest.raises(ValueError, match="expected `published` files of cells, got the folder "):
        Store(tmp_path / "cells", published=[tmp_path])


def test_publish_adds_new_cells_to_a_file_and_keeps_what_is_there(tmp_path):
    path = published(tmp_path / "cells.jsonl", ["first"])
    store = Store(tmp_path / "cells")
    for seed in range(3):
        store.put("train", {"seed": seed}, {"ece": seed})
    assert len(store.publish(path, only={key("train", {"seed": 0}), key("train", {"seed": 1})})) == 1
    assert {record.result["ece"] for record in read_cells(path)} == {"first", 1}
    assert len(store.publish(path)) == 1
    assert store.publish(path) == []
    assert {record.result["ece"] for record in read_cells(path)} == {"first", 1, 2}


def test_compute_stores_a_cell_after_its_needs_and_only_once(store):
    calls = []
    part = Cell("part", {"x": 2}, artifacts=(".bin",))
    whole = Cell("whole", {"x": 2}, needs=(part,))

    def function(kind, config, store):
        calls.append(kind)
        if kind == "part":
            write_artifact(store.artifact(kind, config, ".bin"), b"weights")
            return config["x"] + 1
        return store.get("part", {"x": 2}) * 10

    assert store.compute(whole, function) == 30
    assert store.compute(whole, function) == 30
    assert calls == ["part", "whole"]
    store.artifact("part", {"x": 2}, ".bin").write_bytes(b"damaged")
    assert store.compute(whole, function) == 30
    assert calls == ["part", "whole"]  # the damaged artifact is not needed
    assert store.compute(part, function) == 3
    assert calls == ["part", "whole", "part"]
    assert is_whole(store.artifact("part", {"x": 2}, ".bin"))


def test_compute_waits_for_a_cell_that_another_process_computes(store):
    entered = threading.Event()

    def elsewhere():
        with held(store.lock("train", CONFIG)) as ours:
            assert ours
            entered.set()
            time.sleep(0.7)
            store.put("train", CONFIG, "theirs")

    thread = threading.Thread(target=elsewhere)
    thread.start()
    entered.wait(10)
    assert store.compute(Cell("train", CONFIG), lambda *_: "ours") == "theirs"
    thread.join()


def test_failed_result_needs_no_artifacts(store):
    diverged = Cell("train", CONFIG, artifacts=(".bin",))
    store.put("train", CONFIG, {"status": "failed", "reason": "diverged"})
    assert store.compute(diverged, None)["reason"] == "diverged"


def edited(path):
    path.write_text(path.read_text().replace("0.125", "0.0625"))


def edited_config(path):
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))


def truncated(path):
    path.write_bytes(path.read_bytes()[:-40])


def emptied(path):
    path.write_bytes(b"")


def nested(path):
    path.write_text("[" * 100_000)


def not_text(path):
    path.write_bytes(b"\xff\xfe" + path.read_bytes())


def conflicted(path):
    path.write_text("<<<<<<< HEAD\n" + path.read_text())


def a_list(path):
    path.write_text("[]")


def newer(path):
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))


@pytest.mark.parametrize(
    "damage", [edited, edited_config, truncated, emptied, nested, not_text, conflicted, a_list, newer]
)
def test_damaged_cell_is_reported_and_not_used(store, damage):
    path = store.put("train", CONFIG, {"ece": 0.125})
    before = path.read_bytes()
    damage(path)
    assert path.read_bytes() != before
    with pytest.warns(UserWarning, match=f"the cell .*{path.name} is not used: ") as caught:
        assert store.get("train", CONFIG) is None
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)


def test_damaged_cell_is_replaced_by_the_next_one(store):
    emptied(store.put("train", CONFIG, {"ece": 0.125}))
    store.put("train", CONFIG, {"ece": 0.25})
    assert store.get("train", CONFIG) == {"ece": 0.25}


def test_damaged_cell_does_not_hide_a_published_one(tmp_path):
    store = Store(tmp_path / "cells", published=[tmp_path / "docs.jsonl"])
    edited(store.put("train", CONFIG, {"ece": 0.125}))
    other = Store(tmp_path / "other" / "cells")
    other.put("train", CONFIG, {"ece": 0.5})
    write_cells(tmp_path / "docs.jsonl", other.records())
    with pytest.warns(UserWarning, match="is not used: its checksum does not fit"):
        assert store.get("train", CONFIG) == {"ece": 0.5}


def test_cell_under_the_name_of_another_is_not_used(store):
    path = store.put("train", CONFIG, {"ece": 0.125})
    other = path.with_name(path.name.replace(key("train", CONFIG), key("train", {"seed": 1})))
    path.rename(other)
    with pytest.warns(UserWarning, match="its config does not hash to its name"):
        assert store.get("train", {"seed": 1}) is None


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        ({"rows": [{"ece": float("nan")}]}, ValueError, r"expected `result\.rows\[0\]\.ece` a finite number, got nan"),
        ({"z": torch.zeros(2)}, TypeError, r"expected `result\.z` a string, number, .*, got Tensor"),
        ({"many": [0.123456789] * 30_000}, ValueError, "small enough for a cell of 200000 bytes, got 3"),
        (None, ValueError, "expected `result` something to keep, got None"),
    ],
)
def test_result_that_json_cannot_hold_is_refused_and_leaves_nothing(store, result, error, message):
    with pytest.raises(error, match=message):
        store.put("train", CONFIG, result)
    assert not store.folder.exists() or not list(store.folder.iterdir())


def test_store_in_a_file_is_refused(tmp_path):
    (tmp_path / "cells").write_text("")
    with pytest.raises(ValueError, match="expected `.*cells` a folder of cells, got a file"):
        Store(tmp_path / "cells")


def test_records_list_every_cell_once_and_by_kind(tmp_path):
    store, other = Store(tmp_path / "cells", published=[tmp_path / "docs.jsonl"]), Store(tmp_path / "other" / "cells")
    for seed in range(3):
        store.put("train", {"seed": seed}, {"ece": seed})
    other.put("train", {"seed": 0}, {"ece": "old"})
    other.put("evaluate", {"seed": 0}, {"ece": 9})
    write_cells(tmp_path / "docs.jsonl", other.records())
    (tmp_path / "cells" / ".train-abc.json").write_text("half")
    assert sorted(record.result["ece"] for record in store.records("train")) == [0, 1, 2]
    assert len(list(store.records())) == 4


def test_artifacts_lie_beside_the_cells_under_the_same_name(store):
    cell = store.put("train", CONFIG, {"ece": 1})
    path = store.artifact("train", CONFIG, ".safetensors")
    assert path.parent == store.folder.parent / "artifacts"
    assert path.name == f"{cell.stem}.safetensors"


@pytest.mark.parametrize("suffix", ["bin", ".", "./../x", ""])
def test_artifact_with_a_strange_suffix_is_refused(store, suffix):
    with pytest.raises(ValueError, match="expected `suffix` such as '.safetensors', got "):
        store.artifact("train", CONFIG, suffix)


def test_artifact_without_a_suffix_is_refused(store):
    with pytest.raises(TypeError, match="expected `suffix` a string, got NoneType"):
        store.artifact("train", {}, None)


def test_folder_in_place_of_an_artifact_is_reported_and_not_used(store):
    path = store.artifact("train", {}, ".bin")
    path.mkdir(parents=True)
    with pytest.warns(UserWarning, match="the artifact .* is not used: .*is missing"):
        assert read_artifact(path) is None
    path.with_name(f"{path.name}.sha256").write_text("0" * 64)
    with pytest.warns(UserWarning, match="the artifact .* is not used: Is a directory"):
        assert read_artifact(path) is None


@pytest.mark.parametrize("seconds", ["x", True, [1]])
def test_seconds_that_are_no_number_are_refused(store, seconds):
    with pytest.raises(TypeError, match="expected `seconds` a number, got "):
        store.put("train", {}, 1, seconds=seconds)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (None, "`tensors` a mapping of names to tensors, got NoneType"),
        ({"a": torch.zeros(1, dtype=torch.complex64)}, "`tensors` dense and real, got torch.complex64"),
        ({"a": torch.zeros(1).to_sparse()}, "`tensors` dense and real, got .* torch.sparse_coo for 'a'"),
        ({3: torch.zeros(1)}, "`tensors` of torch.Tensor by name, got Tensor for 3"),
    ],
)
def test_tensors_that_cannot_be_kept_are_refused_and_leave_nothing(tmp_path, tensors, message):
    with pytest.raises(TypeError, match=f"expected {message}"):
        save_tensors(tmp_path / "a.safetensors", tensors)
    assert not list(tmp_path.iterdir())


def test_tensors_come_back_bit_for_bit(store):
    path = store.artifact("train", CONFIG, ".safetensors")
    shared = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    save_tensors(path, {"a": shared.T, "b": shared.T, "n": torch.tensor(7)})
    loaded = load_tensors(path)
    assert_close(loaded, {"a": shared.T, "b": shared.T, "n": torch.tensor(7)}, rtol=0, atol=0)


def test_every_flipped_bit_of_an_artifact_is_noticed(store):
    path = store.artifact("train", CONFIG, ".bin")
    write_artifact(path, b"weights")
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert not is_whole(path)
        with pytest.warns(UserWarning, match="is not used: its checksum does not fit"):
            assert read_artifact(path) is None
    path.write_bytes(content)
    assert read_artifact(path) == b"weights"


def test_every_flipped_bit_of_the_checksum_and_of_the_name_beside_it_is_noticed(store):
    path = store.artifact("train", CONFIG, ".bin")
    write_artifact(path, b"weights")
    sidecar = path.with_name(f"{path.name}.sha256")
    content = sidecar.read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        sidecar.write_bytes(flipped)
        assert not is_whole(path)
        with pytest.warns(UserWarning, match="is not used: its checksum does not fit"):
            assert read_artifact(path) is None
    sidecar.write_bytes(content)
    assert is_whole(path)


def test_artifact_without_its_checksum_is_not_used(store):
    path = store.artifact("train", CONFIG, ".safetensors")
    save_tensors(path, {"a": torch.ones(2)})
    path.with_name(f"{path.name}.sha256").unlink()
    with pytest.warns(UserWarning, match=r"safetensors\.sha256 is missing"):
        assert load_tensors(path) is None
    seal(path)
    assert_close(load_tensors(path), {"a": torch.ones(2)})


def test_absent_artifact_is_none_without_a_word(store):
    assert load_tensors(store.artifact("train", CONFIG, ".safetensors")) is None


def test_artifact_that_is_no_safetensors_is_not_used(store):
    path = store.artifact("train", CONFIG, ".safetensors")
    write_artifact(path, b"not tensors at all")
    with pytest.warns(UserWarning, match="is not used: "):
        assert load_tensors(path) is None


def test_cells_are_listed_without_torch():
    code = "import sys, fcal.sweeps; assert not {'torch', 'rich', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
