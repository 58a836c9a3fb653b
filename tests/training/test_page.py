"""The blocks of docs/training.md run in their order."""

import json
import math
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from fcal import data, models
from fcal._config import as_plain
from fcal.cli import main
from fcal.training import DataConfig, ModelConfig, ObjectiveConfig, RunConfig, objectives

PAGE = Path(__file__).parent.parent.parent / "docs" / "training.md"
BUILT_IN = [  # without those that benchmarks or other tests have added
    name for name in objectives.names() if objectives._FACTORIES[name].__module__ == objectives.__name__
]
BLOCKS = [block.partition("\n")[::2] for block in PAGE.read_text(encoding="utf-8").split("```")[1::2]]


def named(text: str) -> str | None:
    """The file name of a block, from a comment in its first line."""
    first = text.partition("\n")[0].removeprefix("# ")
    return first if first.endswith((".py", ".toml")) and " " not in first else None


@pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated", "ignore:The '.*' does not have many workers"
)
def test_blocks_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(objectives._FACTORIES, "_entries", dict(objectives._FACTORIES._entries))
    names: dict[str, object] = {}
    kinds = []
    for kind, text in BLOCKS:
        kinds.append(kind)
        name = named(text)
        if name is not None:
            Path(name).write_text(text, encoding="utf-8")
        elif kind == "python":
            exec(compile(text, str(PAGE), "exec"), names)
        elif kind == "shell":
            for line in text.strip().replace("\\\n", " ").splitlines():
                for registry in (models._FACTORIES, data._FACTORIES):  # each command is a process of its own
                    registry._entries.pop("my-net", None)
                    registry._entries.pop("waves", None)
                sys.modules.pop("fcal_plugin_my_plugin", None)
                assert main(shlex.split(line)[1:]) == 0, line
    capsys.readouterr()
    assert kinds.count("python") >= 6
    assert kinds.count("shell") == 1
    assert (tmp_path / "runs/waves/recalibrator").is_dir()
    assert (tmp_path / "runs/tuned/scales.safetensors").is_file()
    assert (tmp_path / "runs/theirs/best-ece_q.ckpt").is_file()


def test_defaults_on_the_page_are_the_defaults_of_every_key():
    (text,) = [text for _, text in BLOCKS if named(text) == "defaults.toml"]
    required = {"data": DataConfig(name="bokeh"), "model": ModelConfig(name="convnet")}
    assert tomllib.loads(text) == as_plain(RunConfig(**required))


def test_every_objective_is_on_the_page_with_options_that_exist():
    lines = PAGE.read_text(encoding="utf-8").partition("| `objective.name` |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[re.findall("`([^`]+)`", cell) for cell in line.strip("|").split("|")] for line in lines]
    assert [name for names, _, _ in rows for name in names] == BUILT_IN
    options = {field.name for field in fields(ObjectiveConfig)} - {"name"}
    assert {name for _, _, its in rows for name in its} == options


def test_page_quotes_the_committed_measurement():
    assert (PAGE.parent / "results/bench/training.md").read_text(encoding="utf-8") in PAGE.read_text(encoding="utf-8")


def test_bench_writes_a_row_per_claim(tmp_path):
    script = PAGE.parent.parent / "bench/training.py"
    words = [sys.executable, str(script), "--shrink", "1000", "--out", str(tmp_path / "out.json")]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert len(rows) == 6
    assert all(math.isfinite(row["ratio"]) for row in rows)
