"""What every test and doctest shares: names, and registries that forget what a test put into them."""

from collections.abc import Iterator

import pytest
import torch
from torch.distributions import Distribution

import fcal
from fcal.distributions.family import _FAMILIES
from fcal.divergences import _DIVERGENCES


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(torch=torch, fcal=fcal)


@pytest.fixture(autouse=True)
def _validation_as_shipped() -> None:
    """Dynamo turns torch's validation of parameters off, once and for the whole process; no test depends on it."""
    Distribution.set_default_validate_args(__debug__)


@pytest.fixture
def _without_validation(_validation_as_shipped: None) -> None:
    """For tests that compile: dynamo cannot trace the validation, and does not turn it off again."""
    Distribution.set_default_validate_args(False)


@pytest.fixture(autouse=True)
def _registries_forget() -> Iterator[None]:
    stores: list[dict[object, object]] = [_FAMILIES, _DIVERGENCES._entries]  # type: ignore[list-item]
    before = [store.copy() for store in stores]
    yield
    for store, entries in zip(stores, before, strict=True):
        store.clear()
        store.update(entries)
