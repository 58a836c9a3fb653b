"""The config file of one Bokeh network, on few small images."""

import json
from pathlib import Path

from fcal.cli import main

CONFIG = Path(__file__).parents[2] / "experiments/bokeh/train.toml"


def test_config_of_bokeh_trains_a_network(tmp_path, capsys):
    few = ["data.options.images=100", "data.options.size=16", "model.options.size=16", "fit.epochs=2"]
    words = [word for change in few for word in ("--set", change)]
    assert main(["train", str(CONFIG), "--out", str(tmp_path / "run"), "--json", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert {name: document[name] for name in report} == report
    assert (tmp_path / "run/weights.safetensors").is_file()
    assert (tmp_path / "run/recalibrator").is_dir()
