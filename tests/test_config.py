"""TOML to dataclass."""

from dataclasses import dataclass

import pytest

from fcal._config import read_config


@dataclass(frozen=True, kw_only=True)
class Run:
    name: str
    steps: int = 10
    lam: float = 0.5


def write(tmp_path, text: str):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_config_reads_values_and_keeps_defaults(tmp_path):
    assert read_config(write(tmp_path, 'name = "a"\nlam = 1\n'), Run) == Run(name="a", steps=10, lam=1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "a"\nstep = 3', r"keys among 'name', 'steps', 'lam', got 'step' \(did you mean 'steps'\?\)"),
        ("steps = 3", "to have the key 'name', got 'steps'"),
        ('name = "a"\nsteps = 3.5', "steps` of type int, got 3.5"),
        ('name = "a"\nsteps = true', "steps` of type int, got True"),
        ("name = ", "to be TOML, got: "),
        ("", "to have the key 'name', got none"),
    ],
)
def test_bad_config_is_refused_with_the_key(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_config(write(tmp_path, text), Run)


def test_missing_config_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a file to read, got: No such file"):
        read_config(tmp_path / "absent.toml", Run)
