"""The toys are known by name, and forgotten after each test."""

import pytest
from training import toys

from fcal import data, models


@pytest.fixture(autouse=True)
def _toys_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (models, data):
        monkeypatch.setattr(room._FACTORIES, "_entries", dict(room._FACTORIES._entries))
    toys.register()
