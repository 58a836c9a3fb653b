"""TOML to dataclass."""

import math
import tomllib
from dataclasses import dataclass, field
from typing import Any

import pytest

from fcal._config import as_plain, difference, read_config, to_toml, with_overrides


@dataclass(frozen=True, kw_only=True)
class Run:
    name: str
    steps: int = 10
    lam: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Part:
    epochs: int = 3
    limit: float = 0.0

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"expected `epochs` >= 1, got {self.epochs}")


@dataclass(frozen=True, kw_only=True)
class Whole:
    part: Part = field(default_factory=Part)
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0


def write(tmp_path, text: str):
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_config_reads_values_and_keeps_defaults(tmp_path):
    assert read_config(write(tmp_path, 'name = "a"\nlam = 1\n'), Run) == Run(name="a", steps=10, lam=1.0)


def test_nested_config_reads_tables_and_lists(tmp_path):
    text = "[part]\nlimit = 4\n[options]\nrates = [1, 2.5]\ndeep = {a = [1]}"
    expected = Whole(part=Part(limit=4.0), options={"rates": [1, 2.5], "deep": {"a": [1]}})
    assert read_config(write(tmp_path, text), Whole) == expected


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[part]\nepoch = 3", r"run.toml: part` keys among 'epochs', .* got 'epoch' \(did you mean 'epochs'\?\)"),
        ("part = 3", "run.toml: part` of type table, got 3"),
        ("options = 3", "options` of type table, got 3"),
        ("[options]\nday = 2020-01-01", "options.day` a string, number, boolean, None, list or mapping, got date"),
        ('[part]\nlimit = "x"', "part: limit` of type float, got 'x'"),
        ("[part]\nepochs = 0", "expected `epochs` >= 1, got 0"),
    ],
)
def test_bad_nested_config_is_refused_with_the_dotted_key(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_config(write(tmp_path, text), Whole)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[part]\nlimit = nan", "run.toml: part.limit` a finite number, got nan"),
        ("[options]\nrates = [1.0, -inf]", r"options.rates\[1\]` a finite number, got -inf"),
        ("[options.deep]\nlist = [1, {x = inf}]", r"options.deep.list\[1\].x` a finite number, got inf"),
        ("[options]\na = " + "[" * 60 + "]" * 60, "nested at most 50 deep, got more"),
        ("seed = " + "[" * 100_000, "run.toml` nested at most 50 deep, got more"),
        (f"[part]\nlimit = 1{'0' * 400}", "part: limit` a finite number, got one of 401 digits"),
        (f"seed = 1{'0' * 5000}", "run.toml` to be TOML, got: "),
        (f"seed = '{'x' * 5000}'", r"seed` of type int, got 'x{79}\.\.\. \(5002 characters\)$"),
        (f"{'k' * 5000} = 1", r"got 'k{79}\.\.\. \(5002 characters\)$"),
        ("seed = 0 #" + "x" * (1 << 20), "a config of at most 1048576 bytes, got more"),
        ("[part]\nepochs = 0", "run.toml: part: expected `epochs` >= 1, got 0"),
    ],
)
def test_config_that_could_not_be_written_or_said_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_config(write(tmp_path, text), Whole)


def test_config_without_an_end_is_refused():
    with pytest.raises(ValueError, match="expected `/dev/zero` a config of at most 1048576 bytes, got more"):
        read_config("/dev/zero", Whole)


def test_config_may_begin_with_a_byte_order_mark(tmp_path):
    assert read_config(write(tmp_path, "\ufeffseed = 4"), Whole) == Whole(seed=4)


def test_name_that_no_file_can_have_is_refused():
    with pytest.raises(ValueError, match="a file to read, got no name of one"):
        read_config("a\0b", Whole)


def test_missing_config_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a file to read, got: No such file"):
        read_config(tmp_path / "absent.toml", Run)


