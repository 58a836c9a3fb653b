"""``fcal benchmark bokeh``, at its smallest."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fcal.cli import main

TINY = ["benchmark", "bokeh", "--preset", "tiny", "--noise", "homoscedastic", "--workers", "1"]
ROWS = ["oracle", "nll", "nll_all", "temperature"]


def test_benchmark_prints_one_document_and_writes_table_and_page(tmp_path, capsys):
    code = main([*TINY, "--methods", "oracle, nll,temperature", "--out", str(tmp_path), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert document["task"] == "bokeh"
    (table,) = document["tables"]
    assert sorted(table["rows"]) == sorted(ROWS)
    assert (table["noise"], table["regime"], table["bins"], table["df"]) == ("homoscedastic", "paper-like", 20, 75)
    assert table["paper"] == {}  # so few images say nothing beside the paper's
    assert document["versions"]["torch"]
    assert document["settings"]["images"] == 200
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["tables"] == document["tables"]
    page = (tmp_path / "report.html").read_text()
    assert "temperature" in page
    assert "http-equiv" in page.lower()
    assert "find the centre of the one red disc" in page
    assert "120 images to train on, 40 to choose by, 440 to test; one seed." in page
    assert "Ours beside the paper" not in page
    assert re.search(r'<td[^>]*title="floor of this row: [\d.]+; 95 % below [\d.]+">', page)


def test_benchmark_prints_a_table_for_people(tmp_path, capsys):
    assert main([*TINY, "--methods", "oracle", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "oracle" in out
    assert "S = 20, K = 75, n = 880" in out
    assert "calibrated model" in out
    assert "…" not in out
    assert "L1 is a smooth L1 (Huber's loss)" in out
    assert "Of one seed there is no standard deviation" in out
    assert "_all" not in out  # explained only where there is such a row
    assert "paper's S" not in out


def test_benchmark_explains_rows_of_all_images(tmp_path, capsys):
    assert main([*TINY, "--methods", "nll", "--out", str(tmp_path)]) == 0
    assert "Rows “..._all”, or “all data”, are also trained on the held-out data" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "papr"], "expected `preset` one of 'tiny', 'quick', 'paper', got 'papr' (did you mean 'paper'?)"),
        (["--methods", "nll,mdm"], "got 'mdm' (did you mean 'mmd'?)"),
        (["--noise", "gauss"], "expected `noise` one of 'homoscedastic', 'heteroscedastic', 'gamma', 'laplace'"),
        (["--regime", "easy"], "expected `regime` one of 'paper-like', 'noise-dominated', got 'easy'"),
        (["--seeds", "0"], "expected `seeds` >= 1, got 0"),
        (["--workers", "0"], "expected `workers` >= 1, got 0"),
        (["--ablation", "kk"], "expected `ablation` one of 'k', 'gamma', 'lambda', 'divergence', got 'kk'"),
        (["--ablation", "k", "--methods", "nll"], "expected `--ablation` without `--methods`"),
    ],
)
def test_benchmark_refuses_in_one_line(words, message, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["benchmark", "bokeh", "--preset", "tiny", "--out", str(out), *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not out.exists()


def test_benchmark_refuses_a_file_as_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert main([*TINY, "--methods", "oracle", "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_benchmark_interrupted_keeps_what_is_finished(tmp_path):
    """Ctrl-C in the middle: exit 130, no process left, and the next run goes on from the finished cells."""
    words = [sys.executable, "-m", "fcal", *TINY, "--methods", "oracle,nll,fcal_kl", "--out", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    cells = tmp_path / "cells"
    deadline = time.monotonic() + 120
    while not list(cells.glob("[!.]*.json")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    finished = {path.name: path.read_bytes() for path in cells.glob("[!.]*.json")}
    if process.returncode != 0:  # it may have been done already
        assert process.returncode == 130
        told = "fcal: stopped; finished cells are kept: the same command resumes the run"
        assert complaint.strip().splitlines()[-1] == told
    assert finished
    assert main([*words[3:]]) == 0
    assert {name: Path(cells / name).read_bytes() for name in finished} == finished


def test_benchmark_ablation_prints_writes_and_draws(tmp_path, capsys):
    words = ["benchmark", "bokeh", "--preset", "tiny", "--ablation", "divergence", "--workers", "1", "--json"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ablation"] == "divergence"
    assert (tmp_path / "ablation-divergence.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "ablation-divergence.json").read_text())["series"] == document["series"]


def test_benchmark_says_once_and_plainly_that_a_cell_is_damaged(tmp_path, capsys):
    words = [*TINY, "--methods", "oracle", "--out", str(tmp_path), "--json"]
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    (cell,) = (tmp_path / "cells").glob("[!.]*.json")
    cell.write_text(cell.read_text().replace('"l1_gt": [0.0]', '"l1_gt": [0.5]'))
    assert main(words) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["tables"][0]["rows"]["oracle"]["l1_gt"] == {"mean": 0.0, "sd": None}
    assert json.loads(captured.out)["tables"] == first["tables"]
    assert captured.err.startswith("fcal: warning: ")
    assert captured.err.count("\n") == 1
