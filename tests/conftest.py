"""What holds for all tests."""

import signal

import pytest

from fcal import data, models

# A shell starts what it runs in the background without Ctrl-C; tests press it themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def names_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks and data that a test registers are unknown to the next."""
    for room in (models, data):
        monkeypatch.setattr(room._FACTORIES, "_entries", dict(room._FACTORIES._entries))
