"""The toys are known by name, and forgotten after each test."""

import pytest
from training import toys


@pytest.fixture(autouse=True)
def _toys_are_known(names_forgotten: None) -> None:  # noqa: ARG001 - what is registered here is forgotten by it
    toys.register()