def test_overrides_reach_what_is_nested_and_leave_the_rest():
    config = Whole(options={"a": 1}, seed=3)
    changed = with_overrides(
        config, ["part.epochs=7", "part.limit=1", "options.b.c = 2", "options.names=['x', 'y']", "options.d=plain text"]
    )
    assert changed == Whole(
        part=Part(epochs=7, limit=1.0),
        options={"a": 1, "b": {"c": 2}, "names": ["x", "y"], "d": "plain text"},
        seed=3,
    )
    assert config == Whole(options={"a": 1}, seed=3)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("part.epoch=3", r"expected `config: part` keys among 'epochs', .* \(did you mean 'epochs'\?\)"),
        ("prt.epochs=3", r"expected `config` keys among .*, got 'prt' \(did you mean 'part'\?\)"),
        ("sed=3", r"expected `config` keys among .* \(did you mean 'seed'\?\)"),
        ("seed.deep=3", "expected `seed` a table, got 0"),
        ("part.epochs=x", "expected `config: part: epochs` of type int, got 'x'"),
        ("part.epochs", "expected `--set` of the form key=value, got 'part.epochs'"),
        ("=3", "expected `--set` of the form key=value, got '=3'"),
        ("seed=1\nname=2", "expected `config: seed` of type int, got"),
        ("part.limit=nan", "expected `config: part.limit` a finite number, got nan"),
        ("options.a=[inf]", r"expected `config: options.a\[0\]` a finite number, got inf"),
        ("options.a=" + "[" * 100_000, "expected `--set` with a value nested at most 50 deep"),
        ("options.a=" + "[" * 60 + "]" * 60, "nested at most 50 deep, got more"),
        ("options" + ".a" * 5000 + "=1", "expected `--set` with a key nested at most 50 deep, got 5000"),
        (f"part.limit=1{'0' * 400}", "part: limit` a finite number, got one of 401 digits"),
        (f"seed=1{'0' * 5000}", "expected `config: seed` of type int, got '10000"),
    ],
)
def test_bad_override_is_refused(assignment, message):
    with pytest.raises(ValueError, match=message):
        with_overrides(Whole(), [assignment])


@pytest.mark.parametrize(
    "config",
    [
        Whole(),
        Whole(part=Part(epochs=2, limit=-0.0), options={"rates": [1e-300, 1e300, 0.1, -5]}),
        Whole(options={"names": ["", 'q"uote', "tab\t", "\x7f", "ü→𝛌", "\\"]}),
        Whole(options={"strange key": {"in.ner": [1, {"x": True}]}, "empty": {}, "list": [[1, 2], []]}),
    ],
)
def test_toml_round_trip(tmp_path, config):
    assert read_config(write(tmp_path, to_toml(config)), Whole) == config


def test_toml_of_infinite_numbers():
    assert tomllib.loads(to_toml({"a": math.inf, "b": -math.inf})) == {"a": math.inf, "b": -math.inf}


def test_plain_config_is_what_json_and_toml_can_say():
    assert as_plain(Whole(options={"pair": ("a", 1), "none": None})) == {
        "part": {"epochs": 3, "limit": 0.0},
        "options": {"pair": ["a", 1], "none": None},
        "seed": 0,
    }
    with pytest.raises(TypeError, match="scalars, lists and tables, got object"):
        as_plain(Whole(options={"a": object()}))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Whole(), Whole(), None),
        (Whole(), Whole(part=Part(epochs=4)), ("part.epochs", 3, 4)),
        (Whole(part=Part(limit=1.0)), Whole(), ("part.limit", 1.0, 0.0)),
        (Whole(options={"a": {"b": 1}}), Whole(options={"a": {"b": 1, "c": 2}}), ("options.a.c", None, 2)),
        (Whole(options={"a": 1}), Whole(options={"a": 1.0}), ("options.a", 1, 1.0)),
        (Whole(options={"a": (1.0,)}), Whole(options={"a": [1.0, 2.0]}), ("options.a", [1.0], [1.0, 2.0])),
        ({"a": math.nan}, {"a": math.nan}, None),
    ],
)
def test_difference_names_the_first_key(one, other, expected):
    assert difference(one, other) == expected
