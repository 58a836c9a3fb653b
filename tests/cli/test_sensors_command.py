"""``fcal benchmark sensors``, at its smallest."""

import json

import pytest
from benchmarks.sensors.made_up import write_all, write_laser

from fcal.benchmarks.sensors.settings import PRESETS, Settings
from fcal.cli import main


@pytest.fixture
def _small(monkeypatch):
    settings = Settings(tables=("laser",), rows=500, folds=2, inner_folds=2, hidden=8, steps=20, tune_steps=3, batch=64)
    monkeypatch.setitem(PRESETS, "tiny", settings)


def words(folder, out, *more):
    return [
        "benchmark",
        "sensors",
        "--data",
        str(folder),
        "--preset",
        "tiny",
        "--workers",
        "1",
        "--out",
        str(out),
        *more,
    ]


@pytest.mark.usefixtures("_small")
def test_sensors_prints_one_document_and_writes_table_and_picture(tmp_path, capsys):
    write_laser(tmp_path / "robot_known_noise")  # the folder that has it will do
    assert main(words(tmp_path, tmp_path / "out", "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["task"] == "sensors"
    (table,) = document["tables"]
    assert (table["sensor"], table["unit"]) == ("laser", "m")
    assert document["settings"]["rows"] == 500
    assert document["versions"]["torch"]
    assert json.loads((tmp_path / "out/results.json").read_text())["tables"] == document["tables"]
    assert (tmp_path / "out/sensors.png").read_bytes().startswith(b"\x89PNG")
    assert main(words(tmp_path, tmp_path / "out")) == 0  # from the cells
    out = capsys.readouterr().out
    assert "oof_fcal" in out
    assert "| *measured here* |" in out
    assert "Family of the noise, " in out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--preset", "huge"], "expected `preset` one of 'tiny', 'full', got 'huge'"),
        (["--sensors", "laser,lidar"], "expected `sensors` one of 'laser', 'range', 'bearing', 'gnss'"),
        (["--workers", "0"], "expected `workers` >= 1, got 0"),
        (["--data", "nowhere"], "expected `data` a folder with barfoot_ser/dataset1.mat, got nowhere, which has none"),
    ],
)
def test_sensors_refuses_in_one_line(more, message, tmp_path, capsys):
    write_all(tmp_path / "data")
    assert main(words(tmp_path / "data", tmp_path / "out", *more)) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not (tmp_path / "out").exists()


def test_sensors_refuses_a_damaged_file_in_one_line(tmp_path, capsys):
    path = write_laser(tmp_path)
    path.write_bytes(path.read_bytes()[:500])
    assert main(words(tmp_path, tmp_path / "out", "--sensors", "laser")) == 2
    captured = capsys.readouterr()
    assert "dataset1.mat" in captured.err
    assert captured.err.count("\n") == 1


def test_sensors_refuses_a_drive_that_is_too_short_to_hold_out_parts_of(tmp_path, capsys):
    write_laser(tmp_path, moments=100)
    assert main(words(tmp_path, tmp_path / "out", "--sensors", "laser")) == 2
    assert "expected laser readings in at least 12 stretches of time, got 2" in capsys.readouterr().err
