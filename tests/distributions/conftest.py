"""Marks that SciPy's own tests carry, whose checks ``test_scipy_checks`` borrows."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    for name in ("fail_slow", "parallel_threads_limit", "skip_xp_backends", "slow", "thread_unsafe", "xslow"):
        config.addinivalue_line("markers", f"{name}: of SciPy's own tests")
