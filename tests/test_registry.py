"""Choice by name."""

import pytest

from fcal._registry import Registry


def test_registry_lists_in_order_and_suggests():
    known: Registry[int] = Registry("colour")
    known.add("red", 1)
    known.add("green", 2)
    assert known.names() == ["red", "green"]
    with pytest.raises(
        ValueError, match=r"expected `colour` one of 'red', 'green', got 'gren' \(did you mean 'green'\?\)"
    ):
        known["gren"]
    with pytest.raises(ValueError, match=r"got \['red'\]"):
        known[["red"]]
    with pytest.raises(TypeError, match="expected `colour` a named function"):
        known.entry(3)
