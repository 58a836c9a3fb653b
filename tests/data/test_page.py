"""The Bokeh page: its code, its pictures and its table of speeds."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/bokeh.md").read_text()
SCRIPT = ROOT / "experiments/pictures/run.py"


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False, cwd=ROOT)


def test_examples_of_the_page_run_and_print_what_it_says():
    blocks = re.findall(r"```python\n((?!# own_row.py).*?)```", PAGE, re.DOTALL)
    result = run("-W", "error", "-c", "\n".join(blocks))
    assert result.returncode == 0, result.stderr
    said = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert len(said) == 2
    assert "".join(said) == result.stdout


def test_script_draws_every_picture_of_the_page(tmp_path):
    result = run("-W", "error", SCRIPT, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn >= set(re.findall(r"\(pictures/(.*?)\)", PAGE)) != set()
    for name in drawn:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert (ROOT / "docs/pictures" / name).exists()


def test_script_refuses_a_folder_that_it_cannot_write_to(tmp_path):
    (tmp_path / "file").write_text("")
    result = run(SCRIPT, "--out", tmp_path / "file")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_bench_writes_a_row_per_claim(tmp_path):
    result = run(ROOT / "bench/data.py", "--shrink", 100, "--out", tmp_path / "out.json")
    assert result.returncode == 0, result.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert len(rows) == 4
    assert all(math.isfinite(row["ratio"]) for row in rows)


def test_page_quotes_the_committed_speeds():
    assert (ROOT / "docs/results/bench/data.md").read_text() in PAGE
    rows = json.loads((ROOT / "docs/results/bench/data.json").read_text())["rows"]
    assert all(row["met"] for row in rows)
