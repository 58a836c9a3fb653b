"""The package as a whole: what importing it costs and changes, and that its surface is documented."""

import inspect
import json
import subprocess
import sys

import pytest

import fcal

PROBE = """
import json, logging, random, sys, time, warnings
import numpy
started = time.perf_counter()
import torch
torch_s = time.perf_counter() - started


def state():
    return [
        str(torch.get_default_dtype()), torch.get_num_threads(), torch.initial_seed(), torch.get_rng_state().tolist(),
        random.getstate(), str(numpy.random.get_state()), logging.root.handlers[:], warnings.filters[:],
        torch.distributions.Distribution._validate_args, torch.is_grad_enabled(),
    ]


before, modules = state(), set(sys.modules)
started = time.perf_counter()
import fcal
fcal.FCalLoss, fcal.nll, fcal.crps, fcal.standardize, fcal.divergences, fcal.losses, fcal.distributions
fcal_s = time.perf_counter() - started
added = sorted({name.partition(".")[0] for name in set(sys.modules) - modules})
print(json.dumps(dict(torch_s=torch_s, fcal_s=fcal_s, same=before == state(), added=added)))
"""


@pytest.fixture(scope="module")
def probe() -> dict:
    run = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def test_import_adds_at_most_a_fifth_to_that_of_torch(probe):
    assert probe["fcal_s"] < probe["torch_s"] / 5


def test_import_changes_nothing_in_the_process(probe):
    assert probe["same"]


def test_import_pulls_in_nothing_heavy(probe):
    heavy = {"scipy", "matplotlib", "torchvision", "torchmetrics", "lightning", "rich", "gpytorch", "sklearn"}
    assert not heavy & set(probe["added"])


def public_objects() -> dict[str, object]:
    rooms = [
        fcal.distributions,
        fcal.divergences,
        fcal.losses,
        fcal.metrics,
        fcal.recalibration,
        fcal.residuals,
        fcal.scores,
    ]
    named = {f"{room.__name__}.{name}": getattr(room, name) for room in rooms for name in room.__all__}
    return {name: value for name, value in named.items() if not inspect.ismodule(value)}


@pytest.mark.parametrize("name", public_objects())
def test_every_public_object_has_an_example(name):
    # pytest runs the examples themselves, as doctests of the modules
    documentation = inspect.getdoc(public_objects()[name]) or ""
    assert ">>> " in documentation or "See :class:" in documentation


@pytest.mark.parametrize("name", ["FCalLoss", "nll", "crps", "standardize", "evaluate", "crossfit", "select_family"])
def test_surface_names_resolve(name):
    assert callable(getattr(fcal, name))
    assert name in dir(fcal)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fcal' has no attribute 'FCalLos'"):
        fcal.FCalLos  # noqa: B018
