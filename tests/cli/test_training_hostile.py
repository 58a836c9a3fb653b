"""Hostile input to ``fcal train``: one line, the right exit code, and one document on stdout or nothing."""

import errno
import json
import os
import re
import sys
from pathlib import Path

import pytest

from fcal.cli import main

TOYS = Path(__file__).parent.parent / "training" / "toys.py"
pytestmark = pytest.mark.usefixtures("names_forgotten")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A command that works."""
    from training.toys import CONFIG

    (tmp_path / "waves.toml").write_text(CONFIG)
    (tmp_path / "plugin.py").write_text(TOYS.read_text() + "\nregister()\n")
    files = [str(tmp_path / name) for name in ("waves.toml", "plugin.py", "run")]
    return ["train", files[0], "--plugin", files[1], "--out", files[2], "--set", "fit.epochs=1"]


def complaint(capsys) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit(0)", "raised SystemExit: 0"),
        ("def", "raised SyntaxError: "),
        ("1 / 0", "raised ZeroDivisionError: division by zero"),
        ("import no_such_module", "evil.py: No module named 'no_such_module'"),
        ("raise ValueError('\\nbad')", "raised ValueError: bad"),
    ],
)
def test_plugin_that_fails_is_named(words, tmp_path, capsys, code, message):
    (tmp_path / "evil.py").write_text(code)
    assert main([*words, "--plugin", str(tmp_path / "evil.py")]) == 2
    err = complaint(capsys)
    assert f"expected `--plugin` a module to import, got {tmp_path / 'evil.py'}" in err
    assert message in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["", ".evil", "../p/empty", "a..b", "x" * 5000 + "!", "x" * 5000 + ".py", "a\0b.py"])
def test_plugin_with_an_impossible_name_is_refused(words, capsys, name):
    assert main([*words, "--plugin", name]) == 2
    err = complaint(capsys)
    assert err.startswith("fcal: expected `--plugin` a ")
    assert len(err) < 400


def test_json_is_one_document_whatever_a_plugin_prints(words, tmp_path, capsys):
    chatty = "\nprint('hello')\nclass Chatty(Net):\n    def forward(self, x):\n        print('step')\n"
    chatty += "        return super().forward(x)\nmodels.register('chatty', Chatty)\n"
    (tmp_path / "chatty.py").write_text(TOYS.read_text() + chatty)
    more = ["--plugin", str(tmp_path / "chatty.py"), "--set", "model.name=chatty", "--json"]
    assert main([*words, *more]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["config"]["model"]["name"] == "chatty"
    assert set(err.splitlines()) == {"hello", "step"}


def test_network_that_exits_is_an_error(words, tmp_path, capsys):
    leaving = "\nimport sys\nclass Leaving(Net):\n    def forward(self, x):\n        sys.exit(0)\n"
    (tmp_path / "leaving.py").write_text(TOYS.read_text() + leaving + "models.register('leaving', Leaving)\n")
    assert main([*words, "--plugin", str(tmp_path / "leaving.py"), "--set", "model.name=leaving"]) == 1
    assert "expected a training that ends by itself, got sys.exit(0)" in complaint(capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--out", ""], "expected `--out` the name of a folder, got ''"),
        (["--out", "x" * 300], "File name too long"),
        (["--set", f"fit.learning_rate=1{'0' * 400}"], "learning_rate` a finite number, got one of 401 digits"),
        (["--set", "model.options.a=" + "[" * 100_000], "nested at most 50 deep"),
        (["--set", "model.options." + "k" * 100_000 + "=1"], "got 'kkk"),
        (["--set", "objective.beta=nan"], "objective.beta` a finite number, got nan"),
        (["--set", "fit.seed=-1"], "fit: expected `seed` >= 0"),
    ],
)
def test_hostile_arguments_are_one_short_line_and_exit_code_2(words, tmp_path, capsys, monkeypatch, more, message):
    monkeypatch.chdir(tmp_path)
    assert main([*words, *more]) == 2
    err = complaint(capsys)
    assert re.search(re.escape(message), err), err
    assert len(err) < 1000


def test_file_system_that_is_read_only_is_bad_input(words, capsys, monkeypatch):
    def refuse(path, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert main(words) == 2
    assert "Read-only file system" in complaint(capsys)


def test_failed_run_leaves_no_folder(words, tmp_path, capsys):
    assert main([*words, "--set", "model.options.deterministic=true"]) == 2
    assert complaint(capsys)
    assert not (tmp_path / "run").exists()
    assert main(words) == 0


def test_long_error_is_truncated(words, capsys):
    assert main([*words[:1], "x" * 100_000, *words[2:]]) == 2
    assert len(complaint(capsys)) < 2100


def test_plugin_may_import_its_neighbours(words, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "neighbour_of_a_plugin.py").write_text("WORD = 1\n")
    plugin = tmp_path / "plugin.py"
    plugin.write_text("from neighbour_of_a_plugin import WORD\n" + plugin.read_text())
    assert main(words) == 0
