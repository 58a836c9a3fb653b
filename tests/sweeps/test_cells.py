"""The address of a cell."""

import hashlib
import json
from enum import StrEnum

import pytest

from fcal.sweeps import key


class Noise(StrEnum):
    GAMMA = "gamma"


def test_key_is_the_sha256_of_canonical_json_written_by_hand():
    config = {"seed": 3, "lam": 0.1, "noise": "gamma", "warm": True, "none": None, "sizes": [64, 1.5], "ä": {"b": 1e-7}}
    text = (
        '{"config":{"lam":0.1,"noise":"gamma","none":null,"seed":3,"sizes":[64,1.5],"warm":true,"\\u00e4":{"b":1e-07}},'
        '"kind":"train"}'
    )
    assert key("train", config) == hashlib.sha256(text.encode("ascii")).hexdigest()[:20]


def test_key_stays_what_committed_cells_are_named_by():
    # From `printf '{"config":{"seed":0},"kind":"train"}' | sha256sum`.
    assert key("train", {"seed": 0}) == "dfd5b704e065cdd49471"


def test_key_does_not_depend_on_how_the_same_values_are_written():
    one = {"a": 1, "b": {"c": [1, 2.0], "d": "gamma"}}
    two = {"b": {"d": Noise.GAMMA, "c": (1.0, 2)}, "a": 1.0}
    assert key("train", one) == key("train", two) == key("train", json.loads(json.dumps(two)))


@pytest.mark.parametrize(
    "config",
    [{"a": True}, {"a": "1"}, {"a": [1]}, {"a": 1.0000001}, {"a": None}, {"b": 1}, {"a": 1, "b": None}, {"a": -1}],
)
def test_key_tells_configs_apart(config):
    assert key("train", config) != key("train", {"a": 1})


def test_key_depends_on_the_kind():
    assert key("train", {}) != key("evaluate", {})


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"a": {"b": [0, float("inf")]}}, ValueError, r"expected `config\.a\.b\[1\]` a finite number, got inf"),
        ({"a": object()}, TypeError, r"expected `config\.a` a string, number, boolean, .*, got object"),
        ({1: 2}, TypeError, "expected `config` with string keys, got 1"),
        ([1], TypeError, "expected `config` a mapping, got list"),
    ],
)
def test_what_is_not_plain_is_refused_by_its_path(config, error, message):
    with pytest.raises(error, match=message):
        key("train", config)


def test_config_inside_itself_is_refused():
    config: dict = {}
    config["self"] = config
    with pytest.raises(ValueError, match="nested at most 50 deep"):
        key("train", config)


def test_kind_without_a_name_is_refused():
    with pytest.raises(ValueError, match="expected `kind` a string that is not empty, got ''"):
        key("", {})
