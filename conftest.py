"""Names that every doctest may use."""

import pytest
import torch

import fcal


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(torch=torch, fcal=fcal)
