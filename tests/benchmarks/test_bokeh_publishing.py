"""The script that writes the docs of Bokeh from finished cells."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fcal.cli import main

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments/bokeh/publish.py"
RESULTS = ROOT / "docs/results"


def publish(*words, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error::UserWarning", SCRIPT, *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    words = ["benchmark", "bokeh", "--preset", "tiny", "--workers", "1", "--out", str(folder), "--json"]
    assert main(words) == 0
    return folder


def test_publish_writes_the_page_from_the_cells_alone(run, tmp_path):
    """Published once from a run, and once more from what was published: the same bytes."""
    first, second = tmp_path / "first", tmp_path / "second"
    done = publish("--run", run, "--out", first, "--claims", first / "claims.md", "--preset", "tiny")
    assert done.returncode == 0, done.stderr
    second.mkdir()
    (first / "bokeh").rename(second / "bokeh")
    again = publish("--run", tmp_path / "none", "--out", second, "--claims", second / "claims.md", "--preset", "tiny")
    assert again.returncode == 0, again.stderr
    page = (first / "bokeh.md").read_bytes()
    assert (second / "bokeh.md").read_bytes() == page
    assert (second / "claims.md").read_bytes() == (first / "claims.md").read_bytes()
    assert "L1 is a smooth L1 (Huber's loss)" in page.decode()
    assert "Of one seed there is no standard deviation" in page.decode()
    pictures = re.findall(r"\]\((bokeh/[^)]*\.png)\)", page.decode())
    assert pictures
    assert all((second / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


def test_publish_refuses_an_unfinished_table(tmp_path):
    done = publish("--run", tmp_path / "none", "--out", tmp_path, "--claims", tmp_path / "c.md", "--preset", "tiny")
    assert done.returncode == 1
    assert "expected all cells of 1 seeds, got none of oracle" in done.stderr
    assert not (tmp_path / "bokeh.md").exists()


@pytest.mark.skipif(not (RESULTS / "bokeh/results.json").is_file(), reason="no results of Bokeh in this checkout")
def test_committed_page_is_written_from_the_committed_cells(tmp_path):
    seeds = json.loads((RESULTS / "bokeh/results.json").read_text())["settings"]["seeds"]
    (tmp_path / "bokeh").mkdir()
    (tmp_path / "bokeh/cells").symlink_to(RESULTS / "bokeh/cells")
    done = publish("--run", tmp_path / "none", "--out", tmp_path, "--claims", tmp_path / "claims.md", "--seeds", seeds)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bokeh.md").read_text() == (RESULTS / "bokeh.md").read_text()
    assert (tmp_path / "claims.md").read_text() == (ROOT / "docs/claims.md").read_text()
