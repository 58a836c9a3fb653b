"""The script that writes the docs of benchmarks from finished cells."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from claims_page import claims_page

from fcal.cli import main
from fcal.sweeps import read_cells

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"
METHODS = "oracle,nll,temperature,fcal_kl,oof_temperature,cv_plus"


def publish(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error::UserWarning", ROOT / "experiments/publish.py", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    words = ["benchmark", "bokeh", "--preset", "tiny", "--workers", "1", "--out", str(folder), "--json"]
    assert main([*words, "--methods", METHODS]) == 0
    return folder


def test_publish_writes_the_page_from_the_cells_alone(run, tmp_path):
    """Published once from a run, and once more from what was published: the same bytes."""
    first, second = tmp_path / "a/first", tmp_path / "b/second"
    done = publish("bokeh", "--run", run, "--out", first, "--preset", "tiny")
    assert done.returncode == 0, done.stderr
    second.mkdir(parents=True)
    (first / "bokeh").rename(second / "bokeh")
    again = publish("bokeh", "--run", tmp_path / "none", "--out", second, "--preset", "tiny")
    assert again.returncode == 0, again.stderr
    page = (first / "bokeh.md").read_bytes()
    assert (second / "bokeh.md").read_bytes() == page
    assert (tmp_path / "b/claims.md").read_bytes() == (tmp_path / "a/claims.md").read_bytes()
    assert "L1 is a smooth L1 (Huber's loss)" in page.decode()
    assert "Of one seed there is no standard deviation" in page.decode()
    pictures = re.findall(r"\]\((bokeh/[^)]*\.png)\)", page.decode())
    assert pictures
    assert all((second / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


def test_publish_shows_seeds_that_are_not_complete(run, tmp_path):
    done = publish("bokeh", "--run", run, "--out", tmp_path / "results", "--preset", "tiny", "--seeds", 3)
    assert done.returncode == 0, done.stderr
    (line,) = set(re.findall(r"^\| oracle \([^)]*\)", (tmp_path / "results/bokeh.md").read_text(), re.MULTILINE))
    assert line == "| oracle (1 of 3 seeds)"


def test_published_cells_are_sorted_checked_and_go_back_into_a_run(run, tmp_path):
    published = tmp_path / "results/bokeh/cells.jsonl"
    assert publish("bokeh", "--run", run, "--out", tmp_path / "results", "--preset", "tiny").returncode == 0
    lines = published.read_text().splitlines()
    stems = [record.stem for record in read_cells(published)]
    assert len(stems) == len(lines)
    assert stems == sorted(stems)
    assert all(re.fullmatch("[0-9a-f]{64}", json.loads(line)["sha256"]) for line in lines)
    back = tmp_path / "back"
    done = publish("bokeh", "--run", back, "--out", tmp_path / "results", "--restore")
    assert done.returncode == 0, done.stderr
    for stem in stems:
        restored, before = (json.loads((folder / "cells" / f"{stem}.json").read_text()) for folder in (back, run))
        assert restored == before


def test_publish_refuses_where_nothing_is_finished(tmp_path):
    done = publish("bokeh", "--run", tmp_path / "none", "--out", tmp_path / "results", "--preset", "tiny")
    assert done.returncode == 1
    assert "expected finished cells of bokeh, got none" in done.stderr
    assert not (tmp_path / "results/bokeh.md").exists()


@pytest.mark.parametrize("task", ["bokeh", "uci", "sensors", "depth", "detection"])
def test_committed_page_is_written_from_the_committed_cells(task, tmp_path):
    out = tmp_path / "results"
    (out / task).mkdir(parents=True)
    (out / task / "cells.jsonl").symlink_to(RESULTS / task / "cells.jsonl")
    done = publish(task, "--run", tmp_path / "none", "--out", out)
    assert done.returncode == 0, done.stderr
    assert (out / f"{task}.md").read_text() == (RESULTS / f"{task}.md").read_text()
    assert json.loads((out / task / "results.json").read_text()) == json.loads(
        (RESULTS / task / "results.json").read_text()
    )
    for part in RESULTS.glob(f"{task}/*.md"):  # of the page of claims
        assert (out / task / part.name).read_text() == part.read_text()


def test_committed_page_of_claims_is_that_of_the_committed_parts():
    assert (ROOT / "docs/claims.md").read_text() == claims_page(RESULTS)
    assert "Not tested yet." in claims_page(RESULTS / "nowhere")
