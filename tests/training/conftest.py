"""The toys are registered for each test and unregistered after it."""

import pytest
from training import toys


@pytest.fixture(autouse=True)
def _toys_are_known(names_forgotten: None) -> None:  # noqa: ARG001 - what is registered here is forgotten by it
    toys.register()
