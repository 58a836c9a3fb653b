"""Cells in processes: order, failures, interruptions; nothing is lost and nothing stays behind."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from sweeps.jobs import calls, cell, job, long_run

from fcal._files import held
from fcal.sweeps import Cell, Store, run

TESTS = Path(__file__).parents[1]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cells")


def diamond():
    """Three parts and their total, which is asked for first."""
    parts = [cell(f"p{i}", value=i) for i in range(3)]
    total = cell("total", do="total", needs=parts, parts=[[f"p{i}", i] for i in range(3)], kind="total")
    return total, parts


@pytest.mark.parametrize("workers", [1, 2])
def test_needs_come_first_and_everything_is_computed_once(store, workers):
    total, parts = diamond()
    outcomes = run([total, *parts, total], job, store=store, workers=workers)
    assert list(outcomes) == [total, *parts]
    assert {outcome.status for outcome in outcomes.values()} == {"done"}
    assert outcomes[total].result == {"value": 3}
    names, processes = calls(store)
    assert sorted(names) == ["p0", "p1", "p2", "total"]
    assert names[-1] == "total"
    assert (os.getpid() in processes) == (workers == 1)

    again = run([total, *parts], job, store=store, workers=workers)
    assert {outcome.status for outcome in again.values()} == {"stored"}
    assert again[total].result == {"value": 3}
    assert len(calls(store)[0]) == 4


def test_what_finished_cells_needed_is_not_computed(store):
    total, parts = diamond()
    store.put(total.kind, total.config, {"value": 3})
    outcomes = run([total], job, store=store, workers=1)
    assert [outcome.status for outcome in outcomes.values()] == ["stored"]
    assert calls(store)[0] == []
    assert store.get(parts[0].kind, parts[0].config) is None


@pytest.mark.parametrize("damaged", [False, True])
def test_cell_is_computed_again_where_its_artifact_is_missing_and_needed(store, damaged):
    weights = cell("weights", do="weights", artifacts=[".bin"])
    first, second = (cell(name, value=1, needs=[weights]) for name in ("first", "second"))
    run([first], job, store=store, workers=1)
    artifact = store.artifact(weights.kind, weights.config, ".bin")
    if damaged:
        artifact.write_bytes(b"weighty")
    else:
        artifact.unlink()
    run([weights, first], job, store=store, workers=1)
    assert calls(store)[0] == ["weights", "first"]  # nobody needs them now
    run([weights, first, second], job, store=store, workers=1)
    assert calls(store)[0] == ["weights", "first", "weights", "second"]
    assert artifact.read_bytes() == b"weights"


def test_damaged_cell_is_computed_again(store):
    part = cell("part", value=1)
    run([part], job, store=store, workers=1)
    path = store.record(part.kind, part.config).path
    path.write_text(path.read_text().replace('"value": 1', '"value": 2'))
    with pytest.warns(UserWarning, match="its checksum does not fit"):
        outcomes = run([part], job, store=store, workers=1)
    assert (outcomes[part].status, outcomes[part].result["value"]) == ("done", 1)


def failing(tmp_cells=()):
    bad = cell("bad", do="raise")
    child = cell("child", value=1, needs=[bad])
    grandchild = cell("grandchild", value=1, needs=[child, *tmp_cells])
    return bad, child, grandchild


@pytest.mark.parametrize("workers", [1, 2])
def test_cells_that_need_a_failed_one_fail_with_it_and_the_others_go_on(store, workers):
    good = [cell(f"good{i}", value=i) for i in range(3)]
    bad, child, grandchild = failing(good[:1])
    told = []
    outcomes = run(
        [grandchild, *good, child, bad], job, store=store, workers=workers, progress=False, on_outcome=told.append
    )
    assert outcomes[bad].reason == "ValueError: expected `lam` small, got a large one"
    assert "in _raise" in outcomes[bad].details
    assert outcomes[child].reason == f"it needs bad, which failed: {outcomes[bad].reason}"
    assert outcomes[grandchild].reason == f"it needs child, which failed: {outcomes[child].reason}"
    assert [outcomes[one].status for one in good] == ["done"] * 3
    assert len(told) == len(outcomes)
    assert store.get(bad.kind, bad.config) is None
    assert set(calls(store)[0]) == {"bad", "good0", "good1", "good2"}

    run([bad], job, store=store, workers=1)
    assert calls(store)[0].count("bad") == 2  # a failure is not a result: it is tried again


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("do", "reason"),
    [("nan", r"ValueError: expected `result.rows[1].ece` a finite number, got nan"), ("exit", "SystemExit: 3")],
)
def test_result_that_cannot_be_kept_and_exit_are_failures_of_the_cell(store, workers, do, reason):
    one, other = cell("one", do=do), cell("other", value=1)
    outcomes = run([one, other], job, store=store, workers=workers)
    assert (outcomes[one].status, outcomes[one].reason) == ("failed", reason)
    assert outcomes[other].status == "done"


def test_killed_process_is_reported_and_the_others_go_on(store):
    killed = [cell(f"killed{i}", do="kill") for i in range(3)]
    child = cell("child", value=0, needs=killed[:1])
    good = [cell(f"good{i}", value=i) for i in range(4)]
    outcomes = run([*killed, child, *good], job, store=store, workers=2)
    for one in killed:
        assert outcomes[one].reason == "its process was ended by signal 9 (SIGKILL; out of memory?)"
    assert outcomes[child].status == "failed"
    assert [outcomes[one].status for one in good] == ["done"] * 4


@pytest.mark.parametrize("workers", [1, 2])
def test_full_disk_stops_the_run_and_keeps_what_is_finished(store, workers):
    good = cell("good", value=1)
    full = cell("full", do="full", needs=[good])
    with pytest.raises(OSError, match="No space left on device.*the same run continues from there"):
        run([full, cell("later", value=1, needs=[full])], job, store=store, workers=workers)
    assert store.get(good.kind, good.config)["value"] == 1
    assert "later" not in calls(store)[0]


def test_each_process_has_one_thread_and_ours_keeps_its_own(store, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        here, there = cell("here", do="threads"), cell("there", do="threads")
        variable = cell("variable", value=0)
        assert run([here], job, store=store, workers=1)[here].result == {"threads": 1}
        outcomes = run([there, variable], job, store=store, workers=2)
        assert outcomes[there].result == {"threads": 1}
        assert outcomes[variable].result["threads"] == "1"
        assert torch.get_num_threads() == 2
        assert os.environ["OMP_NUM_THREADS"] == "2"
    finally:
        torch.set_num_threads(before)


def test_processes_are_started_once_and_stay_with_their_data(store):
    cells = [cell(f"{data}{i}", do="sleep", seconds=0.05, affinity=data) for i in range(6) for data in "ab"]
    run(cells, job, store=store, workers=2)
    of_process: dict[int, list[str]] = {}
    for name, process in zip(*calls(store), strict=True):
        of_process.setdefault(process, []).append(name[0])
    assert len(of_process) <= 2
    switches = sum(one != two for names in of_process.values() for one, two in pairwise(names))
    assert switches <= 2  # once for each process, when its own are done; in the order given it would be 10 or none


def test_held_lock_is_seen_by_others_and_freed_by_death(tmp_path):
    path = tmp_path / "locks" / "cell.lock"
    code = (
        "import sys, time; from pathlib import Path; from fcal._files import held\n"
        "with held(Path(sys.argv[1])) as ours: print(ours, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "True\n"
        assert path.read_text() == f"{holder.pid}\n"
        with held(path) as ours:
            assert not ours
        holder.kill()
    with held(path) as ours:
        assert ours
    assert not path.exists()


def test_lock_has_one_holder_at_a_time(tmp_path):
    path, inside, most = tmp_path / "cell.lock", [], []

    def hold():
        for _ in range(200):
            with held(path) as ours:
                if ours:
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1


def test_two_runs_on_one_store_share_the_work(store):
    cells = [cell(f"c{i}", do="sleep", seconds=0.2) for i in range(6)]
    found: list = [None, None]

    def share(i):
        found[i] = run(cells, job, store=store, workers=2, progress=False)

    threads = [threading.Thread(target=share, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(calls(store)[0]) == [f"c{i}" for i in range(6)]
    assert all(outcome.result == {"slept": 0.2} for outcomes in found for outcome in outcomes.values())
    statuses = [[outcomes[one].status for outcomes in found] for one in cells]
    assert all("done" in pair for pair in statuses)


def test_run_waits_for_a_cell_that_another_run_is_at(store):
    part = cell("part", value=1)
    entered = threading.Event()

    def compute_elsewhere():
        with held(store.lock(part.kind, part.config)) as ours:
            assert ours
            entered.set()
            time.sleep(0.7)
            store.put(part.kind, part.config, {"value": "theirs"})

    thread = threading.Thread(target=compute_elsewhere)
    thread.start()
    entered.wait(10)
    outcomes = run([part], job, store=store, workers=1)
    thread.join()
    assert (outcomes[part].status, outcomes[part].result) == ("stored", {"value": "theirs"})
    assert calls(store)[0] == []


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}


# A terminal sends Ctrl-C to the whole group; `kill` sends a signal to one process.
@pytest.mark.parametrize(
    ("name", "group"),
    [("SIGINT", False), ("SIGINT", True), ("SIGTERM", False), ("SIGTERM", True), ("SIGKILL", False)],
)
def test_interrupted_run_leaves_no_process_and_loses_nothing(store, name, group):
    command = [sys.executable, "-m", "sweeps.jobs", str(store.folder)]
    runner = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_until(lambda: sum(word.startswith("long") for word in calls(store)[0]) == 2)
        processes = set(calls(store)[1])
        start = time.monotonic()
        (os.killpg if group else os.kill)(runner.pid, getattr(signal, name))
        _, words = runner.communicate(timeout=20)
        wait_until(lambda: not any(alive(pid) for pid in processes), seconds=10)
        assert time.monotonic() - start < 10  # they would sleep for a minute
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(runner.pid, signal.SIGKILL)
    assert runner.returncode != 0
    assert words.count("Traceback") <= 1  # ours, not one for each process
    statuses = [store.get(one.kind, one.config) is not None for one in long_run()]
    assert statuses == [True, True, False, False, False, False]
    assert not list(store.folder.glob(".*"))
    with held(store.lock(long_run()[2].kind, long_run()[2].config)) as ours:
        assert ours


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"workers": 0}, ValueError, r"expected `workers` within \[1, 256\], got 0"),
        ({"workers": 2.0}, TypeError, "expected `workers` an int, got float 2.0"),
        ({"cells": ["part"]}, TypeError, "expected `cells` of Cell, got str"),
        ({"function": lambda *_: {}}, TypeError, "expected `function` one that can be imported by its name, got "),
        ({"function": None}, TypeError, "expected `function` callable, got NoneType"),
    ],
)
def test_bad_arguments_are_refused(store, change, error, message):
    arguments = {"cells": [cell("part", value=1)], "function": job, "workers": 2} | change
    cells, function = arguments.pop("cells"), arguments.pop("function")
    with pytest.raises(error, match=message):
        run(cells, function, store=store, **arguments)


def test_store_of_another_type_is_refused():
    with pytest.raises(TypeError, match="expected `store` a Store, got str"):
        run([], job, store="x")


@pytest.mark.parametrize("artifacts", [".pt", [3]])
def test_artifacts_that_are_no_list_of_suffixes_are_refused(artifacts):
    with pytest.raises(TypeError, match="expected `artifacts` a tuple of suffixes"):
        Cell("train", {}, artifacts=artifacts)


def test_needs_that_are_no_cells_are_refused():
    with pytest.raises(TypeError, match=r"expected `needs` of Cell, got \('part',\)"):
        Cell("train", {}, needs=["part"])


def test_function_that_new_processes_cannot_import_ends_the_run(store, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if Path(path).resolve() != TESTS])
    with pytest.raises(
        RuntimeError, match="expected `function` one that worker processes can import, got .*No module named 'sweeps'"
    ):
        run([cell("part", value=1), cell("other", value=1)], job, store=store, workers=2)


def test_cell_keeps_its_address_when_the_callers_config_changes():
    config = {"seed": 0}
    one = Cell("train", config)
    config["seed"] = 1
    assert one == Cell("train", {"seed": 0})


def test_no_bar_is_written_where_nobody_watches(store, capfd):
    run([cell("part", value=1)], job, store=store, workers=1)
    assert capfd.readouterr() == ("", "")


def test_bar_names_the_cells_at_work_on_a_terminal(store):
    ours, theirs = pty.openpty()
    code = (
        "import sys; from sweeps.jobs import *\n"
        "cells = [cell('first [red]', do='sleep', seconds=0.3), cell('bad', do='raise')]\n"
        "run(cells, job, store=Store(sys.argv[1]), workers=1)"
    )
    shown = environment() | {"TERM": "xterm", "COLUMNS": "120"}
    subprocess.run([sys.executable, "-c", code, store.folder], stderr=theirs, env=shown, check=True, timeout=60)
    os.close(theirs)
    text = ""
    with contextlib.suppress(OSError):  # the end of a terminal
        while chunk := os.read(ours, 10_000):
            text += chunk.decode()
    os.close(ours)
    assert "first [red]" in text
    assert "2/2" in text
    assert "(1 failed)" in text
