"""``fcal benchmark uci``, on made-up tables and, where they are, on real ones."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from uci_tables import DATA, write_table

from fcal.cli import main

QUICK = ["--preset", "tiny", "--datasets", "yacht", "--workers", "1"]


@pytest.fixture
def tables(tmp_path):
    return write_table(tmp_path / "tables", rows=80)


def words_for(tables, out, *further):
    return ["benchmark", "uci", "--data", str(tables), "--out", str(out), *QUICK, *further]


def test_benchmark_prints_one_document_and_writes_table_and_page(tables, tmp_path, capsys):
    out = tmp_path / "out"
    rows = "temperature, oof_temperature,cv_plus_absolute"
    assert main(words_for(tables, out, "--methods", rows, "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["task"] == "uci"
    assert [(one["dataset"], one["network"], one["splits"]) for one in document["tables"]] == [
        ("yacht", "1x50", 2),
        ("yacht", "2x64", 2),
    ]
    first, second = document["tables"]
    assert list(first["rows"]) == ["temperature", "oof_temperature"]  # CV+ is a row of the larger network alone
    assert list(second["rows"]) == ["temperature", "oof_temperature", "cv_plus_absolute"]
    assert first["published"]["ll"] == {"mean": -1.25, "se": 0.01}
    assert second["rows"]["cv_plus_absolute"]["ll"] == {"mean": None, "sd": None}
    row = first["rows"]["temperature"]
    assert row["ll"]["mean"] == pytest.approx(sum(row["seeds"]["ll"]) / 2)
    assert set(first["floors"]) == {"ece_z", "ece_q"}
    assert document["settings"]["splits"] == {"1x50": 2, "2x64": 2}
    assert json.loads((out / "results.json").read_text())["tables"] == document["tables"]
    page = (out / "report.html").read_text()
    assert "Yacht, network 2x64" in page
    assert "says nothing about methods" in page


def test_benchmark_prints_tables_for_people(tables, tmp_path, capsys):
    assert main(words_for(tables, tmp_path / "out", "--methods", "nll,temperature,oof_temperature")) == 0
    out = capsys.readouterr().out
    assert "yacht, network 1x50" in out
    assert "S = 5, K = 5, n = 8" in out
    assert "published, MC dropout" in out
    assert "calibrated model" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "fll"], "expected `preset` one of 'tiny', 'quick', 'full', got 'fll' (did you mean 'full'?)"),
        (["--datasets", "yacht,boston"], "expected `datasets` of concrete, energy, kin8nm, naval, power, protein"),
        (["--networks", "3x64"], "expected `networks` of 1x50, 2x64, got '3x64'"),
        (["--methods", "temprature"], "got 'temprature' (did you mean 'temperature'?)"),
        (["--methods", "isotonic", "--networks", "1x50"], "in the table of yacht 1x50, got isotonic"),
        (["--datasets", "wine"], "wine-quality-red/data/data.txt, got no such file"),
        (["--data", "nowhere"], "expected `data` a folder of UCI tables (concrete/data/data.txt, ...), got nowhere"),
        (["--workers", "0"], "expected `workers` >= 1, got 0"),
    ],
)
def test_benchmark_refuses_in_one_line(tables, words, message, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([*words_for(tables, out), *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not out.exists()


def test_benchmark_needs_a_folder_of_data(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["benchmark", "uci"])
    assert stop.value.code == 2
    assert "--data" in capsys.readouterr().err


def test_benchmark_refuses_values_that_are_not_finite(tables, tmp_path, capsys):
    path = tables / "yacht/data/data.txt"
    path.write_text(path.read_text().replace(path.read_text().split()[0], "nan", 1))
    assert main(words_for(tables, tmp_path / "out")) == 2
    assert "of finite numbers, got others in line 1" in capsys.readouterr().err


def test_benchmark_killed_goes_on_from_what_is_finished(tables, tmp_path, capsys):
    """Killed, not asked to stop, after its first cells: the next run has them as they are, and the same numbers."""
    words = words_for(tables, tmp_path / "out", "--methods", "nll,temperature,oof_temperature", "--json")
    process = subprocess.Popen(
        [sys.executable, "-m", "fcal", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    cells, deadline = tmp_path / "out/cells", time.monotonic() + 120
    while not list(cells.glob("[!.]*.json")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    finished = {path.name: path.read_bytes() for path in cells.glob("[!.]*.json")}
    assert finished
    assert main(words) == 0
    resumed = json.loads(capsys.readouterr().out)["tables"]
    assert {name: (cells / name).read_bytes() for name in finished} == finished
    assert main(words_for(tables, tmp_path / "again", *words[-3:])) == 0
    whole = json.loads(capsys.readouterr().out)["tables"]
    for one, two in zip(resumed, whole, strict=True):
        for row in one["rows"]:
            assert one["rows"][row]["seeds"]["ll"] == two["rows"][row]["seeds"]["ll"]


def test_other_data_are_another_result(tables, tmp_path, capsys):
    """A value that changes is not answered from the store."""
    words = words_for(tables, tmp_path / "out", "--methods", "nll", "--networks", "1x50", "--json")
    assert main(words) == 0
    before = json.loads(capsys.readouterr().out)["tables"][0]["rows"]["nll"]["seeds"]["ll"]
    other = write_table(tmp_path / "other", rows=80, seed=1)
    assert main([*words, "--data", str(other)]) == 0
    assert json.loads(capsys.readouterr().out)["tables"][0]["rows"]["nll"]["seeds"]["ll"] != before


def test_benchmark_runs_on_the_real_table(tmp_path, capsys):
    if not (DATA / "uci_gal/yacht").is_dir():
        pytest.skip(f"no UCI tables in {DATA}; set FCAL_DATA")
    assert main(words_for(DATA, tmp_path, "--networks", "1x50", "--methods", "nll,temperature", "--json")) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert table["n_test"] == 31
    # The targets' sd is 15: after 15 epochs the network knows something of them.
    assert table["rows"]["nll"]["rmse"]["mean"] < 5
