"""A benchmark that is killed or interrupted at random moments, or runs out of disk, loses nothing."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fcal._files import is_temporary

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3000)]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
WORDS = [
    sys.executable,
    "-m",
    "fcal",
    "benchmark",
    "bokeh",
    "--preset",
    "tiny",
    "--methods",
    "nll,temperature,isotonic",
]
KILLS = 10
TIMES = ("seconds", "train_s", "search_s", "predict_ms")


def started(out: Path, **options) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*WORDS, "--out", str(out), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True, **options,
    )  # fmt: skip


def finished(out: Path) -> float:
    """Run to the end; returns the seconds that it took."""
    start = time.monotonic()
    process = started(out)
    _, complaint = process.communicate()
    assert process.returncode == 0, complaint
    return time.monotonic() - start


def results(out: Path) -> dict[str, object]:
    """Results of all cells by their names; those that took another time are the same cell."""
    cells = {path.name: json.loads(path.read_text()) for path in (out / "cells").glob("*.json")}
    return {name: without_times(cell["result"]) for name, cell in cells.items()}


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def half_written(out: Path) -> list[Path]:
    return [path for path in out.rglob("*") if is_temporary(path.name)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, float]:
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, finished(out)


def test_killed_at_random_moments_the_table_is_the_undisturbed_one(whole, tmp_path):
    out, draw, kills = tmp_path / "run", random.Random(0), 0
    while kills < KILLS:
        process = started(out)
        try:
            process.communicate(timeout=draw.uniform(0.2, 1.0) * whole[1])
            assert results(out) == results(whole[0])  # it was faster
            shutil.rmtree(out)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
    finished(out)
    assert results(out) == results(whole[0])
    assert not half_written(out)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_ctrl_c_ends_a_benchmark_within_five_seconds_and_it_goes_on(whole, tmp_path, share):
    out = tmp_path / "run"
    process = started(out)
    time.sleep(share * whole[1])
    start = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    assert time.monotonic() - start < 5
    assert process.returncode == 130
    assert complaint.count("\n") == 1
    assert complaint.startswith("fcal: stopped")
    finished(out)
    assert results(out) == results(whole[0])
    assert not half_written(out)


def test_file_size_limit_in_the_middle_is_one_line_and_the_run_goes_on(whole, tmp_path):
    """No file may be larger than 20 kB: cells fit, weights do not."""
    out = tmp_path / "run"
    limit = (20_000, 20_000)

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    process = started(out, preexec_fn=limited)
    _, complaint = process.communicate(timeout=600)
    assert process.returncode not in (0, None)
    assert "Traceback" not in complaint
    assert not half_written(out)
    finished(out)
    assert results(out) == results(whole[0])
