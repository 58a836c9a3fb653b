"""Streaming metrics of depth maps: any split, order, merge or rank gives what one call gives, in bounded memory."""

import copy
import pickle
import random
import subprocess
import sys

import pytest
import torch
from metrics.same_reports import flat
from numpy.testing import assert_allclose
from torch.distributions import Normal
from two_ranks import run_on_two_ranks

import fcal
from fcal.metrics import ClusterCalibration, DepthErrors, SparsificationCurves
from fcal.metrics.sparsification import sparsification_report, sparsification_state

IMAGES = 23


def maps(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shape = (IMAGES, 9, 16)
    depth = 2 + 60 * torch.rand(shape, generator=generator, dtype=torch.float64)
    sigma = 0.05 * depth * (0.5 + torch.rand(shape, generator=generator, dtype=torch.float64))
    target = (depth + 1.2 * sigma * torch.randn(shape, generator=generator, dtype=torch.float64)).clamp(min=0.1)
    target[torch.rand(shape, generator=generator) < 0.3] = torch.nan
    target[4] = torch.nan
    return depth.to(dtype), sigma.to(dtype), target.to(dtype)


def new(kind):
    return ClusterCalibration(df=20, generator=torch.Generator().manual_seed(7)) if kind == "clusters" else kind()


def add(metric, where, dtype=torch.float32):
    """Add the images in ``where``, a slice or indices."""
    depth, sigma, target = (x[where] for x in maps(dtype))
    if isinstance(metric, ClusterCalibration):
        metric.update(Normal(depth, sigma), target, cluster=torch.arange(IMAGES)[where])
    elif isinstance(metric, DepthErrors):
        metric.update(depth, target)
    else:
        metric.update(depth, sigma, target)


def one_call(kind, dtype=torch.float32):
    depth, sigma, target = maps(dtype)
    if kind == "clusters":
        generator = torch.Generator().manual_seed(7)
        return fcal.metrics.cluster_calibration(
            Normal(depth, sigma), target, cluster=torch.arange(IMAGES), df=20, generator=generator
        )
    if kind is DepthErrors:
        return fcal.metrics.depth_errors(depth, target)
    return sparsification_report(sparsification_state(depth, sigma, target))


def assert_same(one, two):
    first, second = flat(one.as_dict()), flat(two.as_dict())
    assert first.keys() == second.keys()
    assert_allclose([second[name] for name in first], list(first.values()), rtol=1e-9, atol=1e-12)


KINDS = [DepthErrors, SparsificationCurves, "clusters"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_batches_of_images_give_what_one_call_gives(kind, dtype, seed):
    chance, metric = random.Random(seed), new(kind)
    order = list(range(IMAGES))
    chance.shuffle(order)
    while order:
        size = chance.randint(1, 6)
        add(metric, torch.tensor(order[:size]), dtype)
        order = order[size:]
    assert_same(metric.compute(), one_call(kind, dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_merged_metrics_add_up(kind):
    one, two = new(kind), new(kind)
    add(one, slice(0, 9))
    add(two, slice(9, IMAGES))
    before = one.compute()  # must not be remembered
    one.merge_state(two)
    assert before.n < one.compute().n
    assert_same(one.compute(), one_call(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_reset_forgets_and_copies_survive(kind):
    metric = new(kind)
    add(metric, slice(0, 9))
    metric.reset()
    add(metric, slice(None))
    for found in (metric, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert_same(found.compute(), one_call(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_empty_batches_change_nothing(kind):
    metric = new(kind)
    add(metric, slice(0, 0))
    add(metric, slice(None))
    assert_same(metric.compute(), one_call(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_nothing_counted_is_refused(kind):
    with pytest.raises(ValueError, match="expected `target` with at least 1 value that counts, got 0"):
        new(kind).compute()


@pytest.mark.parametrize("kind", KINDS)
def test_forward_reports_on_the_batch_and_counts_it(kind):
    metric = new(kind)
    depth, sigma, target = maps()
    extra = {"cluster": torch.arange(IMAGES)} if kind == "clusters" else {}
    maps_of = {DepthErrors: (depth, target), SparsificationCurves: (depth, sigma, target)}
    arguments = maps_of.get(kind, (Normal(depth, sigma), target))
    assert_same(metric(*arguments, **extra), one_call(kind))
    assert metric.compute().n == one_call(kind).n


def test_failed_batch_is_not_counted():
    metric = DepthErrors()
    add(metric, slice(None))
    with pytest.raises(ValueError, match="expected `depth` > 0"):
        metric.update(-torch.ones(1, 2, 2), torch.ones(1, 2, 2))
    with pytest.raises(ValueError, match="expected `target` with at least 1 value"):
        metric(torch.ones(1, 2, 2), torch.full((1, 2, 2), torch.nan))
    assert_same(metric.compute(), one_call(DepthErrors))


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_counts_and_float64_sums_of_a_fixed_size(kind):
    metric = new(kind).half()
    sizes = {name: getattr(metric, name).shape for name in metric._defaults}
    add(metric, slice(None), torch.float64)
    assert {getattr(metric, name).dtype for name in metric._defaults} == {torch.int64, torch.float64}
    assert {name: getattr(metric, name).shape for name in metric._defaults} == sizes
    assert sum(getattr(metric, name).nbytes for name in metric._defaults) < 8_000_000


def on_ranks(rank):
    for cut in (9, 0):
        for kind in KINDS:
            metric = new(kind)
            add(metric, slice(0, cut) if rank == 0 else slice(cut, IMAGES))
            assert_same(metric.compute(), one_call(kind))


def test_two_ranks_with_uneven_and_empty_shards_give_what_one_process_gives():
    run_on_two_ranks(on_ranks)


MEMORY = """
import resource, torch, fcal
from torch.distributions import Normal
torch.set_num_threads(1)
metrics = fcal.metrics.DepthErrors(), fcal.metrics.ClusterCalibration(), fcal.metrics.SparsificationCurves()
depth = 1 + 50 * torch.rand(1, 375, 1242)
sigma, target = 0.1 * depth, depth * (1 + 0.1 * torch.rand(1, 375, 1242))
target[torch.rand_like(target) < 0.8] = torch.nan
def frame(index):
    metrics[0].update(depth, target)
    metrics[1].update(Normal(depth, sigma), target, cluster=torch.tensor([index]))
    metrics[2].update(depth, sigma, target)
for index in range(5):
    frame(index)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for index in range(5, 35):
    frame(index)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_frames():
    # 30 frames with 93,000 valid pixels each: to keep even 4 bytes per pixel would be 11 MB
    run = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 5_000  # KiB
