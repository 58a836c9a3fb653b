"""The page on files: its code runs, its commands do what they say, and its table is that of the committed numbers."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fcal.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/files.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def test_code_and_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "files.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "over-confident 1." in printed
    assert "family of the noise: normal" in printed
    commands = [line for block in blocks("bash") for line in block.splitlines()]
    assert len(commands) == 7
    for command in commands:
        if "|" in command:
            fcal = f"{shlex.quote(sys.executable)} -m fcal"
            result = subprocess.run(
                ["sh", "-c", command.replace("fcal", fcal)], capture_output=True, text=True, check=True
            )
            printed = result.stdout
        else:
            assert main(shlex.split(command)[1:]) == 0, command
            printed = capsys.readouterr().out
        assert "over-confident" in printed, command
    (said,) = blocks("text")
    assert main(["evaluate", "samples.csv", "--quantiles", "s*"]) == 2
    assert capsys.readouterr().err == said


def test_table_of_the_page_is_that_of_the_numbers() -> None:
    sys.path.insert(0, str(ROOT))
    try:
        from experiments.samples import run
    finally:
        sys.path.remove(str(ROOT))
    lines = "\n".join(run.table(json.loads(run.OUT.read_text()))) + "\n"
    assert lines == (run.OUT.parent / "table.md").read_text()
    assert lines in PAGE
