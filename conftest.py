"""What every test and doctest shares: names, and registries that forget what a test put into them."""

from collections.abc import Iterator

import pytest
import torch

import fcal
from fcal.distributions.family import _FAMILIES
from fcal.divergences import _DIVERGENCES


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(torch=torch, fcal=fcal)


@pytest.fixture(autouse=True)
def _registries_forget() -> Iterator[None]:
    stores: list[dict[object, object]] = [_FAMILIES, _DIVERGENCES._entries]  # type: ignore[list-item]
    before = [store.copy() for store in stores]
    yield
    for store, entries in zip(stores, before, strict=True):
        store.clear()
        store.update(entries)
